"""A mixture of experts made of dense models: attention, norms and embeddings of the base, the feed-forward layers of
each model as an expert, and routers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from weighbridge.base.closeable import OpenTogether
from weighbridge.base.dtypes import BF16, F32, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.conversion.merging.folder_view import FolderView
from weighbridge.conversion.merging.methods import random_key
from weighbridge.conversion.merging.mixture_recipe import GATE_MODES, Expert, MixtureRecipe
from weighbridge.conversion.merging.mixture_targets import MixtureCounts, MixtureTarget, targets
from weighbridge.conversion.merging.plan import open_recipe_models, plan_merged, with_notes
from weighbridge.conversion.merging.routers import PromptStates, alike, router_rows
from weighbridge.conversion.options import TargetOptions, WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.models.model import OpenModel, SourceOptions
from weighbridge.models.transform.base import KeyChange, with_config, with_nodes
from weighbridge.tensors.merging import Noisy
from weighbridge.tensors.nodes import LogicalTensor, Node, cast, const, is_plain, provisional, zeros
from weighbridge.tensors.nodes.merged import merged

_PARTS: Final = ("gate_proj", "up_proj", "down_proj")
_FEED_FORWARD: Final = ".mlp."
_BIASED: Final = ("q_proj", "k_proj", "v_proj")  # if any matrix is
# config.json: keys of dense models, and of packed weights, which the result doesn't have.
_LEFT_OUT: Final = frozenset({
    "attention_bias", "auto_map", "mlp_bias", "pretraining_tp", "quantization", "quantization_config",
})  # fmt: skip


def plan_mixture(
    recipe: MixtureRecipe,
    target: str | os.PathLike[str],
    to: str | TargetOptions | None,
    target_options: Mapping[str, Any],
    source: SourceOptions,
    write: WriteOptions,
    seed: int,
    states: PromptStates,
) -> Plan:
    """Plans a mixture. `target_options`: by name; without a type among them, that of the recipe, else the base's.
    `states`: computes the base's hidden states for prompts, for `gate_mode: hidden`."""
    with ExitStack() as stack:
        models, notes = open_recipe_models(recipe.models, source, stack)
        model = with_notes(mix_models(recipe, models, seed, states), notes)
        if recipe.dtype is not None:
            target_options = {"dtype": recipe.dtype, **target_options}
        return replace(plan_merged(model, target, to, target_options, write), model=OpenTogether(stack))


def mix_models(recipe: MixtureRecipe, models: Mapping[str, OpenModel], seed: int, states: PromptStates) -> OpenModel:
    """Returns the mixture as a model folder. `models`: the recipe's, by name. Raises UsageError and UnsupportedError
    for models that fit neither each other nor an architecture."""
    return _Mixture(recipe, {name: FolderView(model) for name, model in models.items()}, seed, states).model()


