"""Distributed checkpoints: the tensors of every recorded layout, type and number of processes, bit for bit; faults by
their rules; and torch reads what is written."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.dcp_cases import CASES, MODELS, Saved, data, unpack
from tests.containers.dcp_files import Metadata, columns, rows, spec_of, write

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Severity
from weighbridge.containers.boxes import Box
from weighbridge.containers.torch import dcp, dcp_write
from weighbridge.containers.torch.dcp import Chunk, DcpItem
from weighbridge.io.source import BytesSource
from weighbridge.models.open import WHOLE, open_headers, open_model
from weighbridge.reports.verify import distributed as verify_distributed
from weighbridge.unpickle.write import Call, Name, dumps

EVERY = {**CASES, **MODELS}
A = np.arange(24, dtype=np.float32).reshape(6, 4)
B = np.arange(7, dtype=np.int64)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcp")
    for case in EVERY:
        unpack(case, folder)
    return folder


# ---- recorded by torch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_every_tensor_is_the_one_that_was_saved(recorded: Path, case: str) -> None:
    _, tensors = EVERY[case]
    with open_model(recorded / case) as model:
        assert {name: node.spec.shape for name, node in model.stored.items()} == {
            n: s.shape for n, s in tensors.items()
        }
        for name, saved in tensors.items():
            node = model.stored[name]
            assert node.spec.dtype.torch == saved.dtype
            assert node.read_all().tobytes() == data(name, saved), name


@pytest.mark.parametrize("case", ["mesh", "four", "hf"])
def test_any_rows_are_those_of_the_tensor(recorded: Path, case: str) -> None:
    rng = random.Random(case)
    with open_model(recorded / case) as model:
        for name, saved in EVERY[case][1].items():
            node, whole = model.stored[name], data(name, saved)
            lo = rng.randrange(node.spec.rows + 1)
            hi = rng.randrange(lo, node.spec.rows + 1)
            width = node.spec.row_bytes
            assert node.read(lo, hi).tobytes() == whole[lo * width : hi * width]


@pytest.mark.parametrize("case", EVERY)
def test_honest_checkpoints_pass_verify_and_scan(recorded: Path, case: str) -> None:
    report = wb.verify(recorded / case)
    assert (report.verdict, report.findings) == ("ok", ())
    assert report.tensors >= sum(0 not in saved.shape for saved in EVERY[case][1].values())
    scanned = wb.scan(recorded / case)
    assert scanned, [f for file in scanned.files for f in file.findings]


def test_headers_are_those_of_the_model(recorded: Path) -> None:
    for case in EVERY:
        with open_headers(recorded / case).model as headers, open_model(recorded / case) as model:
            assert {e.name: e.spec for e in headers.index} == {n: node.spec for n, node in model.stored.items()}


def test_what_is_not_the_model_is_left_out_and_listed(recorded: Path) -> None:
    with open_model(recorded / "fsdp2") as model:
        assert [(d.name, d.part, d.tensors) for d in model.left_out] == [
            ("optim", "optimizer", 12),
            ("step", "value", 0),
        ]
    with open_model(recorded / "fsdp2", WHOLE) as whole:
        assert len(whole.stored) == 16
        assert "step" in whole.metadata
        assert whole.stored["optim.state.0.weight.exp_avg"].spec.shape == (6, 5)


def test_it_is_identified(recorded: Path) -> None:
    for case, evidence in {"mesh": ".metadata and 4 .distcp files", "hf": "2 files with parts of tensors"}.items():
        report = wb.identify(recorded / case)
        assert (report.format, report.readable) == ("torch-distributed", True)
        assert evidence in report.evidence[0]
    assert wb.identify(recorded / "mesh/.metadata").format == "torch-dcp"
    assert wb.identify(recorded / "mesh/__0_0.distcp").format == "torch-dcp-data"


def test_every_way_in(recorded: Path, tmp_path: Path) -> None:
    """`.metadata` names the folder, too; a data file has parts only."""
    saved = EVERY["mesh"][1]
    name = "S0S1.6x4"
    expected = np.frombuffer(data(name, saved[name]), "<f4").reshape(6, 4)
    folder = recorded / "mesh"
    for path in (folder, folder / ".metadata"):
        with wb.open(path) as model:
            assert np.array_equal(model[name].numpy(), expected, equal_nan=True)
    assert wb.inspect(folder).tensor_count == len(saved)
    with pytest.raises(UsageError, match="parts of tensors"):
        open_model(folder / "__0_0.distcp")
    wb.convert(folder, tmp_path / "x.safetensors")
    with wb.open(tmp_path / "x.safetensors") as model:
        assert {n: model[n].numpy().tobytes() for n in saved} == {n: data(n, s) for n, s in saved.items()}


# ---- layouts written here -------------------------------------------------------------------------------------------


def test_a_tensor_far_larger_than_the_budget(tmp_path: Path) -> None:
    big = np.random.default_rng(1).integers(0, 1 << 30, (6144, 1024), np.int32)
    layouts = {"rows": rows(big, 5), "columns": columns(big, 3)}
    layouts["blocks"] = [Box((a, b), (3072, 512)) for a in (0, 3072) for b in (0, 512)]
    write(tmp_path / "in", {name: (big, boxes) for name, boxes in layouts.items()})
    budget = 2 << 20
    plan = wb.plan_convert(tmp_path / "in", tmp_path / "out.safetensors", max_memory=budget)
    assert plan.memory <= budget < big.nbytes // 8
    plan.run()
    with wb.open(tmp_path / "out.safetensors") as model:
        for name in layouts:
            assert np.array_equal(model[name].numpy(), big)


def test_overlapping_copies(tmp_path: Path) -> None:
    boxes = [Box((0, 0), (4, 4)), Box((2, 0), (4, 4)), Box((2, 1), (1, 2))]
    same = write(tmp_path / "same", {"a": (A, boxes)})
    with wb.open(same) as model:
        assert np.array_equal(model["a"].numpy(), A)
    assert {f.rule for f in wb.verify(same, values=True).findings} == {"torch-dcp/overlap"}
    other = write(tmp_path / "other", {"a": (A, boxes)}, copies={("a", 1): A[2:6] + 1})
    with wb.open(other) as model:  # the first counts
        assert np.array_equal(model["a"].numpy(), np.concatenate([A[:4], A[4:] + 1]))
    assert {f.rule for f in wb.verify(other, values=True).findings} == {"torch-dcp/overlap", "dcp/copies"}


# ---- faults of .metadata --------------------------------------------------------------------------------------------


def listed(edit: Callable[[Metadata], Any]) -> bytes:
    metadata: Metadata = {
        "a": (spec_of(A), [Chunk(box, DcpItem(f"__{n}_0.distcp", 0, 100)) for n, box in enumerate(rows(A, 2))]),
        "b": (spec_of(B), dcp_write.whole(spec_of(B), DcpItem("__0_0.distcp", 100, 50))),
    }
    edit(metadata)
    return dcp_write.metadata_file(metadata)


def moved(**fields: Any) -> Callable[[Metadata], None]:
    def move(metadata: Metadata) -> None:
        chunk = metadata["b"][1][0]
        metadata["b"][1][0] = Chunk(chunk.box, chunk.item._replace(**fields))

    return move


def patched(new: bytes, old: bytes) -> Callable[[bytes], bytes]:
    def patch(raw: bytes) -> bytes:
        assert raw.count(old) >= 1, old
        return raw.replace(old, new, 1)

    return patch


M = "torch.distributed.checkpoint.metadata"


def renamed(raw: bytes, module: str, name: str, other: str, way: str) -> bytes:
    return patched(f"c{way}\n{other}\n".encode(), f"c{module}\n{name}\n".encode())(raw)


def extra(rule: str) -> bytes:
    """A `.metadata` with an item of no tensor, of an extension, or a name that isn't torch's."""
    size = Call(Name("torch", "Size"), ((7,),))
    zero = Call(Name("torch", "Size"), ((0,),))
    layout = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    properties = Call(
        Name(M, "TensorProperties"), (Name("torch", "int64"), layout, False, Name("torch", "contiguous_format"), False)
    )
    tensor = Call(
        Name(M, "TensorStorageMetadata"), (properties, size, [Call(Name(M, "ChunkStorageMetadata"), (zero, size))])
    )
    index = Call(Name(M, "MetadataIndex"), ("b", zero, 0))
    place: tuple[Any, ...] = ("__0_0.distcp", 0, 9)
    info = Name("torch.distributed.checkpoint.filesystem", "_StorageInfo")
    stored: dict[Any, Any] = {index: Call(info, (*place, ["zstd"]) if rule == "encoded" else place)}
    if rule == "no-tensor":
        stored[Call(Name(M, "MetadataIndex"), ("c",))] = Call(info, ("__0_0.distcp", 9, 9))
    planner = Name("os", "system") if rule == "unknown-name" else None
    objects = {"o": Call(Name(M, "BytesStorageMetadata"), ())} if rule == "no-item" else {}
    return dumps(Call(Name(M, "Metadata"), ({"b": tensor, **objects}, planner, stored)))


#: Rule -> `.metadata` that break it, and only it.
FAULTS: dict[str, list[bytes]] = {
    "name": [listed(moved(file=name)) for name in ("../x.distcp", "/etc/passwd", "a/b", "c:\\x", "")],
    "no-item": [extra("no-item")],
    "outside": [listed(lambda m: m["a"][1].__setitem__(1, Chunk(Box((4, 0), (3, 4)), m["a"][1][1].item)))],
    "hole": [listed(lambda m: m["a"][1].pop()), listed(lambda m: m["b"][1].clear())],
    "same-bytes": [listed(moved(offset=99)), listed(moved(offset=0, length=1000))],
    "overlap": [listed(lambda m: m["a"][1].append(Chunk(Box((0, 0), (1, 1)), DcpItem("__2_0.distcp", 0, 9))))],
    "encoded": [extra("encoded")],
    "dtype": [renamed(listed(lambda m: None), "torch", "int64", other, "torch") for other in ("qint8", "complex32")],
    "no-tensor": [extra("no-tensor")],
    "unknown-name": [extra("unknown-name")],
}


@pytest.mark.parametrize("rule", FAULTS)
def test_each_fault_is_named_by_its_rule(rule: str) -> None:
    for raw in FAULTS[rule]:
        found = dcp.inspect(BytesSource(raw)).findings
        assert {f.rule for f in found} == {f"torch-dcp/{rule}"}
        assert found[0].severity is dcp.RULES[rule].severity
        if found[0].severity is Severity.ERROR:
            with pytest.raises(FormatError, match=r".+"):
                dcp.read(BytesSource(raw))
        else:
            assert dcp.read(BytesSource(raw)).tensors or rule == "dtype"


def test_each_rule_has_a_fault() -> None:
    in_data_files = {"cut-off", "item"}
    assert {*FAULTS, *in_data_files} == {*dcp.RULES}


NOT_METADATA: dict[str, bytes] = {
    "another object": pickle.dumps({"a": 1}),
    "a field too many": dumps(Call(Name(M, "Metadata"), (1, 2, 3, 4, 5, 6))),
    "no dicts": dumps(Call(Name(M, "Metadata"), ([], None, {}))),
    "a shape of text": listed(lambda m: None).replace(b"K\x06K\x04\x86", b"K\x06X\1\0\0\0x\x86", 1),
    "two pickles": listed(lambda m: None) * 2,
    "too many elements": listed(lambda m: m.__setitem__("c", (Spec((1 << 40, 1 << 40), spec_of(A).dtype), []))),
    "no end": listed(lambda m: None)[:-1],
    "a bare instance of os.system": dumps(Call(Name("os", "system"), ("true",))),
}


@pytest.mark.parametrize("case", NOT_METADATA)
def test_anything_else_is_refused(case: str) -> None:
    with pytest.raises((FormatError, UnsupportedError)):
        dcp.inspect(BytesSource(NOT_METADATA[case]))


def test_shared_chunks_cost_no_more_than_the_pickle() -> None:
    """A million tensors with one list of a thousand chunks each would take hours."""
    size, zero = Call(Name("torch", "Size"), ((2000,),)), Call(Name("torch", "Size"), ((0,),))
    layout = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    properties = Call(Name(M, "TensorProperties"), (Name("torch", "int64"), layout, False, None, False))
    chunks = [Call(Name(M, "ChunkStorageMetadata"), (zero, size))] * 2000
    tensor = Call(Name(M, "TensorStorageMetadata"), (properties, size, chunks))
    raw = dumps(Call(Name(M, "Metadata"), ({f"{n}": tensor for n in range(2000)}, None, {})))
    with pytest.raises(FormatError, match="endlessly"):
        dcp.inspect(BytesSource(raw))


# ---- faults of folders ----------------------------------------------------------------------------------------------


def shorten(folder: Path) -> None:
    path = folder / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])


def other_step(folder: Path) -> None:
    """A file of another save, whose tensors have another shape."""
    write(folder / "x", {"a": (A.reshape(4, 6), [Box((0, 0), (4, 3)), Box((0, 3), (4, 3))]), "b": (B, rows(B, 2))})
    (folder / "x/__0_0.distcp").rename(folder / "__0_0.distcp")
    for path in (folder / "x").iterdir():
        path.unlink()
    (folder / "x").rmdir()


def overwrite(folder: Path) -> None:
    path = folder / "__1_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))


def without_metadata(folder: Path) -> None:
    (folder / dcp.METADATA).rename(folder / ".metadata.tmp")


#: A fault of a folder -> the rules that name it, and whether the model still opens.
FOLDERS: dict[str, tuple[Callable[[Path], Any], set[str], bool]] = {
    "a missing file": (lambda f: (f / "__1_0.distcp").unlink(), {"dcp/missing"}, False),
    "a shard cut off": (shorten, {"torch-dcp/cut-off"}, False),
    "zeros in place of a file": (overwrite, {"torch-dcp/item", "file/zeros"}, False),
    "a file of another step": (other_step, {"torch-dcp/item"}, False),
    "a file of another save": (lambda f: (f / "__9_0.distcp").write_bytes((f / "__1_0.distcp").read_bytes()),
                               {"dcp/stray"}, True),
    "no .metadata": (without_metadata, {"dcp/unfinished", "file/leftover"}, False),
    "two .metadata": (lambda f: (f / "__0.metadata").write_bytes((f / ".metadata").read_bytes()), {"dcp/second"}, True),
}  # fmt: skip


@pytest.mark.parametrize("fault", FOLDERS)
def test_a_damaged_folder(fault: str, tmp_path: Path) -> None:
    damage, rules, opens = FOLDERS[fault]
    folder = write(tmp_path / "in", {"a": (A, [Box((0, 0), (6, 2)), Box((0, 2), (6, 2))]), "b": (B, rows(B, 2))})
    damage(folder)
    report = wb.verify(folder)
    assert {f.rule for f in report.findings if f.rule.startswith(("dcp/", "torch-dcp/"))} == {
        r for r in rules if not r.startswith("file/")
    }
    target = tmp_path / "out.safetensors"
    if opens:
        wb.convert(folder, target)
        with wb.open(target) as model:
            assert np.array_equal(model["a"].numpy(), A)
        return
    assert report.verdict == "failed"
    with pytest.raises((FormatError, UsageError)) as caught:
        wb.convert(folder, target)
    assert caught.value.hint or isinstance(caught.value, FormatError)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_headers_of_a_damaged_folder_are_shown(recorded: Path, tmp_path: Path) -> None:
    folder = unpack("four", tmp_path)
    (folder / "__2_0.distcp").unlink()
    report = wb.inspect(folder)
    assert (report.tensor_count, len(report.files)) == (17, 4)
    assert "__2_0.distcp is missing" in " ".join(finding.message for finding in report.notes)
    assert {t.shape for t in report.tensors} == {t.shape for t in wb.inspect(recorded / "four").tensors}


def test_the_list_counts_among_the_files(recorded: Path) -> None:
    names = {Path(line.path).name for line in wb.hash(recorded / "two").files}
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_each_rule_of_folders_has_a_fault() -> None:
    named = {rule for _, rules, _ in FOLDERS.values() for rule in rules if rule.startswith("dcp/")}
    assert named | {"dcp/copies", "dcp/parts"} == {
        r.id for r in (*verify_distributed.RULES, *verify_distributed.VALUE_RULES)
    }


def test_the_newest_complete_step_of_a_run_is_read(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        write(tmp_path / f"step-{step}", {"a": (A, rows(A, 2))})
    (tmp_path / "step-100/.metadata").unlink()
    with open_model(tmp_path) as model:
        assert model.place.path == tmp_path / "step-10"
        assert any("step 100 is incomplete" in note for note in model.place.notes)
    with pytest.raises(UsageError, match="no weights") as caught:
        open_model(tmp_path / "step-100")
    assert "didn't finish" in str(caught.value.hint)
    (tmp_path / "step-100/__0.metadata").write_bytes(b"")
    with pytest.raises(UsageError, match="no weights") as caught:
        open_model(tmp_path / "step-100")
    assert "each process" in str(caught.value.hint)


def test_safetensors_in_parts_with_faults(recorded: Path, tmp_path: Path) -> None:
    folder = unpack("hf", tmp_path)
    first, second = sorted(folder.iterdir())
    raw = first.read_bytes()
    first.unlink()
    with pytest.raises(FormatError, match="no file has"):
        open_model(folder)
    assert {f.rule for f in wb.verify(folder).findings} == {"dcp/parts"}
    first.write_bytes(raw)
    second.unlink()
    with open_model(folder) as model:  # the last file can't be missed
        assert "don't state the shapes" in " ".join(model.oddities)
    second.write_bytes(raw)
    with pytest.raises(FormatError, match="several files"):
        open_model(folder)
    first.write_bytes(raw.replace(b"DCP_SHARDING_INFO", b"DCP_SHARDING_INFX"))
    with pytest.raises(FormatError, match="doesn't state their places"):
        open_model(folder)
    first.write_bytes(raw.replace(b"saved_offsets", b"saved_offsetz"))
    with pytest.raises(FormatError, match="without its place"):
        open_model(folder)


# ---- hostile --------------------------------------------------------------------------------------------------------


def test_a_hostile_metadata_is_loud_and_runs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a": (A, rows(A, 2))})
    raw = (folder / dcp.METADATA).read_bytes()
    mark = tmp_path / "ran"
    call = b"cos\nsystem\nX%c\0\0\0touch %s\x85R0" % (len(f"touch {mark}"), str(mark).encode())
    (folder / dcp.METADATA).write_bytes(raw[:-1] + call + b".")
    report = wb.scan(folder)
    assert report.verdict.value == "dangerous"
    with wb.open(folder) as model:
        assert np.array_equal(model["a"].numpy(), A)
    assert "os.system is named, and not imported" in " ".join(f.message for f in wb.verify(folder).findings)
    assert not mark.exists()


def test_an_item_inside_another_is_loud(tmp_path: Path) -> None:
    """Bytes in a tensor that are a pickle: torch loads them as an object if .metadata names them."""
    payload = b"cos\nsystem\n(S'true'\ntR."
    array = np.frombuffer(payload.ljust(64, b"\0"), np.uint8)
    folder = write(tmp_path / "in", {"a": (array, rows(array, 1))})
    assert wb.scan(folder / ".metadata")
    at = (folder / "__0_0.distcp").read_bytes().index(payload)
    metadata = {"a": (spec_of(array), [Chunk(Box((0,), (64,)), DcpItem("__0_0.distcp", at, len(payload)))])}
    (folder / dcp.METADATA).write_bytes(dcp_write.metadata_file(metadata))
    report = wb.scan(folder)
    rules = {f.rule for file in report.files for f in file.findings}
    assert "dcp/item" in rules
    assert report.verdict.value == "dangerous"


# ---- torch ----------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["mesh", "fsdp2-tp"])
def test_torch_reads_the_same_from_the_recorded_folders(recorded: Path, case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(recorded / case, tmp_path / "x.pt")
    theirs = torch.load(tmp_path / "x.pt", weights_only=False)["model"]
    with open_model(recorded / case) as model:
        for name, tensor in theirs.items():
            raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert model.stored[name].read_all().tobytes() == raw


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_torch_saves_views_parameters_and_nested_values(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as theirs

    base = torch.arange(24.0).reshape(4, 6)
    conv = torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last)
    state = {"net": {"t": base.t(), "rows": base[1:3], "parameter": torch.nn.Parameter(base), "conv": conv},
             "list": [torch.ones(2), {"deep": torch.zeros(1)}], "epoch": 4}  # fmt: skip
    theirs.save(state, checkpoint_id=tmp_path / "in", no_dist=True)
    assert wb.verify(tmp_path / "in")
    with open_model(tmp_path / "in", WHOLE) as model:
        for name, tensor in {
            "net.t": base.t(), "net.rows": base[1:3], "net.parameter": base, "net.conv": conv,
            "list.0": torch.ones(2), "list.1.deep": torch.zeros(1),
        }.items():  # fmt: skip
            assert model.stored[name].spec.shape == tuple(tensor.shape)
            assert model.stored[name].read_all().tobytes() == tensor.contiguous().numpy().tobytes()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("most", [None, 10])
def test_torch_loads_what_is_written(recorded: Path, tmp_path: Path, most: int | None) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as theirs

    tensors = {**CASES["two"][1], **CASES["one"][1]}
    for case in ("two", "one"):
        target = tmp_path / f"{case}-out"
        wb.convert(recorded / case, target, to=wb.DcpOptions(max_shard_tensors=most))
        state = {n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for n, s in CASES[case][1].items()}
        theirs.load(state, checkpoint_id=target, no_dist=True)
        for name, tensor in state.items():
            assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == data(name, tensors[name]), name
        assert wb.verify(target)
        assert wb.scan(target)


def test_a_type_that_torch_lacks_is_written_as_floats(tmp_path: Path) -> None:
    from tests.reports.makers import gguf

    (tmp_path / "x.gguf").write_bytes(gguf({"general.architecture": ("str", "x")}, {"w": ("Q8_0", (2, 64))}))
    wb.convert(tmp_path / "x.gguf", tmp_path / "out", to="dcp")
    with open_model(tmp_path / "out") as model:
        assert model.stored["w"].spec.dtype.name == "F32"


def test_scalars_and_empty_tensors_survive(tmp_path: Path) -> None:
    saved = {"s": Saved("float32", ()), "e": Saved("float32", (0, 3))}
    wb.save({"s": np.float32(2.5).reshape(()), "e": np.zeros((0, 3), "f4")}, tmp_path / "in.safetensors")
    wb.convert(tmp_path / "in.safetensors", tmp_path / "out", to="dcp")
    with wb.open(tmp_path / "out") as model:
        assert {n: model[n].numpy().shape for n in saved} == {n: s.shape for n, s in saved.items()}
        assert model["s"].numpy() == 2.5


def test_a_list_without_its_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a": (A, rows(A, 1))})
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(UsageError, match="no weights") as caught:
        open_model(folder)
    assert "none of its .distcp files" in str(caught.value.hint)
