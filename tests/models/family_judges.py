"""What a family's table is checked against: the recorded works of others (golden/families.json) for each of its models.

A tensor's numbers follow from its Hugging Face name (`values`), so what we make of a model is right where its digests
are those that transformers, mlx-lm and the reference converter made. Every judge raises where the table errs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from tests.models.record_families import (
    CONSTANTS,
    GOLDEN,
    HEAD,
    TOKENS,
    UNTRAINED,
    digest,
    read,
    sample,
    values,
    write,
    writing,
)
from tests.oracles import folded
from tests.oracles.families import CASES, UNSAID
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F16, F32, I64
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.conversion import dtype_policy
from weighbridge.models.arch import kv_tensors as keyed
from weighbridge.models.arch.config import LOCAL_THETA, THETA
from weighbridge.models.arch.expand import Sizes, applies
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingError, as_read, reference_order
from weighbridge.models.arch.registry import families, family_of_gguf, family_of_hf, with_counted_layers
from weighbridge.models.config.keys import lookup, rules
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import assemble, config_to_gguf, facts_losses, gguf_to_config
from weighbridge.tensors.nodes import Const, Node, QuantizedTensor, as_node, const, zeros

FORCED_F32 = {
    "norm",
    "bias",
    "router",
    "position",
    "types",
    "factors",
    "sinks",
    "conv",
    "state",
}  # what the reference stores as F32
PINNED = Path(__file__).parent / "golden" / "canonical"
# Settings that change no number and that a GGUF doesn't hold, or that transformers says twice.
UNHELD = {
    "initializer_range", "transformers_version", "use_cache", "attention_dropout", "_name_or_path", "dtype",
    "torch_dtype", "label2id", "return_dict", "output_hidden_states", "architectures", "rope_parameters",
    "partial_rotary_factor", "rope_scaling", *THETA, *LOCAL_THETA,
    # follow from the rest (tests/proof asks transformers itself)
    "layer_types", "no_rope_layers", "unrotated_every", "full_attention_every",
}  # fmt: skip


@cache
def golden() -> dict[str, dict[str, Any]]:
    return read(GOLDEN)


@cache
def pinned() -> dict[str, dict[str, list[int]]]:
    return read(PINNED)


def models_of(family: Family) -> tuple[str, ...]:
    """The recorded models of a family. That the family knows them is asked of the table as it is shipped."""
    return _models_of(family.name)


@cache
def _models_of(family: str) -> tuple[str, ...]:
    return tuple(name for name in golden() if _family_name(name) == family)


@cache
def _family_name(model: str) -> str | None:
    config = golden()[model]["config"]
    return next((f.name for f in families().values() if f.architecture(config) is not None), None)


@cache
def _nodes(model: str) -> dict[str, Node]:
    shapes = golden()[model]["hf"].items()
    return {name: _const(name, tuple(shape)) for name, shape in shapes}


def _const(name: str, shape: tuple[int, ...]) -> Node:
    return (
        const(values(name, shape).astype("<i8"), I64)
        if name.endswith((TOKENS, *CONSTANTS))
        else const(values(name, shape), F32)
    )


def _values(node: Any) -> list[float] | float:
    found: list[float] = node.read(0, node.spec.rows).view("<i8" if node.spec.dtype is I64 else "<f4").tolist()
    return found if node.spec.shape else found[0]


def _number(text: str) -> float:
    """A recorded F32."""
    return float(struct.unpack("<f", bytes.fromhex(text))[0])


@cache
def _digest_of(raw: bytes) -> str:
    return digest(np.frombuffer(raw, "<f4"))


def _brief(node: Any) -> list[Any]:
    assert node.spec.dtype in (F32, I64)
    raw = node.read(0, node.spec.rows)
    if node.spec.dtype is I64:
        raw = raw.view("<i8").astype("<f4")
    return [list(node.spec.shape), _digest_of(raw.tobytes())]


def sizes_of(family: Family, model: str) -> Sizes:
    return family.sizes_from_hf(golden()[model]["config"])


# ---------------------------------------------------------------------- the judges


def judge_fit(family: Family, model: str) -> None:
    """transformers' names and shapes fit, whole; what older files hold beside is dropped."""
    sizes, shapes = sizes_of(family, model), {n: tuple(s) for n, s in golden()[model]["hf"].items()}
    report = family.check("hf", sizes, shapes)
    assert report.ok, f"{model}: {report}"
    assert not report.dropped
    seeing = (*_SEEING, *CASES[model].apart)
    assert set(report.apart) == {n for n in shapes if n.startswith(seeing)}
    assert family.dialect_of(shapes, sizes) == "hf"
    older = dict.fromkeys(CASES[model].older, (1,))
    assert set(family.check("hf", sizes, {**shapes, **older}).dropped) == older.keys()
    foreign = CASES[model].foreign
    assert family.check("hf", sizes, {**shapes, **dict.fromkeys(foreign, (1,))}).unmapped == foreign
    beside = CASES[model].beside
    apart = family.check("hf", sizes, {**shapes, **dict.fromkeys(beside, (1,))}).apart
    assert set(apart) == {*beside, *(n for n in shapes if n.startswith(seeing))}
    if before := CASES[model].prefixed:
        assert family.check("hf", sizes, {before + n: s for n, s in shapes.items()}).ok, model
    prefix = family.architectures[sizes.architecture].prefix
    if CASES[model].head and prefix and family.name not in _HEADED:  # may come without its head
        assert family.check("hf", sizes, {n: s for n, s in shapes.items() if n.startswith(prefix)}).ok, model
    for name in shapes:
        report = family.check("hf", sizes, {n: s for n, s in shapes.items() if n != name})
        alone = (name.endswith(_ALONE) and family.name not in _HEADED) or name in CASES[model].alone
        assert report.missing == (() if alone or name.startswith(seeing) else (name,)), f"{model}: {name}"


