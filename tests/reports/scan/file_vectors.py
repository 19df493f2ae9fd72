"""What else hides code or harm in a model's folder, one file of each technique (pickles and zips by themselves are in
`vectors.py`): the verdict that each must get, and a rule that must tell it.

The payload would run `true`; nothing of ours runs it, and no test may load one of these files. `benchmarks/scanners.py`
shows them to other scanners as well.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.containers.torch import dcp_write
from weighbridge.containers.torch.dcp import DcpItem

D, M, U = "dangerous", "malformed", "unknown-code"


class Vector(NamedTuple):
    """A file `name` with the bytes `data`; its verdict, and a rule that it must break. `beside`: files next to it."""

    name: str
    data: bytes
    verdict: str
    rule: str
    beside: Mapping[str, bytes] = {}


PAYLOAD: Final = b"cos\nsystem\n(S'true'\ntR."
PLAIN: Final = b"\x80\x02}."


def zipped(members: Mapping[str, bytes] | list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = zipfile.ZipInfo(name)  # no clock
            info.compress_type = method
            archive.writestr(info, data)
    return out.getvalue()


def tarred(members: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.SYMTYPE if target else tarfile.CHRTYPE), target
            archive.addfile(info)
    return out.getvalue()


def npy(descr: str, data: bytes, shape: str = "(1,)") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def gguf(texts: Mapping[str, str], tensor: str | None = None) -> bytes:
    def string(text: str) -> bytes:
        raw = text.encode()
        return struct.pack("<Q", len(raw)) + raw

    head = b"GGUF" + struct.pack("<IQQ", 3, tensor is not None, len(texts))
    head += b"".join(string(key) + struct.pack("<I", 8) + string(text) for key, text in texts.items())
    if tensor is None:
        return head
    head += string(tensor) + struct.pack("<IQIQ", 1, 8, 0, 0)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(32)


def safetensors(metadata: Mapping[str, str] | None = None, name: str = "w") -> bytes:
    header = {"__metadata__": dict(metadata)} if metadata else {}
    text = json.dumps({**header, name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


def config(**keys: object) -> bytes:
    return json.dumps({"model_type": "llama", **keys}).encode()


def template(text: str) -> bytes:
    return json.dumps({"tokenizer_class": "X", "chat_template": text}).encode()


def joblib_array(numbers: bytes) -> bytes:
    """What joblib (before 1.2) writes for an array of bytes."""
    dtype = b"cnumpy\ndtype\n(S'u1'\nI00\nI01\ntR"
    state = b"}(S'shape'\n(I%d\ntS'order'\nS'C'\nS'dtype'\n" % len(numbers) + dtype + b"u"
    return b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81" + state + b"b" + numbers + b"."


def hdf5(*messages: tuple[int, bytes], base: int = 0) -> bytes:
    """An HDF5 file whose root group has these messages (type, body)."""
    parts = b"".join(struct.pack("<HHB3x", kind, -(-len(body) // 8) * 8, 0) + body.ljust(-(-len(body) // 8) * 8, b"\0")
                     for kind, body in messages)  # fmt: skip
    head = b"\x89HDF\r\n\x1a\n" + bytes((0, 0, 0, 0, 0, 8, 8, 0)) + struct.pack("<HHI", 4, 16, 0)
    none = (1 << 64) - 1
    head += struct.pack("<QQQQ", base, none, 112 + len(parts), none) + struct.pack("<QQII16x", 0, 96, 0, 0)
    return head + struct.pack("<BBHIIxxxx", 1, 0, len(messages), 1, len(parts)) + parts


def attribute(name: str, value: bytes) -> tuple[int, bytes]:
    """An attribute of text."""
    kind = struct.pack("<BBHI", 0x13, 0, 0, len(value))
    space = struct.pack("<BBB5x", 1, 0, 0)
    raw = name.encode() + b"\0"
    padded = raw.ljust(-(-len(raw) // 8) * 8, b"\0")
    return 0x0C, struct.pack("<BBHHH", 1, 0, len(raw), len(kind), len(space)) + padded + kind + space + value


def far_link(file: str, kind: int = 64) -> tuple[int, bytes]:
    """A link called `x` to another file."""
    value = b"\0" + file.encode() + b"\0/y\0"
    return 0x06, bytes((1, 8, kind, 1)) + b"x" + struct.pack("<H", len(value)) + value


def _bytes(number: int, data: bytes) -> bytes:
    """A field of a protobuf message."""
    size = bytes((len(data) & 0x7F | 0x80, len(data) >> 7)) if len(data) > 0x7F else bytes((len(data),))
    return bytes((number << 3 | 2,)) + size + data


def onnx(key: bytes, value: bytes) -> bytes:
    """An ONNX model with a tensor whose external data has this entry, the value first."""
    tensor = _bytes(13, _bytes(2, value) + _bytes(1, key))
    graph = _bytes(1, _bytes(1, b"x") + _bytes(2, b"y") + _bytes(4, b"Op")) + _bytes(5, tensor)
    return b"\x08\x08" + _bytes(2, b"pytorch") + _bytes(7, graph)


_LAMBDA: Final = b'{"config": {"layers": [{"class_name": "Lambda"}]}}'
#: Keras' HDF5, and what leads out of one.
HDF5: Final = (
    Vector("model.h5", hdf5(attribute("model_config", _LAMBDA)), D, "config/lambda"),
    Vector("model.h5", hdf5(attribute("model_config", b'{"a": "\xff",' + _LAMBDA[1:])), D, "config/lambda"),
    Vector("model.keras", zipped({"model.weights.h5": hdf5(attribute("x", _LAMBDA))}), D, "config/lambda"),
    Vector("table.h5", hdf5(attribute("TITLE", PAYLOAD)), D, "pickle/dangerous-call"),
    Vector("model.h5", hdf5(far_link("/etc/passwd")), D, "hdf5/outside"),
    Vector("model.h5", hdf5(far_link("other.h5")), U, "hdf5/another-file"),
    Vector("model.h5", hdf5(far_link("x", 70)), "unproven", "hdf5/not-followed"),
    Vector("model.h5", hdf5(attribute("PSEUDOATOM", b"object")), "unproven", "hdf5/pickles"),
    Vector("model.h5", hdf5((0x0B, struct.pack("<BB6xHHHH", 1, 1, 40000, 0, 0, 0))), "unproven", "hdf5/filter"),
    Vector("model.h5", hdf5(base=8), M, "hdf5/several-starts"),
    Vector("model.h5", hdf5(attribute("a", b"1"), attribute("a", b"2")), M, "hdf5/repeated-name"),
    Vector("empty.gguf", gguf({}).ljust(1024, b"\0") + hdf5(), M, "file/also-hdf5"),
    Vector("model.gguf", gguf({}).ljust(1024, b"\0") + hdf5(attribute("model_config", _LAMBDA)), D, "file/also-hdf5"),
)  # fmt: skip

_TREE: Final = {"x/data.pkl": PAYLOAD, "x/version": b"3\n"}
_SCRIPT: Final = {"m/data.pkl": PLAIN, "m/constants.pkl": b"\x80\x02).", "m/version": b"3\n"}
_READS: Final = b"class M(Module):\n  def forward(self, x):\n    return torch.from_file('/etc/passwd')\n"


#: Archives and streams: where a pickle hides in another file.
NESTED: Final = (
    Vector("odd-member.pt", zipped({"x/data.pkl": PLAIN, "x/notes.txt": PAYLOAD}), D, "pickle/dangerous-call"),
    Vector("model.tar", tarred({"a/model.pkl": PAYLOAD}), D, "pickle/dangerous-call"),
    Vector("model.tar.gz", gzip.compress(tarred({"a/model.pkl": PAYLOAD}), mtime=0), D, "pickle/dangerous-call"),
    Vector("model.pkl.gz", gzip.compress(PAYLOAD, mtime=0), D, "pickle/dangerous-call"),
    Vector("two-streams.gz", gzip.compress(b"", mtime=0) + gzip.compress(PAYLOAD, mtime=0), D, "pickle/dangerous-call"),
    Vector("cut.gz", gzip.compress(PAYLOAD + bytes(9), mtime=0)[:-6], D, "stream/damaged"),
    Vector("cut-behind.gz", gzip.compress(PLAIN, mtime=0)[:-6], M, "stream/damaged"),
    Vector("junk.gz", gzip.compress(PLAIN, mtime=0) + b"junk", M, "stream/trailing-bytes"),
    Vector("junk.tar", tarred({"a": b"1"}) + b"junk", M, "tar/trailing-bytes"),
    Vector("junk.png", b"\x89PNG\r\n\x1a\n" + bytes(40) + zipped({"a": b"1"}), M, "file/appended-zip"),
    Vector("behind.gz", gzip.compress(PLAIN, mtime=0) + PAYLOAD, D, "stream/trailing-bytes"),
    Vector("model.joblib", zlib.compress(PAYLOAD), D, "pickle/dangerous-call"),
    Vector("fast.joblib", zlib.compress(PAYLOAD, 1), D, "pickle/dangerous-call"),
    Vector("model.pkl.bz2", bz2.compress(PAYLOAD), D, "pickle/dangerous-call"),
    Vector("model.pkl.xz", lzma.compress(PAYLOAD), D, "pickle/dangerous-call"),
    Vector("model.pkl.lzma", lzma.compress(PAYLOAD, lzma.FORMAT_ALONE), D, "pickle/dangerous-call"),
    Vector("model.nemo", tarred({"model_config.yaml": b"a: 1\n", "model_weights.ckpt": zipped(_TREE)}), D,
           "pickle/dangerous-call"),
    Vector("packed.nemo", gzip.compress(tarred({"model_config.yaml": b"_target_: os.system\n"}), mtime=0), D,
           "config/dangerous-target"),
    Vector("objects.npy", npy("'|O'", PAYLOAD), D, "pickle/dangerous-call"),
    Vector("records.npy", npy("[('a', '<f4'), ('b', [('c', '|O')])]", PAYLOAD), D, "pickle/dangerous-call"),
    Vector("spelled.npy", npy("'object'", PAYLOAD), D, "pickle/dangerous-call"),
    Vector("listed.npy", npy("'f4,O'", PAYLOAD), D, "pickle/dangerous-call"),
    Vector("objects.npz", zipped({"a.npy": npy("'|O'", PAYLOAD)}), D, "pickle/dangerous-call"),
    Vector("array.joblib", joblib_array(PAYLOAD[:-1] + b"0"), D, "pickle/array-opcodes"),
    Vector("array.joblib", joblib_array(b"\x8b\1\0\1\0" + bytes((64 << 10) + 2)), "unproven", "pickle/array-limit"),
    Vector("device.tar", tarred({"a": b"1"}, {"b": ""}), M, "tar/special-member"),
    Vector("outside.tar", tarred({"../../x": b"1"}), D, "tar/outside"),
    Vector("link.tar", tarred({"a": b"1"}, {"b/c": "../../x"}), D, "tar/outside"),
    Vector("hidden.tar", tarred({"a": b"1"})[:1024] + bytes(1024) + tarred({"b.pkl": PAYLOAD}), D,
           "tar/trailing-bytes"),
    Vector("again.tar", tarred({"a.txt": b"1"})[:1024] + tarred({"./a.txt": b"2"}), M, "tar/repeated-name"),
    Vector("appended.safetensors", safetensors() + zipped(_TREE), D, "file/appended-zip"),
    Vector("appended.png", b"\x89PNG\r\n\x1a\n" + bytes(40) + zipped(_TREE), D, "file/appended-zip"),
    Vector("appended.gguf", gguf({}) + zipped(_TREE), D, "file/appended-zip"),
    Vector("appended.pkl", PLAIN + zipped({"a": b"1"}), M, "file/appended-zip"),
)  # fmt: skip


def inside_item() -> Vector:
    """A distributed checkpoint whose list makes torch load some bytes in the middle of a file of torch.save."""
    data = zipped({"archive/data.pkl": PLAIN, "archive/data/0": b"some words"})
    spec = Spec((10,), BY_NAME["U8"])
    chunks = dcp_write.whole(spec, DcpItem("__0_0.distcp", data.index(b"some words"), 10))
    return Vector("__0_0.distcp", data, M, "dcp/item", {".metadata": dcp_write.metadata_file({"w": (spec, chunks)})})


#: Programs, and what a model's folder may tell a loader to run.
FOLDER: Final = (
    Vector("script.pt", zipped({**_SCRIPT, "m/code/__torch__.py": b"class M(Module):\n  pass\n"}),
           U, "torchscript/source"),
    Vector("mobile.pt", zipped({**_SCRIPT, "m/bytecode.pkl": PLAIN}), U, "torchscript/code"),
    Vector("source.zip", zipped({"m/code/a.py": b"x\n"}), U, "torchscript/source"),
    Vector("sources.pt", zipped({"p/.data/version": b"6\n", "p/a.py": b"1\n", "p/model.pkl": PLAIN}), U,
           "package/code"),
    Vector("compiled.pt2", zipped({"e/archive_format": b"pt2", "e/data/aotinductor/m/a.cpp": b"int x;\n"}), U,
           "export/library"),
    Vector("bare-script.pt", zipped({**_SCRIPT, "m/code/__torch__.py": b""}), U, "torchscript/code"),
    Vector("reading-script.pt", zipped({**_SCRIPT, "m/code/__torch__.py": _READS}), D, "torchscript/files"),
    Vector("debug.pt", zipped({**_SCRIPT, "m/code/__torch__.py.debug_pkl": PAYLOAD}), D, "pickle/dangerous-call"),
    Vector("model.mar", zipped({"MAR-INF/MANIFEST.json": b"{}", "handler.py": b"import os\n"}),
           U, "torchserve/handler"),
    Vector("package.pt", zipped({"p/.data/extern_modules": b"os\n", "p/a.py": b"1\n", "p/model.pkl": PLAIN}),
           U, "package/code"),
    Vector("externs.pt", zipped({"p/.data/extern_modules": b"os\n", "p/model.pkl": PLAIN}), U, "package/extern"),
    Vector("exported.pt2", zipped({"e/archive_format": b"pt2", "e/data/aotinductor/m/a.so": b"\x7fELF" + bytes(60)}), U,
           "export/library"),
    inside_item(),
    Vector("lib.so", b"\x7fELF\2\1\1" + bytes(57), U, "file/program"),
    Vector("config.json", config(auto_map={"AutoModel": "modeling_x.Model"}), U, "config/own-code",
           {"modeling_x.py": b"class Model: pass\n"}),
    Vector("config.json", config(auto_map={"AutoModel": "someone/else--modeling_x.Model"}), U, "config/remote-code"),
    Vector("config.json", b'{"model_type": "x", "\\u0061uto_map": {"A": "b.C"}}', U, "config/own-code"),
    Vector("config.json", b'{"model_type": "x", "x": NaN, "auto_map": {"A": "b.C"}}', U, "config/own-code"),
    Vector("config.json", b'{"auto_map": {}, "model_type": "x", "auto_map": null}', M, "config/repeated-key"),
    Vector("config.json", b'{"model_type": "x", ', M, "config/unreadable"),
    Vector("config.json", config(trust_remote_code=True), U, "config/trust"),
    Vector("config.json", config(custom_pipelines={"a": {"impl": "pipe.Pipe"}}), U, "config/own-code"),
    Vector("config.json", config(part={"_target_": "os.system"}), D, "config/dangerous-target"),
    *(Vector("model.json", json.dumps({"nodes": [{"target": f"torch.ops.{name}"}]}).encode(), D,
             "config/dangerous-target") for name in ("aten.from_file.default", "aten.__class__.mro", "aten.x.__call__",
                                                     "loading.load_library.default", "aten.add.Tensor.x")),
    Vector("config.json", config(part={"_target_": "some.thing"}), U, "config/target"),
    Vector("config.json", json.dumps({"config": {"layers": [{"class_name": "Lambda"}]}}).encode(),
           D, "config/lambda"),
    Vector("config.json", json.dumps({"module": "my.code", "class_name": "Layer"}).encode(), U, "config/foreign-class"),
    Vector("config.json", json.dumps({"module": "os", "class_name": "system"}).encode(), D, "config/dangerous-target"),
    Vector("model.keras", zipped({"config.json": json.dumps({"layers": [{"class_name": "Lambda"}]}).encode(),
           "model.weights.h5": hdf5()}), D, "config/lambda"),
    Vector("model.safetensors.index.json", json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode(),
           D, "index/outside"),
    Vector("pytorch_model.bin.index.json", json.dumps({"weight_map": {"a": "https://x/y.bin"}}).encode(),
           D, "index/outside"),
    Vector("model.yaml", b"a: !!python/object/apply:os.system ['true']\n", D, "yaml/python-tag"),
    Vector("spelled.yaml", b"a: !<tag:yaml.org,2002:python/object/apply:os.system> ['true']\n", D, "yaml/python-tag"),
    Vector("alias.yaml", b"%TAG !x! tag:yaml.org,2002:py\n---\na: !x!thon/name:os.system\n", D, "yaml/python-tag"),
    Vector("handle.yaml", b"%TAG !x! tag:example.org,2024:\n---\na: !x!thing 1\n", M, "yaml/tag-alias"),
    Vector("tab.yaml", b"a:\n\tb: !unheard 1\n", "unproven", "yaml/unproven"),
    Vector("deep.yaml", b"! " + b"[" * 1000 + b"]" * 1000, "unproven", "yaml/unproven"),
    Vector("notes.txt", b"a: 'x\n  # _target_: os.system\n\tb: [", "unproven", "yaml/unproven"),
    Vector("targets.yaml", b"model:\n  _target_: subprocess.run\n", D, "config/dangerous-target"),
    Vector("escaped.yaml", b'model: {"\\x5ftarget_": builtins.eval}\n', D, "config/dangerous-target"),
    Vector("other.yaml", b"model:\n  _target_: my.Thing\n", U, "config/target"),
    Vector("names.gguf", gguf({"general.name": "a\x1b[2Jb"}), M, "header/odd-text"),
    Vector("cut.gguf", gguf({}, "w")[:-1], M, "header/damaged"),
    Vector("keys.gguf", gguf({"general\u202ename": "x"}), M, "header/odd-name"),
    Vector("metadata.safetensors", safetensors({"note": "\x1b]0;x\x07"}), M, "header/odd-text"),
    Vector("tensor.safetensors", safetensors(name="a\u202eb"), M, "header/odd-name"),
    Vector("mode\u202elkp.safetensors", safetensors(), M, "file/odd-name"),
    Vector("a\x1b[31m.txt", b"text\n", M, "file/odd-name"),
    Vector("member.zip", zipped({"a\u202eb.txt": b"text\n"}), M, "file/odd-name"),
)  # fmt: skip

_INIT: Final = "{{ ''.__class__.__mro__[1].__subclasses__() }}"


def _spelled(*ways: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Statements that put the name of an attribute into `a`, and its use."""
    rules = {D: "template/underscored", U: "template/built-name"}
    return tuple((statements + "{{ namespace[a] }}", verdict, rules[verdict]) for statements, verdict in ways)


