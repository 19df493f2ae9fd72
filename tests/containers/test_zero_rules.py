"""The rules that join tensor-parallel parts of DeepSpeed's checkpoints. The parts are cut here by another
implementation; DeepSpeed's merge_tp_slices (0.19.8) joins each of these cases to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.torch.zero.parts import ZeroPiece, ZeroWeight, joined_parts
from weighbridge.containers.torch.zero.rules import PatternTable, part_rules
from weighbridge.io.source import BytesSource
from weighbridge.models.zero import node_of

NAME = "model.layers.0.qkv.weight"
PATTERN = r"^model\.layers\.0\.qkv\.weight$"


class Case(NamedTuple):
    info: dict[str, Any]
    whole: np.ndarray
    parts: list[np.ndarray]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + shape[0]).standard_normal(shape).astype(np.float32)


def sections(array: np.ndarray, widths: list[list[int]], axis: int = 0) -> list[np.ndarray]:
    """Each part's share of every section of an axis."""
    ends = np.cumsum([0, *(n for widths_of in widths for n in widths_of)])
    ranks = len(widths[0])
    return [
        np.concatenate([np.take(array, range(ends[s * ranks + r], ends[s * ranks + r + 1]), axis)
                        for s in range(len(widths))], axis) for r in range(ranks)
    ]  # fmt: skip


def sub(shape: Any, axis: int = 0, version: float = 0.2, widths: Any = None) -> dict[str, Any]:
    info = {"universal_checkpoint_version": version,
            "parameter_with_sub_params": [{"patterns": [PATTERN], "shape": shape, "partition_dim": axis}]}  # fmt: skip
    return info if widths is None else {**info, "sub_param_shard_widths": {PATTERN: widths}}


def affine(shape: tuple[int, ...], *ranks: Any) -> dict[str, Any]:
    """Of each rank: the shape of its part; its pieces as (shape, source offset, strides, offset, strides, scale)."""
    saved = {
        n: {"shard_shape": list(part),
            "pieces": [{"shape": list(size), "source": [at, list(steps)], "dest": [to, list(strides)], "locations": [n],
                        "scale": scale} for size, at, steps, to, strides, scale in pieces]}
        for n, (part, pieces) in enumerate(ranks)
    }  # fmt: skip
    return {"affine_map": {"version": 1, "params": {PATTERN: {"logical_shape": list(shape), "ranks": saved}}}}


W, V, UNEVEN = values(12, 4), values(6), [[3, 1], [2, 2], [1, 3]]
CASES: dict[str, Case] = {
    "rows": Case({}, W, np.split(W, 3)),
    "uneven rows": Case({}, W, [W[:7], W[7:]]),
    "columns": Case({"parameter_with_row_parallelism_patterns": [PATTERN]}, W, np.split(W, 2, 1)),
    "uneven columns": Case({"parameter_with_row_parallelism_patterns": [PATTERN]}, W, [W[:, :3], W[:, 3:]]),
    "whole": Case({"tp_replicated_parameter_patterns": [PATTERN]}, V, [V, V]),
    "average": Case({"parameter_to_average_patterns": [PATTERN]}, (V + (V - 1) + V * 3) / np.float32(3),
                    [V, V - 1, V * 3]),
    "average of zeros": Case({"parameter_to_average_patterns": [PATTERN]}, np.zeros(2, np.float32),
                             [np.full(2, -0.0, np.float32)] * 2),
    "halves": Case({"parameter_with_2_sub_params_cat_dim_0": [PATTERN]}, W, sections(W, [[2, 2, 2], [2, 2, 2]])),
    "vocabulary": Case({"vocabulary_parameter_patterns": [PATTERN], "original_vocab_size": 10}, W[:10], np.split(W, 2)),
    "small vocabulary": Case({"vocabulary_parameter_patterns": [PATTERN], "original_vocab_size": 5}, W[:5],
                             np.split(W, 2)),
    "a number of sub-parameters": Case(sub((3, -1)), W, sections(W, [[2, 2]] * 3)),
    "sizes of sub-parameters": Case(sub(((8, 2, 2), 4)), W, sections(W, [[4, 4], [1, 1], [1, 1]])),
    "widths of sub-parameters": Case(sub(((4, 4, 4), -1), version=0.4, widths=UNEVEN), W, sections(W, UNEVEN)),
    "sub-parameters of columns": Case(sub((12, (2, 2)), 1), W, sections(W, [[1, 1], [1, 1]], 1)),
    "sub-parameters of a bias": Case(sub((3,)), V, sections(V, [[1, 1]] * 3)),
    "affine rows": Case(affine((12, 4), ((7, 4), [((7, 4), 0, (4, 1), 0, (4, 1), 1.0)]),
                               ((5, 4), [((5, 4), 28, (4, 1), 0, (4, 1), 1.0)])), W, [W[:7], W[7:]]),
    "affine sections of columns": Case(
        affine((12, 4), *(((12, 2), [((12, 1), n, (4, 1), 0, (2, 1), 1.0), ((12, 1), 2 + n, (4, 1), 1, (2, 1), 1.0)])
                          for n in (0, 1))), W, sections(W, [[1, 1], [1, 1]], 1)),
    "affine copies with a scale": Case(affine((6,), *[((6,), [((6,), 0, (1,), 0, (1,), 0.5)])] * 2), V,
                                       [V * np.float32(0.5)] * 2),
    "affine and padded": Case(
        affine((12, 4), *(((6, 4), [((6, 4), 24 * n, (4, 1), 0, (4, 1), 1.0)]) for n in (0, 1)))
        | {"vocabulary_parameter_patterns": [PATTERN], "original_vocab_size": 11}, W[:11], np.split(W, 2)),
}  # fmt: skip


