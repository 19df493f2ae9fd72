"""`wb ship`: a model handed to what runs it."""

from __future__ import annotations

from typing import Any

import click

from weighbridge.cli.commands.fit import ContextType, DeviceType
from weighbridge.cli.options import command, dry_run_option, examples, json_option, option, overwrite_option
from weighbridge.cli.paths import FILE, PATH
from weighbridge.shipping.targets import TARGETS

_OLLAMA, _LLAMA, _HUB = "Ollama", "llama-server, vLLM, MLX", "Hub"


@command(
    epilog=examples(
        "wb ship ollama model.gguf my-model",
        "wb ship ollama ./my-model/ my-model:q4 --type Q4_K_M",
        "wb ship ollama ./Modelfile my-model",
        "wb ship ollama model.gguf my-model --modelfile Modelfile",
        "wb ship lmstudio model.gguf me/my-model",
        "wb ship llama-server model.gguf --device rtx4090 --context 32k --as systemd",
        "wb ship vllm ./my-model/",
        "wb ship hub ./my-model-GGUF/ me/my-model-GGUF --base-model org/model --dry-run",
    )
)
@click.argument("target", type=click.Choice(list(TARGETS)))
@click.argument("model", type=PATH)
@click.argument("name", required=False, default="")
@option("--type", "type", metavar="TYPE", help="Quantize to this type of wb quantize on the way.", section="Stores")
@option(
    "--store", type=PATH, metavar="DIR", help="Folder of the models [Ollama's or LM Studio's own].", section="Stores"
)
@option("--mmproj", type=PATH, metavar="FILE", help="Projector of a vision model, a GGUF.", section="Stores")
@option(
    "--hard-link",
    is_flag=True,
    section="Stores",
    help="Make the file in the store another name of MODEL, where it can't share its space otherwise.",
)
@option(
    "--template",
    metavar="go|none|FILE",
    section=_OLLAMA,
    help="Chat template: translated to Go [default], none (the model's own is used), or a Go template.",
)
@option("--system", metavar="TEXT", help="System message.", section=_OLLAMA)
@option(
    "--modelfile",
    type=FILE,
    metavar="FILE",
    section=_OLLAMA,
    help="Write a Modelfile for ollama create, and nothing into the store.",
)
@option("--device", type=DeviceType(), help="A GPU or Mac, a size such as 8GB, or this.", section=_LLAMA)
@option("--context", type=ContextType(), metavar="TOKENS", help="Tokens of context, such as 32k.", section=_LLAMA)
@option("--parallel", type=click.IntRange(1, 1024), metavar="N", help="Sequences at once.", section=_LLAMA)
@option("--kv", metavar="TYPE", help="Type of the KV cache: f16, q8_0 ...", section=_LLAMA)
@option(
    "--as",
    "form",
    type=click.Choice(("command", "systemd", "compose")),
    section=_LLAMA,
    help="What llama-server's command is written as [command].",
)
@option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    section="Output",
    help="File for the command, unit, compose file or model card.",
)
@option("--base-model", metavar="ORG/NAME", help="The model that this one was made of [from its keys].", section=_HUB)
@option(
    "--measured",
    multiple=True,
    type=FILE,
    metavar="FILE",
    section=_HUB,
    help="Report of wb prove --json, whose measurements go into the model card. Repeatable.",
)
@option("--private", is_flag=True, help="Make the repository private.", section=_HUB)
@option("--create-pr", is_flag=True, help="Upload as a pull request.", section=_HUB)
@option("--revision", metavar="NAME", help="Branch to upload to [main].", section=_HUB)
@overwrite_option
@dry_run_option
@json_option
def ship(dry_run: bool, as_json: bool, **settings: Any) -> int:
    """Hand MODEL to what runs it: Ollama, LM Studio, llama-server, vLLM, mlx-lm, the Hugging Face Hub.

    Stores are written directly, whether the program is there or not: all files, or none. Servers get the command line
    with the settings that `wb fit` computes, after checking that everything they need is there. Exit code 1 where
    something is missing.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import ship as view

    with weighbridge.plan_ship(**settings) as plan:
        if dry_run:
            report = plan.report
        else:
            with Progress() as progress:
                report = plan.run(progress)
    emit_json(report) if as_json else view.show(report)
    return int(not report)
