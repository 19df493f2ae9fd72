"""A recipe of a mixture of experts: mergekit-moe's YAML, unchanged (arcee-ai/mergekit 0.1.5, moe/config.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.conversion.merging.mixture_targets import targets
from weighbridge.conversion.merging.recipe import model_of

#: How a router's rows are made -> whether by prompts.
GATE_MODES: Final = {
    "hidden": True, "hidden_last": True, "hidden_avg": True, "cheap_embed": True, "random": False,
    "uniform_random": False,
}  # fmt: skip
# Experts of a model, and prompts of one: more than any published recipe.
_Prompts = Annotated[tuple[str, ...], msgspec.Meta(max_length=1024)]


class _ExpertRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source_model: Any
    positive_prompts: _Prompts | None = None
    negative_prompts: _Prompts | None = None
    noise_scale: float | None = None
    residual_scale: float | None = None


_Rows = Annotated[tuple[_ExpertRow, ...], msgspec.Meta(max_length=1024)]


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a recipe."""

    base_model: Any
    experts: _Rows
    gate_mode: str = "hidden"
    dtype: str | None = None
    experts_per_token: Annotated[int, msgspec.Meta(ge=1)] = 2
    shared_experts: _Rows | None = None
    architecture: str | None = None


@dataclass(frozen=True)
class Expert:
    """A model whose feed-forward layers become an expert. `noise`: the deviation of random numbers that are added to
    its weights; `scale`: the factor of its output."""

    model: str
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    noise: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class MixtureRecipe:
    """`architecture`: the beginning of a target's name, or "" for the first that fits."""

    base: str
    experts: tuple[Expert, ...]
    shared: tuple[Expert, ...] = ()
    gate_mode: str = "hidden"
    per_token: int = 2
    dtype: str | None = None
    architecture: str = ""

    @property
    def models(self) -> tuple[str, ...]:
        """All models, each once; the base first."""
        return tuple(dict.fromkeys((self.base, *(expert.model for expert in (*self.experts, *self.shared)))))

    @property
    def random(self) -> bool:
        """Whether a seed matters."""
        noisy = any(expert.noise for expert in (*self.experts, *self.shared))
        return noisy or not GATE_MODES[self.gate_mode]


def is_mixture(data: Any) -> bool:
    """Whether plain data are a mixture's recipe, not one of a merge."""
    return isinstance(data, Mapping) and "experts" in data and "merge_method" not in data


def parse_mixture(data: Mapping[str, Any], path: Path | None = None) -> MixtureRecipe:
    """Returns the recipe that plain data describe. Raises UsageError with the place. `path`: as of `parse_recipe`."""
    location = path.name if path else "the recipe"
    try:
        rules = msgspec.convert(data, _Rules)
    except msgspec.ValidationError as error:
        raise UsageError(f"{location}: {error}", hint=f"its keys: {', '.join(_Rules.__struct_fields__)}") from None
    recipe = MixtureRecipe(
        base=model_of(rules.base_model, f"{location}: base_model", path),
        experts=_experts(rules.experts, f"{location}: experts", path),
        shared=_experts(rules.shared_experts or (), f"{location}: shared_experts", path),
        gate_mode=rules.gate_mode,
        per_token=rules.experts_per_token,
        dtype=rules.dtype,
        architecture=rules.architecture or "",
    )
    _check(recipe, location)
    return recipe


def _experts(rows: tuple[_ExpertRow, ...], location: str, path: Path | None) -> tuple[Expert, ...]:
    experts = []
    for number, row in enumerate(rows):
        noise, scale = row.noise_scale or 0.0, 1.0 if row.residual_scale is None else row.residual_scale
        if not (math.isfinite(noise) and math.isfinite(scale)):
            raise UsageError(f"{location}[{number}]: noise_scale and residual_scale must be finite")
        model = model_of(row.source_model, f"{location}[{number}]: source_model", path)
        experts.append(Expert(model, row.positive_prompts or (), row.negative_prompts or (), noise, scale))
    return tuple(experts)


def _check(recipe: MixtureRecipe, location: str) -> None:
    count = len(recipe.experts)
    if recipe.gate_mode not in GATE_MODES:
        raise UsageError(f"{location}: gate_mode {recipe.gate_mode!r} is unknown", hint=", ".join(GATE_MODES))
    if count < 2:
        raise UsageError(
            f"{location}: a mixture has at least 2 experts, not {count}",
            hint="list the same model twice, with gate_mode: random, to train it further",
        )
    if recipe.per_token > count:
        raise UsageError(
            f"{location}: experts_per_token is {recipe.per_token}, but there are {count} experts",
            hint=f"experts_per_token: {count} or less",
        )
    if recipe.architecture and not any(target.named(recipe.architecture) for target in targets()):
        names = ", ".join(target.name for target in targets())
        raise UsageError(f"{location}: architecture {recipe.architecture!r} is unknown", hint=names)
    if not GATE_MODES[recipe.gate_mode]:
        return
    for number, expert in enumerate(recipe.experts):
        if not expert.positive:
            raise UsageError(
                f"{location}: experts[{number}] has no positive_prompts, which gate_mode {recipe.gate_mode} needs",
                hint="texts that the expert should answer; or gate_mode: random, to train the router",
            )
    if len({(expert.positive, expert.negative) for expert in recipe.experts}) == 1:
        raise UsageError(
            f"{location}: all experts have the same prompts, so the router couldn't tell them apart",
            hint="prompts that only one expert should answer; or gate_mode: random, to train the router",
        )