# The name of an attribute through every statement that can carry a text.
_WAYS_TO_NAMES: Final = _spelled(
    ("{% set a | trim %}__init__{% endset %}", D),
    ("{% set a | trim | lower %} __INIT__ {% endset %}", D),
    ("{% set a %}{% raw %}__init__{% endraw %}{% endset %}", D),
    ("{% set a %}__in{# c #}it__{% endset %}", D),
    ("{% set a %}{% if messages %}__init__{% endif %}{% endset %}", U),
    ("{% set a %}{% filter lower %}__INIT__{% endfilter %}{% endset %}", U),
    ("{% set n = namespace(k='__init__') %}{% set a = n['k'] %}", D),
    ("{% set n = namespace({'k': '__init__'}) %}{% set a = n.k %}", D),
    ("{% set n = namespace(k='init') %}{% set m = n %}{% set m.k = '__' ~ n['k'] ~ '__' %}{% set a = n.k %}", D),
    ("{% for x in ['_'] recursive %}{% set a = x %}{{ loop([a ~ '_']) }}{{ namespace[a] }}{% endfor %}", D),
    ("{% macro dict(x) %}{{ namespace[x] }}{% endmacro %}{{ dict('__init__') }}", D),
    ("{% macro f(x) %}{{ caller(x ~ '__') }}{% endmacro %}{% call(y) f('__init') %}{{ namespace[y] }}{% endcall %}", D),
    ("{% macro f(x) %}{{ namespace[x] }}{% endmacro %}{{ f(*['__init__']) }}", D),
    ("{% macro f(x) %}{{ namespace[x] }}{% endmacro %}{{ f(**{'x': '__init__'}) }}", D),
    ("{% macro f(x='__init__') %}{{ namespace[x] }}{% endmacro %}{{ f() }}", D),
    ("{% macro f() %}{{ namespace[kwargs.x] }}{% endmacro %}{{ f(x='__init__') }}", D),
    ("{% macro __init__() %}{% endmacro %}{% set a = __init__.name %}", U),
    ("{% set b = (range|string)[1] ~ (range|string)[2] %}{% set a = b %}", U),
    ("{% set b = (messages[0]|list)[0] ~ (messages[0]|list)[1] %}{% set a = b %}", U),
    ("{% set l = ['ss__', '__cla'] %}{% set _ = l.reverse() %}{% set a = l|join %}", U),
    ("{% set _ = messages[0].update({'k': '__init__'}) %}{% set a = messages[0].k %}", D),
    ("{% if false %}{% set a = 'x' %}{% endif %}", U),
    ("{% for i in [1] %}{% set a = 'x' %}{% endfor %}", U),
    ("{% with a = 'x' %}{% endwith %}", U),
    ("{% set (x, (y, a)) = (1, (2, '__init__')) %}", D),
    ("{% set a = ({'__init__': 1}.keys() - [])|first %}", D),
    ("{% set a = ['__init__']|groupby(0)|map(attribute=1)|first|first %}", D),
    ("{% set a = '__CLASS__'|title %}", U),
    ("{% set a = 'm.r.o'[::2] %}", D),
    ("{% set a = 1|replace('1', 'mro') %}", D),
    ("{% set a = 'xmro'|replace(new='', old='x') %}", U),
    ("{% set a = loop.cycle('__init__') %}", U),
    ("{% for i in [1] %}{% set a = loop.cycle('__init__') %}{{ namespace[a] }}{% endfor %}", D),
    ("{% set d = {'strip': 'x'.join} %}{% set a = d.strip('mro') %}", U),
    ("{% block b %}{% set a = '__init__' %}{{ namespace[a] }}{% endblock %}", D),
    ("{% autoescape false %}{% set a = '__init__' %}{{ namespace[a] }}{% endautoescape %}", D),
    ("{% generation %}{% set a = '__init__' %}{{ namespace[a] }}{% endgeneration %}", D),
    ("{% set a = [x, '__init__']|max %}", D),
    ("{% set a = [[['__init__']]]|first|first|first %}", D),
    ("{% set a = ('a', '__init__')[x] %}", D),
    ("{% set a = dict([['__init__', 1]])|first %}", D),
    ("{% set a = 'x'.join %}{% set a = messages[0].items()|list|string %}", U),
)

