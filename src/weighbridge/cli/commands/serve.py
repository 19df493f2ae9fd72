"""`wb serve`: serves models over HTTP, converted on the fly."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.forms import FormsCommand, chosen
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import PATH


@dataclass(frozen=True, kw_only=True)
class ServeCommand(FormsCommand):
    host: str = option("Address to listen on [127.0.0.1]; others need a token.", "127.0.0.1")
    port: int = option("Port; 0: any [8080].", 8080, least=0, most=65535)
    token: str | None = option("Token that clients must send (HF_TOKEN in huggingface_hub) [$WEIGHBRIDGE_TOKEN].")


@command(
    ServeCommand,
    epilog=examples(
        "wb serve ./models/ --port 8080",
        "wb serve ./my-model/ --form Q4_K_M --form F16",
        "wb serve ./models/ --host 0.0.0.0 --token s3cret",
    ),
)
@click.argument("path", type=PATH)
def serve(path: Path, options: ServeCommand) -> None:
    """Serve the models at PATH unchanged and in other forms, which are computed on reading.

    PATH may be hf://ORG/NAME if the local cache has it, or a model of a store: ollama://NAME, lmstudio://NAME.

    Speaks the Hub's read API: with HF_ENDPOINT=http://127.0.0.1:8080, huggingface_hub, transformers and llama.cpp's -hf
    download local/NAME, local/NAME-GGUF, local/NAME-safetensors, local/NAME-mlx-4bit. Speaks Ollama's registry API:
    ollama pull --insecure http://127.0.0.1:8080/local/NAME:Q4_K_M. A browser shows a list. Ends with Ctrl-C.
    """
    from weighbridge.adapters.remote.schemes import local_path
    from weighbridge.adapters.serving import hub_server
    from weighbridge.cli.render import clean, emit_json, note, warn
    from weighbridge.conversion.forms.shelf import ModelFolder
    from weighbridge.shipping.ollama.pull import PullableModels

    host, token = options.host, options.token or os.environ.get("WEIGHBRIDGE_TOKEN")
    hub_server.check_access(host, token)

    def started(bound: int, server: Any) -> None:
        place = f"[{host}]" if ":" in host else host
        url, repositories = f"http://{place}:{bound}", shelf.repositories()
        if options.json:
            emit_json({"url": url, "repositories": repositories})
            sys.stdout.flush()  # a parent process may wait for the address
        else:
            note(f"serving {clean(', '.join(repositories[:6]))} ... at {url}")

    with ModelFolder(local_path(path), chosen(options.form)) as shelf:
        if shelf.outside:
            warn(clean(f"not served, since they link out of the folder: {', '.join(shelf.outside)}"))
        pullable = PullableModels(shelf, lambda line: note(clean(line)))
        hub_server.run(shelf, pullable, host, options.port, token, started)
