"""`wb ship`: hands a model to a program that runs it."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.cli.options import DryRunOptions, command, examples
from weighbridge.cli.values import PATH
from weighbridge.shipping.plan import ShipOptions
from weighbridge.shipping.targets import TARGETS


@command(
    ShipOptions,
    DryRunOptions,
    epilog=examples(
        "wb ship ollama model.gguf my-model",
        "wb ship ollama ./my-model/ my-model:q4 --type Q4_K_M",
        "wb ship ollama ./Modelfile my-model",
        "wb ship ollama model.gguf my-model --modelfile Modelfile",
        "wb ship lmstudio model.gguf me/my-model",
        "wb ship llama-server model.gguf --device rtx4090 --context 32k --launcher systemd",
        "wb ship vllm ./my-model/",
        "wb ship hub ./my-model-GGUF/ me/my-model-GGUF --base-model org/model --dry-run",
    ),
)
@click.argument("target", type=click.Choice(list(TARGETS)))
@click.argument("model", type=PATH)
@click.argument("name", required=False, default="")
def ship(target: str, model: Path | str, name: str, options: DryRunOptions) -> int:
    """Hand MODEL to Ollama, LM Studio, llama-server, vLLM, mlx-lm or the Hugging Face Hub.

    Stores are written directly, even if the program isn't installed: all files or none. For servers, prints the command
    line with the settings that `wb fit` computes, after checking their requirements. Exit code 1 if something is
    missing.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import ship as view

    with weighbridge.plan_ship(target, model, name, **options.keywords(weighbridge.plan_ship)) as plan:
        if options.dry_run:
            report = plan.report
        else:
            with Progress() as progress:
                report = plan.run(progress)
    emit_json(report) if options.json else view.show(report)
    return int(not report)
