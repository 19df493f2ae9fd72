"""Saves and loads the state of a training run, without pickles."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Any

from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.result import Result

Path = str | os.PathLike[str]


@accepting(WriteOptions)
def save_checkpoint(path: Path, options: WriteOptions, *, rng: Any = None, **parts: Any) -> Result:
    """Saves a training run's state as a folder of safetensors and JSON, all or nothing: `model=model, optimizer=opt,
    epoch=3, loss=0.1, rng=True, ...`. A part with a `state_dict()` is saved by it; nested dicts, lists, tuples,
    numbers, texts, bytes, tensors and arrays are kept; shared storages stay shared. `rng=True` saves the random
    states of Python, numpy and torch. A part can't have the name of an option. Raises UsageError for a part that isn't
    data."""
    from weighbridge.adapters.state import capture, random_states
    from weighbridge.conversion.checkpoint.training import folder_plan
    from weighbridge.models.training_state import State, file_of

    states = {} if rng is None or rng is False else {"rng": random_states() if rng is True else rng}
    captured = capture({**parts, **states}, file_of)
    state = State(captured.value, captured.storages)
    return folder_plan(state, FilePath(path), options).run()


def load_checkpoint(path: Path, *, numpy: bool = False, rng: bool = False, **into: Any) -> dict[str, Any]:
    """Loads the parts that `save_checkpoint` saved, with torch tensors (`numpy=True`: arrays). Also loads parts into
    the given objects (`model=model, optimizer=opt` calls their `load_state_dict`); `rng=True` sets the random states.
    Nothing is unpickled. Raises UsageError for another kind of folder, FormatError for a changed one."""
    from weighbridge.adapters.state import restore, set_random_states
    from weighbridge.models.training_state import FILE, read_state

    hint = "wb.load(PATH, into=module) loads a model's weights; wb convert training.ckpt FOLDER --to checkpoint"
    if not isinstance(path, str | os.PathLike):
        hint = "wb.load_checkpoint(FOLDER, model=model)"
        raise UsageError(f"a checkpoint is loaded from a folder, not from a {type(path).__name__}", hint=hint)
    if not (FilePath(path) / FILE).is_file():
        raise UsageError(f"{path} isn't a checkpoint that save_checkpoint wrote: it has no {FILE}", hint=hint)
    with read_state(FilePath(path)) as state:
        parts: dict[str, Any] = restore(state.value, state.storages, numpy=numpy)
    missing = [name for name in (*into, *(["rng"] if rng else [])) if name not in parts]
    if missing:
        raise UsageError(f"the checkpoint has no {', '.join(missing)}", hint=f"it has {', '.join(map(str, parts))}")
    for name, target in into.items():
        target.load_state_dict(parts[name])
    if rng:
        set_random_states(parts["rng"])
    return parts