#: Chat templates, as the text of a tokenizer_config.json.
TEMPLATES: Final = (
    (_INIT, D, "template/underscored"),
    ("{{ messages['__class__'] }}", D, "template/underscored"),
    ("{{ x['\\x5f\\x5fclass\\x5f\\x5f'] }}", D, "template/underscored"),
    ("{{ x['__cla' 'ss__'] }}", D, "template/underscored"),
    ("{{ x['__cla' ~ 'ss__'] }}", D, "template/underscored"),
    ("{{ x['__cla' + 'ss__'] }}", D, "template/underscored"),
    ("{{ x[['__cla', 'ss__']|join] }}", D, "template/underscored"),
    ("{{ x['__ssalc__'[::-1]] }}", D, "template/underscored"),
    ("{{ x['__ssalc__'|reverse] }}", D, "template/underscored"),
    ("{{ x['__CLASS__'|lower] }}", D, "template/underscored"),
    ("{{ x[['s__', 'as', '__cl']|reverse|join] }}", U, "template/built-name"),
    ("{% set d = {} %}{% set _ = d.update({'k': 'orm'}) %}{{ x[d.k|reverse] }}", D, "template/underscored"),
    ("{% set v = 'mr' %}{% set l = ['a'] %}{% set l = [v ~ '', y or 'o'] %}{{ x[l|join] }}", U, "template/built-name"),
    ("{{ x[([['mro']]|first|reverse|list)[0]] }}", D, "template/underscored"),
    ("{{ [x]|map(*['attr', 'y'])|list }}", D, "template/attr"),
    ("{{ x['^^class^^'|replace('^', '_')] }}", D, "template/underscored"),
    ("{{ x['_' * 2 ~ 'class' ~ '_' * 2] }}", D, "template/underscored"),
    ("{{ x.gi_frame.f_globals }}", D, "template/underscored"),
    ("{{ messages|map(attribute='__class__')|list }}", D, "template/underscored"),
    ("{{ messages|map(attribute='content.__class__')|list }}", D, "template/underscored"),
    ("{{ messages|map('attr', name)|list }}", D, "template/attr"),
    ("{{ x|attr('y') }}", D, "template/attr"),
    ("{%- filter attr('y') -%}{%- endfilter -%}", D, "template/attr"),
    ("{% include '/etc/passwd' %}", D, "template/loading"),
    ("{% import 'a' as b %}", D, "template/loading"),
    ("{% from 'a' import b %}", D, "template/loading"),
    ("{% extends 'a' %}", D, "template/loading"),
    ("{% set u = '_' ~ '_' %}{{ x[u ~ 'class' ~ u] }}", D, "template/underscored"),
    ("{% set u='a_b'[1] %}{% set k=u~u~'class'~u~u %}{{ ''[k] }}", D, "template/underscored"),
    ("{% set k %}__class__{% endset %}{{ ''[k] }}", D, "template/underscored"),
    ("{% set ns = namespace(k='__class__') %}{{ x[ns.k] }}", D, "template/underscored"),
    ("{% for k in ['a', '__class__'] %}{{ x[k] }}{% endfor %}", D, "template/underscored"),
    ("{% set k = '__class__' if x else 'y' %}{% set j = k %}{{ z[j] }}", D, "template/underscored"),
    ("{{ x[{'a': '__class__'}.a] }}", D, "template/underscored"),
    ("{{ x[['__class__', 'a']|first] }}", D, "template/underscored"),
    ("{{ [x]|map(attribute='x' ~ y)|list }}", U, "template/built-name"),
    ("{{ ''[bos_token] }}", U, "template/built-name"),
    ("{% macro f() %}__class__{% endmacro %}{{ ''[f()] }}", U, "template/built-name"),
    ("{% set k %}{{ y }}{% endset %}{{ x[k] }}", U, "template/built-name"),
    (
        "{% set ns = namespace(k='') %}{% for c in messages %}{% set ns.k = ns.k ~ '_' %}{% endfor %}{{ x[ns.k] }}",
        D,
        "template/underscored",
    ),
    ("{{ messages|map(attribute=bos_token)|list }}", U, "template/built-name"),
    ("{{ ''[messages[0].content] }}", "unproven", "template/unproven-name"),
    ("{% set d = {'a': 1} %}{{ d[messages[0].content][messages[1].content] }}", "unproven", "template/unproven-name"),
    ("{% set k = '%c%cclass%c%c'|format(95, 95, 95, 95) %}{{ x[k] }}", U, "template/built-name"),
    ("{{ x['%s' % y] }}", U, "template/built-name"),
    ("{{ '{0.__class__}'.format(x) }}", D, "template/underscored"),
    ("{{ '{0._x}'.format(x) }}", D, "template/underscored"),
    ("{{ 'a __class__' }}", U, "template/underscored-text"),
    ("{{ [x]|join(',', attribute='_a') }}", D, "template/underscored"),
    ("{{ [x]|unique(attribute='mro')|list }}", D, "template/underscored"),
    ("{{ x[dict(mro=1)|first] }}", D, "template/underscored"),
    (
        "{% set l = [] %}{% for c in 'mro' %}{% set _ = l.append(c) %}{% endfor %}{{ x[l|join] }}",
        U,
        "template/built-name",
    ),
    ("{% set d = {} %}{% set _ = d.update({'k': 'mro'}) %}{{ x[d.k] }}", D, "template/underscored"),
    ("{% macro f(a) %}{{ x[a] }}{% endmacro %}{{ f('m' ~ 'ro') }}", D, "template/underscored"),
    ("{% macro f() %}{{ x[varargs[0]] }}{% endmacro %}{{ f('mro') }}", D, "template/underscored"),
    ("{{ [x]|map(**{'attribute': 'mro'})|list }}", D, "template/underscored"),
    ("{{ x[(['mro']|tojson)[2:-2]] }}", U, "template/built-name"),
    ("{{ x[['Qmro']|map('replace', 'Q', '')|first] }}", D, "template/underscored"),
    ("{{ '{0._x}'['format'](x) }}", D, "template/underscored"),
    ("{% set f = '{0._x}'.format %}{{ f(x) }}", D, "template/underscored"),
    ("{{ x[[['mro']]|sum(start=[])|first] }}", D, "template/underscored"),
    ("{{ x['a'|int('mro')] }}", D, "template/underscored"),
    ("{{ x[({'k': 'mro'}|dictsort)[0][1]] }}", D, "template/underscored"),
    ("{% for c in ['mro', 'b'] %}{{ x[loop.previtem] }}{% endfor %}", D, "template/underscored"),
    ("{{ lipsum(5) }}", U, "template/foreign-global"),
    ("{{ url_for('x') }}", U, "template/foreign-global"),
    ("{% for i in range(1000000000) %}x{% endfor %}", M, "template/bomb"),
    ("{% for i in range(1000) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}", M, "template/bomb"),
    ("{{ 'x' * 100000000 }}", M, "template/bomb"),
    ("{{ 9 ** x }}", M, "template/bomb"),
    ("{% set s = 'x' %}{% for i in range(60) %}{% set s = s ~ s %}{% endfor %}", M, "template/bomb"),
    ("{% set n = namespace(s='x') %}{% for i in m %}{% set n.s = 'a' ~ n.s ~ n.s %}{% endfor %}", M, "template/bomb"),
    ("{% set s = 'x' %}" + "{% set s = s + s %}" * 20, M, "template/bomb"),
    ("{{ 'x' * 999999 * 999999 }}", M, "template/bomb"),
    ("{{ '%99999999d'|format(1) }}", M, "template/bomb"),
    ("{{ x|center(9999999999) }}", M, "template/bomb"),
    *_WAYS_TO_NAMES,
    *(
        (text, "unproven", "template/unproven")
        for text in (
            "{{ x() }}",
            "{{ messages[0].content.unheard() }}",
            "{{ x|unheard }}",
            "{{ x is unheard }}",
            "{{ [x]|map(messages[0].role)|list }}",
            "{% set f = messages.append %}{{ f(1) }}",
            "{% set ns = namespace(f=raise_exception) %}{{ ns.f(1) }}",
        )
    ),
    ("{{ [x]|sort(attribute='a,__class__')|list }}", D, "template/underscored"),
    ("{{ messages[0][messages[0].role][messages[1].role] }}", "unproven", "template/unproven-name"),
    ("{{ namespace[messages[0].content] }}", "unproven", "template/unproven-name"),
    ("{{ messages[0].content.format(messages) }}", "unproven", "template/unproven-name"),
    ("{{ messages[ }}", M, "template/unreadable"),
    ("{% nonsense %}", M, "template/unreadable"),
)

