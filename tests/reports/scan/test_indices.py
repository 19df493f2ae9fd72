"""Tensors whose values say where others lie, against torch's own check of them; and storages whose length isn't that of
their member."""

from __future__ import annotations

import io
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.reports.makers import torch_saved

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import FileReport, ScanVerdict, worst
from weighbridge.reports.scan.pickle import indices, storages

pytestmark = pytest.mark.filterwarnings("ignore")
_INT = torch.int64


def scan(data: bytes) -> FileReport:
    return scan_source(BytesSource(data), "x.pt")


def rules(data: bytes) -> set[str]:
    return {f.rule for f in scan(data).findings}


def changed(data: bytes, name: str, new: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive with other bytes in one member."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", method) as archive:
        for item in old.namelist():
            archive.writestr(zipfile.ZipInfo(item), new if item == name else old.read(item), method)
    return out.getvalue()


def coo(rows: list[list[int]], size: tuple[int, ...], count: int | None = None, coalesced: bool | None = None) -> Any:
    values = torch.ones(len(rows[0]) if count is None else count)
    return torch.sparse_coo_tensor(torch.tensor(rows), values, size, check_invariants=False, is_coalesced=coalesced)


def compressed(layout: Any, starts: list[int], places: list[int], size: tuple[int, ...], block: tuple[int, ...]) -> Any:
    values = torch.ones(len(places), *block)
    return torch.sparse_compressed_tensor(
        torch.tensor(starts), torch.tensor(places), values, size, layout=layout, check_invariants=False
    )


def takes(data: bytes) -> bool:
    """Whether torch finds nothing wrong with the indices."""
    with torch.sparse.check_sparse_tensor_invariants():
        try:
            torch.load(io.BytesIO(data), weights_only=True)
        except (RuntimeError, pickle.UnpicklingError):
            return False
    return True


_CSR, _CSC, _BSR, _BSC = torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc
HOSTILE: dict[str, Callable[[], Any]] = {
    "coo beyond": lambda: coo([[0, 3], [1, 1]], (3, 2)),
    "coo far beyond": lambda: coo([[1 << 40]], (3,)),
    "coo below zero": lambda: coo([[-1, 0]], (3,)),
    "coo called coalesced": lambda: coo([[1, 0]], (3,), coalesced=True),
    "coo twice, called coalesced": lambda: coo([[1, 1]], (3,), coalesced=True),
    "csr beyond": lambda: compressed(_CSR, [0, 1, 2], [0, 5], (2, 3), ()),
    "csr below zero": lambda: compressed(_CSR, [0, 1, 2], [0, -1], (2, 3), ()),
    "csr starts too late": lambda: compressed(_CSR, [1, 1, 2], [0, 1], (2, 3), ()),
    "csr ends too early": lambda: compressed(_CSR, [0, 1, 1], [0, 1], (2, 3), ()),
    "csr goes back": lambda: compressed(_CSR, [0, 5, 2], [0, 1], (2, 3), ()),
    "csr out of order": lambda: compressed(_CSR, [0, 2, 2], [1, 0], (2, 3), ()),
    "csr twice": lambda: compressed(_CSR, [0, 2, 2], [1, 1], (2, 3), ()),
    "csc beyond": lambda: compressed(_CSC, [0, 1, 2, 2], [0, 2], (2, 3), ()),
    "bsr beyond": lambda: compressed(_BSR, [0, 1, 2], [0, 2], (4, 4), (2, 2)),
    "bsc beyond": lambda: compressed(_BSC, [0, 1, 2], [0, 3], (4, 6), (2, 3)),
}  # fmt: skip
HONEST: dict[str, Callable[[], Any]] = {
    "coo": lambda: coo([[0, 2], [1, 1]], (3, 2)),
    "coo, twice": lambda: coo([[1, 1]], (3,)),
    "coo, coalesced": lambda: coo([[0, 1]], (3,), coalesced=True),
    "coo, empty": lambda: torch.zeros(3, 4).to_sparse(),
    "coo, hybrid": lambda: torch.eye(3).reshape(3, 3, 1).expand(3, 3, 2).to_sparse(1),
    "coo of no dimensions": lambda: torch.tensor(3.0).to_sparse(),
    "csr, empty rows": lambda: compressed(_CSR, [0, 0, 2, 2], [0, 2], (3, 3), ()),
    "csr, 32 bits": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2)
    ),
    "csr, batches": lambda: torch.ones(2, 3, 4).to_sparse_csr(),
    "csr, dense": lambda: torch.ones(3, 4, 2).to_sparse_csr(dense_dim=1),
    "csc": lambda: compressed(_CSC, [0, 1, 2, 2], [0, 1], (2, 3), ()),
    "bsr": lambda: compressed(_BSR, [0, 1, 2], [0, 1], (4, 4), (2, 2)),
    "bsc": lambda: compressed(_BSC, [0, 1, 2], [0, 1], (4, 6), (2, 3)),
    "bsr, batches": lambda: torch.ones(2, 4, 6).to_sparse_bsr((2, 3)),
}
_SAVES: dict[str, dict[str, Any]] = {
    "zip": {},
    "before 1.6": {"_use_new_zipfile_serialization": False},
    "protocol 4": {"pickle_protocol": 4},
}


