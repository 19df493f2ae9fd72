"""What an architecture table is checked against, each judge a function of a family that raises where it errs.

The names of others are recorded from them (golden/), what a dialect does to numbers is said again here, plainly and
apart from the table. Mutation tests call the same judges with a damaged table and expect one to raise.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from tests.models import record_names, record_reference, silent_judges
from tests.models.config_judges import judge_configs
from tests.models.family_judges import FORCED_F32, judge_dialects, judge_recorded, recorded_pairs
from tests.models.reference_cases import CASES, golden

from weighbridge.base.dtypes import F32
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import as_read
from weighbridge.models.arch.registry import build_family, families
from weighbridge.models.arch.tables.documents import TableLibrary, document, mixin, resolve
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node, const

Arrays = dict[str, np.ndarray]
_WORD = re.compile(r"[A-Za-z_]\w*")


def doc(family: str) -> dict[str, Any]:
    """The TOML of a family as it is written, to be damaged."""
    return copy.deepcopy(dict(document(family)))


def config_of(model: str) -> dict[str, Any]:
    cls, options = record_names.MODELS[model]
    return {"architectures": [cls], **options}


def _owner(config: Mapping[str, Any]) -> str:
    """The shipped family that a config is of; two may know its class."""
    return next(f.name for f in families().values() if f.architecture(config) is not None)


@cache
def _recorded(family: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The names that transformers and mlx-lm write for models of a family, by dialect and model."""
    found = ((key, want) for key, want in golden("names").items() if " " in key)
    return tuple((key, want) for key, want in found if _owner(config_of(key.partition(" ")[2])) == family)


@cache
def _converted(family: str) -> tuple[str, ...]:
    """The recorded conversions of models of a family."""
    return tuple(name for name, case in CASES.items() if _owner(case.config) == family)


