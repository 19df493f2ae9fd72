"""Which keys of a config.json mlx-lm's classes read, and their defaults, as models/config/mlx_fields.toml.

python -m tests.models.record_mlx_fields     write the table from the installed mlx-lm
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

from weighbridge.models.arch.registry import families
from weighbridge.models.config import mlx_view

TABLE = Path(mlx_view.__file__).with_name("mlx_fields.toml")
_HEAD = """\
# What mlx-lm {version} reads of a config.json by model_type, from the parameters of its `ModelArgs`: made by
# `python -m tests.models.record_mlx_fields`.
# `required`: no default; `null`: the default is None; `part`: the object of the config
# that has these keys; `by_type`: unless it is of another model_type that has a row. A key that isn't here is one that
# mlx-lm doesn't read. "TYPE CLASS": a class of transformers that it doesn't read as others of its model_type.
"""
_CALLS = re.compile(r"(\w+(?:\.\w+)?)\.from_dict\((?:args|self)\.text_config\)")


def recorded() -> str:
    """The table, from the installed mlx-lm."""
    from importlib.metadata import version

    lines = [f"{json.dumps(name)} = {_inline(row)}" for name, row in sorted(_rows().items())]
    return _HEAD.format(version=version("mlx-lm")) + "\n".join(lines) + "\n"


def _rows() -> dict[str, dict[str, Any]]:
    from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

    ours = {a.model_type for f in families().values() for a in f.architectures.values()}
    apart = {f"{kind} {name}": module for (kind, name), module in MODEL_ARCHITECTURE_REMAPPING.items()}
    rows = {}
    for name in ours | {"ministral3"} | apart.keys():
        try:
            module = importlib.import_module(f"mlx_lm.models.{(MODEL_REMAPPING | apart).get(name, name)}")
        except (ImportError, SystemExit):  # of OLMo, without the package of its own
            continue
        rows[name] = _row(module)
    return rows


def _row(module: Any) -> dict[str, Any]:
    if "text_config" not in inspect.signature(module.ModelArgs).parameters:
        merges = '"text_config"' in inspect.getsource(module.ModelArgs)  # takes the fields from that object itself
        return ({"part": "text_config"} if merges else {}) | _fields(module.ModelArgs)
    homes = (module, *(inspect.getmodule(base) for base in module.Model.__bases__))  # Qwen3.5 MoE's is Qwen3.5's
    home, called = next((home, found) for home in homes if home and (found := _CALLS.findall(inspect.getsource(home))))
    inner: Any = home
    for name in called[-1].split("."):  # the last: of every type that no other line claims
        inner = getattr(inner, name)
    chosen = {"by_type": True} if len({*called}) > 1 else {}
    return {"part": "text_config", **chosen} | _fields(inner)


def _fields(cls: Any) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters.values()
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    null = [p.name for p in parameters if p.default is None]
    defaults = {p.name: p.default for p in parameters if p.name not in (*required, *null)}
    plain = {
        name: value for name, value in defaults.items() if isinstance(value, bool | int | float | str | list | dict)
    }
    made = [name for name in defaults if name not in plain]  # made by a factory
    return {"required": required, "null": [*null, *made], "defaults": plain}


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


if __name__ == "__main__":
    TABLE.write_text(recorded())