#: Files beside a template of its own.
CHAT: Final = tuple(
    Vector(name, make(_INIT), D, "template/underscored")
    for name, make in (
        ("tokenizer_config.json", template),
        ("chat_template.jinja", str.encode),
        ("chat_template.txt", str.encode),
        ("chat_template.json", lambda t: json.dumps({"chat_template": t}).encode()),
        ("tokenizer_config.json", lambda t: json.dumps({"chat_template": [{"name": "a", "template": t}]}).encode()),
        ("model.gguf", lambda t: gguf({"tokenizer.chat_template": t})),
        ("named.gguf", lambda t: gguf({"tokenizer.chat_template.tool_use": t})),
        ("model.safetensors", lambda t: safetensors({"chat_template": t})),
    )
)

_MAKE: Callable[[str], bytes] = template
_LAX: Final = b"0I0x10\n0" + PAYLOAD  # a number that only unpicklers read


def _joblib(make: bytes, shape: bytes, dtype: bytes, data: bytes) -> bytes:
    """A pickle of joblib's wrapper of an array, and what follows it."""
    text = b"".join(b"X" + struct.pack("<I", len(k)) + k + value for k, value in (
        (b"subclass", b"cnumpy\nndarray\n"), (b"shape", shape + b"\x85"), (b"order", b"X\1\0\0\0C"), (b"dtype", dtype),
        (b"allow_mmap", b"\x89")))  # fmt: skip
    return b"\x80\x02" + make + b"}(" + text + b"ub" + data


