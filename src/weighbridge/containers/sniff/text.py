"""Recognisers of texts in place of weights (LFS pointers, web pages, error messages) and of the JSON files that
accompany weights."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.limits import SNIFF_WHOLE
from weighbridge.containers.sniff.probe import Confidence, Hit, Probe


class _Start(NamedTuple):
    """Text that begins with `pattern`. `digest` and `size`: the patterns by which a pointer states those of the real
    file."""

    format: str
    variant: str
    pattern: re.Pattern[str]
    evidence: str
    digest: str = ""
    size: str = ""


def _start(kind: str, variant: str, pattern: str, evidence: str, *real_file: str) -> _Start:
    return _Start(kind, variant, re.compile(pattern, re.IGNORECASE), evidence, *real_file)


# Sources of the pointers: git-lfs docs/spec.md; git-annex's pages "pointer file" and "key format"
# (BACKEND-sSIZE--DIGEST); xet-core's pointer_file.rs, whose hash is that of a Merkle tree.
_STARTS: Final = (
    _start("git-lfs-pointer", "", r"version https://(git-lfs|hawser)\.github\.com/spec/v1",
           "the text of a Git LFS pointer", r"^oid sha256:([0-9a-f]{64})$", r"^size (\d{1,19})$"),
    _start("git-annex-pointer", "", r"/annex/objects/[A-Z0-9_]{1,32}-[^\n]{1,1000}(\n|$)",
           "the text of a git-annex pointer", r"^/annex/objects/SHA256E?-[^\n]*?--([0-9a-f]{64})",
           r"^/annex/objects/[^\n]*?-s(\d{1,19})-"),
    _start("xet-pointer", "", r"# xet version \d", "the text of a Xet pointer", "", r"^filesize = (\d{1,19})$"),
    _start("html", "", r"\s*(<!--.{0,2000}?-->\s*)?<(!doctype\s+html|html|head|body)\b", "an HTML page"),
    _start("error-text", "xml", r"\s*(<\?xml[^>]{0,200}>\s*)?<Error>", "an XML error message of a storage server"),
    _start("error-text", "", r"\s*(Entry not found|Repository not found|Invalid (username|credentials)|Unauthorized"
           r"|Access to model .{1,200} is restricted|Not Found|404: |403 Forbidden|Found\. Redirecting)",
           "an error message of a download server"),
    _start("xml", "", r"\s*<\?xml\b", "an XML document"),
    _start("modelfile", "", r"(#.{0,200}\n|\s){0,20}FROM\s+\S+", "an Ollama Modelfile (FROM ...)"),
    _start("tiktoken", "", r"([A-Za-z0-9+/]{2,200}={0,2} \d{1,7}\r?\n){3}",
           "lines of base64 and rank (tiktoken vocabulary)"),
)  # fmt: skip


def text(probe: Probe) -> Hit | None:
    """Text with a known beginning."""
    if probe.text is None:
        return None
    start = probe.text[:8192]
    for row in _STARTS:
        if row.pattern.match(start):
            oid, size = (re.search(p, start, re.MULTILINE) if p else None for p in (row.digest, row.size))
            detail: dict[str, Any] = {"oid": f"sha256:{oid[1]}"} if oid else {}
            detail |= {"size": int(size[1])} if size else {}
            evidence = [row.evidence, *([repr(start[:80].strip())] if row.format == "error-text" else [])]
            title = re.search(r"<title[^>]{0,100}>([^<]{1,200})</title>", start, re.IGNORECASE)
            if title and row.format == "html":
                evidence.append(f"titled {title[1].strip()!r}")
            return Hit(row.format, row.variant, tuple(evidence), detail=detail)
    return None


class _Keys(NamedTuple):
    variant: str
    all_of: frozenset[str]
    evidence: str


def _keys(variant: str, keys: str, evidence: str) -> _Keys:
    return _Keys(variant, frozenset(keys.split()), evidence)


# Top-level keys that identify a JSON file; the first row whose keys all exist wins.
_JSON: Final = (
    _keys("sharded-index", "weight_map", "weight_map: the index of a sharded checkpoint"),
    _keys("peft-config", "peft_type", "peft_type: the config of an adapter"),
    _keys("diffusers-pipeline", "_class_name _diffusers_version scheduler", "a diffusers pipeline"),
    _keys("diffusers-config", "_class_name _diffusers_version", "the config of a diffusers component"),
    _keys("hf-config", "model_type", "model_type: a Hugging Face model config"),
    _keys("hf-config", "architectures", "architectures: a Hugging Face model config"),
    _keys("tokenizer", "model added_tokens pre_tokenizer", "a tokenizers file (model, added_tokens, pre_tokenizer)"),
    _keys("tokenizer-config", "tokenizer_class", "tokenizer_class: a tokenizer config"),
    _keys("tokenizer-config", "added_tokens_decoder", "added_tokens_decoder: a tokenizer config"),
    _keys("generation-config", "_from_model_config", "a generation config"),
    _keys("generation-config", "eos_token_id transformers_version", "a generation config"),
    _keys("quantize-config", "bits group_size", "a quantization config (bits, group_size)"),
    _keys("quantize-config", "quantization producer", "a ModelOpt quantization config"),
    _keys("preprocessor-config", "image_processor_type", "an image processor config"),
    _keys("mistral-params", "dim n_layers n_heads", "params.json of Meta or Mistral (dim, n_layers, n_heads)"),
    _keys("notebook", "cells nbformat", "a Jupyter notebook"),
    _keys("error", "error", "an error message in JSON"),
)


# An object begins with a key or its end, so a chat template's `{{ bos_token }}` isn't JSON.
_JSON_START: Final = re.compile(r'\{\s*["}]|\[\s*["\[{\]\d-]')


def json(probe: Probe) -> Hit | None:
    """A JSON object or array."""
    start = (probe.text or "").lstrip()
    if start[:1] not in ("{", "["):
        return None
    if probe.size > SNIFF_WHOLE:  # keys of the head, which may be nested ones
        return _by_keys(frozenset(re.findall(r'"([^"\\]{1,64})"\s{0,8}:', start)), "likely", {})
    try:
        value = msgspec.json.decode(probe.at(0, probe.size).removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        if not _JSON_START.match(start):
            return None
        return Hit(
            "json", evidence=("starts as JSON",), confidence="guess", damage=("it is not valid JSON to its end",)
        )
    if not isinstance(value, dict):
        return Hit("json", "array", ("valid JSON",))
    shown = ("model_type", "architectures", "peft_type", "_class_name", "tokenizer_class", "error")
    detail: dict[str, Any] = {key: value[key] for key in shown if isinstance(value.get(key), str | list)}
    if isinstance(value.get("weight_map"), dict):
        shards = {file for file in value["weight_map"].values() if isinstance(file, str)}
        detail |= {"tensors": len(value["weight_map"]), "shards": len(shards)}
    return _by_keys(frozenset(value), "certain", detail)


def _by_keys(keys: frozenset[str], confidence: Confidence, detail: dict[str, Any]) -> Hit:
    row = next((row for row in _JSON if row.all_of <= keys), None)
    if row is None:
        return Hit("json", "", ("JSON object",), confidence, detail)
    return Hit("json", row.variant, ("JSON object", row.evidence), confidence, detail)


def plain(probe: Probe) -> Hit | None:
    """Any other text."""
    if probe.text is None:
        return None
    first = probe.text[:60].strip().splitlines()[:1]
    return Hit("text", evidence=(f"text that starts {first[0]!r}" if first else "blank text",), confidence="likely")