@cache
def _source(case: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """A case's tensors, and their order as they are read."""
    shapes = record_reference.tensors(CASES[case])
    return {n: np.zeros(s, np.float32) for n, s in shapes.items()}, tuple(as_read(record_reference.deal(CASES[case])))


def nodes(arrays: Mapping[str, np.ndarray]) -> dict[str, Node]:
    return {name: const(array.astype("<f4"), F32) for name, array in arrays.items()}


def array(node: LogicalTensor) -> np.ndarray:
    return as_node(node).read_all().view("<f4").reshape(node.spec.shape)


def random_hf(family: Family, sizes: Sizes, optional: bool = True) -> Arrays:
    """A model's tensors under Hugging Face's names, every number different."""
    rng = np.random.default_rng(5)
    places = family.expansion("hf", sizes).places.values()
    return {p.name: rng.standard_normal(p.shape, np.float32) for p in places if optional or p.need is None}


# ---------------------------------------------------------------------- names, shapes, types, order


def judge_names(family: Family) -> None:
    """Every name and shape that transformers and mlx-lm write is in the table, and the table has none but those that a
    recorded model has (`_ELSEWHERE`: what only older files hold)."""
    known: dict[str, set[str]] = {"hf": set(_ELSEWHERE), "hf5": set(), "mlx": set()}
    made: dict[str, set[str]] = {"hf": set(), "hf5": set(), "mlx": set()}
    for key, want in _recorded(family.name):
        dialect, _, model = key.partition(" ")
        config = config_of(model)
        if dialect == "mlx" and model in record_names.HEADLESS:
            config.pop("head_dim")
        sizes = family.sizes_from_hf(config)
        report = family.check(dialect, sizes, {n: tuple(s) for n, s in want.items()})
        assert report.ok, f"{key}: {report}"
        assert want.keys() <= family.names(dialect, sizes).keys(), (
            key
        )  # under the prefix that the class is written with
        assert not report.dropped
        if family.name == "bert":
            prefix = "bert." if any(name.startswith("bert.") for name in want) else ""
            older = {f"{prefix}embeddings.{buffer}": (1, 2) for buffer in ("position_ids", "token_type_ids")}
            shapes = {n: tuple(s) for n, s in want.items()}
            assert set(family.check(dialect, sizes, shapes | older).dropped) == older.keys()
        known[dialect] |= want.keys()
        made[dialect] |= family.names(dialect, sizes).keys()
    assert made["hf"] <= known["hf"], sorted(made["hf"] - known["hf"])
    assert family.name != "bert" or made["hf"] >= _ELSEWHERE
    for dialect in ("hf5", "mlx"):  # a Mixtral has no biases, though its table has
        assert {n for n in made[dialect] - known[dialect] if "bias" not in n} == set(), dialect


_ELSEWHERE = {  # BertForPreTraining, and files that repeat tied tensors
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "classifier.weight",
    "classifier.bias",
    "cls.predictions.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "bert.pooler.dense.weight",
    "bert.pooler.dense.bias",
}


# What ours has of a classifier and the reference hasn't, or under another name (docs/reference-differences.md).
OWN: dict[str, set[str]] = {
    "bert-labels": {"cls.weight", "cls.bias"},
    "bert-dummies": {"cls.output.weight", "cls.output.bias"},
}


def judge_reference(family: Family) -> None:
    """For each recorded conversion: the reference's names, shapes, order, forced types; the bits of rope_freqs."""
    for name in _converted(family.name):
        case, want = CASES[name], golden("reference")[name]
        sizes = family.sizes_from_hf(case.config)
        source, order = _source(name)
        assert family.dialect_of(source, sizes) == case.dialect
        roles = family.load(case.dialect, sizes, nodes(source))
        out = family.save("gguf", sizes, roles, source_order=order)
        own = OWN.get(name, set())
        found = [[n, list(t.spec.shape)] for n, t in out.items() if n not in own]
        instead = {"cls.weight", "cls.bias"} if own else set()
        assert found == [[n, s] for n, _, s in want["tensors"] if n not in own | instead], name
        assert own <= out.keys(), name
        factors = out.get("rope_freqs.weight")
        assert (factors and array(factors).tobytes().hex()) == want["rope_freqs"], name
        if case.outtype != "f32":
            for tensor, kind, _ in want["tensors"]:
                forced = family.rows[family.expansion("gguf", sizes).places[tensor].roles[0]].kind in FORCED_F32
                assert (kind == "F32") == forced, f"{name}: {tensor} is {kind}"
        _judge_metadata(family, sizes, want)


def _judge_metadata(family: Family, sizes: Sizes, want: Mapping[str, Any]) -> None:
    """The GGUF's own key-values lead to the same sizes and, as far as it shows, to the class."""
    metadata = {key: value for key, kind, value in want["keys"] if kind != "f32"}
    if f"{family.gguf}.vocab_size" not in metadata:
        metadata["tokenizer.ggml.tokens"] = ["x"] * sizes["V"]
    names = [name for name, _, _ in want["tensors"]]
    found = family.sizes_from_gguf(metadata, names)
    assert family.check("gguf", found, {name: tuple(shape) for name, _, shape in want["tensors"]}).ok
    plain = {"C", "K"} if {"cls.weight", "cls.output.weight"} & {*names} == {"cls.weight"} else set()  # the reference's
    assert found.values == tuple((s, n) for s, n in sizes.values if s not in plain)
    roles = family.load("gguf", found, nodes({name: np.zeros(shape, np.float32) for name, _, shape in want["tensors"]}))
    assert not family.unmapped_roles("hf", found, roles)
    twin = {"MistralForCausalLM": "LlamaForCausalLM", "BertForMaskedLM": "BertModel"}
    assert found.architecture == twin.get(sizes.architecture, sizes.architecture)
    if sizes.architecture == "MistralForCausalLM":  # other writers say the window
        told = family.architecture_of_gguf({**metadata, "llama.attention.sliding_window": 4096})
        assert told.name == sizes.architecture


# ---------------------------------------------------------------------- numbers


def _interleaved(tensor: np.ndarray, heads: int) -> np.ndarray:
    """One head at a time: first halves' row j goes to 2j, second halves' to 2j + 1."""
    out = np.empty_like(tensor)
    d = len(tensor) // heads
    for h in range(heads):
        for j in range(d // 2):
            out[h * d + 2 * j] = tensor[h * d + j]
            out[h * d + 2 * j + 1] = tensor[h * d + d // 2 + j]
    return out


# Whose numbers are judged, and how each of a layer's experts and its three matrices (gate, up, down) are called.
NUMBERS = {
    "llama": ("llama", "mixtral"),
    "bert": ("bert-mlm", "bert-labels", "bert-dummies"),
    "qwen2": ("qwen2",),
    "qwen2moe": ("qwen2moe",),
    "qwen3": ("qwen3",),
    "qwen3moe": ("qwen3moe",),
}
_EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen2moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}


def plain(model: str, hf: Arrays) -> dict[str, Arrays]:
    """What each dialect holds for a decoder under Hugging Face's names, said without any table."""
    out: dict[str, Arrays] = {"gguf": {}, "hf5": {}, "mlx": {}}
    for name, t in hf.items():
        if ".experts." not in name:
            mixtral_router = name.replace("block_sparse_moe.gate", "mlp.gate")
            out["hf5"][mixtral_router] = out["mlx"][name] = t
            heads = 4 if "q_proj" in name else 2
            paired = not model.startswith("qwen") and ("q_proj" in name or "k_proj" in name)
            out["gguf"][_gguf(name)] = _interleaved(t, heads) if paired else t
    for layer in range(2) if model in _EXPERTS else ():
        base, (block, parts) = f"model.layers.{layer}.", _EXPERTS[model]
        gate, up, down = (np.stack([hf[f"{base}{block}.experts.{e}.{w}.weight"] for e in range(3)]) for w in parts)
        for part, stacked in (("gate", gate), ("down", down), ("up", up)):
            out["gguf"][f"blk.{layer}.ffn_{part}_exps.weight"] = stacked
            out["mlx"][f"{base}{block}.switch_mlp.{part}_proj.weight"] = stacked
        out["hf5"][f"{base}mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        out["hf5"][f"{base}mlp.experts.down_proj"] = down
    return out


_GGUF = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
)


def _gguf(name: str) -> str:
    for theirs, ours in _GGUF:
        name = name.replace(theirs, ours)
    return name


def judge_numbers(family: Family) -> None:
    """Hugging Face's tensors come out in every dialect as `plain` says, and back from it bit by bit."""
    for model in NUMBERS.get(family.name, ()):
        sizes = family.sizes_from_hf(config_of(model))
        hf = random_hf(family, sizes)
        roles = family.load("hf", sizes, nodes(hf))
        expected = {} if family.name == "bert" else plain(model, hf)
        for dialect in family.dialects:
            kept = {i: n for i, n in roles.items() if i not in family.unmapped_roles(dialect, sizes, roles)}
            out = {n: array(t) for n, t in family.save(dialect, sizes, kept).items()}
            for name, want in expected.get(dialect, {}).items():
                assert np.array_equal(out[name], want), f"{model}, {dialect}: {name}"
            assert dialect not in expected or out.keys() == expected[dialect].keys()
            back = family.load(dialect, sizes, nodes(out))
            assert back.keys() == kept.keys()
            for instance, node in back.items():
                assert np.array_equal(array(node), array(roles[instance])), f"{model}, {dialect}: {instance}"


def judge_canonical(family: Family) -> None:
    """Our own names are a promise: they are pinned. Kinds go with ranks: recipes rely on it."""
    if family.name not in golden("canonical"):
        return
    for row in family.rows.values():
        assert (len(row.shape) == 1) == (row.kind in ("norm", "bias", "factors")), row.name
    pinned = golden("canonical")[family.name]
    for model, want in pinned.items():
        sizes = family.sizes_from_hf(config_of(model))
        assert {n: list(s) for n, s in family.names("canonical", sizes).items()} == want, model


def judge_presence(family: Family) -> None:
    """A group is there whole or not at all, what is tied may be absent, what is neither must be there."""
    for model in NUMBERS.get(family.name, ()):
        if model == "bert-dummies":  # shares its names with bert-labels
            continue
        sizes = family.sizes_from_hf(config_of(model))
        names = family.names("hf", sizes)
        optional = {n for n in names if _may_be_absent(model, n)}
        report = family.check("hf", sizes, {n: s for n, s in names.items() if n not in optional})
        assert report.ok, f"{model}: {report}"
        for name in names:
            report = family.check("hf", sizes, {n: s for n, s in names.items() if n != name})
            alone = name in _ALONE
            assert report.missing == (() if alone else (name,)), f"{model}: {name}: {report.missing}"


_ALONE = {"lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "cls.predictions.bias"}


def _may_be_absent(model: str, name: str) -> bool:
    llama = (name.endswith("_proj.bias") and model != "qwen2") or name == "lm_head.weight"
    return llama or name.startswith(("cls.", "classifier.")) or "pooler." in name


def judge_defaults(family: Family) -> None:
    """The defaults are those of transformers' config classes, what null stands for too."""
    for name, architecture in family.architectures.items():
        if name not in golden("names"):  # judge_recorded
            continue
        theirs = golden("names")[name]
        theirs = {**theirs, "rope_theta": (theirs.get("rope_parameters") or {}).get("rope_theta")}
        for key, value in architecture.defaults.items():
            assert theirs[key] == value, f"{name}: {key}"
        filled = family.effective({"architectures": [name]})
        for key in {"num_key_value_heads", "head_dim"} & theirs.keys():
            assert filled[key] == theirs[key], f"{name}: {key}"
        if "num_key_value_heads" in theirs:
            null = family.effective({"architectures": [name], "num_key_value_heads": None})
            assert null["num_key_value_heads"] == theirs["num_attention_heads"]
        assert architecture.model_type == theirs["model_type"]
        assert family.architecture({"model_type": architecture.model_type}) is not None


# A config as it is published, which says less than what transformers writes: no width of layers that there are none of.
_PUBLISHED = {
    "nemotronhmoe": {
        "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 4, "hybrid_override_pattern": "M*EE",
    },
}  # fmt: skip


def judge_silence(family: Family) -> None:
    """A published config says all that the family asks for."""
    if family.name in _PUBLISHED:
        family.sizes_from_hf(_PUBLISHED[family.name])


# Heads of classes that classify, answer or reward, beside the decoder (transformers' modeling_llama, modeling_qwen2).
_HEADS = {
    "llama": ("llama", ["score.weight", "classifier.weight", "qa_outputs.weight"]),
    "qwen2": ("qwen2", ["score.weight"]),
}  # fmt: skip


def judge_heads(family: Family) -> None:
    """The head of such a class is another part of the model, and no tensor too many."""
    model, heads = _HEADS.get(family.name, ("", []))
    if heads:
        sizes = family.sizes_from_hf(config_of(model))
        report = family.check("hf", sizes, {**family.names("hf", sizes), **dict.fromkeys(heads, (1, 1))})
        assert list(report.apart) == heads


def judge_sizes(family: Family) -> None:
    """A family asks for no size that none of its tensors has: a config or GGUF without it is as good."""
    used = {*family.index.values()}
    for role in family.document.role.values():
        columns = role.shape, role.shapes, role.when, role.layout, role.layers, role.unstacked
        used |= {word for column in columns for word in _WORD.findall(str(column))}
    for fuses in family.document.fuse.values():
        used |= {word for fuse in fuses.values() for word in _WORD.findall(f"{fuse.interleave} {fuse.layout}")}
    assert family.sizes.keys() <= used, sorted(family.sizes.keys() - used)


#: Sections of the rotation that a class takes if its config has none (modeling_*.py of transformers 5.23).
_SECTIONS = {"qwen2vl": (16, 24, 24, 0)} | dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen3omni"), (24, 20, 20, 0))


def judge_sections(family: Family) -> None:
    """A config without sections of its rotation has those of its class."""
    if family.name in _SECTIONS:
        bare = {"architectures": [next(iter(family.architectures))]}
        found = config_to_gguf(bare, family, file_type=0)[f"{family.gguf}.rope.dimension_sections"]
        assert tuple(found.value) == _SECTIONS[family.name]


JUDGES: tuple[Callable[[Family], None], ...] = (
    judge_names,
    judge_reference,
    judge_numbers,
    judge_canonical,
    judge_presence,
    judge_defaults,
    judge_silence,
    judge_heads,
    judge_sizes,
    judge_sections,
    *silent_judges.JUDGES,
    judge_configs,
    judge_recorded,
)


Trial = Callable[[Family], None]
#: How often each judge saw a fault of each kind.
_SEEN: Counter[tuple[str, object]] = Counter()


@cache
def _trials(family: str, kind: str) -> list[Trial]:
    """Every judge of every recorded model of a family, by itself; first those that see most faults of this kind."""
    single = [judge for judge in JUDGES if judge is not judge_recorded]
    trials: list[Trial] = [*single, judge_dialects, *(partial(_judge, *pair) for pair in recorded_pairs(family))]
    return sorted(trials, key=lambda trial: -_SEEN[kind, _judge_of(trial)])


def _judge(judge: Callable[[Family, str], None], model: str, family: Family) -> None:
    judge(family, model)


def _judge_of(trial: Trial) -> object:
    return trial.args[0] if isinstance(trial, partial) else trial


def convicts(
    table: Mapping[str, Any],
    mixins: Mapping[str, Mapping[str, Any]] | None = None,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    kind: str = "",
) -> bool:
    """Whether any judge raises over a family built from this document, with these mixins and known roles instead of the
    shipped ones.

    First asks the judge that last raised over a fault of the same kind."""
    changed = mixins or {}
    library = TableLibrary(
        mixin=lambda name: changed.get(name) or mixin(name), roles={**TableLibrary().roles, **(roles or {})}
    )
    try:
        family = build_family(resolve(table, library))
    except Exception:
        return True
    trials = _trials(table["name"], kind)
    for trial in trials:
        try:
            trial(family)
        except Exception:
            trials.insert(0, trials.pop(trials.index(trial)))
            _SEEN[kind, _judge_of(trial)] += 1
            return True
    return False
