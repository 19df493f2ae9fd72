"""The checks of `verify` on packed weights: whether their parts match and can be read, and whether the config's
settings are true. Shapes determine bits and groups, since configs are often wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import DFLOAT11
from weighbridge.models import parameter_count
from weighbridge.models.mlxlm.quantization import with_quantization
from weighbridge.models.stored_tensors import StoredTensors, node_builder
from weighbridge.packings.schema import comfy
from weighbridge.packings.schema.base import METADATA, Match
from weighbridge.packings.schema.bitplanes import EVALUATED, HQQ
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.groups import companions
from weighbridge.packings.schema.registry import SHIPPED
from weighbridge.reports.inspect import model_info
from weighbridge.reports.verify.repo import CODED, Repo
from weighbridge.reports.verify.rules import Check, Flaw

if TYPE_CHECKING:
    from weighbridge.containers.base import Index
    from weighbridge.tensors.nodes import LogicalTensor, Node

_SHOWN: Final = 10  # weights with the same error that are named


class Unpacked(NamedTuple):
    """Stored tensors, logical ones, the matches of packed ones, and the errors of groups that can't be unpacked."""

    stored: Mapping[str, Node]
    logical: Mapping[str, LogicalTensor]
    matches: Mapping[str, Match[Any]]
    errors: Sequence[WeighbridgeError]


def unpacked(repo: Repo) -> Unpacked | None:
    """The model's weights, unpacked once; None if none are packed."""
    if "unpacked" not in repo.memo:
        repo.memo["unpacked"] = None
        index = repo.model or _file_of_comfyui(repo)
        config = with_quantization(repo.config, index.by_name) if index is not None else {}
        config = {**config, METADATA: index.metadata if index is not None else {}}
        if index is not None and parameter_count.count(index.entries, config).schemes:
            from weighbridge.packings.unpacking import groups, replaced

            stored = StoredTensors(index)
            errors: list[WeighbridgeError] = []
            packed = groups(stored, config, lambda _, error: errors.append(error))
            matches = {group.name: group.match for group in packed.values()}
            repo.memo["unpacked"] = Unpacked(stored, replaced(stored, packed), matches, errors)
    weights: Unpacked | None = repo.memo["unpacked"]
    return weights


def _file_of_comfyui(repo: Repo) -> Index | None:
    """The single file that is checked, if it is one of ComfyUI's, which is whole and has its settings inside."""
    indexes = (file.index for file in repo.weights if repo.single and file.index is not None)
    return next((index for index in indexes if comfy.has_settings(index.by_name, index.metadata)), None)


def shapes(repo: Repo) -> dict[str, tuple[int, ...]] | None:
    """Shapes of the logical tensors; None if some can't be unpacked."""
    weights = unpacked(repo)
    if weights is not None:
        return None if weights.errors else {name: node.spec.shape for name, node in weights.logical.items()}
    return {e.name: e.shape for e in repo.model} if repo.model is not None else None


# ---- whether they can be read ----


def misfit(repo: Repo) -> Iterator[Flaw]:
    """The parts of a packed weight match: words, scales, zero points, group indexes."""
    return _errors(repo, FormatError)


def unread(repo: Repo) -> Iterator[Flaw]:
    yield from _errors(repo, UnsupportedError)
    for file in repo.weights if repo.single else ():
        if any(entry.name.endswith(DFLOAT11) for entry in file.parsed[1]):
            message = "weights in DFloat11's code, which config.json names: they are checked with their folder"
            yield Flaw(message, file.path, hint=f"wb verify {file.path.parent}")


def _errors(repo: Repo, kind: type[WeighbridgeError]) -> Iterator[Flaw]:
    weights = unpacked(repo)
    every = [*(weights.errors if weights else ()), *filter(None, [repo.memo.get(CODED)])]
    errors = [e for e in every if isinstance(e, kind)]
    causes = sorted((str(e).splitlines()[0], e.hint) for e in errors)
    more = len(causes) - _SHOWN
    for number, (message, hint) in enumerate(causes[:_SHOWN], 1):
        last = f" (and {plural(more, 'more weight')})" if number == _SHOWN and more > 0 else ""
        yield Flaw(f"{message}{last}", repo.root, hint=hint)