#: May be absent: then it is the embedding.
_ALONE = ("lm_head.weight", "embed_out.weight", "vocab_projector.weight", "decoder.weight")
# How transformers calls what sees, beside what writes.
_SEEING = (
    "vision_", "multi_modal_projector.", "model.vision_", "model.multi_modal_projector.", "model.visual.",
    "model.embed_vision.",
    "mm_projector.",
)  # fmt: skip
_HEADED = {"baichuan", "codeshell", "plamo", "qwen", "rwkv7"}  # whose output never is the embedding


def judge_part(family: Family, model: str) -> None:
    """A model of several parts is written for others as its part alone: in mlx-lm's names no prefix is left."""
    architecture = family.architecture(golden()[model]["config"])
    if architecture is not None and architecture.part_type is not None and "mlx" in family.dialects:
        names = family.names("mlx", sizes_of(family, model))
        mlx = family.document.dialect["mlx"]  # names of a whole model begin with its own prefix
        own = (*mlx.replace.values(), *mlx.prefixes)
        others = tuple(p for p in family.dialects["hf"].prefixes[1:] if p and not any(o.startswith(p) for o in own))
        assert not any(name.startswith(others) for name in names)
        assert set(family.alone(golden()[model]["config"])) >= {"model_type", "hidden_size"}


def judge_further_layers(family: Family, model: str) -> None:
    """How many layers predict further tokens is counted by the tensors, whatever the config says."""
    config = golden()[model]["config"]
    key = families()[family.name].document.dialect["hf"].mtp_count
    own = writing(config)
    if key is not None and key in own:
        held = writing(dict(with_counted_layers(config, family, golden()[model]["hf"])))
        assert held[key] == (own[key] if CASES[model].further else CASES[model].mtp), model
        assert writing(dict(with_counted_layers(config, family, ())))[key] == 0, model
    further = CASES[model].further
    if further and any(layers.optional for layers in families()[family.name].layer_sets.values()):
        shapes = {n: tuple(s) for n, s in golden()[model]["hf"].items() if n not in further}
        sizes = sizes_of(family, model)
        assert family.check("hf", sizes, shapes).missing == (), model
        if (mlx := families()[family.name].document.dialect.get("mlx")) is not None and mlx.without:
            behind = {f".layers.{layer}." for layer in range(own["num_hidden_layers"], sizes["L"])}
            names = family.names("mlx", sizes)
            assert not any("mtp." in name or any(layer in name for layer in behind) for name in names), model


def judge_alone(family: Family, model: str) -> None:
    """Of the classes that two families share only its own models are the family's."""
    architectures = golden()[model]["config"]["architectures"]
    for other, recorded in golden().items():
        if recorded["config"]["architectures"] == architectures:
            known = family.architecture(recorded["config"]) is not None
            assert known == (_family_name(other) == family.name), other
    for a in families()[family.name].architectures.values():
        same = (n for n, m in golden().items() if a.requires and a.name in m["config"]["architectures"])
        assert all(
            (family.architecture(golden()[n]["config"]) is not None) == (_family_name(n) == family.name) for n in same
        )


def judge_keys(family: Family, model: str) -> None:
    """The architecture's key-values are the reference's: names, types, values, order."""
    ours, named, added = CASES[model].ours, CASES[model].named, CASES[model].added
    recorded = [key for key in golden()[model]["keys"] if key[0] not in family.metadata_names()]  # see judge_numbers
    want = [
        [named.get(key, key), kind, _coded(kind, ours[key]) if key in ours else value] for key, kind, value in recorded
    ]
    found = [key for key in keys_of(family, model) if key[0] not in family.metadata_names()]
    rest = [key for key in found if key[0] not in added]
    assert [["general.architecture", "str", family.gguf], *rest] == want, model
    told = {key: value for key, _, value in found if key in added}
    assert told == {key: _coded(kind, added[key]) for key, kind, _ in found if key in added}, model
    assert told.keys() == added.keys(), model
    assert all(kind == _kind(added[key]) for key, kind, _ in found if key in added), model


def _kind(value: Any) -> str:
    """The type of a key that the reference leaves out, by its value."""
    named = {float: "f32", bool: "bool", int: "u32", str: "str"}
    return f"arr[{named[type(value[0])]}]" if isinstance(value, list) else named[type(value)]


def keys_of(family: Family, model: str) -> list[list[Any]]:
    mean = 1 if CASES[model].pools else None  # how the recorded folders pool
    config, generation = golden()[model]["config"], CASES[model].generation
    found = config_to_gguf(config, family, file_type=0, pooling=mean, generation=generation, untrained=UNTRAINED)
    found = assemble({}, found, {})
    own = ((k, kv) for k, kv in found.items() if k != "tokenizer.ggml.token_type_count")  # recorded without a tokenizer
    return [[k, kv.type, _coded(kv.type, kv.value)] for k, kv in own]


