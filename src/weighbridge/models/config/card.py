"""The front matter of a model card (README.md): the YAML between two lines of dashes, as plain data.

A card is untrusted text of any shape. It only ever names things (license, tags, base models), so what can't be read is
no error: the reader says why in a note, and the conversion goes on without it. The reference's two repairs before
parsing are kept (gguf-py/gguf/metadata.py `load_model_card`): Norwegian's code isn't False, and tabs are two spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weighbridge.base.limits import MODEL_CARD

Card = Mapping[str, Any]


def read_card(readme: bytes | None) -> tuple[dict[str, Any], str | None]:
    """The front matter of a README.md and, where there is one that can't be read, the reason."""
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
        data = yaml.safe_load(text)  # in Python: the C loader dies of deep nesting, this one raises
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as e:
        return (
            {},
            f"the model card's front matter can't be read: {str(e).splitlines()[0] if str(e) else type(e).__name__}",
        )
    if not isinstance(data, dict):
        return {}, "the model card's front matter is no mapping"
    return {str(key): value for key, value in data.items()}, None


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
    """A card's value as text; None for what is no single value (nested aliases can stand for more than memory
    holds)."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, list | dict | tuple | set | bytes):
        return None
    return str(value)


def scalars(value: Any) -> list[str]:
    """One value or a list of values as texts."""
    values = value if isinstance(value, list) else [value]
    return [text for v in values if (text := scalar(v)) is not None]


# Which keys of a card say what `general.*` says, in the order they are asked; `base_model` and `datasets` hold objects.
_WRITTEN = ("name", "author", "version", "organization", "finetune", "basename", "description", "size_label", "license")
_RENAMED = {"license.name": "license_name", "license.link": "license_link", "source.url": "url", "source.doi": "doi",
            "source.uuid": "uuid", "source.repo_url": "repo_url", "tags": "tags", "languages": "language"}  # fmt: skip


def write_card(metadata: Mapping[str, Any]) -> bytes | None:
    """A README.md whose front matter gives back a GGUF's `general.*`; None where it has none of it."""
    fields = {name: metadata.get(f"general.{name}") for name in _WRITTEN}
    fields |= {card: metadata.get(f"general.{name}") for name, card in _RENAMED.items()}
    fields["base_model"] = _listed(metadata, "base_model")
    fields["datasets"] = _listed(metadata, "dataset")
    declared = {key: value for key, value in fields.items() if value is not None}
    if not declared:
        return None
    return front_matter(declared).encode()


def front_matter(fields: Mapping[str, Any]) -> str:
    """The fields as YAML between two lines of dashes."""
    body = "".join(f"{key}: {_flow(value)}\n" for key, value in fields.items())
    return f"---\n{body}---\n"


def _flow(value: Any) -> str:
    """A value in YAML's flow style, on one line."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    return "[" + ", ".join(_flow(v) for v in value) + "]"


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar (YAML 1.1, 5.7): what isn't printable is escaped, bytes that were no UTF-8 too."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def _listed(metadata: Mapping[str, Any], kind: str) -> list[dict[str, Any]] | None:
    """The objects that `general.base_model.0.name` and so on spell."""
    prefix = f"general.{kind}."
    if f"{prefix}count" not in metadata:
        return None
    found: dict[int, dict[str, Any]] = {}
    for key in metadata:
        number, _, name = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and number.isdecimal() and name and len(number) < 6:
            found.setdefault(int(number), {})[name] = metadata[key]
    return [found[n] for n in sorted(found)]