def incomplete(repo: Repo) -> Iterator[Flaw]:
    """A member of a packed weight without its companions."""
    if repo.model is None:
        return
    names, needs = {e.name for e in repo.model}, companions(SHIPPED)
    orphans: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for entry in repo.model:
        for ending, (types, siblings) in needs.items():
            module = entry.name.removesuffix(ending)
            if module != entry.name and entry.dtype in types and not any(module + b in names for b in siblings):
                orphans[ending, siblings].append(entry.name)
    for (ending, siblings), (first, *further) in orphans.items():
        message = f"{first} has no {' or '.join(first.removesuffix(ending) + b for b in siblings)}"
        more = f", and {len(further):,} more like it" if further else ""
        hint = "without it the codes mean nothing: download the model again"
        yield Flaw(message + more, repo.root, first, hint)


# ---- the config's settings ----


def quantization_config(repo: Repo) -> Iterator[Flaw]:
    """The config declares quantized weights and there are none, or the reverse."""
    if not repo.config or repo.model is None:
        return
    configured = model_info.quantization(repo.config)
    schemes = parameter_count.count(repo.model.entries).schemes
    path = repo.root / "config.json"
    # Matrices of integers or small floats may be a packing with an unknown name.
    odd = any(len(e.shape) > 1 and (e.dtype.kind is not Kind.FLOAT or e.dtype.bits < 16) for e in repo.model)
    if configured and not schemes and not odd:
        yield Flaw(f"the config declares {configured.words}, no tensor is packed", path, hint="a stale config?")
    if schemes and not configured:
        packed = f"{plural(sum(schemes.values()), 'weight', 'are')} packed ({', '.join(schemes)})"
        message = f"{packed}, the config doesn't declare it"
        yield Flaw(message, path, hint="loaders read the packed words as numbers")


class Grain(NamedTuple):
    """Bits of a code and columns that share a scale; None: not set."""

    bits: int | None
    group: int | None

    def __str__(self) -> str:
        return f"{self.bits or 'any'} bits in groups of {self.group or 'any'}"


def contradictions(repo: Repo) -> Iterator[Flaw]:
    """Bits and groups in the config that the shapes contradict."""
    weights = unpacked(repo)
    differ: dict[tuple[Grain, Grain], list[str]] = defaultdict(list)
    for name, match in (weights.matches if weights else {}).items():
        real = Grain(match.bits, match.group)
        declared = _declared(match.module, match.shape[-1], repo.config) or Grain(None, None)
        if any(None not in pair and pair[0] != pair[1] for pair in zip(declared, real, strict=True)):
            differ[declared, real].append(name)
    for (declared, real), names in differ.items():
        many = f"{plural(len(names), 'weight', 'are')}" if len(names) > 1 else "a weight is"
        message = f"the config sets {declared}; {many} {real} by their shapes, first {names[0]}"
        yield Flaw(message, repo.root / "config.json", names[0], "the shapes are what counts; correct the config")


