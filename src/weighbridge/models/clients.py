"""Decides which program a model's form is for and whether that program loads it, for all commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Finding, Index
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.location import WrappedPath
from weighbridge.models.llamacpp import rules as llamacpp
from weighbridge.models.mlxlm import rules as mlxlm
from weighbridge.models.model import OpenModel

LLAMA_CPP: Final = "llama.cpp"
MLX_LM: Final = "mlx-lm"
MLX_VLM: Final = "mlx-vlm"
TRANSFORMERS: Final = "transformers"


class ClientVerdict(NamedTuple):
    """`accepts`: whether `client` loads the model; None if undecided. `why`: the reason and the next step if it
    doesn't, otherwise ""."""

    client: str
    accepts: bool | None
    why: str = ""


def is_mlx(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a Safetensors folder is in MLX's form: its files declare it, or its config has MLX's quantization."""
    return metadata.get("format") == "mlx" or "quantization" in config


def client_of(model: OpenModel) -> str:
    """Returns the program that a model's form is for."""
    if model.format == "gguf":
        return LLAMA_CPP
    config = model.json("config.json") or {}
    if not is_mlx(config, model.metadata):
        return TRANSFORMERS
    return MLX_LM if is_for_mlx_lm(config, model.index) else MLX_VLM


def is_for_mlx_lm(config: Mapping[str, Any], index: Index) -> bool:
    """Whether a folder is in MLX's form and has no towers, which mlx-vlm reads."""
    if not is_mlx(config, index.metadata):
        return False
    from weighbridge.models.mlxlm.towers import is_of_mlx_vlm  # late: only folders of MLX need its table

    return not is_of_mlx_vlm(config, index)


class Packaging(NamedTuple):
    """Why only Weighbridge reads a model's files, and the command that makes plain files of them."""

    reason: str
    unpack: str


def packaging(model: OpenModel) -> Packaging | None:
    """Returns how a model's files are packaged; None if other programs can read them."""
    path = shlex.quote(str(model.place.path))
    if coder := next((file.coder for file in model.index.files if file.coder), ""):
        return Packaging(f"files of {coder}", f"wb {'unpack' if coder == 'wb pack' else 'convert'} {path} DST")
    if isinstance(model.place.path, WrappedPath):
        return Packaging("files inside an archive", f"wb convert {path} DST, or unpack the archive")
    return None


def loads(model: OpenModel) -> ClientVerdict:
    """Returns whether the program that the model's form is for loads it."""
    client = client_of(model)
    if (packed := packaging(model)) is not None:
        return ClientVerdict(client, False, f"{client} doesn't read {packed.reason}: {packed.unpack}")
    if client == MLX_LM:
        return in_mlx_lm(model)
    if client != LLAMA_CPP:
        return ClientVerdict(client, None)
    try:
        findings = llamacpp.all_findings([gguf.parse(file, level="lenient") for file in model.index.files])
    except WeighbridgeError as error:
        return ClientVerdict(client, False, error.message)
    return _verdict(LLAMA_CPP, llamacpp.accepts(findings), [f for f in findings if llamacpp.stage_of([f])])


def in_mlx_lm(model: OpenModel) -> ClientVerdict:
    """Returns whether mlx-lm loads a folder in MLX's form or Hugging Face's."""
    shapes = {entry.name: entry.shape for entry in model.index}
    return mlx_verdict(model.json("config.json") or {}, shapes)


def mlx_verdict(config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> ClientVerdict:
    """Returns whether mlx-lm loads a folder with this config.json and these stored tensors."""
    findings = mlxlm.findings(config, shapes, "")
    return _verdict(MLX_LM, mlxlm.accepts(findings), [f for f in findings if f.rule in mlxlm.REFUSED])


def _verdict(client: str, accepts: bool | None, refused: list[Finding]) -> ClientVerdict:
    first = refused[0] if refused else None
    why = f"{first.message}{f' ({first.hint})' if first.hint else ''}" if first else ""
    return ClientVerdict(client, accepts, why)
