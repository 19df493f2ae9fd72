"""Ships a model: `ship("ollama", "model.gguf", "my-model")`. The JSON form is documented in docs/schema.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.io.location import check_local
from weighbridge.io.sink import check_target
from weighbridge.shipping.plan import ShipOptions, ShipPlan, ShipReport, ShipRequest
from weighbridge.shipping.targets import TARGETS, ShipTarget

#: Keyword -> the option, where it is spelled in another way.
_FLAGS: Final = {"form": "--as"}


def plan_ship(
    target: str,
    model: str | os.PathLike[str],
    name: str = "",
    *,
    type: str | None = None,
    template: str | None = None,
    system: str | None = None,
    modelfile: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    hard_link: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    context: int | None = None,
    parallel: int | None = None,
    kv: str | None = None,
    form: str | None = None,
    output: str | os.PathLike[str] | None = None,
    base_model: str | None = None,
    measured: Sequence[str | os.PathLike[str]] = (),
    private: bool = False,
    create_pr: bool = False,
    revision: str | None = None,
) -> ShipPlan:
    """Plans to hand the model at `model` to `target` (ollama, lmstudio, llama-server, vllm, mlx, hub) under `name`.

    `plan.report` says which files will be where and the commands that run it; `plan.run()` does it, all or nothing.
    Errors: UsageError (an option that doesn't apply, a name that the target refuses), UnsupportedError, RefusedError
    (something is there already, a store that can't be written), FormatError."""
    given = dict(locals())
    options = {f.name: given[f.name] for f in fields(ShipOptions)}
    row = _row(target)
    _check_options(row, options)
    if name and not row.name_is:
        raise UsageError(f"NAME doesn't apply to {row.title}", hint=f"wb ship {row.name} {model}")
    path = resolve_path(model)
    check_local(path)
    for file in (output, modelfile):
        if file is not None:
            check_target(file, overwrite=overwrite, folder=False)
    return _prepare(row)(ShipRequest(path, name, ShipOptions(**options)))


def ship(target: str, model: str | os.PathLike[str], name: str = "", **options: Any) -> ShipReport:
    """Ships a model; the arguments are those of `plan_ship`."""
    with plan_ship(target, model, name, **options) as plan:
        return plan.run()


def _row(target: str) -> ShipTarget:
    if target not in TARGETS:
        raise UsageError(f"no target is called {target!r}", hint=f"known: {', '.join(TARGETS)}")
    return TARGETS[target]


def _check_options(row: ShipTarget, options: dict[str, Any]) -> None:
    """UsageError for the first option that doesn't apply."""
    for name, value in options.items():
        if value not in (None, False, ()) and name not in row.options:
            applies = ", ".join(r.name for r in TARGETS.values() if name in r.options)
            flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(f"{flag} doesn't apply to {row.title}", hint=f"it applies to {applies}")


def _prepare(row: ShipTarget) -> Callable[[ShipRequest], ShipPlan]:
    module, _, function = row.prepare.partition(":")
    found: Callable[[ShipRequest], ShipPlan] = getattr(import_module(f"weighbridge.shipping.{module}"), function)
    return found