@pytest.mark.parametrize("save", _SAVES)
@pytest.mark.parametrize("name", HOSTILE)
def test_indices_outside_are_dangerous(name: str, save: str) -> None:
    data = torch_saved({"w": HOSTILE[name]()}, **_SAVES[save])
    assert rules(data) == {"pickle/index-outside"}
    assert scan(data).verdict is ScanVerdict.DANGEROUS
    if save == "zip":
        assert not takes(data)


@pytest.mark.parametrize("save", _SAVES)
@pytest.mark.parametrize("name", HONEST)
def test_honest_indices_are_data(name: str, save: str) -> None:
    data = torch_saved({"w": HONEST[name]()}, **_SAVES[save])
    assert scan(data).verdict is ScanVerdict.DATA_ONLY
    if save == "zip":
        assert takes(data)


@pytest.mark.parametrize(("name", "verdict"), [("coo", "data-only"), ("coo beyond", "dangerous")])
def test_pickled_without_torch_save(name: str, verdict: str) -> None:
    """The storages lie in the pickle."""
    assert scan(pickle.dumps((HONEST | HOSTILE)[name]())).verdict == verdict


def test_numbers_of_big_machines() -> None:
    data = torch_saved(coo([[0, 1]], (2,)))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data/0"))
        turned = bytes(8) + bytes(7) + b"\1"
        assert archive.read(name) == turned[::-1][-16:] or archive.read(name) == bytes(8) + b"\1" + bytes(7)
    turned = changed(data, name, turned)
    assert rules(turned) == {"pickle/index-outside"}
    assert not rules(changed(turned, name.replace("data/0", "byteorder"), b"big"))


def _random_coo(rng: random.Random) -> Any:
    dims, count = rng.randrange(1, 4), rng.randrange(5)
    size = tuple(rng.randrange(1, 5) for _ in range(dims))
    rows = [[rng.randrange(n) for _ in range(count)] for n in size]
    if count and rng.random() < 0.5:
        rows[rng.randrange(dims)][rng.randrange(count)] += rng.choice((-5, -1, 1, 5))
    return torch.sparse_coo_tensor(
        torch.tensor(rows, dtype=_INT).reshape(dims, count), torch.ones(count), size, check_invariants=False,
        is_coalesced=rng.choice((None, True, False)),
    )  # fmt: skip


def _random_compressed(rng: random.Random) -> Any:
    layout = rng.choice((_CSR, _CSC, _BSR, _BSC))
    block = (rng.randrange(1, 3), rng.randrange(1, 3)) if layout in (_BSR, _BSC) else ()
    rows, columns = rng.randrange(1, 4), rng.randrange(1, 4)
    runs = [sorted(rng.sample(range(columns), rng.randrange(columns + 1))) for _ in range(rows)]
    starts, places = [0], [place for run in runs for place in run]
    for run in runs:
        starts.append(starts[-1] + len(run))
    for numbers in (starts, places):
        if numbers and rng.random() < 0.3:
            numbers[rng.randrange(len(numbers))] += rng.choice((-1, 1))
    if layout in (_CSC, _BSC):
        rows, columns = columns, rows
    size = (rows * block[0], columns * block[1]) if block else (rows, columns)
    return compressed(layout, starts, [*places], size, block)


@pytest.mark.costly
@pytest.mark.oracle
def test_torch_finds_the_same_wrong() -> None:
    rng = random.Random(11)
    wrong = 0
    for number in range(300):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = (_random_coo if number % 2 else _random_compressed)(rng)
        data = torch_saved(value)
        verdict = scan(data).verdict
        assert (verdict is ScanVerdict.DATA_ONLY) == takes(data), (value._indices() if number % 2 else value, verdict)
        wrong += verdict is ScanVerdict.DANGEROUS
    assert 60 < wrong < 240


# ---- nested ones, wrapped ones, quantized ones ------------------------------------------------------------------


def _nested(size: int, stride: int, offset: int) -> Any:
    buffer = torch.arange(6.0)
    made = torch.nested.nested_tensor([torch.ones(2), torch.ones(4)])
    parts = [made._nested_tensor_size(), made._nested_tensor_strides(), made._nested_tensor_storage_offsets()]
    sizes, strides, offsets = (part.clone() for part in parts)
    sizes[0, 0], strides[0, 0], offsets[0] = size, stride, offset
    return _Nested((buffer, sizes, strides, offsets))