def _coded(kind: str, value: Any) -> Any:
    """As it is recorded: an f32 by its bytes."""
    return struct.pack("<f", value).hex() if kind == "f32" else value


def judge_numbers(family: Family, model: str) -> None:
    """In every dialect the names, shapes, numbers and order that their owners make; and back to the same roles."""
    recorded, sizes = golden()[model], sizes_of(family, model)
    roles = family.load("hf", sizes, _nodes(model))
    source = as_read(dict.fromkeys(recorded["hf"], "model.safetensors"))
    written = family.save("gguf", sizes, roles, source_order=source)
    want = [[name, shape, of] for name, _, shape, of in recorded["gguf"]]
    inside, own = family.metadata_names(), dict(CASES[model].kept)
    for name, numbers in recorded.get("computed", {}).items():
        assert np.allclose(sample(as_node(written[name]).read_all().view("<f4")), numbers, rtol=1e-5, atol=1e-6), name
        found_shape = [list(written[name].spec.shape) for _ in "x"]
        assert found_shape == [shape for other, _, shape, _ in recorded["gguf"] if other == name], model
    found = [[name, *_brief(node)] for name, node in written.items() if name not in inside]
    skipped = {*own, *CASES[model].computed, *CASES[model].reordered}
    assert [row for row in found if row[0] not in skipped] == [row for row in want if row[0] not in skipped], model
    assert [row[0] for row in found if row[0] not in own] == [row[0] for row in want if row[0] not in own], model
    _judge_reordered(model, written)
    of = {name: _brief(_nodes(model)[theirs]) for name, theirs in own.items()}
    assert {name: brief for name, *brief in found if name in own} == of, model
    lists = {name: _values(node) for name, node in written.items() if name in inside}
    stated = {key: _number(value) if kind == "f32" else value for key, kind, value in recorded["keys"]}
    assert lists == {key: value for key, value in stated.items() if key in inside}, model
    assert inside & family.names("gguf", sizes).keys() == lists.keys(), model
    numbers = keyed.tensors(family, sizes, lists)
    assert {name: _values(node) for name, node in numbers.items()} == lists, model
    for name, kind, _, _ in recorded["gguf"]:
        assert (kind == "F32") == (
            family.rows[family.expansion("gguf", sizes).places[name].roles[0]].kind in FORCED_F32
        ), f"{model}: {name} is {kind}"
    f32, kept = family.dialects["gguf"].f32, family.dialects["gguf"].kept_dtypes
    ours = {n: dtype_policy.gguf_dtype(n, node.spec, F16, f32).name for n, node in written.items()}
    differ = [n for n, kind, *_ in recorded["gguf"] if n not in own and ours[n] != kind]
    assert kept or all(name.endswith("ffn_gate_inp.weight") for name in differ), f"{model}: {differ}"  # of DBRX
    held = {"gguf": written, "canonical": family.save("canonical", sizes, roles)}
    for dialect in ("hf5", "hf5s", "mlx", "mxfp4"):
        if dialect in recorded:
            held[dialect] = family.save(dialect, sizes, roles)
            theirs = {n: brief for n, brief in recorded[dialect].items() if not n.startswith(_SEEING)}
            assert {n: _brief(t) for n, t in held[dialect].items()} == theirs, f"{model}: {dialect}"
            seen = {n: tuple(shape) for n, (shape, _) in recorded[dialect].items()}
            assert family.check(dialect, sizes, seen).ok, f"{model}: {dialect}"
            plain = {(n, tuple(shape)) for n, shape in recorded["hf"].items()}
            same = {(name, node.spec.shape) for name, node in held[dialect].items()} <= plain
            assert family.dialect_of(held[dialect], sizes) == ("hf" if same else dialect), f"{model}: {dialect}"
    for dialect, tensors in held.items():
        if CASES[model].computed:
            assert family.one_way, model
            assert family.load(dialect, sizes, tensors).keys() == roles.keys(), f"{model}: {dialect}"
            with suppress(MappingError):
                family.save("hf", sizes, family.load(dialect, sizes, tensors))
                raise AssertionError(f"{model}: {dialect} leads back")
            continue
        lost = set(family.unmapped_roles(dialect, sizes, roles))
        assert dialect != "gguf" or family.save("hf", sizes, family.load("gguf", sizes, tensors)), model
        named = {role for template in family.dialects[dialect].templates for role in template.roles}
        lost |= {i for i in roles if family.rows[i[0]].made and i[0] not in named}
        said = {i: n for i, n in roles.items() if i not in lost}
        back = family.load(dialect, sizes, tensors)
        if dialect == "mlx" and all(family.rows[i[0]].kind == "router" for i in lost):
            assert family.save("hf", sizes, back, prefix=_own_prefix(family, model)), f"{model}: leads back alone"
        rows = {i: family.rows[i[0]] for i in back}
        made = {
            i for i, row in rows.items() if row.made or ((row.zeros or row.name in family.copied) and i not in said)
        }
        assert back.keys() - made == said.keys(), f"{model}: {dialect}"
        again = family.save("hf", sizes, {**roles, **back}, prefix=_own_prefix(family, model))
        for name, node in again.items():
            tied = name not in recorded["hf"] and name == HEAD and own.get("output.weight")
            _same(node, _wanted(model, dialect, tied or name), name, model)


