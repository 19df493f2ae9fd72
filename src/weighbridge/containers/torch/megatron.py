"""Megatron-LM's checkpoints in the format of torch: one file for each rank, with the rank's part of the model.

    mp_rank_01/model_optim_rng.pt            tensor-parallel rank 1
    mp_rank_01_002/model_optim_rng.pt        and pipeline rank 2, or expert-parallel rank 2 if there is no pipeline
    mp_rank_01_002_003/model_optim_rng.pt    pipeline rank 2, expert-parallel rank 3
    mp_rank_01_002/distrib_optim.pt          the optimizer
    tp_rank_01_pp_rank_002/model_weights.ckpt     NeMo's names, without the first three keys below

    args                the settings of the training run
    iteration           the step
    model               the tensors; `model0`, `model1` ... if a rank has several stages of an interleaved pipeline

The name of a parameter determines how tensor parallelism cuts it (`CUTS`). Layers are numbered from 0 in every stage,
experts from 0 on every rank. A gated first layer of an MLP has the rank's gate above the rank's up projection. The
`in_proj` of a Mamba-2 mixer has the rank's rows of z, x, B, C and dt, its convolution those of x, B and C. The down
projections of multi-latent attention are whole on every rank with Transformer Engine, cut by rows without it.

An abstract machine reads the pickles, which are never unpickled. `models/megatron` opens folders. Reference:
Megatron-LM's training/checkpointing.py (get_checkpoint_name, generate_state_dict), core/tensor_parallel/layers.py,
core/transformer/{attention,multi_latent_attention,mlp,transformer_layer}.py, core/transformer/moe/experts.py,
core/ssm/mamba_mixer.py, tools/checkpoint/{loader_base,hybrid_conversion}.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product, starmap
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SHARDS
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index

#: A rank's file in its folder: of Megatron-LM, of NeMo.
FILES: Final = ("model_optim_rng.pt", "model_weights.ckpt")
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
#: The hint of every fault.
AGAIN: Final = "copy the whole folder again, or use another step"
_FOLDER: Final = re.compile(
    r"(?:mp|tp)_rank_(?P<tensor>\d{2,5})(?:_(?:pp_rank_)?(?P<second>\d{3,5}))?(?:_(?P<third>\d{3,5}))?", re.ASCII
)
_STAGE: Final = re.compile(r"model(?P<number>\d{0,4})\.(?:module\.)?", re.ASCII)
_LAYER: Final = re.compile(r"(?P<front>(?:^|.*?\.)layers\.)(?P<number>\d{1,6})\.", re.ASCII)
# An expert's number: a module of its own, or the end of a parameter's name in a grouped layer.
_EXPERT: Final = re.compile(r"(?<=\.local_experts\.)\d{1,6}(?=\.)|(?<=\.experts\.linear_fc[12]\.(?:weight))\d{1,6}$"
                            r"|(?<=\.experts\.linear_fc[12]\.bias)\d{1,6}$", re.ASCII)  # fmt: skip
_EXTRA: Final = "_extra_state"
# The layers that `args.num_layers` counts.
_LAYERS: Final = frozenset({"decoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."})


class CutAxis(Enum):
    """How the tensor-parallel ranks share a parameter."""

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    GATED = "gated"  # rows; a gated MLP's are two equal parts
    LATENT = "latent"  # rows or whole; the width of the whole decides
    MIXER = "mixer"  # rows of z, x, B, C, dt
    CONVOLUTION = "convolution"  # rows of x, B, C


#: The ends of parameters' names, by their cut. The weights of norms are whole.
CUTS: Final[Mapping[str, CutAxis]] = MappingProxyType(
    {
        tail: cut
        for cut, tails in (
            (CutAxis.ROWS,
             """word_embeddings.weight word_embeddings_for_head.weight output_layer.weight output_layer.bias
             linear_qkv.weight linear_qkv.bias linear_q.weight linear_q.bias linear_kv.weight linear_kv.bias
             linear_q_proj.weight linear_q_up_proj.weight linear_kv_up_proj.weight eh_proj.weight
             core_attention.softmax_offset query_key_value.weight query_key_value.bias query.weight query.bias
             key_value.weight key_value.bias mixer.A_log mixer.D mixer.dt_bias mixer.norm.weight"""),
            (CutAxis.COLUMNS,
             """linear_proj.weight linear_fc2.weight self_attention.dense.weight attention.dense.weight
             dense_4h_to_h.weight mixer.out_proj.weight"""),
            (CutAxis.LATENT, "linear_q_down_proj.weight linear_kv_down_proj.weight linear_qkv_down_proj.weight"),
            (CutAxis.MIXER, "mixer.in_proj.weight"),
            (CutAxis.CONVOLUTION,
             "mixer.conv1d.weight mixer.conv1d.bias mixer.conv1d_weight mixer.conv1d_bias"),
            (CutAxis.GATED, "linear_fc1.weight linear_fc1.bias dense_h_to_4h.weight dense_h_to_4h.bias"),
            (CutAxis.WHOLE,
             """linear_proj.bias linear_fc2.bias self_attention.dense.bias attention.dense.bias dense_4h_to_h.bias
             position_embeddings.weight tokentype_embeddings.weight router.weight router.bias router.expert_bias
             shared_experts.gate_weight rotary_pos_emb.inv_freq"""),
        )
        for tail in tails.split()
    }
)  # fmt: skip
_NORM: Final = re.compile(r"(?:norm(?:_\w+)?\.(?:weight|bias)|\.layer_norm_(?:weight|bias))$", re.ASCII)
#: The sections of a rank's rows in a Mamba-2 mixer: d the inner channels (z, x), s the states of the rank's groups
#: (B, C), h the heads (dt). From `partition_sizes` in mamba_mixer.py.
MIXER_SECTIONS: Final[Mapping[CutAxis, str]] = MappingProxyType({CutAxis.MIXER: "ddssh", CutAxis.CONVOLUTION: "dss"})
#: The sections of a down projection's rows: the up projection with a section's rank as its columns, the setting of the
#: rows beyond it. From MLASelfAttention and FusedMLASelfAttention in multi_latent_attention.py.
LATENT_SECTIONS: Final[Mapping[str, tuple[tuple[str, str | None], ...]]] = MappingProxyType(
    {
        "linear_q_down_proj": (("linear_q_up_proj", None),),
        "linear_kv_down_proj": (("linear_kv_up_proj", "qk_pos_emb_head_dim"),),
        "linear_qkv_down_proj": (("linear_q_up_proj", None), ("linear_kv_up_proj", "qk_pos_emb_head_dim")),
    }
)
# An axis of a whole tensor that a setting states: setting, end of the name, axis.
_SIZES: Final = (
    ("hidden_size", "embedding.word_embeddings.weight", 1),
    ("padded_vocab_size", "embedding.word_embeddings.weight", 0),
    ("max_position_embeddings", "embedding.position_embeddings.weight", 0),
    ("num_experts", "mlp.router.weight", 0),
    ("q_lora_rank", "self_attention.linear_q_up_proj.weight", 1),
    ("kv_lora_rank", "self_attention.linear_kv_up_proj.weight", 1),
)


class MegatronRank(NamedTuple):
    """The numbers of a rank in the three kinds of parallelism."""

    tensor: int
    pipeline: int
    expert: int

    def __str__(self) -> str:
        return f"tensor-parallel rank {self.tensor}, pipeline rank {self.pipeline}, expert-parallel rank {self.expert}"


class MegatronSizes(NamedTuple):
    """The numbers of ranks. `expert_tensor`: of ranks that share an expert."""

    tensor: int
    pipeline: int
    expert: int
    expert_tensor: int


@dataclass(frozen=True)
class RankStates:
    """The content of a rank's file. `stages`: the tensors of each stage of the pipeline, by name. `args`: the settings;
    empty in files without any."""

    path: str
    file: int
    rank: MegatronRank
    stages: tuple[Mapping[str, Entry], ...]
    args: Mapping[str, Any]
    step: int | None


class MegatronPart(NamedTuple):
    """A rank's tensor; `file`: the number of the index that has it."""

    file: int
    entry: Entry


