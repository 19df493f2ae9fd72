"""The matrices that sentence-transformers applies to embeddings (2_Dense), which a folder has in files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.config.pooling import dense_folders
from weighbridge.models.model import OpenModel, open_weights

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_FILES: Final = ("model.safetensors", "pytorch_model.bin")


def module_tensors(model: OpenModel, canonical: bool) -> dict[str, LogicalTensor]:
    """Returns the tensors of a folder's dense modules, under names that begin with the module's folder, or with
    `canonical` under those of the family, if it has some. The files stay open with the model."""
    if model.format == "gguf" or "modules.json" not in model.place.names():
        return {}
    renamed = canonical_modules(model) if canonical else {}
    out: dict[str, LogicalTensor] = {}
    for folder in dense_folders(model.place.read):
        path = next((path for name in _FILES if (path := model.place.folder / folder / name).is_file()), None)
        tensors = {} if path is None else open_weights(path).logical
        stored = {f"{folder}.{name}": node for name, node in tensors.items()}
        out |= {renamed.get(name, name): node for name, node in stored.items()}
    return out


def canonical_modules(model: OpenModel) -> dict[str, str]:
    """Returns the canonical name of each dense module's matrix that the family's GGUFs can hold, by that in a folder;
    none without a family."""
    try:
        meta = model.family.document.meta
    except WeighbridgeError:
        return {}
    entry = meta.dense if meta else None
    names = [model.family.rows[role].names for role in entry.roles] if entry else []
    return {name["hf"]: name["canonical"] for name in names}