def _judge_reordered(model: str, written: Mapping[str, Any]) -> None:
    """Rows that the reference orders otherwise: of each head, one half of the rows is halves, which become pairs."""
    for name, (source, heads) in CASES[model].reordered.items():
        rows, ours = (as_node(node).read_all().view("<f4") for node in (_nodes(model)[source], written[name]))
        halves = rows.reshape(heads, 2, 2, -1, written[name].spec.shape[1])  # head, half, half of it, row
        paired = np.stack([halves[:, 0].swapaxes(1, 2).reshape(halves[:, 1].shape), halves[:, 1]], axis=1)
        assert np.array_equal(paired.ravel(), ours.ravel()), f"{model}: {name}"


def _own_prefix(family: Family, model: str) -> str | None:
    """The prefix of a model whose class is another name of one with another prefix, or of several parts, which are
    published with more than one; None: that of its class."""
    recorded = golden()[model]
    known = family.architectures.get(recorded["config"]["architectures"][0])
    several = known is None or known.part_type is not None
    return family.prefix_of("hf", recorded["hf"], sizes_of(family, model)) if several else None


def judge_releases(family: Family, model: str) -> None:
    """Files of other releases have other names of the same tensors."""
    sizes, shapes = sizes_of(family, model), {n: tuple(s) for n, s in golden()[model]["hf"].items()}
    for dialect, parts in CASES[model].releases.items():
        theirs = dict(shapes)
        for other, own in parts.items():
            theirs = {name.replace(own, other): shape for name, shape in theirs.items()}
        assert theirs != shapes
        assert family.dialect_of(theirs, sizes) == dialect
        assert family.check(dialect, sizes, theirs).ok, model


def judge_further(family: Family, model: str) -> None:
    """What published files hold beside the tensors of transformers' class, and other readers want: it may be absent, is
    so in a dialect that doesn't want it, and zeros in one that does."""
    further = CASES[model].further
    if not CASES[model].filled:
        return
    sizes, held = sizes_of(family, model), _nodes(model)
    few = {name: node for name, node in held.items() if name not in further}
    whole, roles = family.load("hf", sizes, held), family.load("hf", sizes, few)
    for dialect in family.dialects:
        named, rest = family.save(dialect, sizes, whole), family.save(dialect, sizes, roles)
        assert (named.keys() == rest.keys()) == (dialect in CASES[model].filled), f"{model}: {dialect}"
        zeros = [n for n, node in rest.items() if not as_node(node).read_all().any()]
        assert len(zeros) == (len(further) if dialect in CASES[model].filled else 0), f"{model}: {dialect}"
    if other := CASES[model].whole_mlx:
        assert family.save("mlx", sizes, roles).keys() == golden()[other]["mlx"].keys(), model


def judge_codes(family: Family, model: str) -> None:
    """Experts that come in MXFP4 are written before all others, and go back under the names of codes if all are."""
    recorded, sizes = golden()[model], sizes_of(family, model)
    if "mxfp4" not in recorded:
        return
    roles = family.load("hf", sizes, _nodes(model))
    written = [*family.save("gguf", sizes, roles, source_order=as_read(dict.fromkeys(recorded["mxfp4"], "m")))]
    parts = ("down", "gate", "up")
    layers = range(sizes["L"])
    first = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in layers for part in parts]
    assert written[: len(first)] == first, model
    plain = family.save("gguf", sizes, roles, source_order=as_read(dict.fromkeys(recorded["hf"], "m")))
    assert written[len(first) :] == [name for name in plain if name not in first], model
    coded = {i: _in_codes(n) if family.rows[i[0]].kind == "expert" else n for i, n in roles.items()}
    assert family.holding_blocks(sizes, coded) == "mxfp4"
    assert family.holding_blocks(sizes, roles) is None
    one = next(i for i in coded if family.rows[i[0]].kind == "expert")
    assert family.holding_blocks(sizes, {**coded, one: roles[one]}) is None


def judge_types(family: Family, model: str) -> None:
    """Where the reference gives a matrix the type of its source, whatever is asked for, so do we; and what it writes
    first where that is packed comes first."""
    recorded, sizes = golden()[model].get("types"), sizes_of(family, model)
    if recorded is None:
        return
    kept = family.dialects["gguf"].kept_dtypes
    names = {i: name for name, place in family.expansion("hf", sizes).places.items() for i in place.instances}
    places, packed = family.expansion("gguf", sizes).places, set[str]()
    for name, kind in recorded["gguf"].items():
        slot = places[name]
        source = names[slot.instances[0]]
        packed |= {*slot.roles} if f"{source}_packed" in recorded["hf"] else set()
        stored = recorded["hf"].get(source) or recorded["hf"][f"{source}_packed"]
        spec = Spec(slot.shape, BY_NAME[stored])
        own = dtype_policy.kept_dtype(name, spec, _PACKINGS.get(stored, stored), kept)
        assert (own or dtype_policy.gguf_dtype(name, spec, F16)).name == kind, f"{model}: {name}"
    assert not packed or reference_order(family, places, sizes, None, packed=packed) == [*recorded["gguf"]], model


