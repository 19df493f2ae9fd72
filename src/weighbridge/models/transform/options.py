"""Options of a renaming."""

from __future__ import annotations

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
        "Names and layout of hf, gguf, mlx or canonical; of an image or video model: original or diffusers.",
        metavar="DIALECT",
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