class _Made:
    """Pickled as a call."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args


class _Nested(_Made):
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return torch._utils._rebuild_nested_tensor, self.args


class _Typed(_Made):
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return torch._tensor._rebuild_from_type_v2, (torch._utils._rebuild_sparse_tensor, torch.Tensor, self.args, {})


class _Quantized(_Made):
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        storage = torch.zeros(8, dtype=torch.int8).untyped_storage()
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.qint8, _internal=True)
        return torch._utils._rebuild_qtensor, (typed, 0, (4, 2), (2, 1), self.args, False, {})


@pytest.mark.parametrize(
    ("size", "stride", "offset", "verdict"),
    [(2, 1, 0, "data-only"), (2, 1, 4, "data-only"), (2, 1, 5, "dangerous"), (7, 1, 0, "dangerous"),
     (2, 9, 0, "dangerous"), (2, 1, -1, "dangerous"), (-2, 1, 0, "dangerous"), (0, 1, 99, "data-only")],
)  # fmt: skip
def test_nested_tensors(size: int, stride: int, offset: int, verdict: str) -> None:
    assert scan(torch_saved(_nested(size, stride, offset))).verdict == verdict


@pytest.mark.parametrize(("index", "verdict"), [(1, "data-only"), (9, "dangerous")])
def test_a_sparse_tensor_that_another_call_makes(index: int, verdict: str) -> None:
    made = _Typed((torch.sparse_coo, (torch.tensor([[index]]), torch.ones(1), torch.Size([3]), None)))
    assert scan(torch_saved(made)).verdict == verdict


@pytest.mark.parametrize(
    ("scheme", "fits"),
    [((torch.per_tensor_affine, 0.5, 3), True), ((torch.per_tensor_affine, 0.5), False),
     ((torch.per_channel_affine, [0.5] * 4, [0] * 4, 0), True),
     ((torch.per_channel_affine, torch.ones(4), torch.zeros(4, dtype=_INT), 0), True),
     ((torch.per_channel_affine, [0.5] * 3, [0] * 4, 0), False),
     ((torch.per_channel_affine, torch.ones(2), torch.zeros(4, dtype=_INT), 0), False),
     ((torch.per_channel_affine, torch.ones(4, 1), torch.zeros(4, dtype=_INT), 0), False),
     ((torch.per_channel_affine, [0.5] * 4, [0] * 4, 2), False),
     ((torch.per_channel_affine, [0.5] * 2, [0] * 2, 1), True), ((), False)],
)  # fmt: skip
def test_quantized_tensors_have_a_scale_for_every_channel(scheme: tuple[Any, ...], fits: bool) -> None:
    assert ("pickle/odd-arguments" not in rules(torch_saved(_Quantized(scheme)))) is fits


# ---- storages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("length", [0, 47, 49])
def test_a_storage_of_another_length(length: int, method: int) -> None:
    data = torch_saved({"w": torch.arange(12.0)})
    assert scan(data).verdict is ScanVerdict.DATA_ONLY
    data = changed(data, "archive/data/0", bytes(length), method)
    assert rules(data) == {"pickle/storage-length"}
    assert scan(data).verdict is ScanVerdict.MALFORMED


def test_what_is_not_at_hand_is_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch_saved(coo([[0, 1]], (2,)))
    for name, most in (("_LONGEST", 3),):
        with monkeypatch.context() as patch:
            patch.setattr(storages, name, most)
            assert rules(data) == {"pickle/indices"}
    monkeypatch.setattr(indices, "_MOST", 1)
    assert scan(data).verdict is ScanVerdict.UNPROVEN


def _broken() -> Iterator[bytes]:
    yield torch_saved(HOSTILE["coo beyond"]())
    yield changed(torch_saved({"w": torch.arange(12.0)}), "archive/data/0", b"")
    yield pickle.dumps(torch.nn.Parameter(torch.ones(1))) + b""
    with zipfile.ZipFile(io.BytesIO(torch_saved(HONEST["coo"]()))) as archive:
        yield archive.read("archive/data.pkl")


@pytest.mark.mutation
@pytest.mark.parametrize("rule", ["pickle/indices", "pickle/index-outside", "pickle/storage-length"])
def test_without_a_rule_some_file_would_pass_for_milder(rule: str) -> None:
    milder = []
    for data in _broken():
        report = scan(data)
        left = [f.verdict for f in report.findings if f.rule != rule]
        milder.append(worst((ScanVerdict.DATA_ONLY, *left)).rank < report.verdict.rank)
    assert any(milder)
