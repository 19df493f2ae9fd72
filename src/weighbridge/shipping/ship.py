"""Ships a model: `ship("ollama", "model.gguf", "my-model")`. The JSON form is documented in docs/schema.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting, flag, options_of
from weighbridge.io.location import check_local
from weighbridge.io.sink import check_target
from weighbridge.shipping.plan import ShipOptions, ShipPlan, ShipRequest
from weighbridge.shipping.targets import TARGETS


@accepting(ShipOptions)
def plan_ship(target: str, model: str | os.PathLike[str], options: ShipOptions) -> ShipPlan:
    """Plans to ship the model at `model` to `target` (ollama, lmstudio, llama-server, vllm, mlx, hub) under `name`.

    `plan.report` lists the files, with the commands that run the model. `plan.run()` ships all files or none. Raises
    UsageError for an option that doesn't apply or a name that the target refuses, UnsupportedError, RefusedError if the
    model exists or the store isn't writable, and FormatError."""
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}", hint=f"choose one of {', '.join(TARGETS)}")
    row = TARGETS[target]
    for field, _ in options_of(ShipOptions):
        if getattr(options, field.name) not in (None, False, ()) and field.name not in row.options:
            applies = ", ".join(r.name for r in TARGETS.values() if field.name in r.options)
            raise UsageError(f"{flag(field.name)} doesn't apply to {row.title}", hint=f"it applies to {applies}")
    if options.name and not row.name_is:
        raise UsageError(f"NAME doesn't apply to {row.title}", hint=f"wb ship {row.name} {model}")
    path = resolve_path(model)
    check_local(path)
    for file in (options.output, options.modelfile):
        if file is not None:
            check_target(file, overwrite=options.overwrite, folder=False)
    module, _, function = row.prepare.partition(":")
    prepare: Callable[[ShipRequest], ShipPlan] = getattr(import_module(f"weighbridge.shipping.{module}"), function)
    return prepare(ShipRequest(path, options.name, options))


ship = planned_and_run(plan_ship, "Ships a model; the arguments are those of `plan_ship`.")
