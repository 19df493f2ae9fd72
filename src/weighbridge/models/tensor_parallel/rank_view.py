"""A rank's part of a model that is stored whole: how every stored tensor is divided, and the parts of one rank, which
are read on request."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import SHARDS
from weighbridge.models.model import OpenModel
from weighbridge.models.tensor_parallel.packed_shards import OneRank, Split, Splitter, rank_part

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

#: How the ranks divide experts: each among all of them, or some whole ones to each.
Experts = Literal["cut", "whole"]
_TRIED: Final = 64  # the largest number of ranks that a hint suggests


def rank_view(model: OpenModel, rank: int, ranks: int, experts: Experts = "cut") -> OpenModel:
    """The checkpoint with the tensors of one rank, under their stored names. Quantized tensors keep their codes: a cut
    through a word, a block or a group is a UsageError with the numbers of ranks that work. `experts`: "whole" deals
    them out instead of cutting each."""
    if experts not in get_args(Experts):
        raise UsageError(f"experts can't be {experts!r}", hint=" or ".join(get_args(Experts)))
    if not (1 <= ranks <= SHARDS and 0 <= rank < ranks):
        raise UsageError(f"rank {rank} of {ranks}", hint=f"ranks count from 0; a group has at most {SHARDS:,}")
    nodes: dict[str, Node] = {}
    for name, split in _divided(model, ranks, experts).items():
        if not isinstance(split, OneRank):
            nodes[name] = rank_part(model.stored[name], split, rank, ranks)
        elif split.rank == rank:
            nodes[name] = model.stored[name]
    return replace(model, nodes=nodes)


def splits_of(model: OpenModel, ranks: int) -> dict[str, Split]:
    """How each stored tensor is split. UsageError if a tensor can't be split among `ranks`, with the numbers that
    work for it."""
    divided = _divided(model, ranks, "cut")
    return {name: split for name, split in divided.items() if not isinstance(split, OneRank)}


def _divided(model: OpenModel, ranks: int, experts: Experts) -> dict[str, Split | OneRank]:
    family = model.family
    shapes = {name: node.spec.shape for name, node in model.tensors.items()}
    report = family.check(model.dialect, model.sizes, shapes)
    if not report.ok:
        hint = f"wb arch check {shlex.quote(str(model.place.path))}"
        raise UnsupportedError(f"the tensors don't fit a {family.name} model: {report}", hint=hint)
    splitter = Splitter(family, model.dialect, model.sizes, model.stored, model.packed)
    out: dict[str, Split | OneRank] = {}
    for name in model.logical:
        try:
            whole = splitter.split_experts(name, ranks) if experts == "whole" else None
            out |= splitter.split(name, ranks) if whole is None else whole
        except UsageError as error:
            raise UsageError(error.message, hint=_hint(splitter, name, model)) from None
    return {name: out[name] for name in model.stored if name in out}


def _hint(splitter: Splitter, name: str, model: OpenModel) -> str:
    """The numbers of ranks that a tensor can be split among."""
    fits = []
    for ranks in range(2, _TRIED + 1):
        with suppress(UsageError):
            splitter.split(name, ranks)
            fits.append(ranks)
    if fits:
        return f"this tensor can be split among {', '.join(map(str, fits))} ranks"
    decode = f"wb convert {shlex.quote(str(model.place.path))} DST --to hf --dtype bf16"
    return f"no number of ranks works for this tensor; decode the model: {decode}"