class MegatronWeight(NamedTuple):
    """A whole parameter: its parts, joined along an axis; None if it is whole. `sections`: sizes along the axis of each
    part's sections, which are joined one by one."""

    spec: Spec
    axis: int | None
    sections: tuple[int, ...]
    parts: tuple[MegatronPart, ...]


class MegatronFault(NamedTuple):
    """A reason for which the files aren't one checkpoint. `rule`: its name in `reports/verify/runs`."""

    rule: str
    message: str
    path: str


def is_rank_folder(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None


# ---- the values of one file ------------------------------------------------------------------------------------


def rank_states(index: Index, file: int, folder: str, settings: Mapping[str, Any] = NO_SETTINGS) -> RankStates:
    """Reads the file of a rank in the folder named `folder`. `settings`: those of files without `args`. FormatError if
    it has no model of Megatron-LM."""
    path = index.files[0].name
    args = {k.removeprefix("args."): v for k, v in index.metadata.items() if k.startswith("args.")} or settings
    stages: dict[int, dict[str, Entry]] = {}
    for entry in index:
        if not group_of(entry.name) and (match := _STAGE.match(entry.name)):
            stages.setdefault(int(match["number"] or 0), {})[entry.name[match.end() :]] = entry
    if not stages or sorted(stages) != list(range(len(stages))):
        raise FormatError("not a rank's file of Megatron-LM", path=path, expected="the key 'model', or 'model0' ...",
                          found=[f"model{n}" for n in sorted(stages)][:8])  # fmt: skip
    step = index.metadata.get("iteration")
    ordered = tuple(stages[n] for n in range(len(stages)))
    return RankStates(path, file, _rank(folder, args), ordered, args, step if type(step) is int else None)


def group_of(name: str) -> str:
    """The group of a stored tensor that isn't a parameter: the key that it is under. Empty for a parameter."""
    if _STAGE.match(name):
        return _EXTRA if name.endswith(_EXTRA) else ""
    return name.partition(".")[0]


def _rank(folder: str, args: Mapping[str, Any]) -> MegatronRank:
    """The second number is the expert-parallel rank if there is no pipeline."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        raise FormatError("not the folder of a rank", path=folder, expected="mp_rank_00 or mp_rank_00_000")
    tensor, second, third = (int(number or 0) for number in match.groups())
    experts_only = args.get("pipeline_model_parallel_size") == 1 and match["third"] is None
    return MegatronRank(tensor, 0, second) if experts_only else MegatronRank(tensor, second, third)


def sizes_of(states: Sequence[RankStates]) -> MegatronSizes:
    """The numbers of ranks by the settings of the first file; without them, by the numbers of all. FormatError for
    implausible settings."""
    first, args = states[0], states[0].args
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    sizes = []
    for axis, key in enumerate(keys):
        size = args.get(key, max(state.rank[axis] for state in states) + 1)
        if type(size) is not int or not 0 < size <= SHARDS:
            raise FormatError("not a number of ranks", path=first.path, field=f"args.{key}", found=repr(size)[:80])
        sizes.append(size)
    shared = args.get("expert_tensor_parallel_size")
    return MegatronSizes(sizes[0], sizes[1], sizes[2], shared if type(shared) is int and shared > 0 else sizes[0])


# ---- the ranks together ----------------------------------------------------------------------------------------


def faults(states: Sequence[RankStates]) -> Iterator[MegatronFault]:
    """The reasons for which files aren't one checkpoint, except for their tensors."""
    first, sizes = states[0], sizes_of(states)
    for state in states:
        if state.step != first.step:
            yield MegatronFault("step", f"of step {state.step}, {first.path} is of step {first.step}", state.path)
        if sizes_of([state, *states]) != sizes or len(state.stages) != len(first.stages):
            yield MegatronFault("mixed", f"other numbers of ranks or stages than in {first.path}", state.path)
        elif any(number >= size for number, size in zip(state.rank, sizes, strict=False)):
            yield MegatronFault("mixed", f"of {state.rank}, and the settings have fewer ranks", state.path)
    if missing := _missing(sizes, {state.rank for state in states}):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield MegatronFault("missing", f"no file of {missing[0]}{more}", "")


def faults_with_tensors(states: Sequence[RankStates], folder: str) -> Iterator[MegatronFault]:
    """As `faults`, at `folder` if not in one file. FormatError, UnsupportedError if the tensors don't fit together."""
    found = [fault if fault.path else fault._replace(path=folder) for fault in faults(states)]
    yield from found
    if not found:
        join(states)


def _missing(sizes: MegatronSizes, present: Collection[MegatronRank]) -> list[MegatronRank]:
    """The ranks without a file. If fewer ranks share an expert than a layer, only some combinations of tensor- and
    expert-parallel ranks exist, and each number of either kind has to occur."""
    counts = tuple(map(range, sizes[:3]))
    if math.prod(map(len, counts)) > SHARDS:
        return [MegatronRank(*(count[-1] for count in counts))]
    tensors = {(rank.pipeline, rank.tensor) for rank in present}
    experts = {(rank.pipeline, rank.expert) for rank in present}
    partial = sizes.expert_tensor != sizes.tensor
    return [
        rank
        for rank in starmap(MegatronRank, product(*counts))
        if rank not in present
        and not (partial and (rank.pipeline, rank.tensor) in tensors and (rank.pipeline, rank.expert) in experts)
    ]


def join(states: Sequence[RankStates]) -> dict[str, MegatronWeight]:
    """The whole parameters of all ranks, under their names with the numbers of the whole model's layers and experts.
    FormatError if the ranks' tensors don't fit together, or contradict the settings."""
    sizes, weights, layers = sizes_of(states), dict[str, MegatronWeight](), Counter[str]()
    for stage, pipeline in product(range(len(states[0].stages)), range(sizes.pipeline)):
        ranks = sorted((s for s in states if s.rank.pipeline == pipeline), key=lambda s: (s.rank.tensor, s.rank.expert))
        joined = _Stage(ranks, stage, sizes)
        for name, weight in joined.weights():
            whole = _LAYER.sub(lambda m: f"{m['front']}{int(m['number']) + layers[m['front']]}.", name, count=1)
            if weights.setdefault(whole, weight).spec != weight.spec:  # the last stage may have a copy of the embedding
                raise FormatError("two stages have different shapes of a tensor", path=ranks[0].path, field=whole,
                                  expected=str(weights[whole].spec), found=str(weight.spec))  # fmt: skip
        layers.update(joined.layers())
    _check_settings(weights, layers, states[0])
    return weights


def is_copy(name: str, args: Mapping[str, Any]) -> bool:
    """Whether a tensor is the last stage's copy of the embedding, with which the output layer is tied."""
    tied = args.get("untie_embeddings_and_output_weights") is False
    return tied and name.endswith(("output_layer.weight", "word_embeddings_for_head.weight"))


class _Stage:
    """The ranks of a stage of the pipeline. `ranks`: in rising order."""

    def __init__(self, ranks: Sequence[RankStates], stage: int, sizes: MegatronSizes) -> None:
        self.path, self.sizes = ranks[0].path, sizes
        self.tensors = ranks[0].stages[stage]
        self.layout = PartLayout(self.path, ranks[0].args, self.tensors)
        for rank in ranks:
            if odd := rank.stages[stage].keys() ^ self.tensors.keys():
                raise FormatError("ranks have different tensors", path=rank.path, field=min(odd))
        first = {rank.rank.tensor: rank for rank in reversed(ranks)}
        self.sharing = [(first[n], stage) for n in sorted(first)]
        by_expert = {n: [(r, stage) for r in ranks if r.rank.expert == n] for n in range(sizes.expert)}
        self.experts = [group if sizes.expert_tensor > 1 else group[:1] for group in by_expert.values()]
        self.count = 1 + max((int(m[0]) for name in self.tensors if (m := _EXPERT.search(name))), default=-1)

    def layers(self) -> dict[str, int]:
        """The number of layers in each list."""
        counts: dict[str, int] = {}
        for match in filter(None, map(_LAYER.match, self.tensors)):
            counts[match["front"]] = max(counts.get(match["front"], 0), int(match["number"]) + 1)
        return counts

    def weights(self) -> Iterator[tuple[str, MegatronWeight]]:
        """The stage's parameters, with the numbers of the whole model's experts."""
        for name in self.tensors:
            match = _EXPERT.search(name)
            if match is None:
                if ".experts." in name and self.sizes.expert > 1:
                    raise UnsupportedError(f"{self.path}: {name} joins a rank's experts in one tensor",
                                           hint="save with TEGroupedMLP or SequentialMLP")  # fmt: skip
                yield name, self._joined(name, self.sharing)
                continue
            if self.sizes.expert_tensor not in (1, self.sizes.tensor):
                raise UnsupportedError(f"{self.path}: {plural(self.sizes.expert_tensor, 'rank')} share an expert, and "
                                       f"{self.sizes.tensor} a layer")  # fmt: skip
            for rank, holders in enumerate(self.experts):
                number = rank * self.count + int(match[0])
                yield f"{name[: match.start()]}{number}{name[match.end() :]}", self._joined(name, holders)

    def _joined(self, name: str, holders: Sequence[tuple[RankStates, int]]) -> MegatronWeight:
        parts = tuple(MegatronPart(rank.file, rank.stages[stage][name]) for rank, stage in holders)
        spec = parts[0].entry.spec
        for (rank, _), part in zip(holders, parts, strict=True):
            if part.entry.spec != spec:
                raise FormatError("ranks have different shapes of a tensor", path=rank.path, field=name,
                                  expected=str(spec), found=str(part.entry.spec))  # fmt: skip
        cut = CutAxis.WHOLE if len(parts) == 1 else self.layout.cut(name)
        axis = 1 if cut is CutAxis.COLUMNS else 0
        size = spec.shape[axis] if axis < len(spec.shape) else 0
        sections = self.layout.sections(name, cut, size, len(parts))
        if not sections:
            return MegatronWeight(spec, None, (), parts[:1])
        if axis >= len(spec.shape) or sum(sections) != size:
            raise FormatError("not a shape that ranks share", path=self.path, field=name, found=str(spec))
        shape = (*spec.shape[:axis], size * len(parts), *spec.shape[axis + 1 :])
        return MegatronWeight(spec.with_shape(*shape), axis, sections, parts)


class PartLayout(NamedTuple):
    """The layout of a rank's parts. `tensors`: the rank's, by name; `args`: the settings."""

    path: str
    args: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    def sections(self, name: str, cut: CutAxis, size: int, ranks: int) -> tuple[int, ...]:
        """The sizes of the sections of a rank's part, which has `size` entries along its axis; none if it is whole."""
        match cut:
            case CutAxis.WHOLE:
                return ()
            case CutAxis.ROWS | CutAxis.COLUMNS:
                return (size,)
            case CutAxis.GATED:
                halves = self.halves(name)
                return (size // halves,) * halves
            case CutAxis.LATENT:
                return self.latent_sections(name, size, ranks)
            case CutAxis.MIXER | CutAxis.CONVOLUTION:
                sizes = self.mixer_sizes(name)
                return tuple(sizes[section] for section in MIXER_SECTIONS[cut])

    def latent_sections(self, name: str, size: int, ranks: int) -> tuple[int, ...]:
        """The sections of a down projection's part; none if it is whole."""
        widths = self.latent_widths(name)
        if sum(widths) == size:
            return ()
        if sum(widths) != size * ranks or any(width % ranks for width in widths):
            raise FormatError("a down projection doesn't fit the up projection and the settings", path=self.path,
                              field=name, expected=f"{sum(widths)} rows, or these divided by {ranks}",
                              found=size)  # fmt: skip
        return tuple(width // ranks for width in widths)

    def latent_widths(self, name: str) -> list[int]:
        """The rows of the sections of a whole down projection."""
        layer = name.split(".")[-2]
        front, widths = name.removesuffix(f"{layer}.weight"), []
        for up, setting in LATENT_SECTIONS.get(layer, ()):
            entry = self.tensors.get(f"{front}{up}.weight")
            more = self.args.get(setting) if setting else 0
            if entry is None or len(entry.shape) != 2:
                raise UnsupportedError(f"{self.path}: it isn't known how ranks share {name} without {up}")
            if type(more) is not int or more < 0:
                raise UnsupportedError(f"{self.path}: it isn't known how ranks share {name} without args.{setting}")
            widths.append(entry.shape[1] + more)
        return widths

    def mixer_sizes(self, name: str) -> dict[str, int]:
        """The sizes of a rank's sections by their letters in `MIXER_SECTIONS`. UnsupportedError if the tensors don't
        have the shapes of a Mamba-2 mixer, such as those of Mamba-1 and gated delta products."""
        front = name.rpartition("mixer.")[0]
        tails = ("out_proj.weight", "A_log", "in_proj.weight", "conv1d.weight", "conv1d_weight")
        found = (self.tensors.get(f"{front}mixer.{tail}") for tail in tails)
        shapes = [entry.shape for entry in found if entry is not None]
        if [len(shape) for shape in shapes] == [2, 1, 2, 3]:
            inner, heads, rows, channels = shapes[0][1], shapes[1][0], shapes[2][0], shapes[3][0]
            states = (channels - inner) // 2
            if states > 0 and channels == inner + 2 * states and rows == inner + channels + heads:
                return {"d": inner, "s": states, "h": heads}
        raise UnsupportedError(f"{self.path}: it isn't known how ranks share {name}: not a Mamba-2 mixer")

    def cut(self, name: str) -> CutAxis:
        """UnsupportedError for an unknown name."""
        plain = re.sub(r"\d+$", "", name)  # grouped experts are numbered
        tails = (plain.split(".", plain.count(".") - n)[-1] for n in (2, 1) if plain.count(".") >= n)
        cut = next((CUTS[tail] for tail in tails if tail in CUTS), None)
        if cut is None and not _NORM.search(plain):
            raise UnsupportedError(f"{self.path}: it isn't known how ranks share {name}")
        return cut or CutAxis.WHOLE

    def halves(self, name: str) -> int:
        """2 for the first layer of a gated MLP, by the columns of the second layer."""
        first = re.sub(r"bias(?=\d*$)", "weight", name)
        second = first.replace("linear_fc1.", "linear_fc2.").replace("dense_h_to_4h.", "dense_4h_to_h.")
        entries = [self.tensors.get(n) for n in (first, second)]
        shapes = [entry.shape for entry in entries if entry is not None and len(entry.shape) == 2]
        ratio = shapes[0][0] / shapes[1][1] if len(shapes) == 2 and shapes[1][1] else 0
        gated = self.args.get("swiglu")
        if ratio not in (1, 2) or (ratio == 1 and gated is True):
            raise FormatError("the layers of an MLP don't fit together", path=self.path, field=name,
                              expected="args.swiglu: twice as many rows" if gated else "as many or twice as many rows",
                              found=shapes)  # fmt: skip
        return int(ratio)


def _check_settings(weights: Mapping[str, MegatronWeight], layers: Mapping[str, int], first: RankStates) -> None:
    """FormatError for a setting that contradicts the tensors."""
    args = first.args
    listed = [("num_layers", n) for front, n in layers.items() if front in _LAYERS]
    for key, tail, axis in _SIZES:
        specs = (w.spec for name, w in weights.items() if f".{name}".endswith(f".{tail}"))
        listed += [(key, spec.shape[axis]) for spec in specs if axis < len(spec.shape)]
    for key, actual in listed:
        if type(args.get(key)) is int and args[key] != actual:
            raise FormatError("a setting contradicts the tensors", path=first.path, field=f"args.{key}",
                              expected=args[key], found=actual)  # fmt: skip