def _declared(module: str, columns: int, config: Mapping[str, Any]) -> Grain | None:
    """The settings of a config for one module: MLX's settings, GPTQ's and AWQ's, or those of the only group of
    compressed-tensors."""
    mlx, general = config.get("quantization"), config.get("quantization_config")
    if isinstance(mlx, Mapping):
        override = mlx.get(module)
        settings = {**mlx, **override} if isinstance(override, Mapping) else mlx
        default = 64 if settings.get("mode", "affine") == "affine" else None
        return Grain(_positive(settings.get("bits")), _positive(settings.get("group_size")) or default)
    if not isinstance(general, Mapping) or general.get("dynamic"):
        return None
    settings = general
    if "config_groups" in general:
        groups = general["config_groups"] if isinstance(general["config_groups"], Mapping) else {}
        weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        settings = weights[0] if len(weights) == 1 and isinstance(weights[0], Mapping) else {}
    group_size = settings.get("group_size", settings.get("q_group_size"))
    bits = next((settings[key] for key in ("bits", "w_bit", "num_bits") if key in settings), None)
    return Grain(_positive(bits), columns if group_size == -1 else _positive(group_size))


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def no_group_size(repo: Repo) -> Iterator[Flaw]:
    """A group size that is null: loaders stop at it, or use their default."""
    for key in ("quantization", "quantization_config"):
        table = repo.config.get(key)
        if not isinstance(table, Mapping):
            continue
        modules = [name for name, inner in table.items() if isinstance(inner, Mapping) and _is_null(inner)]
        if _is_null(table) or modules:
            within = "" if _is_null(table) else f", for {plural(len(modules), 'module')}, first {modules[0]}"
            yield Flaw(f"group_size is null in {key}{within}", repo.root / "config.json",
                       hint="the shapes determine it here; MLX uses 64, other loaders stop")  # fmt: skip
            return  # in MLX both names have the same settings


def _is_null(table: Mapping[str, Any]) -> bool:
    return "group_size" in table and table["group_size"] is None


def mislabelled(repo: Repo) -> Iterator[Flaw]:
    """GPTQ's format 1 stores a zero point minus one, format 2 the zero point. The label may be wrong, the numbers
    aren't."""
    weights = unpacked(repo)
    if weights is None:
        return
    from weighbridge.packings.read import gptq

    wrong: dict[str, list[str]] = defaultdict(list)
    for match in weights.matches.values():
        if match.schema is GPTQ and (form := gptq.mislabelled(match.module, weights.stored, repo.config)):
            wrong[form].append(match.module)
    for form, modules in wrong.items():
        real = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[form]
        symmetric = f"{plural(len(modules), 'symmetric weight', 'have')} the zero points of {real}"
        message = f"the config calls the format {form}; {symmetric}, first {modules[0]}"
        hint = f"set checkpoint_format to {real}: a loader that trusts the label is off by one step"
        yield Flaw(message, repo.root / "config.json", modules[0], hint)


# ---- HQQ ----

_TYPE: Final = re.compile(rb"torch\.[a-z0-9_]+\Z")


def evaluated(repo: Repo) -> Iterator[Flaw]:
    """hqq's loader passes the bytes of these tensors to Python's eval; here they are read and never run."""
    index = repo.model
    for entry in index or ():
        ending = next((e for e in EVALUATED if entry.name.endswith(e)), None)
        if not ending or index is None or entry.name.removesuffix(ending) + HQQ.suffix not in index.by_name:
            continue
        text = b"(too long for the name of a type)"
        if entry.nbytes <= MIB:
            text = node_builder(index)(entry).read_all().tobytes().rstrip(b"\0")
        if not _TYPE.match(text):
            message = f"hqq's loader would run it as Python: {text[:80].decode('ascii', 'backslashreplace')}"
            hint = "don't load this model with hqq; Weighbridge reads it without running anything"
            yield Flaw(message, repo.root, entry.name, hint)


# ---- numbers (with --values) ----

# Members of a packed weight that scale its codes, and the schemes whose scales may be negative.
_SCALES: Final = ("scales", "scale", "absmax")
_SIGNED: Final = ("mlx-affine", "hqq")


class Scales(NamedTuple):
    """The counts of a packed weight's scales. `nan`: only of those stored as bytes; other rules check floats."""

    nan: int
    negative: int
    zero: int
    total: int


def _scales(repo: Repo) -> Mapping[str, Scales]:
    if "scales" not in repo.memo:
        from weighbridge.tensors.nodes.quantized import QuantizedTensor

        weights = unpacked(repo)
        repo.memo["scales"] = {
            name: _count_scales(node.packing.name, node.members[member])
            for name, node in (weights.logical.items() if weights else ())
            if isinstance(node, QuantizedTensor)
            for member in _SCALES
            if member in node.members and node.members[member].spec.dtype.kind is Kind.FLOAT
        }
    scales: Mapping[str, Scales] = repo.memo["scales"]
    return scales


