"""The forms that `wb serve` and `wb mount` make."""

from __future__ import annotations

from typing import Final

from weighbridge.cli.options import option


def chosen(forms: tuple[str, ...]) -> tuple[str, ...]:
    """The forms that were asked for, types in any case; all where none was."""
    from weighbridge.conversion.forms.library import FORMS

    named = {form.lower(): form for form in FORMS}
    return tuple(named.get(form.lower(), form) for form in forms) or FORMS


forms_option: Final = option(
    "--form", "forms", multiple=True, metavar="NAME",
    help="Only this form: F16, BF16, Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, safetensors, mlx-4bit, mlx-8bit.",
)  # fmt: skip
