"""The table of what is allowed, row by row: an honest call of it is data only, and the function itself takes it;
without the row, or with an argument of another shape, it isn't.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from tests.reports.scan import vectors as v

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import FileReport, ScanVerdict
from weighbridge.reports.scan.pickle import allowlist as allowed
from weighbridge.reports.scan.pickle import denylist, policy, shapes
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES, Allowed
from weighbridge.reports.scan.pickle.indices import INDEXED
from weighbridge.unpickle.libraries.joblib import WRAPPER
from weighbridge.unpickle.libraries.torch_types import DENSE

torch = pytest.importorskip("torch")
Path = tuple[str, str]


def scan(data: bytes) -> FileReport:
    return scan_source(BytesSource(data), "x")


def numpy_dtype(code: str = "i8", size: int = -1, flags: int = 0) -> bytes:
    end = struct.pack("<i", size)
    state = b"(K\x03" + v.s("<" if code != "O8" else "|") + b"NNNJ" + end + b"J" + end + b"K" + bytes([flags]) + b"t"
    return v.call("numpy", "dtype", v.s(code), b"\x89", b"\x88") + state + b"b"


_BYTES = v.call("_codecs", "encode", v.s("\0" * 8), v.s("latin1"))
_ARRAY = (
    v.call("numpy._core.multiarray", "_reconstruct", v.g("numpy", "ndarray"), b"K\0\x85", v.s("b"))
    + (b"(K\x01K\x01\x85" + numpy_dtype() + b"\x89" + _BYTES + b"t")
    + b"b"
)
_FLOATS = v.STORAGE
_DELTA = v.call("datetime", "timedelta", b"K\0", b"K\0", b"K\0")
_PROPERTIES = (
    v.g("torch", "float32") + v.call("torch.serialization", "_get_layout", v.s("torch.strided")) + b"\x89"
    + v.call("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", b"K\0")
)  # fmt: skip
# A word of the shapes -> an argument that fits it, one that does not. `None`: nothing fits it not.
SAMPLES: dict[str, tuple[bytes, bytes | None]] = {
    "any": (b"N", None),
    "bool": (b"\x89", b"K\x02"),
    "flag": (b"\x88", b"K\x02"),
    "int": (b"K\x05", b"\x8a\x0a" + bytes(9) + b"\x01"),
    "whole": (b"K\x05", v.s("a")),
    "count": (b"K\x00", b"J\xff\xff\xff\xff"),
    "counts": (b"K\x03\x85", b"J\xff\xff\xff\xff\x85"),
    "number": (b"G?\xf0\0\0\0\0\0\0", v.s("1")),
    "str": (v.s("1"), b"K\x01"),
    "text": (v.s("cpu"), b"]"),
    "codec": (v.s("latin1"), v.s("zip")),
    "bytes": (_BYTES, b"K\x01"),
    "bytes-or-text": (_BYTES, b"K\x01"),
    "plain": (b"N", b"]"),
    "tuple": (b")", b"]"),
    "storage": (_FLOATS, b"K\x01"),
    "tensor": (v.TENSOR, v.HOOKS),
    "array": (_ARRAY, v.HOOKS),
    "dtype": (v.g("torch", "float32"), v.g("torch", "FloatStorage")),
    "device": (v.s("cpu"), b"]"),
    "layout": (v.call("torch.serialization", "_get_layout", v.s("torch.sparse_coo")), v.s("torch.sparse_coo")),
    "layout-name": (v.s("torch.strided"), v.s("torch.evil")),
    "hooks": (v.HOOKS, v.TENSOR),
    "flags": (b"}", v.HOOKS),
    "attributes": (b"}" + v.s("int") + b"K\x05s", b"}" + v.s("__class__") + b"Ns"),
    "metadata": (b"}" + v.s("_metadata") + v.HOOKS + b"s", b"}" + v.s("keys") + b"Ns"),
    "pairs": (b"}", b"K\x01"),
    "items": (b"]", b"K\x01"),
    "numbers": (b"]K\x01a", b"K\x01"),
    "factory": (v.g("builtins", "list"), v.g("torch", "Tensor")),
    "class": (v.g("torch", "Tensor"), b"K\x01"),
    "text-or-none": (v.s("1"), b"K\x01"),
    "tensor-class": (v.g("torch", "Tensor"), v.g("numpy", "memmap")),
    "tensor-attributes": (b"}" + v.s("note") + b"K\x05s", b"}" + v.s("data") + b"Ns"),
    "wrapper-state": (b"}" + v.s("order") + v.s("C") + b"s", b"}" + v.s("subclass") + v.g("pathlib", "Path") + b"s"),
    "ndarray": (v.g("numpy", "ndarray"), v.g("numpy", "dtype")),
    "array-letter": (v.s("b"), v.s("1")),
    "numpy-code": (v.s("i8"), v.s("i8,evil")),
    "numpy-dtype": (numpy_dtype(), v.s("i8")),
    "array-state": (b"(K\x01K\x01\x85" + numpy_dtype() + b"\x89" + _BYTES + b"t", b"K\x01\x85"),
    "delta": (_DELTA, b"K\x01"),
    "zone": (v.call("datetime", "timezone", _DELTA), b"K\x01"),
    "tensor-state": (b"(" + _FLOATS + b"K\0K\x03K\x04\x86K\x04K\x01\x86t", b"K\x01\x85"),
    "parameter-state": (v.TENSOR + b"\x88\x86", b"K\x01\x85"),
    "none": (b"N", b"K\x01"),
    "memory-format": (b"K\0", b"K\x03"),
    "tensor-properties": (b"(" + _PROPERTIES + b"\x89t", b"(" + _PROPERTIES + b"K\x05t"),
}
# Rows whose arguments must fit each other, too.
_QUANTIZED = b"(" + v.g("torch", "per_tensor_affine") + b"G?\xf0\0\0\0\0\0\0K\0t"
_IDS = b"(" + v.s("storage") + v.g("torch", "LongStorage") + v.s("1") + v.s("cpu") + b"K\x04tQ"
_BYTE_TENSOR = b"(" + v.s("storage") + v.g("torch", "QInt8Storage") + v.s("2") + v.s("cpu") + b"K\x0ctQ"


def _ids(size: bytes, stride: bytes) -> bytes:
    return v.call("torch._utils", "_rebuild_tensor_v2", _IDS, b"K\0", size, stride, b"\x89", v.HOOKS)


_SPARSE = b"(" + _ids(b"K\x01K\x02\x86", b"K\x02K\x01\x86") + _ids(b"K\x02\x85", b"K\x01\x85") + b"K\x05\x85t"
_T = "torch._utils"
_V2 = b"(" + _FLOATS + b"K\0K\x03K\x04\x86K\x04K\x01\x86\x89" + v.HOOKS + b"t"
ARGUMENTS: dict[Path, tuple[bytes, ...]] = {
    **{(_T, n): (_FLOATS, b"K\0", b"K\x03\x85", b"K\x01\x85") for n in ("_rebuild_tensor",)},
    (_T, "_rebuild_tensor_v3"): (
        _FLOATS, b"K\0", b"K\x03\x85", b"K\x01\x85", b"\x89", v.HOOKS, v.g("torch", "float32"),
    ),
    (_T, "_rebuild_sparse_tensor"): (SAMPLES["layout"][0], _SPARSE),
    (_T, "_rebuild_qtensor"): (_BYTE_TENSOR, b"K\0", b"K\x03\x85", b"K\x01\x85", _QUANTIZED, b"\x89", v.HOOKS),
    (_T, "_rebuild_meta_tensor_no_storage"): (v.g("torch", "float32"), b"K\x03\x85", b"K\x01\x85", b"\x89"),
    (_T, "_rebuild_nested_tensor"): (
        v.call(_T, "_rebuild_tensor_v2", _FLOATS, b"K\0", b"K\x04\x85", b"K\x01\x85", b"\x89", v.HOOKS),
        _ids(b"K\x01K\x01\x86", b"K\x01K\x01\x86"),
        _ids(b"K\x01K\x01\x86", b"K\x01K\x01\x86"),
        _ids(b"K\x01\x85", b"K\x01\x85"),
    ),
    (_T, "_rebuild_wrapper_subclass"): (
        v.g("torch", "Tensor"), v.g("torch", "float32"), b"K\x03\x85", b"K\x01\x85", b"K\0",
        v.call("torch.serialization", "_get_layout", v.s("torch.strided")), v.s("cpu"), b"\x89",
    ),
    **{(m, n): (v.g(_T, "_rebuild_tensor_v2"), v.g("torch", "Tensor"), _V2, b"}")
       for m in ("torch._tensor", "torch.tensor") for n in ("_rebuild_from_type_v2", "_rebuild_from_type")},
    **{(m, "_reconstructor"): (v.g("argparse", "Namespace"), v.g("builtins", "object"), b"N")
       for m in ("copyreg", "copy_reg")},
    ("torch", "device"): (v.s("cpu"), b"K\0"),
    **{(f"{m}.multiarray", "_reconstruct"): (v.g("numpy", "ndarray"), b"K\0\x85", v.s("b")) for m in shapes.NUMPY_CORE},
    **{(f"{m}.numeric", "_frombuffer"): (_BYTES, numpy_dtype(), b"K\x01\x85", v.s("C")) for m in shapes.NUMPY_CORE},
    ("datetime", "datetime"): (v.call("_codecs", "encode", v.s("\x07\xea\x0b\x15\x0c\0\0\0\0\0"), v.s("latin1")),),
    ("datetime", "date"): (v.call("_codecs", "encode", v.s("\x07\xea\x0b\x15"), v.s("latin1")),),
    ("datetime", "time"): (v.call("_codecs", "encode", v.s("\x0c\0\0\0\0\0"), v.s("latin1")),),
    ("torch.storage", "_load_from_bytes"): (b"B" + struct.pack("<I", len(v.GOOD)) + v.GOOD,),
    **{(m, "bytearray"): (v.s("ab"), v.s("latin-1")) for m in ("builtins", "__builtin__")},
    **{(m, "bytes"): (b"]K\x01a",) for m in ("builtins", "__builtin__")},
    **{(m, n): (b"K\0", b"K\x05", b"K\x01") for m in ("builtins", "__builtin__") for n in ("range", "xrange")},
}  # fmt: skip


def arguments(path: Path, row: Allowed) -> list[bytes]:
    if path in ARGUMENTS:
        return list(ARGUMENTS[path])
    return [SAMPLES[w.rstrip("?*")][0] for w in row.args]


def made(path: Path, row: Allowed, args: list[bytes], how: str = "reduce") -> bytes:
    """A pickle that makes such an object, and fills it."""
    module, name = path
    body = v.g(module, name) + b"(" + b"".join(args) + (b"t\x81" if how == "new" else b"tR")
    body += (
        SAMPLES[row.state][0] + b"b"
        if row.state in ("metadata", "tensor-state", "array-state", "attributes", "tensor-properties")
        and "rebuild" not in name
        else b""
    )
    body += b"K\x07a" if row.items and name not in ("set", "_reconstructor") else b""
    body += v.s("k") + b"Ns" if row.pairs else b""
    return v.p(body)


# joblib's wrapper is followed by the array that it describes: `tests/unpickle/test_joblib.py` has it.
ROWS = pytest.mark.parametrize("path", [p for p in CALLS if p != WRAPPER], ids=".".join)


@ROWS
def test_an_honest_call_is_data_only(path: Path) -> None:
    row = CALLS[path]
    for how in ("reduce", "new") if row.new else ("reduce",):
        report = scan(made(path, row, arguments(path, row), how))
        if path in INDEXED:  # the storage of the indices isn't in the file
            assert [f.rule for f in report.findings] == ["pickle/indices"]
        else:
            assert (report.verdict, report.findings) == (ScanVerdict.DATA_ONLY, ())


class Loader(pickle.Unpickler):
    """CPython's own, for honest vectors of ours."""

    def persistent_load(self, pid: Any) -> Any:
        kinds = {"FloatStorage": torch.float32, "LongStorage": torch.int64, "QInt8Storage": torch.qint8}
        dtype = kinds[pid[1].__name__]
        size = pid[4] * torch.empty((), dtype=dtype if dtype is not torch.qint8 else torch.int8).element_size()
        return torch.storage.TypedStorage(wrap_storage=torch.UntypedStorage(size), dtype=dtype, _internal=True)


