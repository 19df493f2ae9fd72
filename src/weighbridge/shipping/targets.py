"""The targets of `wb ship`, one row each: the options that apply, and the commands that run models there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.llamacpp import CLASSIFIER, EMBEDDING, RERANKER, TEXT, use_of


@dataclass(frozen=True, slots=True)
class ShipTarget:
    """`prepare`: the module and function that plan it. `options`: those of `ShipOptions` that apply. `name_is`: the
    meaning of NAME. `runs`: the command that runs `{path}`, by the kind of the converted model."""

    name: str
    title: str
    prepare: str
    options: frozenset[str]
    name_is: str
    runs: Mapping[str, str] = field(default_factory=dict)


#: llama-server's flags by the use of a GGUF.
FLAGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        TEXT: (),
        EMBEDDING: ("--embedding",),
        RERANKER: ("--reranking",),
        CLASSIFIER: ("--embedding", "--pooling", "rank"),
    }
)
_OTHER_PROGRAMS: Final = {
    "encoder-decoder": "llama-completion -m {path} -p TEXT",
    "speech": "llama-tts -m {path} --mmproj {mmproj} -p TEXT --output SOUND.wav",
    # One of the two options is needed: the schedule that the model was trained for (examples/diffusion/README.md).
    "diffusion": "llama-diffusion-cli -m {path} -p TEXT --diffusion-eps 0.001",
    "block diffusion": "llama-diffusion-cli -m {path} -p TEXT --diffusion-block-length 32",
    "draft": "llama-server -m TARGET.gguf -md {path}",
    "adapter gguf": "llama-server -m BASE.gguf --lora {path}",
}
_STORE: Final = frozenset({"type", "store", "mmproj", "hard_link", "overwrite", "arch_file"})
TARGETS: Final = MappingProxyType(
    {
        row.name: row
        for row in (
            ShipTarget("llama-server", "llama.cpp's server", "servers:llama_server",
                       frozenset({"device", "context", "parallel", "cache_type", "launcher", "output", "mmproj",
                                  "overwrite", "arch_file"}),
                       "the alias of the model",
                       {**{use: " ".join(("llama-server -m {path}{towers}", *flags)) for use, flags in FLAGS.items()},
                        **_OTHER_PROGRAMS}),
            ShipTarget("ollama", "Ollama", "ollama.store:prepare", _STORE | {"template", "system", "modelfile"},
                       "[NAMESPACE/]NAME[:TAG]", {"gguf": "wb ship ollama {path} NAME"}),
            ShipTarget("lmstudio", "LM Studio", "lmstudio:prepare", _STORE, "[PUBLISHER/]MODEL",
                       {"gguf": "wb ship lmstudio {path}", "mlx": "wb ship lmstudio {path}"}),
            ShipTarget("mlx", "mlx-lm", "servers:mlx", frozenset({"device", "context", "arch_file"}), "",
                       {"mlx": "mlx_lm.chat --model {path}",
                        "mlx with towers": "mlx_vlm.chat --model {path}"}),
            ShipTarget("vllm", "vLLM", "servers:vllm", frozenset({"device", "context", "arch_file"}), "the served name",
                       {"hf": "vllm serve {path}"}),
            ShipTarget("hub", "Hugging Face Hub", "hub:prepare",
                       frozenset({"base_model", "measured", "private", "create_pr", "revision", "output", "overwrite",
                                  "allow_dangerous"}),
                       "ORG/NAME"),
        )
    }
)  # fmt: skip


def run_line(kind: str, path: str, mmproj: str = "") -> str | None:
    """Returns the command that runs a converted model in the first target that accepts it, or None."""
    order = sorted(TARGETS.values(), key=lambda row: row.name == "lmstudio")
    command = next((row.runs[kind] for row in order if kind in row.runs), None)
    if command is None:
        return None
    given = shlex.quote(mmproj or "MMPROJ.gguf")
    return command.format(path=shlex.quote(path), mmproj=given, towers=f" --mmproj {given}" if mmproj else "")


def server_flags(path: Path, keys: Mapping[str, Any], file: Path | None, towers: Path | None = None) -> tuple[str, ...]:
    """Returns llama-server's flags for the model at `path` by the metadata of its GGUF. `file`: this GGUF, or None if
    the model has to be converted first; `towers`: its mmproj file.

    Raises UnsupportedError if llama.cpp runs it with a different program.
    """
    use = use_of(keys)
    if use not in FLAGS:
        message = f"{path}: llama-server and the programs based on it don't run this kind of model ({use})"
        hint = f"{convert_line(path, towers is not None)} prints the command that runs it"
        raise UnsupportedError(message, hint=hint if file is None else run_line(use, str(file), str(towers or "")))
    return FLAGS[use]


def convert_line(path: Path, with_towers: bool) -> str:
    """Returns the command that writes the GGUFs of the model at `path`."""
    return f"wb convert {shlex.quote(str(path))} {'ggufs/ --to gguf --with-mmproj' if with_towers else 'model.gguf'}"