def joined(info: dict[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
    """The whole weight of parts, by the rules."""
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    entries, at = [], 0
    for number, array in enumerate(arrays):
        entries.append(Entry(f"part{number}", F32, (array.size,), at, array.nbytes))
        at += array.nbytes
    index = Index("torch-zip", (BytesSource(data, "parts"),), tuple(entries), data_start=(0,))
    parts = [
        ZeroWeight(Spec(array.shape, F32), F32, (ZeroPiece(0, entry, 0, array.size),) if array.size else ())
        for entry, array in zip(entries, arrays, strict=True)
    ]
    rules = part_rules(info, "file")
    assert rules is not None
    node = node_of(joined_parts(NAME, parts, rules, "file"), [index])
    return node.read(0, node.spec.rows).view(np.float32).reshape(node.spec.shape)


@pytest.mark.parametrize("case", CASES)
def test_parts_are_joined(case: str) -> None:
    info, whole, parts = CASES[case]
    found = joined(info, parts)
    assert (found.shape, found.tobytes()) == (whole.shape, whole.tobytes())


def _changed(case: str, change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    import copy

    info = copy.deepcopy(CASES[case].info)
    change(info)
    return info


def _map(info: dict[str, Any]) -> Any:
    return info["affine_map"]["params"][PATTERN]


def _piece(info: dict[str, Any]) -> Any:
    return _map(info)["ranks"][1]["pieces"][0]


BAD: dict[str, tuple[str, Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "version": ("affine rows", lambda i: i["affine_map"].update(version=2), UnsupportedError, "version 2"),
    "no map": ("affine rows", lambda i: i.update(affine_map=[1]), FormatError, "not a dict"),
    "no shape": ("affine rows", lambda i: _map(i).pop("logical_shape"), FormatError, "blocks"),
    "a negative axis": ("affine rows", lambda i: _map(i).update(logical_shape=[-12, 4]), FormatError, "blocks"),
    "a rank is missing": ("affine rows", lambda i: _map(i)["ranks"].pop(1), FormatError, "blocks"),
    "no pieces": ("affine rows", lambda i: _map(i)["ranks"][1].pop("pieces"), FormatError, "blocks"),
    "outside the whole": ("affine rows", lambda i: _piece(i).update(source=[44, [4, 1]]), FormatError, "blocks"),
    "outside the part": ("affine rows", lambda i: _piece(i).update(dest=[1, [4, 1]]), FormatError, "blocks"),
    "not a block": ("affine rows", lambda i: _piece(i).update(source=[28, [1, 4]]), FormatError, "blocks"),
    "a scale of 0": ("affine rows", lambda i: _piece(i).update(scale=0.0), FormatError, "blocks"),
    "no scale": ("affine rows", lambda i: _piece(i).update(scale=float("nan")), FormatError, "blocks"),
    "a hole": ("affine rows", lambda i: _piece(i).update(source=[0, [4, 1]]), FormatError, "no tensor-parallel part"),
    "rows": ("vocabulary", lambda i: i.update(original_vocab_size=13), FormatError, "more rows"),
    "uneven sub-parameters": ("a number of sub-parameters", lambda i: i["parameter_with_sub_params"][0].update(
        shape=((9, 3), 4)), FormatError, "as many"),
    "no widths": ("widths of sub-parameters", lambda i: i.pop("sub_param_shard_widths"), FormatError, "no widths"),
    "other widths": ("widths of sub-parameters", lambda i: i["sub_param_shard_widths"].update(
        {PATTERN: [[3, 2], [1, 2], [1, 3]]}), FormatError, "as many"),
    "parts of other sizes": ("widths of sub-parameters", lambda i: i["sub_param_shard_widths"].update(
        {PATTERN: [[2, 2]] * 3}) or i["parameter_with_sub_params"][0].update(shape=((4, 4, 4), 5)), FormatError,
        "sizes of the parts"),
    "no axis": ("a number of sub-parameters", lambda i: i["parameter_with_sub_params"][0].pop("partition_dim"),
                FormatError, "not the shape"),
    "no sub-parameters": ("a number of sub-parameters", lambda i: i["parameter_with_sub_params"][0].update(
        shape=(0, -1)), FormatError, "not the shape"),
    "too many sub-parameters": ("a number of sub-parameters", lambda i: i["parameter_with_sub_params"][0].update(
        shape=(1 << 40, -1)), FormatError, "not the shape"),
    "not stated": ("rows", lambda i: i.update(autotp_unsupported_parameter_patterns={PATTERN: "it is odd"}),
                   UnsupportedError, "it is odd"),
    "a slow pattern": ("rows", lambda i: i.update(tp_replicated_parameter_patterns=["(a+)+$"]), UnsupportedError,
                       "the pattern"),
    "numbers in a row": ("rows", lambda i: i.update(tp_replicated_parameter_patterns=[r"\d+\d+\d+x"]), UnsupportedError,
                         "the pattern"),
    "many patterns": ("rows", lambda i: i.update(tp_replicated_parameter_patterns=[f"a{n}" for n in range(2000)]),
                      UnsupportedError, "2,000 patterns"),
    "halves of odd parts": ("uneven rows", lambda i: i.update(parameter_with_2_sub_params_cat_dim_0=[PATTERN]),
                            FormatError, "not a shape"),
    "copies of other shapes": ("uneven rows", lambda i: i.update(tp_replicated_parameter_patterns=[PATTERN]),
                               FormatError, "different shapes"),
    "other columns": ("uneven columns", lambda i: i.clear(), FormatError, "different shapes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_rules_are_named(case: str) -> None:
    good, change, error, words = BAD[case]
    with pytest.raises(error, match=words):
        joined(_changed(good, change), CASES[good].parts)


def test_names_are_found_by_patterns() -> None:
    table = PatternTable([(r"^a\.b$", 1), (r"a\.\d+\.w", 2), ("a.b", 3), (r"^c\-d", 4)], "file")
    found = {name: table.find(name) for name in ("a.b", "a.b.c", "axb", "a.12.w.x", "x.a.12.w", "c-d")}
    assert found == {"a.b": 1, "a.b.c": 3, "axb": None, "a.12.w.x": 2, "x.a.12.w": None, "c-d": 4}


def test_a_thousand_patterns_of_one_name_cost_no_more() -> None:
    table = PatternTable(((rf"^layers\.{n}\.weight$", n) for n in range(10_000)), "file")
    assert not table.patterns
    assert table.find("layers.77.weight") == 77