def _count_scales(scheme: str, node: Node) -> Scales:
    import numpy as np

    from weighbridge.tensors import kernels
    from weighbridge.tensors.nodes.base import walk

    rows = node.spec.rows
    step = rows if any(below.stripes for below in walk(node)) else max(1, SLAB // max(node.spec.row_bytes, 1))
    nan = negative = zero = 0
    for lo in range(0, rows, max(step, 1)):
        values = kernels.widened(node.spec.dtype, node.read(lo, min(lo + step, rows)))
        nan += int(np.isnan(values).sum()) if node.spec.dtype.size == 1 else 0
        negative += int((values < 0).sum()) if scheme not in _SIGNED else 0
        zero += int((values == 0).sum())
    return Scales(nan, negative, zero, node.spec.elements)


def _scale_check(kind: str, adjective: str, hint: str) -> Callable[[Repo], Iterator[Flaw]]:
    """The check of a rule on one of the counts."""

    def check(repo: Repo) -> Iterator[Flaw]:
        for name, scales in _scales(repo).items():
            if count := getattr(scales, kind):
                message = (
                    f"{count:,} of its {plural(scales.total, 'scale')} {'is' if count == 1 else 'are'} {adjective}"
                )
                yield Flaw(message, repo.root, name, hint)

    return check


def code_range(repo: Repo) -> Iterator[Flaw]:
    """Codes of few bits that are stored in a byte each, and zero points, may exceed their bits."""
    import numpy as np

    from weighbridge.tensors.nodes.quantized import QuantizedTensor

    weights = unpacked(repo)
    for name, node in (weights.logical if weights else {}).items():
        declared = _declared(name.removesuffix(".weight"), node.spec.shape[-1], repo.config)
        if not isinstance(node, QuantizedTensor) or declared is None or declared.bits is None or declared.bits >= 8:
            continue
        top = 1 << (declared.bits - 1)
        for member in ("codes", "zeros"):
            part = node.members.get(member)
            if part is not None and part.spec.dtype.name == "I8":
                values = part.read_all().view(np.int8)
                if count := int(((values < -top) | (values >= top)).sum()):
                    message = f"{count:,} of its {member} exceed {declared.bits} bits"
                    hint = "conversions keep them; kernels for these bits would truncate them"
                    yield Flaw(message, repo.root, name, hint)


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: Final = (
    Check("config/quantization", _W, "config and tensors agree on whether weights are packed", quantization_config),
    Check("config/bits", _W, "packed weights have the bits and groups that the config sets", contradictions),
    Check("config/group-size", _W, "the config sets the size of groups", no_group_size),
    Check("config/gptq-format", _W, "GPTQ's zero points have the format that the config names", mislabelled),
    Check("config/packing", _E, "the parts of a packed weight match", misfit),
    Check("config/packing-incomplete", _E, "no part of a packed weight is without the others", incomplete),
    Check("config/packing-unread", _I, "packed weights are in an order that can be read", unread),
    Check("config/hqq-code", _E, "settings of HQQ are names of types, not Python code", evaluated),
)

#: Rules that read the scales, and codes in bytes.
VALUE_RULES: Final = (
    Check("values/scale-nan", _E, "no scale of a packed weight is NaN, whatever its stored type",
          _scale_check("nan", "NaN", "the values that they scale are lost: download the model again")),
    Check("values/scale-negative", _W, "scales are positive if the quantizer makes them so",
          _scale_check("negative", "negative", "conversions keep them; other readers drop the sign")),
    Check("values/scale-zero", _I, "scales are not zero",
          _scale_check("zero", "zero", "the values that they scale are zero, or the bias")),
    Check("values/code-range", _W, "codes and zero points in bytes don't exceed the bits that the config sets",
          code_range),
)  # fmt: skip
