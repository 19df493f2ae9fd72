"""Writes the model card for the Hub: its metadata, and a text with files, measurements, commands and prompt format.

Metadata: https://huggingface.co/docs/hub/model-cards. The contents of an existing card are kept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.fitting.quality import quality
from weighbridge.models.config.card import front_matter, read_card_as_written
from weighbridge.models.llamacpp import CLASSIFIER, EMBEDDING, RERANKER, SERVER_FLAGS, TEXT, use_of
from weighbridge.shipping.measured import MeasuredQuality
from weighbridge.shipping.ollama.turns import translate
from weighbridge.shipping.targets import run_line

#: Kind -> the Hub's library, and the words for the files.
_LIBRARIES: Final = {"gguf": "gguf", "mlx": "mlx", "mlx with towers": "mlx", "hf": "transformers", "peft": "peft"}
_TITLES: Final = {"gguf": "GGUF", "mlx": "MLX", "mlx with towers": "MLX", "hf": "safetensors"}
#: What a model takes next to text -> the Hub's task.
_TASKS: Final = {
    frozenset[str](): "text-generation", frozenset({"vision"}): "image-text-to-text",
    frozenset({"audio"}): "audio-text-to-text", frozenset({"vision", "audio"}): "any-to-any",
}  # fmt: skip
_TASK_OF_USE: Final = {
    EMBEDDING: "feature-extraction", RERANKER: "text-ranking", CLASSIFIER: "text-classification",
    "speech": "text-to-speech",
}  # fmt: skip
_TAGS: Final = {"gguf": ["gguf"], "mlx": ["mlx"], "mlx with towers": ["mlx"], "ggml": ["whisper.cpp"]}
#: The task of sentence-transformers' folders.
EMBEDS: Final = "sentence-similarity"
_HUB: Final = re.compile(r"(?:https?://huggingface\.co/)?([\w.-]+/[\w.-]+?)/?")
_BODY: Final = re.compile(rb"\A---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CardFile:
    """A file with weights, or all shards. `type`: its file type, or empty. `bits`: per weight. `towers`: an mmproj
    file's. `first`: the first of several shards."""

    name: str
    type: str
    bytes: int
    bits: float
    towers: bool = False
    first: str = ""


@dataclass(frozen=True)
class CardFacts:
    """The facts of a card. `kind`: gguf, mlx, mlx with towers, hf, peft, or ggml (whisper.cpp). `keys`: the metadata of
    a GGUF, or the same keys derived from other models. `jinja`: the chat template. `quantized`: whether the weights are
    quantized. `unpacked`: what `wb unpack` into model/ makes of files of `wb pack`. `senses`: of vision, audio, and gen
    (it speaks). `task`: the Hub's, if it doesn't follow from these."""

    repository: str
    kind: str
    files: tuple[CardFile, ...]
    keys: Mapping[str, Any]
    jinja: str | None
    special: Mapping[str, str]
    quantized: bool
    base_model: str | None
    measured: Mapping[str, MeasuredQuality] = field(default_factory=dict)
    unpacked: str = ""
    senses: frozenset[str] = frozenset()
    task: str = ""


def card(facts: CardFacts, existing: bytes | None = None) -> tuple[str, tuple[str, ...]]:
    """Returns the card's text, and notes on facts to add manually."""
    old, trouble = read_card_as_written(existing)
    fields = {**_fields(facts), **old}
    notes = [trouble] if trouble else []
    if "base_model" not in fields:
        notes.append("the card names no base model: --base-model ORG/NAME")
    if "license" not in fields:
        notes.append("the card names no licence, and neither does the model's metadata")
    body = _BODY.sub(b"", existing or b"").decode("utf-8", "replace").strip()
    return front_matter(fields) + "\n" + (body or "\n".join(_body(facts, fields))).strip() + "\n", tuple(notes)


def is_repository(name: str) -> bool:
    """Whether a name or address is that of a repository of the Hub."""
    return _HUB.fullmatch(name) is not None


def _fields(facts: CardFacts) -> dict[str, Any]:
    """Returns the known metadata. The base model has the Hub's spelling."""
    keys = facts.keys
    url = keys.get("general.base_model.0.repo_url") or keys.get("general.source.repo_url")
    repository = _HUB.fullmatch(url) if isinstance(url, str) else None
    base = facts.base_model or (repository[1] if repository else None)
    licence, architecture = keys.get("general.license"), keys.get("general.architecture")
    task: str | None = "text-to-speech" if "gen" in facts.senses else _TASKS[facts.senses]
    task = facts.task or (_TASK_OF_USE.get(use_of(keys), task) if architecture is not None else None)
    tags = list(_TAGS.get(facts.kind, ()))
    tags += ["imatrix"] if any(key.startswith("quantize.imatrix.") for key in keys) else []
    tags += ["conversational"] if facts.jinja else []
    fields: dict[str, Any] = {
        "base_model": base,
        "base_model_relation": _relation(facts) if base else None,
        "license": licence,
        "license_name": keys.get("general.license.name") if licence == "other" else None,
        "license_link": keys.get("general.license.link") if licence == "other" else None,
        "library_name": "sentence-transformers" if facts.task == EMBEDS else _LIBRARIES.get(facts.kind),
        "pipeline_tag": task,
        "language": list(keys.get("general.languages") or ()) or None,
        "quantized_by": facts.repository.partition("/")[0] if facts.quantized else None,
        "tags": tags or None,
    }
    return {name: value for name, value in fields.items() if value}


