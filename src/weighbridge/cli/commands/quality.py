"""`wb quality`: compares what two models predict on a text."""

from __future__ import annotations

import click

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.forward.options import TextQualityOptions


@command(
    TextQualityOptions,
    CommandOptions,
    epilog=examples(
        "wb quality ./my-model/ my-model-q4_k_m.gguf --text held-out.txt",
        "wb quality ./my-model/ --text held-out.txt",
        "wb quality ./my-model/ --text held-out.txt --chunks 100 --save base.kld",
        "wb quality base.kld my-model-q4_k_m.gguf",
    ),
)
@click.argument("reference", type=SOURCE)
@click.argument("model", type=SOURCE, required=False)
def quality(reference: str, model: str | None, options: CommandOptions) -> None:
    """Compare what MODEL and REFERENCE predict on a text: KL divergence, perplexity, the likeliest token.

    REFERENCE: a model, or the file of log-probabilities that llama-perplexity or --save wrote, with its text. Without
    MODEL: the perplexity of REFERENCE. Both are run layer by layer in F32 without another framework, so that only the
    weights' types make a difference. Standard errors are those of the chunks' means.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import text_quality

    with Progress(noun="layer") as progress:
        report = weighbridge.quality(reference, model, progress=progress, **options.keywords(weighbridge.quality))
    if options.json:
        emit_json(report)
    else:
        text_quality.show(report)