# Not here: names of other versions, of other systems, and what needs a GPU.
_ELSEWHERE = {
    *(("torch.cuda", f"{n}Tensor") for n in DENSE),
    *((m, n) for m, n in CALLS if m == "torch.tensor" or m == "pathlib._local" or n.startswith("Windows")),
    ("torch._tensor", "_rebuild_from_type"),
    ("torch.storage", "_load_from_bytes"),
    *(("torch", f"{n}Tensor") for n in DENSE if n != "Float"),  # each of a storage of its own
    ("torch._utils", "_rebuild_xla_tensor"),
    ("torch._utils", "_rebuild_wrapper_subclass"),  # of a class that isn't torch's
    *((m, n) for m, n in CALLS if m.startswith("deepspeed.")),  # honest files of it: tests/containers/test_zero.py
    ("torch._utils", "_rebuild_nested_tensor"),  # it reads its sizes from a storage (`test_honest` has one)
}


@pytest.mark.oracle
@pytest.mark.parametrize("path", [p for p in CALLS if p not in _ELSEWHERE and p != WRAPPER], ids=".".join)
@pytest.mark.filterwarnings("ignore")
def test_the_function_itself_takes_the_same_call(path: Path) -> None:
    row = CALLS[path]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Loader(
            io.BytesIO(made(path, row, arguments(path, row), "new" if path == ("uuid", "UUID") else "reduce"))
        ).load()


