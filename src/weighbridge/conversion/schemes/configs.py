"""`quantization_config` of the schemes: the settings of quantized modules in config.json, as each library writes it.

Sources: compressed-tensors 0.20 (QuantizationConfig.model_dump, as llm-compressor's `model_free_ptq` stores it),
GPTQModel 7.7 (BaseQuantizeConfig), AutoAWQ 0.2 (AwqConfig), transformers 5.23 (FineGrainedFP8Config).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge import __version__
from weighbridge.conversion.schemes.table import WHOLE, Scheme, Settings

# The release whose layouts are written: up to 0.17, codes of 3, 5, 6 and 7 bits had another layout.
_COMPRESSED: Final = "0.20.0"


def config(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    """Builds the `quantization_config`. `settings`: by quantized module. `left`: similar modules that stay floats."""
    return _WRITERS[scheme.method](scheme, settings, left)


def _main(settings: Mapping[str, Settings]) -> Settings:
    return Counter(settings.values()).most_common(1)[0][0]


# ------------------------------------------------------------------------------------------------ compressed-tensors

# Scale dtype of float formats, by columns per scale.
_SCALES: Final = MappingProxyType({32: "torch.uint8", 16: "torch.float8_e4m3fn"})


def _compressed(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    modules: dict[Settings, list[str]] = {}
    for module, parameters in settings.items():
        modules.setdefault(parameters, []).append(module)
    ordered = sorted(modules.items(), key=lambda item: -len(item[1]))
    activations = None  # only the engines of some schemes quantize inputs, too
    if scheme.activations is not None:
        activations = {"symmetric": True, "dynamic": True, **scheme.activations}
    groups = {
        f"group_{i}": {
            "targets": ["Linear"] if len(ordered) == 1 else targets,
            "weights": _weights(scheme, parameters),
            "input_activations": activations,
            "output_activations": None,
            "format": scheme.format,
        }
        for i, (parameters, targets) in enumerate(ordered)
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


def _weights(scheme: Scheme, settings: Settings) -> dict[str, Any]:
    floats = scheme.format not in ("pack-quantized", "int-quantized")
    strategy = "channel" if not settings.group else "group"
    if scheme.block:
        strategy = "tensor" if scheme.block == WHOLE else "block"
    weights: dict[str, Any] = {
        "num_bits": settings.bits,
        "type": "float" if floats else "int",
        "symmetric": settings.symmetric,
        "group_size": settings.group or None,
        "strategy": strategy,
        "dynamic": False,
    }
    if strategy == "block":
        weights["block_structure"] = list(scheme.block or ())
    if floats and settings.group:
        weights["scale_dtype"] = _SCALES[settings.group]
        weights["strategy"] = "tensor_group" if settings.group == 16 else "group"
    return weights


# ------------------------------------------------------------------------------------------------ GPTQ, AWQ, FP8


def _gptq(scheme: Scheme, settings: Mapping[str, Settings], left: Sequence[str]) -> dict[str, Any]:
    main = _main(settings)
    symmetric = all(s.symmetric for s in settings.values())
    form = "gptq" if symmetric else "gptq_v2"
    dynamic = {
        f"+:^{re.escape(module)}$": {"bits": s.bits, "group_size": s.group or -1}
        for module, s in settings.items()
        if (s.bits, s.group) != (main.bits, main.group)
    }
    dynamic |= {f"-:^{re.escape(module)}$": {} for module in left if module != "lm_head"}
    return {
        "quant_method": "gptq",
        "bits": main.bits,
        "group_size": main.group or -1,
        "desc_act": False,
        "sym": symmetric,
        "lm_head": "lm_head" in settings,
        "checkpoint_format": form,
        "format": form,
        "pack_dtype": "int32",
        "meta": {"quantizer": [f"weighbridge:{__version__}"]},
        **({"dynamic": dynamic} if dynamic else {}),
    }


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
