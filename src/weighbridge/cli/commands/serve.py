"""`wb serve`: models over HTTP, in forms that are made on the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from weighbridge.cli.options import command, examples, option
from weighbridge.cli.paths import PATH
from weighbridge.cli.views.forms import chosen, forms_option


@command(
    epilog=examples(
        "wb serve ./models/ --port 8080",
        "wb serve ./my-model/ --form Q4_K_M --form F16",
        "wb serve ./models/ --host 0.0.0.0 --token s3cret",
    )
)
@click.argument("path", type=PATH)
@option("--host", default="127.0.0.1", help="Address to listen on [127.0.0.1]; others need a token.")
@option("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0: any [8080].")
@option("--token", help="What clients must bring (HF_TOKEN at huggingface_hub) [$WEIGHBRIDGE_TOKEN].")
@forms_option
def serve(path: Path, host: str, port: int, token: str | None, forms: tuple[str, ...]) -> None:
    """Serve the models at PATH, as they lie and in other forms that are computed where they are read.

    Speaks the Hub's read API: with HF_ENDPOINT=http://127.0.0.1:8080, huggingface_hub, transformers and llama.cpp's -hf
    download local/NAME, local/NAME-GGUF, local/NAME-safetensors, local/NAME-mlx-4bit. Speaks Ollama's registry API:
    ollama pull --insecure http://127.0.0.1:8080/local/NAME:Q4_K_M. A browser finds a list. Ends with Ctrl-C.
    """
    from weighbridge.adapters.serving import hub_server
    from weighbridge.cli.render import clean, note
    from weighbridge.conversion.forms.shelf import Shelf
    from weighbridge.io.location import check_local
    from weighbridge.shipping.ollama.pull import PullableModels

    check_local(path)
    token = token or os.environ.get("WEIGHBRIDGE_TOKEN")
    hub_server.check_access(host, token)

    def started(bound: int, server: Any) -> None:
        place = f"[{host}]" if ":" in host else host
        note(f"serving {clean(', '.join(shelf.repositories()[:6]))} ... at http://{place}:{bound}")

    with Shelf(path, chosen(forms)) as shelf:
        pullable = PullableModels(shelf, lambda words: note(clean(words)))
        hub_server.run(shelf, pullable, host, port, token, started)
