"""Changes metadata. Loads no numpy: `wb edit` answers before that import would be done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weighbridge.api.verbs import planned_and_run
from weighbridge.conversion.edit import plan as editing
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
    force: bool = False,
) -> editing.EditPlan:
    """Plans to change the metadata of the GGUF or safetensors file `src`, in place where that is safe. `set`: values by
    key (lists become arrays; a key keeps its type). `output`: write the result there instead. `reserve`: bytes of room
    for later edits. `backup`: keep the old file as NAME.bak. `force`: also change what is guarded."""
    values = [_edit_of(*item) for item in set.items()] if isinstance(set, Mapping) else [*set]
    template = [Edit(editing.CHAT_TEMPLATE, chat_template, "str")] if chat_template is not None else []
    edits = [*(Edit(key, remove=True) for key in remove), *values, *template]
    return editing.plan_edit(
        src, edits, output=output, overwrite=overwrite, rewrite=rewrite, reserve=reserve, backup=backup, force=force
    )


def _edit_of(key: str, value: Any) -> Edit:
    """A text stays one, whatever it looks like."""
    return Edit(key, value, "str" if isinstance(value, str) else None)


edit = planned_and_run(plan_edit, "Changes a file's metadata; the arguments are those of `plan_edit`.")