def _relation(facts: CardFacts) -> str | None:
    if facts.kind == "peft" or facts.keys.get("general.type") == "adapter":
        return "adapter"
    return "quantized" if facts.quantized or facts.kind != "hf" else None


def _body(facts: CardFacts, fields: Mapping[str, Any]) -> Iterator[str]:
    name = facts.repository.partition("/")[2]
    yield f"# {name}\n"
    base = fields.get("base_model")
    if isinstance(base, str):
        sentence = "An adapter of {}" if _relation(facts) == "adapter" else f"{{}} as {_TITLES.get(facts.kind, 'ggml')}"
        yield f"{sentence.format(f'[{base}](https://huggingface.co/{base})')}.\n"
    yield from _file_table(facts)
    yield from _measurements(facts.measured)
    if lines := commands(facts):
        yield from ("## Run it\n", "```", *lines, "```\n")
    yield from _prompt_format(facts)
    yield f"Made with Weighbridge {__version__}."


def _file_table(facts: CardFacts) -> Iterator[str]:
    """Yields a table of the files; quantized GGUFs get the published losses of their types."""
    losses, files = quality().type, facts.files
    rated = facts.kind != "ggml" and any(file.type in losses for file in files if not file.towers)
    heads = ["file", "type", "size", "bits per weight", *(["perplexity", "divergence"] if rated else [])]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * 2 + "--:|" * (len(heads) - 2)
    for file in files:
        cells = [file.name, file.type or "-", f"{file.bytes / 1e9:.2f} GB", f"{file.bits:.2f}"]
        if rated:
            loss = None if file.towers else losses.get(file.type)
            cells += [f"+{loss.ppl:g}", f"{loss.kld:g}"] if loss else ["-", "-"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    if rated:
        yield f"Perplexity and divergence are of another model, for orientation: {quality().source}.\n"


def _measurements(measurements: Mapping[str, MeasuredQuality]) -> Iterator[str]:
    """Yields a table of the measurements of these files."""
    if not measurements:
        return
    yield "| file | compared with | divergence | same token | perplexity | of the source |"
    yield "|---|---|--:|--:|--:|--:|"
    for name, row in measurements.items():
        texts = [f"{value:.4g}" for value in row.perplexity] if row.perplexity else ["-", "-"]
        cells = [name, row.source, f"{row.divergence:.2g}", f"{row.agreement:.1%}", *texts]
        yield "| " + " | ".join(cells) + " |"
    yield "\nMeasured with `wb prove`: divergence is the mean Kullback-Leibler divergence of the next token, in nats.\n"


def commands(facts: CardFacts) -> tuple[str, ...]:
    """Returns the commands that run the repository from the Hub."""
    repository = facts.repository
    if facts.unpacked:
        return (f"wb unpack hf://{repository} model/", *filter(None, [run_line(facts.kind, facts.unpacked)]))
    file = shlex.quote(facts.files[0].name)
    if facts.kind == "ggml":
        return (f"hf download {repository} {file} --local-dir .", f"whisper-cli -m {file} -f AUDIO.wav")
    if facts.keys.get("general.type") == "adapter":
        return (f"hf download {repository} {file} --local-dir .", f"llama-server -m BASE.gguf --lora {file}")
    if facts.kind == "peft":
        name = repository.partition("/")[2]
        return (f"vllm serve {facts.base_model or 'BASE'} --enable-lora --lora-modules {name}={repository}",)
    use = use_of(facts.keys)
    if facts.kind != "gguf":
        return tuple(filter(None, [run_line(facts.kind, repository)])) if use in SERVER_FLAGS else ()
    if use not in SERVER_FLAGS:
        towers = next((other.name for other in facts.files if other.towers), "")
        line = run_line(use, facts.files[0].first or facts.files[0].name, towers)
        return (f"hf download {repository} --local-dir .", *([line] if line else []))
    tag = next((f":{f.type}" for f in facts.files if f.type), "")
    served = " ".join(("llama-server", "-hf", f"{repository}{tag}", *SERVER_FLAGS[use]))
    return (served, *([f"ollama run hf.co/{repository}{tag}"] if use == TEXT else []))


def _prompt_format(facts: CardFacts) -> Iterator[str]:
    """Yields the prompt format if the chat template writes turn by turn."""
    try:
        turns = translate(facts.jinja, facts.special).turns if facts.jinja else None
    except UnsupportedError:
        turns = None
    if turns is not None:
        chat = ((("system", "{system}"),) if turns.system is not None else ()) + (("user", "{prompt}"),)
        yield "## Prompt format\n"
        yield f"```\n{turns.render(chat).rstrip()}\n```\n"
