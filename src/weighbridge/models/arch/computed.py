"""Roles that a GGUF has and that are computed from several tensors of a folder (`computed` of a table), which can't be
made again.

Sums of products are computed in F64 and rounded once to F32, so that their last bits may differ from the reference
converter's, whose library's depend on the processor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.expand import Instance, Sizes
from weighbridge.models.arch.fuse import Roles
from weighbridge.models.arch.tables.spec import Role

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


class ComputedRow(NamedTuple):
    """A function of the tensors of roles, in order, and the effective config. `why`: what its result is, for the
    refusal to make a folder of it."""

    why: str
    build: Callable[[Sequence[LogicalTensor], Mapping[str, Any]], Node]


def computed(rows: Mapping[str, Role], sizes: Sizes, roles: Roles) -> Roles:
    """The roles with the computed ones in place of those that they are computed from."""
    calls = [row for row in rows.values() if row.computed is not None]
    if not calls:
        return roles
    known: dict[Instance, LogicalTensor] = {}
    used: set[str] = set()
    for row in calls:
        assert row.computed is not None
        for index in [index for role, index in roles if role == row.computed.roles[0]]:
            sources = [(role, index) for role in row.computed.roles]
            tensors = [roles[instance] for instance in sources if instance in roles]
            known[row.name, index] = FUNCTIONS[row.computed.function].build(tensors, sizes.facts)
        used |= {*row.computed.roles}
    return Roles({**{i: roles[i] for i in roles if i[0] not in used}, **known}) if known else roles


def _embedding_through_network(tensors: Sequence[LogicalTensor], facts: Mapping[str, Any]) -> Node:
    """The rows of the texts' embedding through two linear layers, then those of the codes' embedding."""
    from weighbridge.tensors.nodes import concat, linear

    texts, first, first_bias, second, second_bias, codes = tensors
    if (name := facts.get("hidden_act")) not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"config.json: hidden_act = {name!r} isn't computed", hint=f"known: {known}")
    hidden = linear(texts, first, first_bias, activation=name)
    return concat([linear(hidden, second, second_bias), _plain(codes)], 0)


def _embedding_with_inputs(tensors: Sequence[LogicalTensor], facts: Mapping[str, Any]) -> Node:
    """The rows of an embedding, the input before a voice if there is one, and the first latent as the model's input."""
    from weighbridge.tensors.nodes import concat, linear, reshape

    texts, inputs, latent, *voice = tensors
    first = linear(reshape(latent, (1, *latent.spec.shape)), inputs)
    return concat([_plain(texts), *(reshape(_plain(row), (1, texts.spec.shape[1])) for row in voice), first], 0)


def _quotients(tensors: Sequence[LogicalTensor], facts: Mapping[str, Any]) -> Node:
    """Sums of vectors, each divided by how many there were."""
    from weighbridge.tensors.nodes import divide_rows

    sums, counts = tensors
    return divide_rows(sums, counts, _LEAST)


#: The least count of a code (conversion/qwen3tts.py `rvq_codebook`, llama.cpp b11549).
_LEAST: Final = 1e-5


def _decision_scales(tensors: Sequence[LogicalTensor], facts: Mapping[str, Any]) -> Node:
    """The exponentials of two scalars, which end at 100, and the sigmoid of a third, as a Clef's head uses them."""
    from weighbridge.base.dtypes import F32
    from weighbridge.base.spec import Spec
    from weighbridge.tensors.nodes import Const

    prior, joint, gate = (struct.unpack("<f", _plain(tensor).read_all().tobytes())[0] for tensor in tensors)
    values = (*(math.exp(min(scale, math.log(100))) for scale in (prior, joint)), 1 / (1 + math.exp(-gate)))
    return Const(Spec((3,), F32), struct.pack("<3f", *values))


#: Those that the reference converter computes (conversion/qwen3tts.py `_ACT2FN`, llama.cpp b11549).
_ACTIVATIONS: Final = ("silu", "gelu", "relu")


def _plain(tensor: LogicalTensor) -> Node:
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import CastReport, cast

    return cast(tensor, F32, CastReport())


FUNCTIONS: Final[Mapping[str, ComputedRow]] = MappingProxyType(
    {
        "embedding_through_network": ComputedRow(
            "computed from the embeddings of texts and codes by a network", _embedding_through_network
        ),
        "decision_scales": ComputedRow(
            "computed of scalars: exponentials, which end at 100, and a share", _decision_scales
        ),
        "embedding_with_inputs": ComputedRow(
            "joined of an embedding and of a latent times a matrix", _embedding_with_inputs
        ),
        "quotients": ComputedRow("divided by how often each code was used", _quotients),
    }
)