_WRAPPER: Final = b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n"
_REBUILT: Final = b"ccopyreg\n_reconstructor\n" + _WRAPPER + b"c__builtin__\nobject\nN\x87R"


def _dtype(code: bytes, size: bytes) -> bytes:
    return (
        b"cnumpy\ndtype\nX" + struct.pack("<I", len(code)) + code + b"\x89\x88\x87R(K\3X\1\0\0\0|NNN" + size + b"K\0tb"
    )


_UNKNOWN_SIZE: Final = b"J\xff\xff\xff\xffJ\xff\xff\xff\xff"
_LISTED: Final = b"(" + b"".join(b"K" + bytes([c]) for c in b"\x80\x02" + PAYLOAD) + b"e"


def _hidden_directory() -> bytes:
    """A GGUF with a zip behind it, whose end record counts no members."""
    data = gguf({}) + zipped({"config.json": b"{}", "evil.pkl": b"\x80\x02" + PAYLOAD})
    at = data.rindex(b"PK\5\6")
    return data[: at + 8] + bytes(4) + data[at + 12 :]


def _plus_checksum(members: Mapping[str, bytes]) -> bytes:
    """A tar whose checksums only tarfile reads."""
    data = bytearray(tarred(members))
    for at in range(0, len(data), 512):
        if data[at + 257 : at + 262] == b"ustar":
            digits = int(bytes(data[at + 148 : at + 154]), 8)
            data[at + 148 : at + 156] = f"+{digits:o}".encode().ljust(8, b"\0")
    return bytes(data)


