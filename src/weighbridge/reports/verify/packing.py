"""The checks of `verify` on packed weights: whether their parts fit together and can be read, and whether what a config
states of them is true. Shapes decide bits and groups, since configs are often wrong; a finding names where.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.containers.base import Entry, Index, Severity
from weighbridge.models.stored_tensors import StoredTensors, node_builder
from weighbridge.packings.schema.base import METADATA, Match
from weighbridge.packings.schema.bitplanes import EVALUATED, HQQ
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.groups import companions
from weighbridge.packings.schema.registry import SHIPPED
from weighbridge.reports.inspect import model_info, parameter_count
from weighbridge.reports.verify.repo import Repo
from weighbridge.reports.verify.rules import Check, Flaw

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

_SHOWN: Final = 10  # weights of one trouble that are named


class Unpacked(NamedTuple):
    """Stored tensors, logical ones, the matches of those that are packed, and the errors of groups that can't be
    unpacked."""

    stored: Mapping[str, Node]
    logical: Mapping[str, LogicalTensor]
    matches: Mapping[str, Match[Any]]
    errors: Sequence[WeighbridgeError]


def unpacked(repo: Repo) -> Unpacked | None:
    """The model's packed weights, unpacked once; None where none are packed."""
    if "unpacked" not in repo.memo and repo.model is not None:
        repo.memo["unpacked"] = _unpack(repo.model, repo.config)
    found: Unpacked | None = repo.memo.get("unpacked")
    return found


def _unpack(index: Index, config: Mapping[str, Any]) -> Unpacked | None:
    packing_config = {**config, METADATA: index.metadata}
    if not parameter_count.count(index.entries, packing_config).schemes:
        return None
    from weighbridge.packings.unpacking import groups, replaced

    stored = StoredTensors(index)
    errors: list[WeighbridgeError] = []
    found = groups(stored, packing_config, lambda _, error: errors.append(error))
    return Unpacked(stored, replaced(stored, found), {group.name: group.match for group in found.values()}, errors)


def shapes(repo: Repo) -> dict[str, tuple[int, ...]] | None:
    """Shapes of the logical tensors; None where some can't be unpacked."""
    found = unpacked(repo)
    if found is not None:
        return None if found.errors else {name: node.spec.shape for name, node in found.logical.items()}
    return {e.name: e.shape for e in repo.model} if repo.model is not None else None


# ---- whether they can be read ----


def misfit(repo: Repo) -> Iterator[Flaw]:
    """What packs weights fits together: words, scales, zero points, group indexes."""
    return _configured(repo, FormatError)


def unread(repo: Repo) -> Iterator[Flaw]:
    return _configured(repo, UnsupportedError)


def _configured(repo: Repo, kind: type[WeighbridgeError]) -> Iterator[Flaw]:
    found = unpacked(repo)
    errors = [e for e in found.errors if isinstance(e, kind)] if found else []
    for error in errors[:_SHOWN]:
        yield Flaw(str(error).splitlines()[0], str(repo.root), hint=error.hint)
    if len(errors) > _SHOWN:
        yield Flaw(f"{len(errors) - _SHOWN:,} weights more are like that", str(repo.root))


def incomplete(repo: Repo) -> Iterator[Flaw]:
    """A member of a packed weight without what it needs beside it."""
    if repo.model is None:
        return
    names, needs = {e.name for e in repo.model}, companions(SHIPPED)
    alone: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for entry in repo.model:
        for ending, (types, siblings) in needs.items():
            module = entry.name.removesuffix(ending)
            if module != entry.name and entry.dtype in types and not any(module + b in names for b in siblings):
                alone[ending, siblings].append(entry.name)
    for (ending, siblings), found in alone.items():
        words = f"{found[0]} has no {' or '.join(module_of(found[0], ending) + b for b in siblings)} beside it"
        more = f", and {len(found) - 1:,} more like it" if len(found) > 1 else ""
        yield Flaw(
            words + more, str(repo.root), found[0], "without it the codes mean nothing: download the model again"
        )


def module_of(name: str, ending: str) -> str:
    return name.removesuffix(ending)


# ---- what the config says ----


def quantization_config(repo: Repo) -> Iterator[Flaw]:
    """The config speaks of quantized weights and there are none, or the other way round."""
    if not repo.config or repo.model is None:
        return
    configured = model_info.quantization(repo.config)
    schemes = parameter_count.count(repo.model.entries).schemes
    path = str(repo.root / "config.json")
    # Matrices of integers or small floats may be a packing that we don't know by name.
    odd = any(len(e.shape) > 1 and (e.dtype.kind is not Kind.FLOAT or e.dtype.bits < 16) for e in repo.model)
    if configured and not schemes and not odd:
        yield Flaw(f"the config speaks of {configured.words}, no tensor is packed", path, hint="a stale config?")
    if schemes and not configured:
        words = f"{sum(schemes.values()):,} weights are packed ({', '.join(schemes)}), the config doesn't say so"
        yield Flaw(words, path, hint="loaders take the packed words for numbers")