@pytest.mark.mutation
@ROWS
def test_without_its_row_it_is_unknown_code(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = MappingProxyType({p: row for p, row in CALLS.items() if p != path})
    monkeypatch.setattr(policy, "CALLS", without)
    monkeypatch.setattr(pickles, "PLAIN_NAMES", b"")  # the walk before has rows of its own
    report = scan(made(path, CALLS[path], arguments(path, CALLS[path])))
    assert report.verdict is not ScanVerdict.DATA_ONLY
    assert any(f.name == ".".join(path) for f in report.findings)


def shifted() -> Iterator[tuple[Path, int]]:
    for path, row in CALLS.items():
        for i, word in enumerate(row.args):
            if SAMPLES[word.rstrip("?*")][1] is not None and i < len(arguments(path, row)):
                yield path, i


@pytest.mark.mutation
@pytest.mark.parametrize(("path", "i"), list(shifted()), ids=str)
def test_another_argument_is_not_let_through(path: Path, i: int) -> None:
    row = CALLS[path]
    args = arguments(path, row)
    bad = SAMPLES[row.args[i].rstrip("?*")][1]
    assert bad is not None
    report = scan(made(path, row, [*args[:i], bad, *args[i + 1 :]]))
    assert "pickle/odd-arguments" in {f.rule for f in report.findings}


@pytest.mark.mutation
@ROWS
def test_one_argument_more_is_not_let_through(path: Path) -> None:
    row = CALLS[path]
    full = [SAMPLES[w.rstrip("?*")][0] for w in row.args]
    if not any(w.endswith("*") for w in row.args):
        report = scan(made(path, row, [*full, b"N"]))
        assert "pickle/odd-arguments" in {f.rule for f in report.findings}


@pytest.mark.mutation
@pytest.mark.parametrize("word", [w for row in CALLS.values() for w in [row.state] if w and w != "any"])
def test_another_state_is_not_let_through(word: str) -> None:
    path = next(p for p, row in CALLS.items() if row.state == word)
    bad = SAMPLES[word][1]
    assert bad is not None
    data = v.g(*path) + b"(" + b"".join(arguments(path, CALLS[path])) + b"tR" + bad + b"b"
    assert "pickle/odd-state" in {f.rule for f in scan(v.p(data)).findings}


@pytest.mark.parametrize("path", sorted(VALUES), ids=".".join)
def test_a_name_that_is_a_value_is_data_only_and_must_be_in_the_table(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scan(v.p(v.g(*path))).verdict is ScanVerdict.DATA_ONLY
    monkeypatch.setattr(policy, "VALUES", VALUES - {path})
    monkeypatch.setattr(pickles, "PLAIN_NAMES", b"")
    assert scan(v.p(v.g(*path))).verdict is not ScanVerdict.DATA_ONLY


def test_no_allowed_name_is_called_dangerous_elsewhere() -> None:
    """A name can be in both tables only where the first wins: it must not be a whole dangerous module's by accident."""
    both = {p for p in CALLS if denylist.consequence(*p)}
    assert {module for module, _ in both} <= {"pathlib", "pathlib._local", "torch.jit._pickle", "joblib.numpy_pickle"}


@pytest.mark.oracle
def test_everything_that_torch_takes_with_weights_only_is_in_the_table() -> None:
    from torch import _weights_only_unpickler as unpickler

    names = {tuple(name.rpartition(".")[::2]) for name in unpickler._get_allowed_globals()}
    assert names - set(CALLS) - VALUES == set()


@pytest.mark.oracle
def test_the_names_of_weights_only_are_torchs() -> None:
    from torch import _weights_only_unpickler as unpickler

    assert {tuple(name.rpartition(".")[::2]) for name in unpickler._get_allowed_globals()} == allowed.WEIGHTS_ONLY


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["argparse.Namespace", "own_package.Thing", "os.getpid", "torch.hub.load"])
def test_what_torch_load_refuses_is_reported(name: str) -> None:
    """Torch's own loader, which refuses a name before it looks it up."""
    module, _, last = name.rpartition(".")
    data = v.p(v.g(module, last) + b")R")
    saved = io.BytesIO(v.plain_zip(("x/data.pkl", data), ("x/version", b"3\n"), ("x/byteorder", b"little")))
    with pytest.raises(pickle.UnpicklingError, match=name):
        torch.load(saved, weights_only=True)
    notes = [f.message for f in scan(saved.getvalue()).findings if f.rule == "pickle/torch-load"]
    assert len(notes) == (name != "argparse.Namespace")  # the scan takes it for data
    assert all(f"refuses the file: {name} is not on its list" in note for note in notes)


# Names of reports on scanners: each must be known to be dangerous, in whatever version.
GADGETS = """
os.system posix.system nt.system subprocess.Popen subprocess.check_output commands.getoutput popen2.popen3 pty.spawn
builtins.eval builtins.exec builtins.compile builtins.getattr builtins.__import__ builtins.open builtins.breakpoint
__builtin__.eval __builtin__.execfile __builtin__.apply __builtin__.file runpy.run_path runpy._run_code timeit.timeit
importlib.import_module importlib.machinery.SourceFileLoader pip.main pip._internal.main pydoc.locate pydoc.pipepager
pkgutil.resolve_name pkgutil.get_loader operator.attrgetter operator.methodcaller _operator.attrgetter
functools.reduce code.InteractiveInterpreter codeop.compile_command pdb.run bdb.Bdb cProfile.run profile.run
trace.Trace
doctest.debug_script idlelib.pyshell.ModifiedInterpreter lib2to3.pgen2.grammar.Grammar ensurepip.bootstrap venv.create
asyncio.unix_events._UnixSubprocessTransport numpy.f2py.crackfortran.myeval numpy.testing._private.utils.runstring
torch._dynamo.guards.GuardBuilder torch.fx.experimental.symbolic_shapes.ShapeEnv
torch.jit.unsupported_tensor_ops.execWrapper
torch.utils.collect_env.run torch.utils.bottleneck.__main__.run_cprofile torch._inductor.codecache.compile_file
torch.utils._config_module.ConfigModule torch.hub.load torch.load torch.package.PackageImporter torch.serialization.load
uuid._get_command_stdout _osx_support._read_output _aix_support._read_cmd_output imaplib.IMAP4_stream
_pyrepl.pager.pipe_pager test.support.script_helper.run_python_until_end logging.FileHandler
distutils.file_util.write_file urllib.request.urlopen ssl.get_server_certificate socket.create_connection
http.client.HTTPSConnection requests.get cloudpickle.cloudpickle._builtin_type types.CodeType types.FunctionType
typing.get_type_hints marshal.loads pickle.loads _pickle.loads cPickle.loads joblib.load numpy.load pandas.read_pickle
shutil.rmtree tempfile.mkstemp io.open _io.FileIO codecs.open pathlib.PosixPath.write_text ctypes.CDLL _ctypes.dlopen
webbrowser.open sys.exit sys.settrace gc.get_objects multiprocessing.Process threading.Thread signal.signal
_interpreters.exec _xxsubinterpreters.run_string _posixsubprocess.fork_exec zipimport.zipimporter
picklescan.scanner.scan_file_path site.addsitedir sqlite3.connect copyreg.add_extension
"""


@pytest.mark.parametrize("gadget", GADGETS.split())
def test_known_gadgets_are_dangerous(gadget: str) -> None:
    module, _, name = gadget.rpartition(".")
    if module == "pathlib.PosixPath":
        module, name = "pathlib", "PosixPath.write_text"
    for data in (v.p(v.call(module, name, v.CMD)), v.p(v.g(module, name))):
        report = scan(data)
        assert report.verdict is ScanVerdict.DANGEROUS
        assert report.findings[0].consequence


@pytest.mark.mutation
def test_the_verdict_never_rests_on_the_table_of_dangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denylist, "TABLE", {})
    for gadget in GADGETS.split():
        module, _, name = gadget.rpartition(".")
        assert scan(v.p(v.call(module, name, v.CMD))).verdict is not ScanVerdict.DATA_ONLY


@pytest.mark.oracle
def test_the_table_of_storages_is_torchs() -> None:
    """One table for the reader, the writer and the scan: every class that torch has, each with its width."""
    from weighbridge.unpickle.libraries.torch_types import ALL_WIDTHS, CLASS_OF, SMALL_STORAGES, STORAGES

    for kind in torch._storage_classes:
        path = (kind.__module__, kind.__name__)
        assert path in ALL_WIDTHS
        if path not in SMALL_STORAGES and not path[1].startswith(("Untyped", "Typed")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert ALL_WIDTHS[path] == torch.empty((), dtype=kind.dtype).element_size()
    assert set(STORAGES) < set(ALL_WIDTHS)
    assert {("torch", name) for name in CLASS_OF.values()} < set(STORAGES)
