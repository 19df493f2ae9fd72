"""The page at a server's address: the models, their files, and the commands for each client. Plain HTML without
scripts or external resources, or the same as text for clients that don't accept HTML."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final, NamedTuple
from urllib.parse import quote

from weighbridge.adapters.serving.replies import ServedFile
from weighbridge.base.words import plural

_STYLE: Final = (
    ":root{color-scheme:light dark;background:light-dark(#f6f6f3,#141517);color:light-dark(#1d1f23,#e7e7e3)}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.3rem;margin:0;overflow-wrap:anywhere}p{margin:.2rem 0 1rem;color:light-dark(#5d6168,#a0a4ab)}"
    "pre,table{background:light-dark(#fff,#1b1d20);border:1px solid light-dark(#e2e2dc,#303338);border-radius:8px}"
    "pre{padding:.7rem 1rem;margin:0 0 1rem;white-space:pre-wrap;overflow-wrap:anywhere}"
    "pre,a{font:13px/1.6 ui-monospace,Menlo,Consolas,monospace}a{color:light-dark(#1f5f8b,#7fb8e0);display:block}"
    "a{text-decoration:none}a:hover{text-decoration:underline}table{width:100%;border-spacing:0;padding:.4rem 0}"
    "td{padding:.2rem 1rem;overflow-wrap:anywhere}td+td{text-align:right;white-space:nowrap;padding-left:0}"
    "td+td{font-size:13px;font-variant-numeric:tabular-nums;color:light-dark(#5d6168,#a0a4ab)}td+td:empty{display:none}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TAG: Final = "Q4_K_M"  # used in the examples if available
_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]+")


def _broken(text: str) -> str:
    """A name that a narrow window breaks at its dots, underscores and hyphens."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[._/-])(?=[A-Za-z]{3})", text)))


class IndexRow(NamedTuple):
    """A line of a list: its text, its link, the text at its end."""

    text: str
    address: str
    note: str = ""


class IndexPage(NamedTuple):
    title: str
    words: str
    commands: tuple[str, ...]
    rows: tuple[IndexRow, ...]

    def html(self) -> str:
        rows = "".join(
            f'<tr><td><a href="{escape(row.address)}">{_broken(row.text)}</a></td><td>{escape(row.note)}</td></tr>'
            for row in self.rows
        )
        title, commands = escape(self.title), escape("\n".join(self.commands))
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(self.words)}</p><pre>{commands}</pre>"
            f"<table>{rows}</table></html>"
        )

    def text(self) -> str:
        rows = (f"{row.address}  {row.note}".rstrip() for row in self.rows)
        return "\n".join([self.title, "", self.words, "", *self.commands, "", *rows, ""])


def index(repositories: Iterable[str], host: str, token: bool) -> IndexPage:
    """The repositories. `host`: the Host header of the request."""
    rows = tuple(IndexRow(f"local/{name}", f"/local/{quote(name)}") for name in repositories)
    words = "Files are computed when they are read. If a model doesn't support a form, its page gives the reason."
    return IndexPage(plural(len(rows), "repository"), words, _environment(host, token), rows)


def repository(
    name: str,
    files: Mapping[str, ServedFile],
    missing: Mapping[str, str],
    flags: tuple[str, ...] | None,
    host: str,
    token: bool,
) -> IndexPage:
    """The files of one repository. `missing`: what isn't there, and why. `flags`: llama-server's for its GGUFs; None if
    it doesn't run them."""
    rows = tuple(
        IndexRow(path, f"/local/{quote(name)}/resolve/main/{quote(path)}", f"{file.size:,} bytes")
        for path, file in files.items()
    )
    tags = [found[1] for path in files if (found := re.search(r"-([A-Z0-9_]+)\.gguf\Z", path))]
    commands = [f"hf download local/{name}"]
    if tags and flags is not None:
        model, tag = name.removesuffix("-GGUF"), _TAG if _TAG in tags else tags[0]
        commands += [" ".join(("llama-server", "-hf", f"local/{name}:{tag}", *flags))]
        commands += [f"ollama pull --insecure http://{_safe(host)}/local/{model}:{tag}"] * (not token)
    words = "; ".join([plural(len(rows), "file"), *(f"no {what}: {why}" for what, why in missing.items())])
    return IndexPage(f"local/{name}", words, (*_environment(host, token), "", *commands), rows)


def _environment(host: str, token: bool) -> tuple[str, ...]:
    return (f"export HF_ENDPOINT=http://{_safe(host)}", *(("export HF_TOKEN=...",) if token else ()))


def _safe(host: str) -> str:
    return host if _HOST.fullmatch(host) else "127.0.0.1"
