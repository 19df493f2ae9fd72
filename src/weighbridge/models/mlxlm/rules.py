"""The reasons why mlx-lm (0.32) refuses a folder: one function per rule. The verdicts are those of
`mlx_lm.utils.load_model`; tests compare them folder by folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.spec import Shape
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Severity
from weighbridge.models.arch.naming import some
from weighbridge.models.config.mlx_view import reading
from weighbridge.models.loader_rules import LoaderRule, LoadRefusal, check
from weighbridge.models.mlxlm.candidate import MlxCandidate, table

# ---- config.json ----


def _class(model: MlxCandidate) -> Iterator[LoadRefusal]:
    if not model.config:
        yield LoadRefusal("config.json is missing")
    elif "model_type" not in model.config:
        yield LoadRefusal("config.json has no model_type")
    elif reading(model.config) is None and model.family is not None:
        yield LoadRefusal(f"model_type {model.model_type!r}", hint="--to gguf and --to hf write it for other programs")


def _keys(model: MlxCandidate) -> Iterator[LoadRefusal]:
    read = reading(model.config) if model.named else None
    if read and (missing := [key for key in read.fields.required if key not in read.part]):
        yield LoadRefusal(f"{', '.join(missing)} of {model.model_type}")


def _settings(model: MlxCandidate) -> Iterator[LoadRefusal]:
    name, part, rules = model.model_type, model.part, table()
    layers = part.get("layer_types") or ()
    required = [*rules.set.get(name, ())]
    required += [k for kind, keys in rules.set_for_layers.get(name, {}).items() if kind in layers for k in keys]
    required += [key for ignored, key in rules.instead.get(name, {}).items() if ignored in part]
    if unset := [key for key in required if part.get(key) is None]:
        yield LoadRefusal(f"{name} needs {', '.join(unset)}")
    for key in rules.text.get(name, ()):
        if (value := part.get(key)) and not isinstance(value, str):
            yield LoadRefusal(f"{name} needs text for {key}, not {value!r}")
    for key, only in rules.only.get(name, {}).items():
        if (stated := part.get(key, only)) != only:
            yield LoadRefusal(f"{name} needs {only!r} for {key}, not {stated!r}")
    scaling = part.get("rope_scaling")
    if scaling and (missing := [key for key in rules.scaling.get(name, ()) if key not in scaling]):
        yield LoadRefusal(f"{name} needs {', '.join(missing)} in rope_scaling")
    if name in rules.square and (width := model.other_width):
        yield LoadRefusal(f"{name} has heads of {width} elements, the model of {part['head_dim']} (head_dim)")
    if name in rules.tied_fails and model.tied:
        yield LoadRefusal(f"{name} can't load tied embeddings (tie_word_embeddings)")


# ---- quantization ----


def _quantized(model: MlxCandidate) -> Iterator[LoadRefusal]:
    settings = model.config.get("quantization")
    if model.modules and not isinstance(settings, Mapping):
        yield LoadRefusal("config.json has no quantization", hint="add it: wb convert --to mlx writes it")
        return
    ends = tuple(model.family.document.mlx.unquantized) if model.family else ()
    if wrong := [module for module in model.modules if ends and module.endswith(ends)]:
        message = f"{plural(len(wrong), 'module')} that mlx-lm doesn't quantize: {some(wrong)}"
        hint = "convert the original again: wb convert SRC DST --to mlx --q-bits 4"
        yield LoadRefusal(message, f"{wrong[0]}.weight", hint)
    for module, (group, bits) in model.stated.items():
        row, groups = model.shapes[f"{module}.weight"][-1], model.shapes[f"{module}.scales"][-1]
        if 32 * row != bits * group * groups:
            counts = f"{plural(row, 'word')} and {plural(groups, 'group')}"
            yield LoadRefusal(f"{bits} bits in groups of {group}, but {counts}", module)


# ---- tensors ----


def _listed(kind: str) -> Callable[[MlxCandidate], Iterator[LoadRefusal]]:
    def refuse(model: MlxCandidate) -> Iterator[LoadRefusal]:
        if names := getattr(model, kind):
            yield LoadRefusal(f"{plural(len(names), 'tensor')}: {some(names)}", names[0])

    return refuse


def _misshapen(model: MlxCandidate) -> Iterator[LoadRefusal]:
    for name, expected, shape in model.misshapen:
        yield LoadRefusal(f"its shape is {list(shape)}, the config requires {list(expected)}", name)


def _unchecked(model: MlxCandidate) -> Iterator[LoadRefusal]:
    if model.fit is None:
        yield LoadRefusal(f"Weighbridge has no MLX names for {model.model_type}")


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
#: A folder without a class of mlx-lm is for another program and isn't checked further.
KINDS: Final[Mapping[str, LoaderRule[MlxCandidate]]] = MappingProxyType(
    {"mlx/class": LoaderRule(_W, "model that mlx-lm has no class for", _class)}
)
REFUSALS: Final[Mapping[str, LoaderRule[MlxCandidate]]] = MappingProxyType(
    {
        "mlx/key": LoaderRule(_E, "key that mlx-lm's class requires is missing", _keys),
        "mlx/setting": LoaderRule(_E, "setting that mlx-lm's class can't use", _settings),
        "mlx/quantized": LoaderRule(_E, "quantization that mlx-lm can't apply", _quantized),
        "mlx/missing": LoaderRule(_E, "tensor that mlx-lm's class needs is missing", _listed("missing")),
        "mlx/extra": LoaderRule(_E, "tensor that mlx-lm's class doesn't have", _listed("unknown")),
        "mlx/shape": LoaderRule(_E, "tensor whose shape contradicts the config", _misshapen),
    }
)
OPEN: Final[Mapping[str, LoaderRule[MlxCandidate]]] = MappingProxyType(
    {"mlx/unchecked": LoaderRule(_I, "model whose tensors aren't checked", _unchecked)}
)
REFUSED: Final = frozenset({*KINDS, *REFUSALS})
RULES: Final[Mapping[str, LoaderRule[MlxCandidate]]] = MappingProxyType({**KINDS, **REFUSALS, **OPEN})


def findings(config: Mapping[str, Any], shapes: Mapping[str, Shape], path: str) -> tuple[Finding, ...]:
    """Returns the reasons why mlx-lm wouldn't load a folder with this config.json and these stored tensors."""
    model = MlxCandidate(config, shapes)
    if kinds := tuple(check(KINDS, model, path)):
        return kinds
    return tuple(finding for rules in (REFUSALS, OPEN) for finding in check(rules, model, path))


def accepts(findings: tuple[Finding, ...]) -> bool | None:
    """Whether mlx-lm loads a folder with these findings; None if Weighbridge can't decide."""
    rules = {finding.rule for finding in findings}
    return False if rules & REFUSED else None if rules & OPEN.keys() else True
