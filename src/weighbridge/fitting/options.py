"""The options of `wb fit`, some of which `wb ship` has too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.fitting.runtimes import RUNTIMES
from weighbridge.models.model import ConfigOptions

_RUNNING: Final = "llama-server, vLLM, MLX"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Where and how a model runs. `context` counts tokens."""

    device: str | None = option("A GPU or Mac, a size such as 8GB, or this.", kind="device", section=_RUNNING,
                                aliases="gpu vram")  # fmt: skip
    context: int | None = option("Tokens of context, such as 32k [8192].", metavar="TOKENS", kind="tokens",
                                 section=_RUNNING, aliases="ctx ctx-size max-model-len")  # fmt: skip
    parallel: int | None = option("Sequences at once [the runtime's default].", metavar="N", least=1, most=1024,
                                  section=_RUNNING)  # fmt: skip
    cache_type: str | None = option("Type of the KV cache: f16 [default], q8_0, q4_0 ...", metavar="TYPE",
                                    section=_RUNNING, aliases="kv-cache-dtype")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitOptions(DeviceOptions, ConfigOptions):
    """The device is this machine unless one is given."""

    runtime: str = option("What runs the model [llama.cpp].", "llama.cpp", choices=tuple(RUNTIMES))
    type: str | None = option("Only this type of wb quantize [all].", metavar="TYPE")
    flash_attention: bool | None = option("llama.cpp's -fa [on].")
    mmproj: str | Path | None = option("Projector of the model, an mmproj file: adds its memory.", metavar="FILE",
                                       kind="path")  # fmt: skip
    ubatch: int | None = option("llama.cpp's -ub [512].", metavar="N", least=1, most=1 << 20)
