"""Finds the command that runs a converted model: that of the first target that accepts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.spec import Shape
from weighbridge.containers.formats import PIPELINE_INDEX
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.gguf.loadable import LayoutSource
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.location import RemotePath, is_remote
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.clients import mlx_verdict
from weighbridge.models.llamacpp import table as llamacpp_table
from weighbridge.models.llamacpp import use_of
from weighbridge.models.llamacpp.companions import find_towers
from weighbridge.models.llamacpp.rules import accepts, all_findings
from weighbridge.models.mlxlm.towers import tower_names
from weighbridge.models.model import OpenModel
from weighbridge.shipping.servers import quantization_method, vllm_loads
from weighbridge.shipping.targets import run_line

_CONFIG: Final = "config.json"
_ADAPTER: Final = "adapter gguf"


def how_to_run(plan: Plan) -> str | None:
    """Returns the command for the files that `plan` writes; None if no runtime loads them in place."""
    if isinstance(plan.target, RemotePath) or not plan.files or not plan.files[0].layout.slots:
        return None
    if plan.format == "gguf" and any(file.name == PIPELINE_INDEX for file in plan.files):
        return None  # a pipeline of image models, which llama.cpp doesn't run
    if plan.format == "gguf":
        indexes = [gguf.parse(LayoutSource(file.name, file.layout), level="lenient") for file in plan.files]
        parts = [index for index in indexes if index.metadata.get("general.type") != "mmproj"] or indexes
        keys, path = parts[0].metadata, plan.target
        kind = _ADAPTER if keys.get("general.type") == "adapter" else use_of(keys)
        complete = keys.get("general.type", "model") == "model" and keys.get("tokenizer.ggml.model", "none") != "none"
        if kind != _ADAPTER and not (complete and accepts(all_findings(parts)) is True):
            return None
        if len(parts) < len(indexes):
            first, *_, mmproj = (str(path / file.name) for file in plan.files)
            return run_line(kind, first, mmproj)
        written = str(path / plan.files[0].name if plan.folder else path)
        source = plan.model
        mmproj = ""
        if kind != _ADAPTER and isinstance(source, OpenModel) and source.format == "gguf":
            place = source.place.path
            mmproj = "" if is_remote(place) else str(find_towers(place, source).path or "")
        return run_line(kind, written, mmproj)
    if plan.format not in ("mlx", "hf"):
        return None
    config = _config(plan)
    shapes: dict[str, Shape] = {}
    if plan.format == "mlx":
        weights = (file for file in plan.files if file.name.endswith(".safetensors"))
        shapes = {slot.name: slot.spec.shape for file in weights for slot in file.layout.slots}
        if (row := tower_names(config)) is not None and row.has_towers(shapes):
            return None if row.embeds else run_line("mlx with towers", str(plan.target))
    classes = config.get("architectures")
    architecture = str(classes[0]) if isinstance(classes, list) and classes else ""
    if not architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")):  # generates no text
        return None
    if plan.format == "hf":
        loads = vllm_loads(quantization_method(config)) and not _is_of_another_use(config)
    else:
        loads = mlx_verdict(config, shapes).accepts is True
    return run_line(plan.format, str(plan.target)) if loads else None


def _is_of_another_use(config: Mapping[str, Any]) -> bool:
    """Whether servers of language models don't run the models of a config.json's family."""
    with suppress(WeighbridgeError):
        return family_of_hf(config).gguf in llamacpp_table().uses
    return False


def _config(plan: Plan) -> dict[str, Any]:
    """Returns the planned config.json, written or copied from the source; {} if there is none that can be read."""
    text: str | bytes | None = plan.texts.get(_CONFIG)
    if not text:
        copied = next((f for f in plan.files if f.name == _CONFIG and f.layout.size <= CONFIG_JSON), None)
        text = b"".join(bytes(node.read(0, node.spec.rows)) for node in copied.nodes) if copied else b"{}"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
