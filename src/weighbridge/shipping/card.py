"""The model card of what is shipped to the Hub: metadata that the Hub reads, and what people look for in the text.

Keys: https://huggingface.co/docs/hub/model-cards. What an existing card says is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UnsupportedError
from weighbridge.fitting.quality import quality
from weighbridge.models.config.card import front_matter, read_card
from weighbridge.shipping.measured import MeasuredQuality
from weighbridge.shipping.ollama.turns import translate

_LIBRARIES: Final = {"gguf": "gguf", "mlx": "mlx", "hf": "transformers"}
_TITLES: Final = {"gguf": "GGUF", "mlx": "MLX", "hf": "safetensors"}
_HUB: Final = re.compile(r"(?:https?://huggingface\.co/)?([\w.-]+/[\w.-]+?)/?")
_BODY: Final = re.compile(rb"\A---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CardFile:
    """A file with weights. `type`: its file type, "" where it has none; `bits`: per weight."""

    name: str
    type: str
    bytes: int
    bits: float


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of. `kind`: gguf, mlx or hf. `keys`: those of a GGUF, as config_to_gguf has them for others;
    `jinja`: the chat template; `quantized`: whether weights are."""

    repository: str
    kind: str
    files: tuple[CardFile, ...]
    keys: Mapping[str, Any]
    jinja: str | None
    special: Mapping[str, str]
    quantized: bool
    base_model: str | None
    measured: Mapping[str, MeasuredQuality] = field(default_factory=dict)


def card(facts: CardFacts, existing: bytes | None = None) -> tuple[str, tuple[str, ...]]:
    """The card's text, and what should be added by hand."""
    old, trouble = read_card(existing)
    fields = {**_fields(facts), **old}
    notes = [trouble] if trouble else []
    if "base_model" not in fields:
        notes.append("the card names no base model: --base-model ORG/NAME")
    if "license" not in fields:
        notes.append("the card names no licence, and the model's keys don't either")
    body = _BODY.sub(b"", existing or b"").decode("utf-8", "replace").strip()
    return front_matter(fields) + "\n" + (body or "\n".join(_body(facts, fields))).strip() + "\n", tuple(notes)


def _fields(facts: CardFacts) -> dict[str, Any]:
    """The metadata, without what isn't known."""
    keys = facts.keys
    base = facts.base_model or _base_model(keys)
    licence = keys.get("general.license")
    fields: dict[str, Any] = {
        "base_model": base,
        "base_model_relation": "quantized" if base and (facts.quantized or facts.kind != "hf") else None,
        "license": licence,
        "license_name": keys.get("general.license.name") if licence == "other" else None,
        "license_link": keys.get("general.license.link") if licence == "other" else None,
        "library_name": _LIBRARIES[facts.kind],
        "pipeline_tag": _pipeline(keys),
        "language": list(keys.get("general.languages") or ()) or None,
        "quantized_by": facts.repository.partition("/")[0] if facts.quantized else None,
        "tags": list(_tags(facts)) or None,
    }
    return {name: value for name, value in fields.items() if value}


def _base_model(keys: Mapping[str, Any]) -> str | None:
    """The base model by a GGUF's keys, as the Hub spells it."""
    named = keys.get("general.base_model.0.repo_url") or keys.get("general.source.repo_url")
    found = _HUB.fullmatch(named) if isinstance(named, str) else None
    return found[1] if found else None


def _pipeline(keys: Mapping[str, Any]) -> str | None:
    architecture = keys.get("general.architecture")
    if architecture is None:
        return None
    return "feature-extraction" if f"{architecture}.pooling_type" in keys else "text-generation"


def _tags(facts: CardFacts) -> Iterator[str]:
    if facts.kind != "hf":
        yield facts.kind
    if any(key.startswith("quantize.imatrix.") for key in facts.keys):
        yield "imatrix"
    if facts.jinja:
        yield "conversational"


def _body(facts: CardFacts, fields: Mapping[str, Any]) -> Iterator[str]:
    name = facts.repository.partition("/")[2]
    yield f"# {name}\n"
    base = fields.get("base_model")
    if isinstance(base, str):
        yield f"[{base}](https://huggingface.co/{base}) as {_TITLES[facts.kind]}.\n"
    yield from _table(facts.files)
    yield from _measured(facts.measured)
    yield "## Run it\n"
    yield "```"
    yield from commands(facts)
    yield "```\n"
    if facts.jinja:
        yield from _prompt(facts)
    yield f"Made with Weighbridge {__version__}."


def _table(files: Sequence[CardFile]) -> Iterator[str]:
    """The files; of quantized GGUFs with what their types lose, as it was published."""
    known = quality().type
    rated = any(file.type in known for file in files)
    heads = ["file", "type", "size", "bits per weight", *(["perplexity", "divergence"] if rated else [])]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * 2 + "--:|" * (len(heads) - 2)
    for file in files:
        cells = [file.name, file.type or "-", f"{file.bytes / 1e9:.2f} GB", f"{file.bits:.2f}"]
        if rated:
            loss = known.get(file.type)
            cells += [f"+{loss.ppl:g}", f"{loss.kld:g}"] if loss else ["-", "-"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    if rated:
        yield f"Perplexity and divergence are of another model, for orientation: {quality().source}.\n"


def _measured(found: Mapping[str, MeasuredQuality]) -> Iterator[str]:
    """What was measured of these files themselves."""
    if not found:
        return
    yield "| file | compared with | divergence | same token | perplexity | of the source |"
    yield "|---|---|--:|--:|--:|--:|"
    for name, one in found.items():
        texts = [f"{value:.4g}" for value in one.perplexity] if one.perplexity else ["-", "-"]
        cells = [name, one.source, f"{one.divergence:.2g}", f"{one.agreement:.1%}", *texts]
        yield "| " + " | ".join(cells) + " |"
    yield "\nMeasured with `wb prove`: divergence is the mean Kullback-Leibler divergence of the next token, in nats.\n"


def commands(facts: CardFacts) -> tuple[str, ...]:
    """How the repository is used, from the Hub itself."""
    where = facts.repository
    if facts.kind == "mlx":
        return (f"mlx_lm.chat --model {where}",)
    if facts.kind == "hf":
        return (f"vllm serve {where}",)
    tag = next((f":{f.type}" for f in facts.files if f.type), "")
    return (f"llama-server -hf {where}{tag}", f"ollama run hf.co/{where}{tag}")


def _prompt(facts: CardFacts) -> Iterator[str]:
    """The prompt format, where it is written turn by turn."""
    try:
        turns = translate(facts.jinja or "", facts.special).turns
    except UnsupportedError:
        return
    chat = ((("system", "{system}"),) if turns.system is not None else ()) + (("user", "{prompt}"),)
    yield "## Prompt format\n"
    yield f"```\n{turns.render(chat).rstrip()}\n```\n"
