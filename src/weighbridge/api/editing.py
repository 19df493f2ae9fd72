"""Changes metadata. It doesn't import numpy, because that takes longer than most edits."""

from __future__ import annotations

from weighbridge.api.verbs import planned_and_run
from weighbridge.conversion.edit.plan import plan_edit

edit = planned_and_run(plan_edit, "Changes a file's metadata; the arguments are those of `plan_edit`.")
__all__ = ["edit", "plan_edit"]