@dataclass(frozen=True)
class _Mixture:
    recipe: MixtureRecipe
    views: Mapping[str, FolderView]
    seed: int
    states: PromptStates

    @property
    def base(self) -> FolderView:
        return self.views[self.recipe.base]

    @cached_property
    def layers(self) -> int:
        """The number of layers."""
        return self.base.stack.count if self.base.stack else 0

    @property
    def _all(self) -> tuple[Expert, ...]:
        return (*self.recipe.experts, *self.recipe.shared)

    def model(self) -> OpenModel:
        self._check_base()
        target, base = self.target, self.base.model
        nodes: dict[str, Node] = {}
        for name, tensor in self.base.tensors.items():
            if _FEED_FORWARD in name:
                continue
            nodes[name] = self._stored(tensor, self._dtype(name))
            bias = name.removesuffix("weight") + "bias"
            biased = target.biases and name.endswith(tuple(f".{part}.weight" for part in _BIASED))
            if biased and bias not in self.base.tensors:  # the architecture has it
                nodes[bias] = zeros((tensor.spec.shape[0],), self._dtype(name))
        for layer in range(self.layers):
            nodes |= self._experts(layer)
        nodes |= self._routers
        config = {key: value for key, value in base.config.items() if key not in _LEFT_OUT}
        config |= target.config(self._counts)
        changes = [KeyChange(key, base.config.get(key), value) for key, value in config.items()]
        model = with_config(with_nodes(base, nodes), config, changes)
        files = (file for view in self.views.values() if view is not self.base for file in view.model.place.files)
        further = tuple(file for file in dict.fromkeys(files) if file not in base.place.files)
        place = replace(
            base.place, merged=(*base.place.merged, *further), notes=(*base.place.notes, *self._notes(target))
        )
        return replace(model, place=place)

    @property
    def _counts(self) -> MixtureCounts:
        width = self.base.tensors["model.layers.0.mlp.gate_proj.weight"].spec.shape[0]
        recipe = self.recipe
        return MixtureCounts(len(recipe.experts), len(recipe.shared), recipe.per_token, width)

    # ------------------------------------------------------------------------------------------ target

    @cached_property
    def target(self) -> MixtureTarget:
        """The first architecture that fits. Raises UnsupportedError with the reason of each other."""
        reasons = {}
        for target in targets():
            if not target.named(self.recipe.architecture):
                continue
            reason = self._unfit(target)
            if reason is None:
                return target
            reasons[target.name] = reason
        raise UnsupportedError(
            "no architecture fits: " + "; ".join(f"{name} {reason}" for name, reason in reasons.items())
        )

    def _unfit(self, target: MixtureTarget) -> str | None:
        """Why models can't become an architecture; None if they can."""
        kind, shared = self.base.model.config.get("model_type"), self.recipe.shared
        if kind not in target.models:
            return f"is made of {', '.join(sorted(target.models))}, not {kind}"
        if len(shared) < target.least_shared:
            return "needs one of shared_experts"
        if len(shared) > (1 if target.shared else 0):
            return "has one shared expert at most" if target.shared else "has no shared_experts"
        if shared and target.shared_router and GATE_MODES[self.recipe.gate_mode] and not shared[0].positive:
            return "has a gate for its shared expert, which needs positive_prompts"
        if shared and not target.shared_router and (shared[0].positive or shared[0].negative):
            return "has no gate for its shared expert, so that has no prompts"
        allowed = tuple(f".{part}.bias" for part in _BIASED) if target.biases else ()
        if biased := [name for name in self.base.tensors if name.endswith(".bias") and not name.endswith(allowed)]:
            return f"has no bias such as {min(biased)}"
        return None

    def _check_base(self) -> None:
        base = self.base
        path = base.model.place.path
        if base.model.format == "gguf":
            raise UnsupportedError(
                f"{path} is a GGUF, and the base's config.json and tokenizer become the result's",
                hint=f"convert it first: wb convert {path} base/ --to hf; experts may be GGUFs",
            )
        for name, view in self.views.items():
            if not view.by_table or view.family_name != base.family_name:
                raise UsageError(
                    f"{name} and the base are of different families: {view.family_name}, {base.family_name}",
                    hint="experts and base must be models of one architecture",
                )
        if not self.layers or "model.layers.0.mlp.gate_proj.weight" not in base.tensors:
            raise UnsupportedError(f"{path} has no layers with gate, up and down matrices ({base.family_name})")

    # ------------------------------------------------------------------------------------------ tensors

    def _dtype(self, name: str) -> DType:
        """The type of a tensor of the result: the base's, or BF16 for a quantized one."""
        tensor = self.base.tensors[name]
        return tensor.spec.dtype if is_plain(tensor) else BF16

    def _stored(self, tensor: LogicalTensor, dtype: DType) -> Node:
        if is_plain(tensor) and tensor.spec.dtype is dtype:
            return tensor
        return provisional(cast(tensor, F32), dtype)

    def _experts(self, layer: int) -> Iterator[tuple[str, Node]]:
        target = self.target
        for part in _PARTS:
            for number, expert in enumerate(self.recipe.experts):
                name = target.expert.format(e=number, part=target.part(part))
                yield f"model.layers.{layer}.{name}", self._expert(expert, number, layer, part)
            for expert in self.recipe.shared:
                name = target.shared.format(part=target.part(part))
                yield f"model.layers.{layer}.{name}", self._expert(expert, len(self.recipe.experts), layer, part)

    def _expert(self, expert: Expert, number: int, layer: int, part: str) -> Node:
        """A matrix of a model's feed-forward layer, with the recipe's noise and scale."""
        name = f"model.layers.{layer}.mlp.{part}.weight"
        tensor, expected = self.views[expert.model].tensors.get(name), self.base.tensors[name].spec.shape
        if tensor is None or tensor.spec.shape != expected:
            actual = "no such tensor" if tensor is None else str(list(tensor.spec.shape))
            raise UsageError(
                f"{name} is {list(expected)} in the base and {actual} in {expert.model}",
                hint="experts and base must be of one size",
            )
        scale = expert.scale if part == "down_proj" else 1.0
        if expert.noise or scale != 1:
            keys = tuple(random_key(self.seed, number, f"{name}/{n}") for n in range(2))
            tensor = merged([tensor], Noisy(expert.noise, scale, (keys[0], keys[1])))
            return provisional(tensor, self._dtype(name))
        return self._stored(tensor, self._dtype(name))

    @cached_property
    def _rows(self) -> Any:
        gated = self._all if self.target.shared_router else self.recipe.experts
        width = self.base.tensors["model.layers.0.mlp.gate_proj.weight"].spec.shape[1]
        return router_rows(self.base, gated, self.recipe.gate_mode, self.layers, width, self.seed, self.states)

    @cached_property
    def _routers(self) -> dict[str, Node]:
        count = len(self.recipe.experts)
        nodes: dict[str, Node] = {}
        dtype = self._dtype("model.layers.0.mlp.gate_proj.weight")
        for layer in range(self.layers):
            parts = {self.target.router: self._rows[layer, :count]}
            if self.target.shared_router:
                parts[self.target.shared_router] = self._rows[layer, count:]
            nodes |= {f"model.layers.{layer}.{n}": provisional(const(v, F32), dtype) for n, v in parts.items()}
        return nodes

    def _notes(self, target: MixtureTarget) -> Iterator[str]:
        names = ", ".join(expert.model for expert in self._all)
        yield f"mixed as {target.name}: {names}; attention and embeddings are those of {self.recipe.base}"
        if target.note:
            yield target.note
        if len({expert.model for expert in self.recipe.experts}) == 1:
            yield "all experts are the same model: the mixture computes what it does until it is trained"
        if not GATE_MODES[self.recipe.gate_mode]:
            yield "the routers are random: the mixture must be trained"
        elif close := alike(self._rows):
            layers = "all layers" if len(close) == self.layers else f"layers {', '.join(map(str, close[:8]))}"
            yield f"in {layers} the router hardly tells the experts apart: their prompts are too similar"
        config = self.base.model.config
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        if window and "sliding_window" in target.null:
            yield f"left out: the base's sliding window, {window:,}"
