"""The front matter of a model card (README.md): the YAML between two lines of dashes, as plain data.

A card is untrusted text that only names things (license, tags, base models). An unreadable card is therefore not an
error: the reader returns the reason, and the conversion continues without the card. Parsing is preceded by the
reference's two repairs (gguf-py/gguf/metadata.py `load_model_card`): the language code `no` isn't False, and a tab is
two spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.limits import MODEL_CARD

Card = Mapping[str, Any]


def read_card(readme: bytes | None) -> tuple[dict[str, Any], str | None]:
    """Returns the front matter of a README.md, and the reason if it can't be read."""
    text = _front_matter(readme)
    if not text.strip():
        return {}, None
    if len(text) > MODEL_CARD:
        return {}, f"the model card's front matter is longer than {MODEL_CARD} bytes"
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return {}, "the model card's front matter is YAML, and PyYAML isn't installed"
    try:
        data = yaml.safe_load(text)  # in Python: the C loader crashes on deep nesting, this one raises
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        return {}, f"the model card's front matter can't be read: {reason}"
    if not isinstance(data, dict):
        return {}, "the model card's front matter isn't a mapping"
    return {str(key): value for key, value in data.items()}, None


# Keys whose values the Hub accepts only as texts or lists of texts.
_TEXTS: Final = frozenset({
    "base_model", "base_model_relation", "datasets", "language", "languages", "library_name", "license", "license_link",
    "license_name", "metrics", "model_creator", "model_name", "name", "new_version", "pipeline_tag", "quantized_by",
    "tags", "thumbnail", "version",
})  # fmt: skip


def read_card_as_written(readme: bytes | None) -> tuple[dict[str, Any], str | None]:
    """Returns `read_card`'s result with texts as their author wrote them, including those that YAML converts
    (`language: no`, `version: 1.10`). For a card that is written again."""
    card, reason = read_card(readme)
    if not card.keys() & _TEXTS:
        return card, reason
    import yaml

    texts = yaml.load(_front_matter(readme), yaml.BaseLoader)
    return {k: texts[k] if k in _TEXTS and value is not None else value for k, value in card.items()}, reason


def _front_matter(readme: bytes | None) -> str:
    if readme is None or not readme[:5].strip().startswith(b"---"):
        return ""
    lines = readme.decode("utf-8", "replace").splitlines()
    if lines[0] != "---":
        return ""
    end = next((i for i, line in enumerate(lines) if i and line == "---"), len(lines))
    text = "\n".join(lines[1:end]) + "\n"
    return text.replace("- no\n", '- "no"\n').replace("\t", "  ")


def scalar(value: Any) -> str | None:
    """Returns a card's value as text, or None for a collection (nested aliases can expand beyond memory)."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, list | dict | tuple | set | bytes):
        return None
    return str(value)


def scalars(value: Any) -> list[str]:
    """Returns one value or a list of values as texts."""
    values = value if isinstance(value, list) else [value]
    return [text for v in values if (text := scalar(v)) is not None]


# The card's keys for `general.*`, of the same name or renamed; `base_model` and `datasets` hold objects.
_WRITTEN = ("name", "author", "version", "organization", "finetune", "basename", "description", "size_label", "license")
_RENAMED = {"license.name": "license_name", "license.link": "license_link", "source.url": "url", "source.doi": "doi",
            "source.uuid": "uuid", "source.repo_url": "repo_url", "tags": "tags", "languages": "language"}  # fmt: skip


def write_card(metadata: Mapping[str, Any]) -> bytes | None:
    """Returns a README.md with a GGUF's `general.*` as front matter, or None if the GGUF has none of its keys."""
    fields = {name: metadata.get(f"general.{name}") for name in _WRITTEN}
    fields |= {card: metadata.get(f"general.{name}") for name, card in _RENAMED.items()}
    fields["base_model"] = _listed(metadata, "base_model")
    fields["datasets"] = _listed(metadata, "dataset")
    declared = {key: value for key, value in fields.items() if value is not None}
    return front_matter(declared).encode() if declared else None


def front_matter(fields: Mapping[str, Any]) -> str:
    """Returns the fields as YAML between two lines of dashes."""
    body = "".join(f"{key}: {_flow(value)}\n" for key, value in fields.items())
    return f"---\n{body}---\n"


def _flow(value: Any) -> str:
    """Returns a value in YAML's flow style, on one line."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    if value is None:
        return "null"
    return "[" + ", ".join(map(_flow, value)) + "]" if isinstance(value, list | tuple | set) else _quoted(str(value))


def _quoted(text: str) -> str:
    """Quotes text as a YAML scalar (YAML 1.1, 5.7). Escapes what isn't printable, and bytes that weren't UTF-8."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def _listed(metadata: Mapping[str, Any], kind: str) -> list[dict[str, Any]] | None:
    """Returns the objects whose fields are `general.base_model.0.name` and so on."""
    prefix = f"general.{kind}."
    if f"{prefix}count" not in metadata:
        return None
    origins: dict[int, dict[str, Any]] = {}
    for key in metadata:
        number, _, name = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and number.isdecimal() and name and len(number) < 6:
            origins.setdefault(int(number), {})[name] = metadata[key]
    return [origins[n] for n in sorted(origins)]
