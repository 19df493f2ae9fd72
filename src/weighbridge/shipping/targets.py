"""Where models are shipped to, one row each: what a target takes, which options apply, and how what it reads is run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class ShipTarget:
    """`prepare`: module and function that plan it. `options`: those of `ShipOptions` that apply. `runs`: kind of what
    `wb convert` makes -> the command that uses it there, for `{path}`. `name`: what NAME is."""

    name: str
    title: str
    prepare: str
    options: frozenset[str]
    name_is: str
    runs: Mapping[str, str] = field(default_factory=dict)


_STORE: Final = frozenset({"type", "store", "mmproj", "hard_link", "overwrite"})
TARGETS: Final = MappingProxyType(
    {
        row.name: row
        for row in (
            ShipTarget("llama-server", "llama.cpp's server", "servers:llama_server",
                       frozenset({"device", "context", "parallel", "kv", "form", "output", "mmproj", "overwrite"}),
                       "the alias of the model",
                       {"gguf": "llama-server -m {path}", "embedding": "llama-server -m {path} --embedding",
                        "adapter gguf": "llama-server -m BASE.gguf --lora {path}"}),
            ShipTarget("ollama", "Ollama", "ollama.store:prepare", _STORE | {"template", "system", "modelfile"},
                       "[NAMESPACE/]NAME[:TAG]", {"gguf": "wb ship ollama {path} NAME"}),
            ShipTarget("lmstudio", "LM Studio", "lmstudio:prepare", _STORE, "[PUBLISHER/]MODEL",
                       {"gguf": "wb ship lmstudio {path}", "mlx": "wb ship lmstudio {path}"}),
            ShipTarget("mlx", "mlx-lm", "servers:mlx", frozenset({"device", "context"}), "",
                       {"mlx": "mlx_lm.chat --model {path}"}),
            ShipTarget("vllm", "vLLM", "servers:vllm", frozenset({"device", "context"}), "the served name",
                       {"hf": "vllm serve {path}"}),
            ShipTarget("hub", "Hugging Face Hub", "hub:prepare",
                       frozenset({"base_model", "measured", "private", "create_pr", "revision", "output", "overwrite"}),
                       "ORG/NAME"),
        )
    }
)  # fmt: skip


def run_line(kind: str, path: str) -> str | None:
    """The command that runs what a conversion made, of the first target that takes it; None where none does."""
    order = sorted(TARGETS.values(), key=lambda row: row.name == "lmstudio")
    found = next((row.runs[kind] for row in order if kind in row.runs), None)
    return found.format(path=shlex.quote(path)) if found else None
