"""Loads inputs with one real loader, in a sandbox, and says of each what it did. Runs by itself under any CPython from
3.7 on; the judge starts it:

    python loaders.py LOADER NAMES.json        NAMES: what a load may import and call, as [[module, name], ...]

Each batch on stdin is a count, then each input with its length; each answer is a line of JSON, a word or two an input:
"" (nothing was done), "name MODULE NAME" (a name beyond NAMES was asked for, and refused), "event NAME" (a file,
process, socket or import), "call WHAT", "late", "memory", "crash SIGNAL". A batch is loaded in a forked child with
limits on memory and time, so that what one input does to the interpreter ends with its batch.

Where the libraries behind NAMES are missing (`pickle-stub`), a name stands for a class that accepts everything.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import pickle
import re
import resource
import signal
import struct
import sys
import warnings

MEMORY = 128 << 20
SECONDS = 1
ONE = 0.1
# What reading bytes does anyway.
QUIET = (
    "object.__",
    "pickle.find_class",
    "sys._getframe",
    "builtins.id",
    "gc.",
    "sys.unraisablehook",
    "sys.excepthook",
    "array.__new__",
)
# Beyond these: numpy reads a header with ast.literal_eval, jinja2 compiles a template to Python.
MORE = {"numpy": ("compile",), "jinja": ("compile", "exec", "code.__new__")}
LIBRARIES = {
    "pickle": ("torch.utils.serialization",),
    "torch": ("torch.utils.serialization",),
    "joblib": ("joblib",),
    "numpy": ("numpy",),
    "zip": ("zipfile", "bz2", "lzma"),
    "tar": ("tarfile", "bz2", "lzma", "gzip"),
    "yaml": ("yaml",),
    "jinja": ("jinja2", "canaries", "html", "pprint", "urllib.parse"),
    "hdf5": ("h5py",),
    "policy": ("torch.utils.serialization", "torch._subclasses.schema_check_mode", "numpy", "joblib"),
    "offsets": ("h5py", "zipfile", "tarfile", "bz2", "lzma", "gzip"),
}
CODECS = (
    "cp437",
    "latin-1",
    "latin1",
    "iso8859-1",
    "utf-8",
    "utf8",
    "ascii",
    "raw-unicode-escape",
    "unicode-escape",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "utf-32-le",
    "utf-32-be",
)


STORAGE = re.compile(r"(^|/)data/\d+\Z|\.txt\Z")  # no loader unpickles these


class Stopped(BaseException):
    """What an input asked for was refused. No loader may catch it."""


class Late(Exception):
    pass


class State:
    """What the input at work did first."""

    allowed = frozenset()
    modules = frozenset()  # of what is allowed
    active = False
    warming = False  # names are refused already, events are not
    quiet = ()
    did = ""
    stopped = Stopped

    @classmethod
    def say(cls, what):
        cls.did = cls.did or what

    @classmethod
    def name(cls, module, name):
        if (module, name) in cls.allowed:
            return
        if possible(module):
            cls.say(f"name {module} {name}")
        raise Stopped


def possible(module):
    """Whether Python would look for a file for this module."""
    top = module.partition(".")[0]
    return bool(top) and not set(top) & set("/\0") and len(top) < 200 and top.isprintable()


def hook(event, args):
    if not State.active:
        return
    if event == "pickle.find_class":
        State.name(str(args[0]), str(args[1]))
    elif not (State.warming or event.startswith(State.quiet) or (event == "import" and args[0] in State.modules)):
        State.say(f"event {event} {str(args)[:80]}")
        raise Stopped


# ---- a class that accepts everything


class Stub:
    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Stub()

    def __setitem__(self, key, value):
        pass

    def append(self, item):
        pass

    extend = add = __setstate__ = append


# ---- loaders: each yields what it runs on an input


class _Asking:
    """An unpickler that refuses names, also where there are no audit hooks."""

    def find_class(self, module, name):
        State.name(module, name)
        return super().find_class(module, name)


class _CAsking(_Asking, pickle.Unpickler):
    pass


class _PythonAsking(_Asking, pickle._Unpickler):
    pass


class _Lax:
    """The most permissive: any text, any persistent id, buffers, missing libraries."""

    def find_class(self, module, name):
        State.name(module, name)
        return Stub

    def persistent_load(self, pid):
        return Stub()


class _CLax(_Lax, pickle.Unpickler):
    pass


class _PythonLax(_Lax, pickle._Unpickler):
    pass


def _buffers():
    return {"buffers": [bytearray(8)] * 4} if sys.version_info >= (3, 8) else {}


def of_pickle(data):
    yield lambda: _CAsking(io.BytesIO(data)).load()
    yield lambda: _PythonAsking(io.BytesIO(data)).load()
    yield lambda: _CLax(io.BytesIO(data), encoding="latin1", **_buffers()).load()


def of_pickle_stub(data):
    yield lambda: _CLax(io.BytesIO(data)).load()
    yield lambda: _PythonLax(io.BytesIO(data)).load()
    yield lambda: _CLax(io.BytesIO(data), encoding="latin1", **_buffers()).load()
    yield lambda: _PythonLax(io.BytesIO(data), encoding="bytes", **_buffers()).load()


def of_torch(data):
    import torch

    for weights_only in (False, True):
        yield lambda w=weights_only: torch.load(io.BytesIO(data), weights_only=w)
    yield lambda: torch.load(io.BytesIO(data), weights_only=False, encoding="latin1")


def of_joblib(data):
    import joblib

    yield lambda: joblib.load(io.BytesIO(data))


def of_numpy(data):
    import numpy

    yield lambda: _arrays(numpy.load(io.BytesIO(data), allow_pickle=True))
    yield lambda: _arrays(numpy.load(io.BytesIO(data), allow_pickle=True, encoding="latin1"))


def _arrays(loaded):
    for name in getattr(loaded, "files", ()):
        with contextlib.suppress(Exception):
            loaded[name]


def of_zip(data):
    import zipfile

    yield lambda: _members(zipfile.ZipFile(io.BytesIO(data)), lambda z: z.namelist(), lambda z, n: z.read(n))


def of_tar(data):
    import tarfile

    for mode in ("r:*", "r|*"):
        yield lambda m=mode: _members(
            tarfile.open(fileobj=io.BytesIO(data), mode=m),  # noqa: SIM115
            lambda t: t,
            lambda t, i: t.extractfile(i).read(),
        )


def _members(archive, names, read):
    """Unpickle every member, as loaders of archives do with one of them."""
    for name in names(archive):
        if STORAGE.search(str(getattr(name, "name", name))):
            continue
        with contextlib.suppress(Exception):
            _CAsking(io.BytesIO(read(archive, name))).load()


def of_yaml(data):
    import yaml

    yield lambda: yaml.unsafe_load(data)
    yield lambda: yaml.full_load(data)
    yield lambda: list(yaml.load_all(data, yaml.UnsafeLoader))
    yield lambda: _instantiate(list(yaml.load_all(data, yaml.SafeLoader)))
    yield lambda: list(yaml.load_all(data, _hyper(yaml)))
    yield lambda: _instantiate(json.loads(data))


HARM = re.compile(r"(os|posix)\.system\Z|subprocess\.(Popen|run)\Z|builtins\.eval\Z")


def _instantiate(value):
    """Hydra's way: every mapping with `_target_` is a call."""
    stack, seen = [value], set()
    while stack:
        node = stack.pop()
        if isinstance(node, dict) and isinstance(node.get("_target_"), str) and HARM.search(node["_target_"].strip()):
            State.say("call target " + node["_target_"])
        if isinstance(node, (dict, list)) and id(node) not in seen:
            seen.add(id(node))
            stack += list(node.values()) if isinstance(node, dict) else node


