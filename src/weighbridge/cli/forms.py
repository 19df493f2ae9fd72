"""The forms that `wb serve` and `wb mount` offer."""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions


def chosen(form: Sequence[str]) -> tuple[str, ...]:
    """Returns the requested forms, types in any case; all forms if none was requested."""
    from weighbridge.conversion.forms.library import FORMS

    known = {name.lower(): name for name in FORMS}
    return tuple(known.get(name.lower(), name) for name in form) or FORMS


@dataclass(frozen=True, kw_only=True)
class FormsCommand(CommandOptions):
    form: Sequence[str] = option(
        "Only this form: F16, BF16, Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, safetensors, mlx-4bit, mlx-8bit.", (),
        metavar="NAME",
    )  # fmt: skip
