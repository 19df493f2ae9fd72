"""A Whisper under the names of CTranslate2, whose queries, keys and values are joined, both ways.

    to_ctranslate2(model)       the tensors by CTranslate2's names
    from_ctranslate2(model)     the model by those of transformers; None if it isn't a Whisper of CTranslate2

Source: `WhisperLoader` in converters/transformers.py of CTranslate2 4.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.frameworks.ctranslate2 import NAME
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.whisper import config as configs
from weighbridge.models.whisper.names import PREFIX, TensorNames, names
from weighbridge.models.whisper.source import WhisperModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

#: Variable of a layer, or of a stack -> the parts that it joins, by OpenAI's names.
LAYERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "self_attention/layer_norm": ("attn_ln",),
        "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
        "self_attention/linear_1": ("attn.out",),
        "attention/layer_norm": ("cross_attn_ln",),
        "attention/linear_0": ("cross_attn.query",),
        "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
        "attention/linear_2": ("cross_attn.out",),
        "ffn/layer_norm": ("mlp_ln",),
        "ffn/linear_0": ("mlp.0",),
        "ffn/linear_1": ("mlp.2",),
    }
)
STACKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "decoder/embeddings/weight": "decoder.token_embedding.weight",
        "decoder/position_encodings/encodings": "decoder.positional_embedding",
        "decoder/layer_norm/gamma": "decoder.ln.weight",
        "decoder/layer_norm/beta": "decoder.ln.bias",
        "encoder/position_encodings/encodings": "encoder.positional_embedding",
        "encoder/layer_norm/gamma": "encoder.ln_post.weight",
        "encoder/layer_norm/beta": "encoder.ln_post.bias",
        **{f"encoder/conv{n}/{end}": f"encoder.conv{n}.{end}" for n in (1, 2) for end in ("weight", "bias")},
    }
)


_NORM, _LINEAR = ("gamma", "beta"), ("weight", "bias")


def _ends(variable: str) -> tuple[str, str]:
    return _NORM if variable.endswith("norm") else _LINEAR


def from_ctranslate2(model: OpenModel) -> OpenModel | None:
    """`left_out` also lists settings. Raises FormatError for a variable that is missing or whose shape contradicts the
    config, and for a key with a bias; UnsupportedError for an int8 model."""
    if model.format != NAME or (model.json("config.json") or {}).get("model_type") != "whisper":
        return None
    path = str(model.place.path)
    rows = {row.openai: row for row in names(configs.sizes_of(model.config, path, configs.KEYS))}
    nodes: dict[str, Node] = {}
    used: set[str] = set()
    for variable, parts in _variables(rows):
        node = model.stored.get(variable)
        if node is None:
            raise FormatError("a variable is missing", path=path, field=variable)
        if node.spec.dtype is BY_NAME["I8"]:
            raise UnsupportedError(f"{variable} has codes of int8", hint="convert a float model of CTranslate2")
        used.add(variable)
        nodes |= _separated(node, variable, parts, rows, path)
    rest = ((name, node.spec.nbytes) for name, node in model.stored.items() if name not in used)
    dropped = (Dropped(name, "value", "a setting of CTranslate2", 1, nbytes) for name, nbytes in rest)
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *dropped))


def _variables(rows: Mapping[str, TensorNames]) -> Iterator[tuple[str, list[str]]]:
    """The variables, and the tensors that each joins; of a key's bias, which doesn't exist, the name."""
    yield from ((variable, [name]) for variable, name in STACKS.items())
    blocks = dict.fromkeys(tuple(name.split(".")[:3]) for name in rows if ".blocks." in name)
    for stack, word, number in blocks:
        for variable, parts in LAYERS.items():
            for end, own in zip(_ends(variable), _LINEAR, strict=True):
                joined = [f"{stack}.{word}.{number}.{part}.{own}" for part in parts]
                if joined[-1] in rows:  # only decoders look at the audio
                    yield f"{stack}/layer_{number}/{variable}/{end}", joined


def _separated(
    node: Node, variable: str, parts: list[str], rows: Mapping[str, TensorNames], path: str
) -> dict[str, Node]:
    """The tensors in a variable, by transformers' names."""
    from weighbridge.tensors.slicing import part

    shape = rows[parts[-1]].plain_shape
    if node.spec.shape != (wanted := (shape[0] * len(parts), *shape[1:])):
        raise FormatError("a variable whose shape differs from config.json's", path=path, field=variable,
                          expected=list(wanted), found=list(node.spec.shape))  # fmt: skip
    nodes = {}
    for number, name in enumerate(parts):
        own = node if len(parts) == 1 else part(node, number * shape[0], (number + 1) * shape[0])
        if name in rows:
            nodes[PREFIX + rows[name].hf] = own
        elif any(own.read_all()):
            raise FormatError("a key with a bias, which no Whisper has", path=path, field=variable)
    return nodes


def to_ctranslate2(model: WhisperModel) -> dict[str, Node]:
    """The tensors by CTranslate2's names. Keys have no bias, so theirs is zeros in a joined one."""
    from weighbridge.tensors.nodes import as_node, concat, reshape, zeros

    tensors = {name: as_node(reshape(tensor, model.names[name].plain_shape)) for name, tensor in model.tensors.items()}
    nodes: dict[str, Node] = {}
    for variable, parts in _variables(model.names):
        last = tensors[parts[-1]].spec
        nodes[variable] = concat([tensors.get(name) or zeros(last.shape, last.dtype) for name in parts])
    return nodes
