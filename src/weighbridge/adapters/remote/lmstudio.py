"""LM Studio's folder of models: `lmstudio://PUBLISHER/MODEL[/FILE]`."""

from __future__ import annotations

import json
from pathlib import Path

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB


def models_folder() -> Path:
    """Where LM Studio keeps models, by its pointer, its settings and its defaults (lms, src/modelsFolder.ts)."""
    pointer = Path.home() / ".lmstudio-home-pointer"
    try:
        home = Path(pointer.read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError):
        old = Path.home() / ".cache" / "lm-studio"
        home = old if old.is_dir() else Path.home() / ".lmstudio"
    settings = home / "settings.json"
    try:
        if settings.stat().st_size <= MIB:
            chosen = json.loads(settings.read_bytes())["downloadsFolder"]
            return Path(chosen)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # no settings, or none that name a folder
    return home / "models"


def to_path(text: str) -> Path:
    """Returns the folder or file of `lmstudio://...`. A model's name without a publisher is looked up under all
    publishers."""
    name, root = text.partition("://")[2].strip("/"), models_folder()
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise UsageError(f"{text} names no model", hint="write lmstudio://PUBLISHER/MODEL[/FILE]")
    direct = root.joinpath(*parts)
    if direct.exists():
        return direct
    found = sorted(p / name for p in root.iterdir() if (p / name).exists()) if root.is_dir() else []
    if len(found) == 1:
        return found[0]
    several = ", ".join(p.relative_to(root).as_posix() for p in found)
    raise UsageError(f"{root} has {'several models' if found else 'no model'} called {name!r}",
                     hint=f"name one of {several}" if found else "`wb ls` lists the models")  # fmt: skip
