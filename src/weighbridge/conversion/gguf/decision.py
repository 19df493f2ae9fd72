"""The additions of a decision model's GGUF to its base model's: the rows or matrices by which it decides, keys, and
the prompt. Follows conversion/lev.py, pplx_decider.py, qwen.py `OpenJevModel`, lfm2.py `D1Model` (llama.cpp b11549)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON, TOKENIZER_JSON
from weighbridge.containers.base import Index
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.config.keys import LAST
from weighbridge.models.decision import QUESTIONS, Decision, Readout
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.stored_tensors import node_builder
from weighbridge.models.tokenizer.gguf import TEMPLATE, TEMPLATES
from weighbridge.tensors.nodes import LogicalTensor, concat, slice_rows, zeros

NAME: Final = "systemone"
_OUTPUT: Final = "output.weight"
_SCORES: Final = "cls.output."
_PARTS: Final = ("q", "k")


def of_class(model: OpenModel, decision: Decision | None) -> OpenModel:
    """The model with the class of its base model in its config, if that doesn't name it, and with the files of its
    tokenizer, if they are in a folder of their own."""
    if decision is None or not (decision.row.class_ or decision.row.tokenizer):
        return model
    row, start = decision.row, f"{decision.row.tokenizer}/"
    config = {**model.config, **({"architectures": [row.class_]} if row.class_ else {})}
    names = [name for name in decision.place.names() if row.tokenizer and name.startswith(start)]
    files = {name.removeprefix(start): decision.place.read(name, TOKENIZER_JSON) for name in names}
    texts = {name: content for name, content in files.items() if content is not None}
    return replace(model, texts={**model.texts, **texts, "config.json": json.dumps(config).encode()})


def with_head(model: OpenModel, decision: Decision | None) -> OpenModel:
    """The model with `HEAD.safetensors` as its tensors `HEAD.NAME`, and with their sizes and `HEAD_config.json` as
    `decision` of its config, if its class has a head in a file. Raises FormatError unless the sizes are there."""
    if decision is None or not (head := decision.row.head):
        return model
    index, more = model.index, open_weights(path := decision.path(f"{head}.safetensors")).index
    entries = [msgspec.structs.replace(e, name=f"{head}.{e.name}", file=e.file + len(index.files)) for e in more]
    name = f"{head}_config.json"
    stated = decode(decision.place.read(name, CONFIG_JSON) or b"{}", str(decision.path(name)), dict[str, Any])
    config = {**model.config, "architectures": [decision.name], "decision": {**stated, **_widths(more, path)}}
    joined = replace(
        index, files=(*index.files, *more.files), entries=(*index.entries, *entries),
        data_start=(*index.data_start, *more.data_start),
    )  # fmt: skip
    build = node_builder(joined)
    nodes = None if model.nodes is None else {**model.nodes, **{entry.name: build(entry) for entry in entries}}
    return replace(model, index=joined, nodes=nodes, texts={**model.texts, "config.json": json.dumps(config).encode()})


def _widths(index: Index, path: Path) -> dict[str, int]:
    for name in _WIDTHS.values():
        if name not in index or len(index[name].shape) != 2:
            raise FormatError("is missing", path=str(path), field=name, expected="a matrix")
    return {key: index[name].shape[0] for key, name in _WIDTHS.items()}


def head_last(names: list[str], decision: Decision | None) -> list[str]:
    """The names of the model's tensors; those of such a head are last."""
    head = decision.row.head if decision else ""
    return sorted(names, key=lambda name: name.startswith(f"{head}.")) if head else names


#: Sizes of a head -> the matrix with as many rows.
_WIDTHS: Final = MappingProxyType(
    {"width": "memory_projection.weight", "feed_forward_width": "layers.0.linear1.weight"}
)


def tensors_of(decision: Decision, model: OpenModel) -> dict[str, LogicalTensor]:
    """The tensors by which it decides, under a GGUF's names. Their files stay open with the model. Raises FormatError
    if they don't fit."""
    if decision.row.readout is not None:
        return {_OUTPUT: _scattered(decision, decision.row.readout, model)}
    if not decision.row.pointer:
        return {}
    path = decision.path(decision.row.pointer)
    head = open_weights(path).logical
    names = [f"head.{part}.{end}" for part in _PARTS for end in ("weight", "bias")]
    width, rows = model.sizes["N"], integer(_head_of(decision).get("head_dim"), "head_dim", 1)
    shapes = {name: (rows, width) if name.endswith("weight") else (rows,) for name in names}
    if (found := {name: node.spec.shape for name, node in head.items()}) != shapes:
        raise FormatError("isn't a pointer head of the model", path=str(path), expected=shapes, found=found)
    joined = {end: concat([head[f"head.{part}.{end}"] for part in _PARTS]) for end in ("weight", "bias")}
    return {f"{_SCORES}{end}": node for end, node in joined.items()}


def _head_of(decision: Decision) -> Mapping[str, Any]:
    """The numbers next to the tensors of a pointer head."""
    with open_weights(decision.path(decision.row.pointer)) as head:
        return dict(head.metadata)


def _scattered(decision: Decision, readout: Readout, model: OpenModel) -> LogicalTensor:
    """The readout's rows as those of its tokens, in an output of zeros."""
    path, tokens = decision.path(readout.file), decision.value(readout.tokens)
    matrix, rows, width = open_weights(path).logical.get(readout.tensor), model.sizes["V"], model.sizes["N"]
    ids = [integer(token, readout.tokens, 0, rows - 1) for token in tokens] if isinstance(tokens, list) else []
    if matrix is None or matrix.spec.shape != (len(ids), width) or len({*ids}) != len(ids) or not ids:
        found = None if matrix is None else matrix.spec.shape
        raise FormatError(
            "isn't a readout with a row for each label", path=str(path), expected=(len(ids), width), found=found
        )
    parts: list[LogicalTensor] = []
    end = 0
    for token, row in sorted((token, row) for row, token in enumerate(ids)):
        if token > end:
            parts.append(zeros((token - end, width), matrix.spec.dtype))
        parts.append(slice_rows(matrix, row, (1, width)))
        end = token + 1
    if end < rows:
        parts.append(zeros((rows - end, width), matrix.spec.dtype))
    return concat(parts)


def add_keys(draft: PlanBuilder, decision: Decision | None, architecture: str) -> None:
    """Inserts its keys after the architecture's, and its prompt after the tokenizer's."""
    if decision is None:
        return
    start = f"{architecture}.decision."
    keys = {f"{start}type": KV("str", decision.row.type)}
    temperatures: dict[str, Any] = dict(decision.temperatures())
    if decision.row.pointer:
        head = _head_of(decision)
        keys[f"{architecture}.embedding_length_out"] = KV(
            "u32", len(_PARTS) * integer(head.get("head_dim"), "head_dim", 1)
        )
        temperatures |= dict.fromkeys(QUESTIONS, head.get("temperature"))
    if decision.row.in_table:
        keys, temperatures = {}, {}
    keys |= {f"{start}temperature.{name}": KV("f32", value) for name, value in temperatures.items()}
    out: dict[str, Any] = {}
    for key, value in draft.metadata.items():
        out |= keys if key == LAST else {}
        out[key] = value
    if any(key.startswith("tokenizer.ggml.tokens") for key in out):
        out |= {f"{TEMPLATE}.{NAME}": KV("str", decision.template), TEMPLATES: KV("arr[str]", [NAME])}
    draft.metadata = out
    draft.requested |= {"tie_word_embeddings"} if decision.row.readout else set()
    draft.notes.append(f"a decision model, {decision.name}: with its prompt for llama.cpp's server")