class Grain(NamedTuple):
    """Bits of a code and columns that share a scale; None: not stated."""

    bits: int | None
    group: int | None

    def __str__(self) -> str:
        return f"{self.bits or 'any'} bits in groups of {self.group or 'any'}"


def contradictions(repo: Repo) -> Iterator[Flaw]:
    """Bits and groups that the config says, against those that the shapes tell."""
    found = unpacked(repo)
    differ: dict[tuple[Grain, Grain], list[str]] = defaultdict(list)
    for name, match in (found.matches if found else {}).items():
        real = Grain(match.bits, match.group)
        declared = _declared(match.module, match.shape[-1], repo.config)
        if declared and _differ(declared.bits, real.bits) | _differ(declared.group, real.group):
            differ[declared, real].append(name)
    for (declared, real), names in differ.items():
        many = f"{len(names):,} weights are" if len(names) > 1 else "a weight is"
        yield Flaw(
            f"the config says {declared}; {many} {real} by their shapes, first {names[0]}",
            str(repo.root / "config.json"), names[0], "the shapes are what counts; correct the config",
        )  # fmt: skip


def _differ(declared: int | None, real: int | None) -> bool:
    return declared is not None and real is not None and declared != real


def _declared(module: str, columns: int, config: Mapping[str, Any]) -> Grain | None:
    """The settings of a config for one module: MLX's settings, GPTQ's and AWQ's, or those of one group of
    compressed-tensors."""
    mlx = config.get("quantization")
    if isinstance(mlx, Mapping):
        own = mlx.get(module)
        table = own if isinstance(own, Mapping) else mlx
        group = table.get("group_size", mlx.get("group_size"))
        default = 64 if table.get("mode", mlx.get("mode", "affine")) == "affine" else None
        return Grain(_number(table.get("bits", mlx.get("bits"))), _number(group) or default)
    configured = config.get("quantization_config")
    if not isinstance(configured, Mapping) or configured.get("dynamic"):
        return None
    table = _one_group(configured) if "config_groups" in configured else configured
    group = table.get("group_size", table.get("q_group_size"))
    return Grain(
        _number(next((table[key] for key in ("bits", "w_bit", "num_bits") if key in table), None)),
        columns if group == -1 else _number(group),
    )


