"""The options of `wb rename` and `wb slice`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from weighbridge.base.options import option
from weighbridge.base.records import dataclass


@dataclass(frozen=True, kw_only=True)
class RenameRules:
    """Changes to names, applied in this order: prefixes to remove, patterns (of `re`) and their replacements, a prefix
    to add, a dialect ("hf", "gguf", "mlx", "canonical", "diffusers" ...)."""

    strip_prefix: str | Sequence[str] = option("Remove PREFIX from names that begin with it.", (), metavar="PREFIX")
    replace: Sequence[tuple[str, str]] = option(
        r"Replace what the regular expression PATTERN matches by NEW (\1: its first group).", (), metavar="PATTERN NEW"
    )
    add_prefix: str = option("Put PREFIX before every name.", "", metavar="PREFIX")
    to_names: str | None = option(
        "Names and layout of hf, gguf, mlx or canonical; of an image or video model: original or diffusers; of its "
        "LoRA: kohya, comfy, diffusers or peft.",
        metavar="DIALECT",
    )  # fmt: skip
    lora_base: str | os.PathLike[str] | None = option(
        "If SRC is a LoRA of an image or video model: its model [found by names and sizes].", metavar="MODEL",
        kind="path",
    )  # fmt: skip

    def __bool__(self) -> bool:
        return bool(self.plain or self.to_names)

    @property
    def plain(self) -> bool:
        """Whether new names depend only on the old names."""
        return bool(self.strip_prefix or self.replace or self.add_prefix)

    @property
    def prefixes(self) -> Sequence[str]:
        """The prefixes to strip."""
        return (self.strip_prefix,) if isinstance(self.strip_prefix, str) else self.strip_prefix


@dataclass(frozen=True, kw_only=True)
class SliceOptions:
    """The part of a model to keep. Globs apply last. Layers keep their numbers unless `renumber` is set."""

    layers: str | Sequence[str] | None = option(
        "Layers to keep, in this order: 0-15, or 0,2,4-7, or 8-; of two stacks encoder:0-3, decoder:0-1.",
        metavar="NUMBERS",
    )
    renumber: bool = option("Number the layers from 0, and cut the config to them.", False)
    experts: str | None = option("Experts to keep in every layer; routers are cut with them.", metavar="NUMBERS")
    keep: Sequence[str] = option("Keep only tensors whose name matches.", (), metavar="GLOB")
    drop: Sequence[str] = option("Leave out tensors whose name matches.", (), metavar="GLOB")
