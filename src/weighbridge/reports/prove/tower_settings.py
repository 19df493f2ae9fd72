"""Compares the settings of two folders, one of mlx-vlm, towers included.

mlx-vlm's classes read the config.json of Hugging Face, some under other keys (towers.toml). A folder of mlx-vlm must
have the keys that a conversion of the other folder writes; two folders of mlx-vlm must have the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.clients import MLX_VLM, client_of
from weighbridge.models.config.settings import same_value
from weighbridge.models.mlxlm.tower_config import config_of_mlx_vlm, has_output
from weighbridge.models.mlxlm.towers import tower_names
from weighbridge.models.transform.text_config import text_path

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel

#: Keys about the file: who wrote it, and the types of its tensors, which are compared.
_FILE: Final = ("_name_or_path", "transformers_version", "quantization", "quantization_config", "dtype", "torch_dtype")


def config_differences(a: OpenModel, b: OpenModel) -> tuple[list[str], int]:
    """Returns the settings of two folders, one of mlx-vlm, that differ, and the number of settings. Those of the
    language model that only one folder states are left to the family's table, if there is one, except those that
    towers.toml names.
    Raises UnsupportedError for a model that the table lacks."""
    left, right = dict(_leaves(_as_mlx_vlm_reads(a))), dict(_leaves(_as_mlx_vlm_reads(b)))
    names = tower_names(a.config) or tower_names(b.config)
    described = a.described or b.described
    read = {key.partition(".")[0].removesuffix("!") for key in names.text} if names else set()
    texts = {".".join(text_path(model)) for model in (a, b) if described}
    differ = [
        path
        for path in dict.fromkeys((*left, *right))
        if not same_value(left.get(path), right.get(path))
        and ((path in left and path in right) or not _of_family(path, texts, read))
    ]
    return [f"{path}: {_text(left.get(path))} and {_text(right.get(path))}" for path in differ], len(left)


def _of_family(path: str, texts: Collection[str], read: Collection[str]) -> bool:
    """Whether the family's table decides about a setting: one of the language model that mlx-vlm's table doesn't
    name."""
    inside = [path.removeprefix(f"{text}.") if text else path for text in texts if path.startswith(text)]
    flat = "" in texts
    return any(key.partition(".")[0] not in read and (not flat or "." not in key) for key in inside)


def _as_mlx_vlm_reads(model: OpenModel) -> Mapping[str, Any]:
    if client_of(model) == MLX_VLM:
        return model.config
    names = tower_names(model.config)
    if names is None:
        raise UnsupportedError(f"no table has mlx-vlm's settings for the model type {model.config.get('model_type')}")
    has_head = bool(names.head) or has_output(map(names.to_mlx, model.logical))
    return config_of_mlx_vlm(model, names, has_head)[0]


def _leaves(value: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for key, below in value.items():
        if start or key not in _FILE:
            path = f"{start}.{key}" if start else str(key)
            yield from _leaves(below, path) if isinstance(below, Mapping) and below else [(path, below)]


def _text(value: Any) -> str:
    return "not there" if value is None else str(value)