def judge_ranks(family: Family, model: str) -> None:
    """What is packed with its rows rank by rank isn't taken for a matrix like others."""
    sizes, held = sizes_of(family, model), _nodes(model)
    for name in CASES[model].by_rank:
        refusal = ""
        try:
            family.load("hf", sizes, {**held, name: _in_fp8(held[name].spec.shape)})
        except UnsupportedError as error:
            refusal = error.message
        assert "rank by rank" in refusal, f"{model}: {name}"


def _in_fp8(shape: tuple[int, ...]) -> QuantizedTensor:
    grid = tuple(-(-side // 128) for side in shape)
    stored = {"m.weight": zeros(shape, BY_NAME["F8_E4M3"]), "m.weight_scale_inv": zeros(grid, F32)}
    found = unpack(stored, {})["m.weight"]
    assert isinstance(found, QuantizedTensor)
    return found


_PACKINGS = {"F8_E4M3": "fp8", "I8": "mxfp4", "U8": "mxfp4"}  # by the type of what is multiplied with the scales


def _in_codes(node: Any) -> Node:
    spec = Spec(node.spec.shape, BY_NAME["MXFP4"])
    return Const(spec, bytes(spec.nbytes))


def judge_shards(family: Family, model: str) -> None:
    """A layer's experts are written one after another though a folder's files part them: when the last has come."""
    recorded, sizes = golden()[model], sizes_of(family, model)
    if not any(".experts.0." in name for name in recorded["hf"]):
        return
    dealt = {name: f"model-{crc32(name.encode()) % 3}.safetensors" for name in recorded["hf"]}
    written = family.save("gguf", sizes, family.load("hf", sizes, _nodes(model)), source_order=as_read(dealt))
    apart = ("norm", "attn_v")  # of which a layer has one tensor
    bundled = [name for name, *_ in recorded["gguf"] if "_exps." in name and not any(part in name for part in apart)]
    order = [*written]
    for _, names in groupby(bundled, lambda name: name.split(".")[1]):
        bundle = [*names]
        at = order.index(bundle[0])
        assert order[at : at + len(bundle)] == bundle, f"{model}: {order}"


def _wanted(model: str, dialect: str, name: str) -> Node:
    """What comes back of a tensor: of two whose product a GGUF has, ones and the product; of one with a tail, zeros
    there."""
    node = _nodes(model)[name]
    if node.spec.dtype is I64:
        return node
    given = node.read(0, node.spec.rows).view("<f4").copy()
    for first, second in CASES[model].products if dialect == "gguf" else ():
        if name.endswith(first):
            given[:] = 1
        elif name.endswith(second):
            given *= _nodes(model)[name.removesuffix(second) + first].read_all().view("<f4")
    if dialect == "gguf" and name.endswith(CASES[model].zero_mean):
        given -= given.mean(dtype=np.float64).astype(np.float32)
    for end, count in CASES[model].tails.items():
        if name.endswith(end):
            given[count:] = 0
    return const(given.reshape(node.spec.shape), F32)


def _same(found: Any, want: Node, name: str, model: str) -> None:
    a, b = (n.read(0, n.spec.rows).view("<f4") for n in (found, want))
    if CASES[model].unit and name == HEAD and not np.array_equal(a, b):  # rows of length 1, as the model takes them
        rows = b.reshape(want.spec.shape).astype(np.float64)
        assert np.abs(a - (rows / np.linalg.norm(rows, axis=1, keepdims=True)).ravel()).max() <= 2.0**-24, model
    elif CASES[model].ternary and name.endswith("_proj.weight") and not np.array_equal(a, b):
        assert np.allclose(a, folded.spread(b), rtol=2.0**-21, atol=0), f"{model}: {name}"
    elif CASES[model].folded and "in_proj" in name:  # divided by two numbers again, each time rounded
        assert np.abs(a - b).max() <= 2.0**-22 * np.abs(b).max(), f"{model}: {name}"
    elif not np.array_equal(a, b):  # a norm that was shifted, a logarithm: exact within the step of 1 + w, of exp(w)
        assert "norm" in name or "A_log" in name, f"{model}: {name}"
        assert np.abs(a - b).max() <= 2.0**-22, f"{model}: {name}"


def _gguf_shapes(model: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, _, shape, _ in golden()[model]["gguf"]}


def judge_return(family: Family, model: str) -> None:
    """The recorded GGUF leads back to the same sizes, and to a config that means the same."""
    recorded, sizes = golden()[model], sizes_of(family, model)
    metadata = metadata_of(model)
    names = _gguf_shapes(model)
    names |= dict.fromkeys(CASES[model].kept.keys() - names.keys(), ())
    opens = _opens(family)
    home = family if opens else family_of_gguf(metadata, names=names)
    found = home.sizes_from_gguf(metadata, names)
    unheld = {s for s, size in family.sizes.items() if not size.gguf or CASES[model].unheld & {*size.hf}}
    both = {s for s in family.sizes.keys() & home.sizes.keys() if s not in unheld}
    assert [v for v in found.values if v[0] in both] == [v for v in sizes.values if v[0] in both], model
    assert found.layers == sizes.layers, model
    restored = gguf_to_config(metadata, home, names, vectors=vectors_of(family, model).get)
    own, defaults = writing(recorded["config"]), recorded["defaults"]
    assert restored.config["model_type"] == (CASES[model].taken or own["model_type"])
    same_class = CASES[model].taken in ("", own["model_type"])
    certain = CASES[model].target and not (CASES[model].guesses or CASES[model].taken)
    if (CASES[model].head is None and opens and same_class) or CASES[model].classifies or certain:
        assert restored.config["architectures"] == recorded["config"]["architectures"], model
    if opens and restored.config["architectures"] == recorded["config"]["architectures"] and not CASES[model].prefixed:
        named = family.names("hf", family.sizes_from_hf(restored.config))  # under the class's prefix
        first = next(name for name in named if name in recorded["hf"] or family.document.draft is None)
        assert first in recorded["hf"], f"{model}: {first}"
    before, after = family.effective(recorded["config"]), home.effective(restored.config)
    others = recorded["config"].keys() - own.keys()  # of what isn't the part that writes
    said = {path for row in rules(family).keys for path in row.restored}
    differ = {
        key: (after.get(key), value)
        for key, value in before.items()
        if key not in (UNHELD - said) | CASES[model].unheld | others and _meant(after, defaults, key) != value
    }
    assert not differ, f"{model}: {differ}"
    told = [*restored.losses, *restored.guesses]
    assert told == list(CASES[model].guesses), f"{model}: {told}"
    reader = family_of_hf(restored.config)  # by the class of its config it may be another's
    if reader.name != family.name:
        theirs, ours = dict(reader.sizes_from_hf(restored.config).values), dict(sizes.values)
        shared = {symbol for symbol in theirs.keys() & ours.keys() if symbol not in unheld}
        assert {s: theirs[s] for s in shared} == {s: ours[s] for s in shared}, model
    if opens:
        _judge_tied(family, model, names)
    elif len(family.architectures) == 1 and all(size.gguf for size in family.sizes.values()):  # read as what it was
        assert family.sizes_from_gguf(metadata, names).values == sizes.values, model


def judge_class_dialects(family: Family, model: str) -> None:
    """A folder of a class with a dialect of its own has the names and shapes of the class's family."""
    for name, architecture in family.architectures.items():
        if architecture.dialect != "hf":
            config = {**family.effective(golden()[model]["config"]), "architectures": [name]}
            config["model_type"] = architecture.stated_type
            other = family_of_hf(config)
            prefix = family.dialects["hf"].prefixes[0]
            own = family.expansion(architecture.dialect, sizes_of(family, model), prefix).places
            theirs = other.expansion("hf", other.sizes_from_hf(config), prefix).places
            assert other.name != family.name, name
            assert {n: p.shape for n, p in own.items()} == {n: p.shape for n, p in theirs.items()}, model


def _opens(family: Family) -> bool:
    """Whether a GGUF may be of it; else its GGUFs are another family's."""
    return any(architecture.gguf is not None for architecture in family.architectures.values())


def _meant(config: dict[str, Any], defaults: dict[str, Any], key: str) -> Any:
    """What a config says under a key, over what its class takes where it is silent."""
    said, default = config.get(key, defaults.get(key)), defaults.get(key)
    if key == "id2label":  # which are a model's own or none
        return said
    return {**default, **said} if isinstance(said, dict) and isinstance(default, dict) else said


def _judge_tied(family: Family, model: str, names: dict[str, tuple[int, ...]]) -> None:
    """Whether the output is the embedding shows in a GGUF by a tensor alone."""
    head = family.rows.get("head")
    if head is None or not head.tied or "output.weight" not in family.names("gguf", sizes_of(family, model)):
        return
    vectors = vectors_of(family, model).get
    for held in ({n: s for n, s in names.items() if n != "output.weight"}, {**names, "output.weight": (1, 1)}):
        config = gguf_to_config(metadata_of(model), family, held, vectors=vectors).config
        assert config["tie_word_embeddings"] == ("output.weight" not in held), model


def judge_silences(family: Family, model: str) -> None:
    """Where a GGUF has no key for what may be null it is null; a whole number comes back as one."""
    if not _opens(family):
        return
    shipped, names = families()[family.name], _gguf_shapes(model)
    metadata, vectors = metadata_of(model), vectors_of(family, model).get
    restored = gguf_to_config(metadata, family, names, vectors=vectors).config
    said = writing(golden()[model]["config"])
    for row in rules(shipped).keys:
        key = row.key(family.gguf)
        if row.null and row.restored:
            rest = {k: value for k, value in metadata.items() if k != key}
            assert lookup(gguf_to_config(rest, family, names, vectors=vectors).config, row.restored[0]) is None, key
        if row.whole and key in metadata:
            assert type(lookup(restored, row.restored[0])) is type(lookup(said, row.config[0])), key


def judge_nulls(family: Family, model: str) -> None:
    """What a config leaves out follows from the rest, where what the recorded one states is what follows."""
    config = golden()[model]["config"]
    shipped = families()[family.name].architecture(config)
    for key in shipped.null if shipped else ():
        rest = {k: value for k, value in config.items() if k != key}
        if key in config and families()[family.name].effective(rest)[key] == config[key]:
            assert family.effective(rest).get(key) == config[key], f"{model}: {key}"


def judge_losses(family: Family, model: str) -> None:
    """What a config says and a GGUF can't is a loss each; what this one says is none, or those that its case names."""
    config = golden()[model]["config"]
    told = config_losses(config, family)
    assert len(told) == len(CASES[model].told), f"{model}: {told}"
    assert all(loss.startswith(begin) for loss, begin in zip(told, CASES[model].told, strict=True)), f"{model}: {told}"
    facts = family.effective(config)
    for path, value in UNSAID.get(family.name, {}).items():
        parent, _, key = path.rpartition(".")
        said = {parent: {**facts[parent], key: value}} if parent else {path: value}
        lost = facts_losses({**facts, **said}, family)
        lost = [loss for loss in lost if loss not in told]
        assert [loss.startswith(f"config.json: {path}") for loss in lost] == [True], f"{model}: {path}: {lost}"
    if family.name in _LOSSLESS:
        assert facts_losses(facts | _LOSSLESS[family.name], family) == [], model


# Settings of which nothing is lost: what llama.cpp's graph knows the largest models by, and what it takes them to be
# (gemma2.cpp, gemma3.cpp, llama4.cpp).
_WIDE = {"num_attention_heads": 32, "hidden_size": 32 * 8, "query_pre_attn_scalar": 8}
_LOSSLESS: dict[str, dict[str, Any]] = {
    "gemma2": {"num_hidden_layers": 46, **_WIDE},
    "gemma3": {"num_hidden_layers": 62, **_WIDE},
    "llama4": {"num_local_experts": 128, "use_qk_norm": False},
    "gpt-oss": {"rope": {"rope_type": "default", "rope_theta": 5000.0}},  # no yarn, whose ramp could be rounded
}


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Where a draft's config states the token that stands for those to be drafted."""
    return [part for part in (config, config.get("dflash_config", {})) if "mask_token_id" in part]


def metadata_of(model: str) -> dict[str, Any]:
    """The recorded keys as a reader gives them, with a vocabulary of the right size and its special tokens."""
    recorded = golden()[model]
    ours, named = CASES[model].ours, CASES[model].named
    keys = {named.get(k, k): ours.get(k, _value(kind, value)) for k, kind, value in recorded["keys"]}
    keys |= CASES[model].added
    config = writing(recorded["config"])
    if f"{keys['general.architecture']}.vocab_size" not in keys:
        keys["tokenizer.ggml.tokens"] = ["x"] * config["vocab_size"]
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("cls", "cls"), ("sep", "seperator")):
        if config.get(f"{name}_token_id") is not None:
            keys[f"tokenizer.ggml.{key}_token_id"] = config[f"{name}_token_id"]
    if CASES[model].target and (masks := [p["mask_token_id"] for p in _parts(recorded["config"])]):
        keys["tokenizer.ggml.mask_token_id"] = masks[0]
    if (types := config.get("type_vocab_size")) is not None:
        keys["tokenizer.ggml.token_type_count"] = types
    return keys | CASES[model].vocabulary


def _value(kind: str, value: Any) -> Any:
    return struct.unpack("<f", bytes.fromhex(value))[0] if kind == "f32" else value


def vectors_of(family: Family, model: str) -> dict[str, tuple[float, ...]]:
    """The made tensors of a model's GGUF."""
    made = family.save("gguf", sizes_of(family, model), family.load("hf", sizes_of(family, model), _nodes(model)))
    return {
        name: tuple(as_node(node).read_all().view("<f4").tolist())
        for name, node in made.items()
        if name.startswith("rope_") or node.spec.shape == (sizes_of(family, model).get("D"),)
    }


def judge_defaults(family: Family, model: str) -> None:
    """The defaults are those of transformers' config class, what stands for a null too."""
    recorded = golden()[model]
    name, theirs = recorded["config"]["architectures"][0], dict(recorded["defaults"])
    name = next(a.name for a in family.architectures.values() if name in (a.name, *a.aliases))
    if writing(recorded["config"]) != recorded["config"]:
        assert family.architectures[name].model_type == recorded["config"]["model_type"]
        wanted = theirs.get("model_type", writing(recorded["config"])["model_type"])
        name = next(a.name for a in family.architectures.values() if a.stated_type == wanted)
    for part in ("", "full_attention"):
        rope: dict[str, Any] = theirs.get("rope_parameters") or {}
        theirs |= {k: v for k, v in dict(rope.get(part, rope) if part else rope).items() if k not in theirs}
    theirs.setdefault("rotary_pct", theirs.get("partial_rotary_factor"))
    sliding = (theirs.get("rope_parameters") or {}).get("sliding_attention") or {}
    theirs |= {word: sliding.get("rope_theta") for word in LOCAL_THETA}
    theirs.setdefault("global_rope_theta", theirs.get("rope_theta"))
    theirs |= CASES[model].words
    architecture = family.architectures[name]
    for key, value in architecture.defaults.items():
        stated = theirs.get(key, _PUBLISHED.get((name, key)))
        assert stated == value, f"{name}: {key} is {stated!r}"
    types = (writing(recorded["config"])["model_type"], recorded["config"]["model_type"], CASES[model].part_type)
    assert architecture.stated_type in types
    bare = {"architectures": [name]}
    if family.architecture(bare) is None:  # the class's own model is another family's
        return
    alone = family.architecture({"model_type": architecture.stated_type})
    assert (alone is None) == (not architecture.model_type)
    plain = bare | CASES[model].words
    said = _sizes_or_none(family, {k: v for k, v in theirs.items() if k not in CASES[model].unheld} | plain)
    assert said in (None, _sizes_or_none(family, plain)), name
    filled = {} if "layers_block_type" in CASES[model].unheld else family.effective(plain)
    assert not architecture.full_layers or filled["layer_types"] == theirs["layer_types"]
    for row in rules(families()[family.name]).keys:  # what is written where a config is silent
        default = lookup(theirs, row.config[0]) if row.absent is not None else None
        if default is not None:
            assert config_to_gguf(plain, family, file_type=0)[row.key(family.gguf)].value == default, row.name
    wanted = {"head_dim": CASES[model].words and "head_dim" in theirs, "num_decoder_layers": "cross_q" in family.rows}
    worded = [key for key, asked in wanted.items() if asked]
    held = {"num_key_value_heads", "intermediate_size"} & theirs.keys()
    for key in (*architecture.null, *worded, *(held - CASES[model].unheld if filled else ())):
        assert filled.get(key) == theirs[key], f"{name}: {key}"


def _sizes_or_none(family: Family, config: dict[str, Any]) -> Sizes | None:
    """None where the config says too little: a class may have no default for a size."""
    try:
        return family.sizes_from_hf(config)
    except (FormatError, UsageError):
        return None


def judge_pinned(family: Family, model: str) -> None:
    """Our own names are a promise: they are pinned. Kinds go with ranks: recipes rely on it."""
    sizes = sizes_of(family, model)
    assert {n: list(s) for n, s in family.names("canonical", sizes).items()} == pinned()[model], model
    labelled = family.sizes_from_hf(golden()[model]["config"] | {"id2label": {"0": "a", "1": "b", "2": "c"}})
    classifies = any(name.endswith("ForSequenceClassification") for name in family.architectures)
    assert classifies or family.names("hf", labelled) == family.names("hf", sizes), model
    for dialect in family.dialects.values():
        rows = [(t.name, family.rows[t.roles[0]]) for t in dialect.templates]
        names = [name for name, row in rows if applies(row, sizes) and not row.layers]
        assert len(names) == len(set(names)), f"{model}: two roles of one {dialect.name} name"
    for template in (t for dialect in family.dialects.values() for t in dialect.templates):
        assert len({family.rows[role].kind for role in template.roles}) == 1, template.name
    for row in family.rows.values():
        assert len(row.shape) > 1 or row.kind in ("norm", "bias", "factors", "sinks", "state", "tokens", "integers"), (
            row.name
        )
        assert len(row.shape) == 1 or row.kind not in ("bias", "factors", "sinks"), row.name
        assert len(row.shape) == 1 or row.kind != "norm" or "gguf" in row.names, row.name


JUDGES: tuple[Callable[[Family, str], None], ...] = (
    judge_alone,
    judge_keys,
    judge_pinned,
    judge_defaults,
    judge_fit,
    judge_part,
    judge_further_layers,
    judge_numbers,
    judge_releases,
    judge_further,
    judge_codes,
    judge_types,
    judge_ranks,
    judge_shards,
    judge_losses,
    judge_nulls,
    judge_silences,
    judge_return,
    judge_class_dialects,
)


#: Keys of published configs that transformers' class lacks and mlx-lm's asserts.
_PUBLISHED = {("DeepseekV3ForCausalLM", "topk_method"): "noaux_tc"}
# Dialects of families whose other models are arch_judges.py's.
_ELSEWHERE = {
    "bert": ("hf_gamma",), "nemotronhpuzzle": ("hf_dot",),
    "llama": ("hf5", "mlx"), "qwen2": ("mlx",), "qwen3": ("mlx",), "qwen3vlmoe": ("hf5", "apart"),
}  # fmt: skip


def judge_dialects(family: Family) -> None:
    """The family knows its recorded models, and there is a model for each of its dialects."""
    for model in models_of(family):
        assert family.architecture(golden()[model]["config"]) is not None, model
    recorded = {dialect for model in models_of(family) for dialect in golden()[model]}
    elsewhere = {"canonical", *_ELSEWHERE.get(family.name, ())}
    assert not recorded or family.dialects.keys() <= recorded | elsewhere


def recorded_pairs(family: str) -> list[tuple[Callable[[Family, str], None], str]]:
    return [(judge, model) for judge in JUDGES for model in _models_of(family)]


def judge_recorded(family: Family) -> None:
    judge_dialects(family)
    for judge, model in recorded_pairs(family.name):
        judge(family, model)


def pin() -> None:
    """`python -m tests.models.family_judges`: pins the canonical names of models that have none yet."""
    found = pinned()
    for family in families().values():
        for model in models_of(family):
            names = family.names("canonical", sizes_of(family, model))
            if model not in found:
                write(PINNED, model, {n: list(s) for n, s in names.items()})


if __name__ == "__main__":
    pin()
