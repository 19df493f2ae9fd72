"""`wb fit`: whether a model fits on a device, and which type to choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from weighbridge.cli.options import arch_file_option, command, examples, json_option, option
from weighbridge.cli.paths import SOURCE
from weighbridge.fitting.runtimes import RUNTIMES


class ContextType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number of tokens; `32k` is 32,768."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower().strip()
        digits, scale = (text[:-1], 1024) if text.endswith("k") else (text, 1)
        if not digits.isdecimal() or not 0 < int(digits) * scale <= 1 << 24:
            self.fail(f"{value!r} is no number of tokens; write it like 8192 or 32k.", param, ctx)
        return int(digits) * scale


class DeviceType(click.ParamType):  # type: ignore[type-arg]
    """A device's name, a size of memory, or `this`."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from weighbridge.fitting.devices import device_names

        return [CompletionItem(n) for n in ("this", *device_names()) if n.startswith(incomplete.lower())]


@command(
    epilog=examples(
        "wb fit ./my-model/ --device rtx4090",
        "wb fit model.gguf --device m3-max-36gb --context 32k",
        "wb fit ./my-model/ --device 8GB --type Q4_K_M --explain",
        "wb fit ./my-model/ --runtime mlx --kv q8_0 --json",
    )
)
@click.argument("model", type=SOURCE)
@option(
    "--device",
    type=DeviceType(),
    default="this",
    show_default=True,
    aliases=("--gpu", "--vram"),
    help="A GPU or Mac, a size such as 8GB, or this.",
)
@option(
    "--context",
    type=ContextType(),
    metavar="TOKENS",
    aliases=("-c", "--ctx", "--ctx-size", "--max-model-len"),
    help="Tokens of context, such as 32k [8192].",
)
@option("--parallel", type=click.IntRange(1, 1024), metavar="N", help="Sequences at once [the runtime's default].")
@option("--kv", metavar="TYPE", default="f16", show_default=True, help="Type of the KV cache: f16, q8_0, q4_0 ...")
@option(
    "--runtime", type=click.Choice(list(RUNTIMES)), default="llama.cpp", show_default=True, help="What runs the model."
)
@option("--type", "type", metavar="TYPE", help="Only this type of wb quantize [all].")
@option("--flash-attention/--no-flash-attention", default=None, help="llama.cpp's -fa [on].")
@option("--ubatch", type=click.IntRange(1, 1 << 20), metavar="N", help="llama.cpp's -ub [512].")
@arch_file_option
@option("--explain", is_flag=True, help="Show the arithmetic line by line.")
@json_option
def fit(model: str, arch_file: Path | None, explain: bool, as_json: bool, **settings: Any) -> int:
    """Say whether MODEL fits on a device: weights, KV cache, buffers, the longest context, every type.

    Reads headers and config.json only. For llama.cpp and Ollama, weights and caches are exact to the byte; compute
    buffers are within 3 % for most architectures. Speeds are upper bounds: bandwidth over the bytes that a token reads.
    Exit code 1 where MODEL doesn't fit on the device as a whole.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import fit as view
    from weighbridge.fitting.report import fit

    report = fit(model, arch_file=arch_file, **settings)
    if as_json:
        emit_json(report)
    elif explain:
        view.explanation(report)
    else:
        view.show(report)
    return int(not report)