def _nameless(members: Mapping[str, bytes]) -> bytes:
    """A tar whose first header has neither name nor owner."""
    data = bytearray(tarred(members))
    data[:116] = bytes(116)
    data[148:156] = b" " * 8
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()
    return bytes(data)


def _sparse(members: Mapping[str, bytes]) -> bytes:
    """A tar of files that GNU tar calls sparse."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), {"GNU.sparse.realsize": str(len(data))}
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


#: Files that some loader runs although their first bytes, their name or their numbers say otherwise.
DISGUISED: Final = (
    Vector("model.pkl", b"C\x06\0\0TFL3" + PAYLOAD[:0] + b"0" + PAYLOAD, D, "pickle/dangerous-call"),
    Vector("model.pte", b"C\x06\0\0ET12" + b"0" + PAYLOAD, D, "pickle/dangerous-call"),
    Vector("model.pkl", b"MZ\x900" + PAYLOAD + zipped({".args": b"x"}), D, "pickle/dangerous-call"),
    Vector("pytorch_model.bin", b"]0I0x10\n0" + PAYLOAD, D, "pickle/number"),
    Vector(
        "pytorch_model.bin",
        b"V\0\0\0\0\0\0\0" + b'{"w": {"dtype": "U8", "shape": [31], "data_offsets": [0, 31]}}'.ljust(85) + b"\n" + _LAX,
        D,
        "pickle/dangerous-call",
    ),
    Vector("number.bin", b"]I0x10\na.", M, "pickle/number"),
    Vector("model.ckpt", b"Np01\ncos\nsystem\n.", D, "pickle/dangerous-import"),
    Vector("weights", b"N0cevil\nname\n.", U, "pickle/unknown-import"),
    Vector("pytorch_model.bin", b"}" * 800_000 + b"." + PAYLOAD, "unproven", "pickle/limit"),
    Vector(
        "model.pkl",
        b"\x80\x02ctorch.storage\n_load_from_bytes\nc__builtin__\nbytes\n]" + _LISTED + b"\x85R\x85R.",
        D,
        "pickle/dangerous-call",
    ),
    Vector(
        "model.pkl",
        b"\x80\x02ctorch.storage\n_load_from_bytes\nc__builtin__\nbytes\nc__builtin__\nlist\n]\x85R\x85R\x85R.",
        D,
        "pickle/unresolved-bytes",
    ),
    Vector(
        "model.pkl",
        b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(U\2osU\0tRU\6system\x93U\4true\x85R.",
        D,
        "pickle/computed-name",
    ),
    Vector(
        "imported.pkl",
        b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(U\2osU\0tRU\6system\x93.",
        D,
        "pickle/computed-name",
    ),
    Vector(
        "state.pkl",
        b"\x80\x02cnumpy\ndtype\n(X\2\0\0\0f8\x89\x88tR(K\3X\1\0\0\0<NNNK@K\x08K\0tb.",
        M,
        "pickle/odd-state",
    ),
    Vector("encoded.pkl", b"\x80\x02c_codecs\nencode\n(U\1xU\4eviltR.", M, "pickle/odd-arguments"),
    Vector(
        "list.pkl",
        b"\x80\x02c__builtin__\nlist\nc__builtin__\nrange\nK\0J\xff\xff\xff\x7fK\1\x87R\x85R.",
        M,
        "pickle/bomb",
    ),
    Vector(
        "m.joblib",
        _joblib(_WRAPPER + b")\x81", b"K\1", _dtype(b"S4", b"K<K\1"), b"0" * 4 + b"CN" + b"x" * 54 + b"0" + PAYLOAD),
        D,
        "pickle/odd-state",
    ),
    Vector(
        "m.joblib",
        _joblib(_REBUILT, b"K\2", _dtype(b"u1", _UNKNOWN_SIZE), b"C\x180" + PAYLOAD),
        D,
        "pickle/dangerous-call",
    ),
    Vector("m.npy", npy("('|V0', [('x','O')])", b"\x80\x02" + PAYLOAD), D, "pickle/dangerous-call"),
    Vector("model.keras", _hidden_directory(), D, "file/appended-zip"),
    Vector("model.gguf", tarred({"GGUF\x03": b"x", "evil.pkl": b"\x80\x02" + PAYLOAD}), D, "file/also-tar"),
    Vector("table.parquet", tarred({"PAR1": b"x"}), M, "file/also-tar"),
    # A member's name that is an opcode and a module with zeros: unpicklers import the package above it.
    Vector("m.tar", tarred({"cantigravity.json": b"x\ny\n"}), D, "file/also-tar"),
    Vector("m.pkl", b"cevil.json\0\0\nfoo\n.", M, "pickle/odd-name"),
    Vector(
        "model.nemo",
        _plus_checksum({"model_config.yaml": b"a: 1\n", "data.pkl": b"\x80\x02" + PAYLOAD}),
        D,
        "tar/odd-number",
    ),
    Vector("m.tar", _sparse({"data.pkl": b"\x80\x02" + PAYLOAD}), D, "pickle/dangerous-call"),
    Vector("m.tar", _sparse({"a.txt": b"text"}), "unproven", "tar/sparse"),
    Vector("data.npy", b"cno_such_module\nx\n.", U, "pickle/unknown-import"),
    Vector("model.mar", b"\xed" + zipped({"m.npy": PAYLOAD}), D, "pickle/dangerous-call"),
    Vector("config.nemo", _plus_checksum({"model_config.yaml": b"a: 1\n"}), M, "tar/odd-number"),
    Vector("shorter.npz", zipped({"a": b"1", "data.pkl": PAYLOAD})[1:], D, "pickle/dangerous-call"),
    Vector("shorter.gguf", gguf({})[:8] + zipped({"data.pkl": b"", "b": PAYLOAD})[9:], D, "pickle/dangerous-call"),
    Vector("nameless.tar.bz2", bz2.compress(_nameless({"a.pkl": PAYLOAD})), D, "pickle/dangerous-call"),
    Vector("two.gz", gzip.compress(gguf({}) + zipped({"data.pkl": PAYLOAD}), mtime=0), D, "file/appended-zip"),
    Vector("legacy.pt", b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + PAYLOAD, D, "pickle/dangerous-call"),
    Vector("cut.dat", b"Ncposix\nsystemR", D, "pickle/dangerous-import"),
    Vector("cut.bin", b"Nctorch._utils\nx\x8f", M, "pickle/unknown-import"),
    Vector("raw.pkl.gz", b"cno_such_module\nx\n.", U, "pickle/unknown-import"),
    Vector("model.pkl.lz4", b"\x04\x22\x4d\x18\x68\x40" + bytes(40), "unproven", "stream/not-unpacked"),
)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _layer(**keys: object) -> bytes:
    return zipped({"metadata.json": b"{}", "config.json": _json(keys), "model.weights.h5": hdf5()})


#: Configs by which a loader imports, calls or reads what they name.
NAMED: Final = (
    Vector("config.json", _json({"model_file": "evil.py"}), U, "config/own-code"),
    Vector("modules.json", _json([{"idx": 0, "type": "evil.Model"}]), U, "config/named-class"),
    Vector("modules.json", _json([{"idx": 0, "type": "os.system"}]), D, "config/dangerous-target"),
    Vector(
        "model_index.json",
        _json({"_class_name": "DiffusionPipeline", "unet": ["evil_mod", "Evil"]}),
        U,
        "config/named-class",
    ),
    Vector("model_index.json", _json({"_class_name": ["pipeline", "Own"]}), U, "config/own-code"),
    Vector("config.json", _json({"attn_implementation": "owner/kernel"}), U, "config/remote-code"),
    Vector(
        "adapter_config.json",
        _json({"auto_mapping": {"base_model_class": "E", "parent_library": "evil_mod"}}),
        U,
        "config/named-class",
    ),
    Vector("configuration.json", _json({"allow_remote": True}), U, "config/trust"),
    Vector(
        "model.skops",
        zipped({"schema.json": _json({"__class__": "system", "__module__": "evil"})}),
        U,
        "config/named-class",
    ),
    Vector(
        "model.keras",
        _layer(module="keras.layers", class_name="TorchModuleWrapper", config={"module": "gAJ9Lg=="}),
        D,
        "config/keras-code",
    ),
    Vector(
        "model.keras", _layer(module="keras.utils", class_name="function", config="get_file"), D, "config/keras-code"
    ),
    Vector(
        "model.keras",
        _layer(module="keras.layers", class_name="TFSMLayer", config={"filepath": "/tmp/x"}),
        U,
        "config/keras-file",
    ),
    Vector(
        "model.keras",
        _layer(module="keras.layers", class_name="StringLookup", config={"vocabulary": "/etc/passwd"}),
        U,
        "config/keras-file",
    ),
    Vector("model_config.yaml", b"target: evil_module.Evil\n", U, "config/target"),
    Vector("config.yaml", b"model:\n  class_path: evil.Model\n  init_args: {}\n", U, "config/target"),
    Vector("config.yaml", b"model:\n  class_path: os.system\n", D, "config/dangerous-target"),
    Vector("config.json", _json({"model": {"class_path": "evil.Model"}}), U, "config/target"),
    Vector("config.yaml", b"pipeline:\n  name: evil.Diarization\n", U, "config/target"),
    Vector("config.yaml", b"pipeline: {name: os.system}\n", D, "config/dangerous-target"),
    Vector("p.yaml", b"components:\n  a:\n    init_parameters: {}\n    type: evil.Retriever\n", U, "config/target"),
    Vector("model.yaml", b"module: evil.loader\ncontext:\n  bentoml_version: 1.2.0\n", U, "config/target"),
    Vector("MLmodel", b"flavors:\n  python_function:\n    model_code_path: chain.py\n", U, "config/own-code"),
    Vector("c.yaml", b"custom_imports:\n  imports: [evil]\n", U, "config/target"),
    Vector("p.yaml", b"components:\n  a:\n    type: evil.Retriever\n", U, "config/target"),
    Vector("config.yaml", b"preprocessors:\n  audio:\n    name: evil.Reader\n", U, "config/target"),
    Vector("config.yaml", b"auto_map:\n  AutoModel: modeling_x.Model\n", U, "config/own-code"),
    Vector("config.yaml", b"chat_template: \"{{ ''['__class__'] }}\"\n", D, "template/underscored"),
    Vector("config.json", _json({"m": {"_target_": "transformers.utils.hub.os.system"}}), D, "config/dangerous-target"),
    Vector("config.json", _json({"m": {"_target_": "transformers.utils.hub.thing"}}), U, "config/target"),
    Vector("hyperparams.yaml", b"x: !apply:torch.serialization.os.system ['true']\n", D, "config/dangerous-target"),
    Vector("hyperparams.yaml", b"x: !name:transformers.utils.hub.thing\n", U, "yaml/hyper-tag"),
    Vector("modules.json", _json([{"type": "sentence_transformers.util.os.system"}]), D, "config/dangerous-target"),
    Vector("modules.json", _json([{"type": "sentence_transformers.util.thing"}]), U, "config/named-class"),
    Vector("c.yaml", b"_base_: ./evil.py\n", U, "config/own-code"),
    Vector("c.json", _json({"custom_imports": {"imports": ["evil"]}}), U, "config/target"),
    Vector("c.json", _json({"custom_imports": {"imports": ["os"]}}), D, "config/dangerous-target"),
    Vector("c.json", _json({"_base_": ["./evil.py"]}), U, "config/own-code"),
    Vector("inference.json", _json({"imports": ["$import glob"]}), U, "config/expression"),
    Vector("inference.json", _json({"a": ["$os.system('true')"]}), D, "config/dangerous-expression"),
    Vector("inference.json", _json({"a": "$().__class__.mro()"}), D, "config/dangerous-expression"),
    Vector("inference.yaml", b"a: $eval('1')\n", D, "config/dangerous-expression"),
    Vector("inference.yaml", b"imports:\n  - $import evil\n", U, "config/expression"),
    Vector("router_config.json", _json({"types": {"a": "evil.Model"}}), U, "config/named-class"),
    Vector("config.json", _json({"activation_function": "evil.Act"}), U, "config/named-class"),
    Vector(
        "config.json", _json({"sentence_transformers": {"activation_fn": "os.system"}}), D, "config/dangerous-target"
    ),
    Vector("config.json", _json({"model": {"encoder": [{"type": "evil.Encoder"}]}}), U, "config/named-class"),
    Vector("adapter_config.json", _json({"megatron_core": "evil.core"}), U, "config/named-class"),
    Vector(
        "model.skops",
        zipped(
            {"schema.json": _json({"__module__": "builtins", "content": [{"__module__": "os", "__class__": "system"}]})}
        ),
        U,
        "config/named-class",
    ),
    Vector("MLmodel", b"flavors:\n  python_function:\n    loader_module: evil.loader\n", U, "config/target"),
    Vector("hparams.yaml", b"a: !!%70ython/object/apply:os.system ['true']\n", D, "yaml/python-tag"),
    Vector("hparams.yaml", "a: !!python/object/apply:os.system ['true']\n".encode("utf-16"), D, "yaml/python-tag"),
    Vector("hyperparams.yaml", b'x: !apply:os.system ["true"]\n', D, "config/dangerous-target"),
    Vector("hyperparams.yaml", b"x: !new:evil.Model\n", U, "yaml/hyper-tag"),
    *(
        Vector("hparams.yaml", text, D, "config/dangerous-target")
        for text in (
            b"a: &t os.system\nb:\n  _target_: *t\n",
            b"b:\n  _target_: !!str os.system\n",
            b"b:\n  _target_: &x os.system\n",
            b"b:\n  _target_: >-\n    os.system\n",
            b"b:\n  _target_:\n    os.system\n",
            b"b:\n  ? _target_\n  : os.system\n",
            b"k: &k _target_\nb:\n  *k : os.system\n",
            b'{"a": {"_target_": "os.system", "b": 1}}\n',
        )
    ),
    Vector("hparams.yaml", b"m: os\nb:\n  _target_: ${m}.system\n", U, "config/target"),
    Vector("hparams.yaml", b"b:\n  _target_: *missing\n", U, "config/target"),
    Vector("hparams.yaml", b"b:\n  _target_: evil\n", U, "config/target"),
    Vector("bare.yaml", b"a: !!python/object/apply:eval ['x']\n", D, "yaml/python-tag"),
    Vector("mkdocs.yml", b"s: !!python/object/apply:pymdownx.slugs.slugify\n", U, "yaml/python-name"),
    Vector("config.json", _json({"_attn_implementation_internal": "owner/kernel"}), U, "config/remote-code"),
    Vector("config.json", _json({"text_config": {"_attn_implementation": "o/k:f"}}), U, "config/remote-code"),
    Vector("config.json", _json({"attn_implementation": {"text_config": "o/k"}}), U, "config/remote-code"),
    Vector("model.json", _json({"activation": {"class_name": "__lambda__", "config": {}}}), D, "config/lambda"),
    Vector("mkdocs.yml", b"e: !!python/name:material.extensions.emoji.twemoji\n", U, "yaml/python-name"),
    Vector("config.json", b'{"a": ' + b"1" * 5000 + b"}", "unproven", "config/unproven"),
    Vector("model.onnx", onnx(b"location", b"/etc/passwd"), D, "onnx/outside"),
    Vector("model.onnx", onnx(b"location", b"a/" * 80 + b"../" * 81 + b"x"), D, "onnx/outside"),
    Vector("model.onnx", onnx(b"__class__", b"x"), M, "onnx/external-key"),
    Vector("saved_model.pb", b"\x08\x01\x12\x12\x0a\x10\x12\x08ReadFile\x1a\x04abcd", D, "savedmodel/operator"),
)

VECTORS: Final = (
    *DISGUISED,
    *HDF5,
    *NAMED,
    *NESTED,
    *FOLDER,
    *CHAT,
    *(Vector("tokenizer_config.json", _MAKE(text), verdict, rule) for text, verdict, rule in TEMPLATES),
)