def _hyper(yaml):
    """A loader with hyperpyyaml's tags."""

    class Loader(yaml.SafeLoader):
        pass

    def called(loader, suffix, node):
        if HARM.search(suffix):
            State.say("call tag " + suffix)

    for word in ("new", "apply", "name", "applyref"):
        Loader.add_multi_constructor("!" + word + ":", called)
    return Loader


def of_jinja(data):
    from canaries import render

    yield lambda: render(data.decode("utf-8", "replace"), State)


def of_hdf5(data):
    """Keras' way: every attribute of every object, and where its links and data lead."""
    import h5py

    yield lambda: _visit(h5py.File(io.BytesIO(data), "r"), set())


def _visit(group, seen):
    import h5py

    _attributes(group)
    if isinstance(group, h5py.Dataset):
        if group.external or group.is_virtual:
            State.say("elsewhere data")
        return
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            State.say("elsewhere link")
        with contextlib.suppress(Exception):
            if isinstance(link, h5py.HardLink):
                item = group[name]
                place = h5py.h5o.get_info(item.id).addr
                if place not in seen:
                    seen.add(place)
                    _visit(item, seen)


def _attributes(item):
    for name in item.attrs:
        with contextlib.suppress(Exception):
            if name == "model_config" and _has_lambda(json.loads(item.attrs[name])):
                State.say("lambda")


def _has_lambda(config):
    return config["config"]["layers"][0]["class_name"] == "Lambda"


