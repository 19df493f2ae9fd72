"""Options that several kinds of targets share. A class of `conversion/options.py` takes those of each group that it
names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.edit.values import Edit

TARGET, GGUF, MLX = "Target", "GGUF", "MLX folder"
_MLX_OR_SCHEME: Final = f"{MLX}, and --scheme"


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    name: str | None = option("Model name [from the source].", metavar="NAME", section=GGUF, aliases="model-name")


@dataclass(frozen=True, kw_only=True)
class AlignOptions:
    align: int | None = option(
        "Alignment of the tensors in bytes (safetensors: of the data section [4096]).", metavar="N", least=1,
        section=GGUF,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    q_bits: int | None = option(
        "Bits per weight [4].", metavar="N", least=2, most=8, section=_MLX_OR_SCHEME, aliases="bits"
    )
    q_group_size: int | None = option(
        "Weights per scale. MLX: 32, 64 [default] or 128; integer schemes: any [128], -1 for a whole row.", metavar="N",
        section=_MLX_OR_SCHEME, aliases="group-size",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RoundingOptions:
    act_order: str | None = option(
        "--text: columns that GPTQ rounds first [static].", section=_MLX_OR_SCHEME, choices=("none", "static", "groups")
    )
    damp: float | None = option(
        "--text: GPTQ's damping, relative to the mean square of the inputs [0.01].", metavar="X", above=0,
        section=_MLX_OR_SCHEME, aliases="damp-percent dampening-frac",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    tokenizer: bool = option(
        "GGUF from a folder, or a folder from a GGUF: convert the tokenizer too [yes].", True, section=TARGET,
        sources=("model",),
    )  # fmt: skip
    pre: str | None = option(
        "Pre-tokenizer, if the source's isn't recognized.", metavar="NAME", section=GGUF, sources=("model",)
    )
    target_model: str | os.PathLike[str] | None = option(
        "If SRC is a draft model: the folder of the model that it drafts for.", metavar="MODEL", kind="path",
        section=GGUF, aliases="target-model-dir", sources=("model",),
    )  # fmt: skip
    text_model: str | os.PathLike[str] | None = option(
        "The language model, if SRC has none (Ultravox); needs --with-mmproj.", metavar="MODEL",
        kind="path", section=GGUF, sources=("model",),
    )  # fmt: skip
    draft: bool = option(
        "Write only the draft model in the folder of its target (DeepSeek V4's DSpark).", False, section=GGUF,
        aliases="dspark", sources=("model",),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TowersOptions:
    with_mmproj: bool = option(
        "Write the vision and audio towers, too, as a second GGUF in the folder DST.", False, section=GGUF,
        sources=("model", "gguf"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ArchOptions:
    arch: str = option(
        "Write the tensors under their own names, as architecture NAME, without a family's table.", "", metavar="NAME",
        section=GGUF, sources=("model",), aliases="generic",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    task_adapter: str = option(
        "Write the model's LoRA adapter of this task (Jina v3) in place of the model.", "", metavar="TASK",
        section=GGUF, sources=("model",),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """`kv` may be values by key: lists become arrays, and a `KV` has its own type."""

    kv: Sequence[Edit] | Mapping[str, Any] = option(
        "Set KEY of the GGUF (types as in `wb edit`).", (), metavar="KEY=[TYPE:]VALUE", kind="assignment", section=GGUF
    )


#: The forms of ComfyUI's quantized files.
COMFY_FORMATS: Final = (
    "fp8_scaled", "float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4", "int8_tensorwise", "int8_convrot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComfyQuantOptions:
    comfy_quant: str = option(
        "Quantize an image or video model for ComfyUI.", "", section=TARGET, choices=COMFY_FORMATS
    )


def check_comfy_format(name: str) -> None:
    """Raises UsageError for an unknown form."""
    if name and name not in COMFY_FORMATS:
        raise UsageError(f"ComfyUI has no {name!r} here", hint=", ".join(COMFY_FORMATS))


@dataclass(frozen=True, kw_only=True)
class ComfySetOptions:
    comfy_folders: bool = option(
        "Write a pipeline's parts into ComfyUI's diffusion_models/, vae/ and text_encoders/.", False, section=TARGET
    )
