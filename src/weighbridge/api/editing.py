"""Changes metadata. It doesn't import numpy, because that takes longer than most edits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weighbridge.api.verbs import planned_and_run
from weighbridge.conversion.edit import plan as editing
from weighbridge.conversion.edit.apply import EditPlan
from weighbridge.conversion.edit.values import Edit


def plan_edit(
    src: str | os.PathLike[str],
    *,
    set: Mapping[str, Any] | Iterable[Edit] = (),
    remove: Sequence[str] = (),
    chat_template: str | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    rewrite: bool = False,
    reserve: int = 0,
    backup: bool = False,
    allow_guarded: bool = False,
) -> EditPlan:
    """Plans to change the metadata of the GGUF or safetensors file `src`, in place if that is safe. `set`: values by
    key (lists become arrays; a key keeps its type). `output`: write the result to another file. `reserve`: bytes of
    space for later edits. `backup`: keep the old file as NAME.bak. `allow_guarded`: also change protected keys."""
    if isinstance(set, Mapping):  # a text stays one, whatever it looks like
        set = [Edit(key, value, "str" if isinstance(value, str) else None) for key, value in set.items()]
    template = [Edit(editing.CHAT_TEMPLATE, chat_template, "str")] if chat_template is not None else []
    edits = [*(Edit(key, remove=True) for key in remove), *set, *template]
    return editing.plan_edit(
        src,
        edits,
        output=output,
        overwrite=overwrite,
        rewrite=rewrite,
        reserve=reserve,
        backup=backup,
        force=allow_guarded,
    )


edit = planned_and_run(plan_edit, "Changes a file's metadata; the arguments are those of `plan_edit`.")