def _one_group(configured: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights' settings where all layers share them."""
    groups = configured.get("config_groups")
    tables = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    return tables[0] if len(tables) == 1 and isinstance(tables[0], Mapping) else {}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def no_group_size(repo: Repo) -> Iterator[Flaw]:
    """A group size that is null: loaders stop at it, or take a default of their own."""
    tables = {key: repo.config.get(key) for key in ("quantization", "quantization_config")}
    for key, table in tables.items():
        if not isinstance(table, Mapping):
            continue
        modules = [name for name, own in table.items() if isinstance(own, Mapping) and _is_null(own)]
        if _is_null(table):
            where = key
        elif modules:
            where = f"{key}, for {len(modules):,} modules, first {modules[0]}"
        else:
            continue
        yield Flaw(f"group_size is null in {where}", str(repo.root / "config.json"),
                    hint="the shapes tell it here; MLX takes 64, other loaders stop")  # fmt: skip
        return  # both names hold the same in MLX


def _is_null(table: Mapping[str, Any]) -> bool:
    return "group_size" in table and table["group_size"] is None


def mislabelled(repo: Repo) -> Iterator[Flaw]:
    """GPTQ's format 1 stores a zero point less one, format 2 the zero point: labels lie, numbers don't."""
    found = unpacked(repo)
    if found is None:
        return
    from weighbridge.packings.read import gptq

    wrong: dict[str, list[str]] = defaultdict(list)
    for match in found.matches.values():
        if match.schema is GPTQ and (form := gptq.mislabelled(match.module, found.stored, repo.config)):
            wrong[form].append(match.module)
    for form, modules in wrong.items():
        other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[form]
        yield Flaw(
            f"the config calls the format {form}; {len(modules):,} symmetric weights have the zero points of {other}, "
            f"first {modules[0]}",
            str(repo.root / "config.json"), modules[0],
            f"set checkpoint_format to {other}: a loader that believes the label is off by one step",
        )  # fmt: skip


# ---- HQQ ----

_TYPE: Final = re.compile(rb"torch\.[a-z0-9_]+\Z")


def evaluated(repo: Repo) -> Iterator[Flaw]:
    """hqq's loader gives the bytes of these tensors to Python's eval; here they are read and never run."""
    for entry in repo.model or ():
        ending = next((e for e in EVALUATED if entry.name.endswith(e)), None)
        if not ending or repo.model is None or entry.name.removesuffix(ending) + HQQ.suffix not in repo.model.by_name:
            continue
        text = _text(repo.model, entry)
        if not _TYPE.match(text):
            shown = text[:80].decode("ascii", "backslashreplace")
            yield Flaw(f"hqq's loader would run it as Python: {shown}", str(repo.root), entry.name,
                        "don't load this model with hqq; Weighbridge reads it without running anything")  # fmt: skip


def _text(index: Index, entry: Entry) -> bytes:
    if entry.nbytes > MIB:
        return b"(text of that length is no number type)"
    return node_builder(index)(entry).read_all().tobytes().rstrip(b"\0")


# ---- numbers (with --values) ----

# Members of a packed weight that scale its codes, and the schemes that have negative ones.
_SCALES: Final = ("scales", "scale", "absmax")
_SIGNED: Final = ("mlx-affine", "hqq")


class Scales(NamedTuple):
    """What stands in a packed weight's scales. `nan`: of those stored as bytes; of floats other rules tell."""

    nan: int
    negative: int
    zero: int
    total: int


def _scales(repo: Repo) -> Mapping[str, Scales]:
    if "scales" not in repo.memo:
        from weighbridge.tensors.nodes.quantized import QuantizedTensor

        found = unpacked(repo)
        tensors = found.logical.items() if found else ()
        repo.memo["scales"] = {
            name: _looked_at(node.packing.name, node.members[member])
            for name, node in tensors
            if isinstance(node, QuantizedTensor)
            for member in _SCALES
            if member in node.members and node.members[member].spec.dtype.kind is Kind.FLOAT
        }
    known: Mapping[str, Scales] = repo.memo["scales"]
    return known


def _looked_at(scheme: str, node: Node) -> Scales:
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


def _of_scales(what: str, words: str, hint: str) -> Callable[[Repo], Iterator[Flaw]]:
    """A rule on one of the counts."""

    def check(repo: Repo) -> Iterator[Flaw]:
        for name, scales in _scales(repo).items():
            if count := getattr(scales, what):
                yield Flaw(f"{count:,} of its {scales.total:,} scales are {words}", str(repo.root), name, hint)

    return check


def code_range(repo: Repo) -> Iterator[Flaw]:
    """Codes of few bits that are stored a byte each, and zero points, may be larger than their bits."""
    import numpy as np

    from weighbridge.tensors.nodes.quantized import QuantizedTensor

    found = unpacked(repo)
    for name, node in (found.logical if found else {}).items():
        declared = _declared(name.removesuffix(".weight"), node.spec.shape[-1], repo.config)
        if not isinstance(node, QuantizedTensor) or declared is None or declared.bits is None or declared.bits >= 8:
            continue
        top = 1 << (declared.bits - 1)
        for member in ("codes", "zeros"):
            part = node.members.get(member)
            if part is not None and part.spec.dtype.name == "I8":
                values = part.read_all().view(np.int8)
                if out := int(((values < -top) | (values >= top)).sum()):
                    yield Flaw(f"{out:,} of its {member} are not of {declared.bits} bits", str(repo.root), name,
                                "they are taken as they are; kernels for these bits would cut them")  # fmt: skip


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: Final = (
    Check(
        "config/quantization", _W, "the config and the tensors agree on whether weights are packed", quantization_config
    ),
    Check("config/bits", _W, "packed weights have the bits and groups that the config says", contradictions),
    Check("config/group-size", _W, "the config says the size of groups", no_group_size),
    Check("config/gptq-format", _W, "zero points of GPTQ are those of the format that the config names", mislabelled),
    Check("config/packing", _E, "the parts of a packed weight fit together", misfit),
    Check("config/packing-incomplete", _E, "no part of a packed weight is there alone", incomplete),
    Check("config/packing-unread", _I, "packed weights are in an order that can be read", unread),
    Check("config/hqq-code", _E, "settings of HQQ are names of types, and no Python", evaluated),
)

#: Those that read the scales, and codes of a byte.
VALUE_RULES: Final = (
    Check("values/scale-nan", _E, "no scale of a packed weight is NaN, whatever type it is stored as",
         _of_scales("nan", "NaN", "what they scale is lost: download the model again")),
    Check("values/scale-negative", _W, "scales are positive where quantizers make them so",
         _of_scales("negative", "negative", "they are taken as they are; other readers drop the sign")),
    Check("values/scale-zero", _I, "scales are not zero",
         _of_scales("zero", "zero", "what they scale is zero, or its bias")),
    Check("values/code-range", _W, "codes and zero points that are stored as bytes have the bits that the config says",
         code_range),
)  # fmt: skip
