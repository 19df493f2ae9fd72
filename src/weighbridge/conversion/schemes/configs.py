"""`quantization_config` of the schemes: the settings of quantized modules in config.json, as each library writes and
reads it. Sources: compressed-tensors 0.20 (QuantizationConfig.model_dump, as llm-compressor's `model_free_ptq` stores
it), GPTQModel 7.7 (BaseQuantizeConfig), AutoAWQ 0.2 (AwqConfig), transformers 5.23 (FineGrainedFP8Config).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge import __version__

if TYPE_CHECKING:
    from weighbridge.conversion.schemes.plan import Scheme

# The release whose layouts are written: up to 0.17, codes of 3, 5, 6 and 7 bits had another layout.
_COMPRESSED: Final = "0.20.0"


class Settings(NamedTuple):
    """The parameters of one module; `group` 0: one group per row."""

    bits: int
    group: int
    symmetric: bool


def config(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config`. `settings`: per quantized module; `left`: similar modules that stay floats."""
    return _WRITERS[scheme.method](scheme, settings, left)


def _main(settings: Mapping[str, Settings]) -> Settings:
    return Counter(settings.values()).most_common(1)[0][0]


# ------------------------------------------------------------------------------------------------ compressed-tensors

# Scale dtype of float formats, by columns per scale.
_SCALES: Final = MappingProxyType({32: "torch.uint8", 16: "torch.float8_e4m3fn"})


def _compressed(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    modules: dict[Settings, list[str]] = {}
    for module, own in settings.items():
        modules.setdefault(own, []).append(module)
    ordered = sorted(modules.items(), key=lambda item: -len(item[1]))
    one = len(ordered) == 1
    groups = {
        f"group_{i}": {
            "targets": ["Linear"] if one else named,
            "weights": _weights(scheme, own),
            "input_activations": _activations(scheme),
            "output_activations": None,
            "format": scheme.format,
        }
        for i, (own, named) in enumerate(ordered)
    }
    return {
        "config_groups": groups,
        "format": scheme.format,
        "global_compression_ratio": None,
        "ignore": list(left),
        "kv_cache_scheme": None,
        "quant_method": scheme.method,
        "quantization_status": "compressed",
        "transform_config": {},
        "version": _COMPRESSED,
    }


def _weights(scheme: Scheme, own: Settings) -> dict[str, Any]:
    floats = scheme.format not in ("pack-quantized", "int-quantized")
    found: dict[str, Any] = {
        "num_bits": own.bits,
        "type": "float" if floats else "int",
        "symmetric": own.symmetric,
        "group_size": own.group or None,
        "strategy": "block" if scheme.block else "channel" if not own.group else "group",
        "dynamic": False,
    }
    if scheme.block:
        found["block_structure"] = list(scheme.block)
    if floats and own.group:
        found["scale_dtype"] = _SCALES[own.group]
        found["strategy"] = "tensor_group" if own.group == 16 else "group"
    return found


def _activations(scheme: Scheme) -> dict[str, Any] | None:
    """The activation settings of schemes whose engines also quantize inputs."""
    return None if scheme.activations is None else {**scheme.activations, "symmetric": True, "dynamic": True}


# ------------------------------------------------------------------------------------------------ GPTQ, AWQ, FP8


def _gptq(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    main = _main(settings)
    symmetric = all(own.symmetric for own in settings.values())
    form = "gptq" if symmetric else "gptq_v2"
    own = {
        f"+:^{re.escape(module)}$": {"bits": s.bits, "group_size": s.group or -1}
        for module, s in settings.items()
        if (s.bits, s.group) != (main.bits, main.group)
    }
    out: dict[str, dict[str, int]] = {f"-:^{re.escape(module)}$": {} for module in left if not _is_head(module)}
    return {
        "quant_method": "gptq",
        "bits": main.bits,
        "group_size": main.group or -1,
        "desc_act": False,
        "sym": symmetric,
        "lm_head": any(_is_head(module) for module in settings),
        "checkpoint_format": form,
        "format": form,
        "pack_dtype": "int32",
        "meta": {"quantizer": [f"weighbridge:{__version__}"]},
        **({"dynamic": own | out} if own or out else {}),
    }


def _is_head(module: str) -> bool:
    return module == "lm_head"


def _awq(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    main = _main(settings)
    return {
        "quant_method": "awq",
        "bits": main.bits,
        "group_size": main.group or -1,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(left) or None,
    }


def _fp8(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": list(scheme.block or ()),
        "modules_to_not_convert": list(left),
    }


_WRITERS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = MappingProxyType(
    {"compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq, "fp8": _fp8}
)