class _Storing:
    """An unpickler with real storages for torch's ids."""

    def persistent_load(self, pid):
        import torch

        kinds = {"FloatStorage": torch.float32, "LongStorage": torch.int64, "QInt8Storage": torch.qint8}
        dtype = kinds.get(getattr(pid[1], "__name__", ""), torch.uint8)
        storage = torch.UntypedStorage(min(max(int(pid[4]), 0), 1 << 10) * 8)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class _CStoring(_Storing, _CAsking):
    pass


class _PythonStoring(_Storing, _PythonAsking):
    pass


def of_policy(data):
    yield lambda: _touch(_CStoring(io.BytesIO(data)).load())
    yield lambda: _touch(_PythonStoring(io.BytesIO(data)).load())


def _touch(value):
    """Read what was made: memory that isn't its own shows then."""
    import numpy
    import torch

    if isinstance(value, numpy.ndarray):
        value.tobytes()
    elif isinstance(value, torch.Tensor):
        value.detach().clone()
    elif isinstance(value, (list, tuple)):
        for part in value[:8]:
            _touch(part)


def of_offsets(data):
    yield from of_zip(data)
    yield from of_tar(data)
    yield from of_hdf5(data)
    yield lambda: _CAsking(io.BytesIO(data)).load()


LOADERS = {
    "pickle": of_pickle, "pickle-stub": of_pickle_stub, "torch": of_torch, "joblib": of_joblib, "numpy": of_numpy,
    "zip": of_zip, "tar": of_tar, "yaml": of_yaml, "jinja": of_jinja, "hdf5": of_hdf5,
    "policy": of_policy, "offsets": of_offsets,
}  # fmt: skip


# ---- before the sandbox


def prepare(loader, warm):
    """Import everything that an honest load imports, so that what is imported later was asked for."""

    if loader == "yaml":
        _refuse_yaml()
    if loader not in ("pickle-stub", "hdf5"):
        for module in sorted({m for m, _ in State.allowed}):
            try:
                __import__(module)
            except Exception:
                sys.modules[module] = None
    for library in LIBRARIES.get(loader, ()):
        __import__(library)
    signal.signal(signal.SIGPROF, late)
    for codec in CODECS:
        codecs.lookup(codec)
    warnings.simplefilter("ignore")
    State.quiet = QUIET + MORE.get(loader, ())
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)
    State.warming = True
    for data in warm:
        try:
            for load in LOADERS[loader](data):
                one(load)
        except Late:
            pass
    State.warming = False


def _refuse_yaml():
    import yaml

    def refuse(self, name, *args, **kwargs):
        State.say(f"name {name}")
        raise Stopped

    yaml.constructor.FullConstructor.find_python_name = refuse
    yaml.constructor.FullConstructor.find_python_module = refuse


# ---- the child


def child(loader, inputs, out):
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.setrecursionlimit(600)
    for data in inputs:
        State.did = ""
        for load in LOADERS[loader](data):
            with contextlib.suppress(Late):  # it came when the load was over
                one(load)
            if State.did:
                break
        os.write(out, State.did.encode("utf-8", "replace").replace(b"\n", b" ")[:200] + b"\n")


def late(*_):
    raise Late


def one(load):
    signal.setitimer(signal.ITIMER_PROF, 20 * ONE if State.warming else ONE)
    State.active = True
    try:
        load()
    except Late:
        State.say("late")
    except MemoryError:
        State.say("memory")
    except (Exception, Stopped):
        pass
    finally:
        State.active = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def answers(loader, inputs):
    """What each input did. An input that kills the child is named, and the next ones get another."""
    done = []
    while len(done) < len(inputs):
        back, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(back)
                child(loader, inputs[len(done) :], out)
            finally:
                os._exit(0)
        os.close(out)
        with os.fdopen(back, "rb") as pipe:
            got = pipe.read().split(b"\n")[:-1]
        _, status = os.waitpid(pid, 0)
        done += [line.decode("utf-8", "replace") for line in got]
        if len(done) < len(inputs):
            done.append(f"crash {status & 0x7F}")
    return done


def read_batch(stream):
    head = stream.read(4)
    if len(head) < 4:
        return None
    (count,) = struct.unpack("<I", head)
    return [stream.read(struct.unpack("<I", stream.read(4))[0]) for _ in range(count)]


def main():
    loader, names = sys.argv[1:3]
    with open(names) as f:
        State.allowed = frozenset(map(tuple, json.load(f)))
    State.modules = frozenset(m for m, _ in State.allowed)
    stdin, stdout = sys.stdin.buffer, sys.stdout
    warm = read_batch(stdin)
    prepare(loader, warm or [])
    while True:
        batch = read_batch(stdin)
        if batch is None:
            return
        stdout.write(json.dumps(answers(loader, batch)) + "\n")
        stdout.flush()


if __name__ == "__main__":
    main()
