"""Scans text files: YAML that names Python objects, Python sources, shell scripts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote

from weighbridge.base.limits import CONFIG_JSON
from weighbridge.io.source import Source
from weighbridge.reports.scan import configs
from weighbridge.reports.scan.model import Budget, MemberPath, Piece, ScanRule, ScanVerdict, Skipped, Use, finding
from weighbridge.reports.scan.pickle.denylist import consequence

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "yaml/python-tag": ScanRule(ScanVerdict.DANGEROUS, "YAML tag that calls or imports what is known to do harm"),
        "yaml/python-name": ScanRule(
            ScanVerdict.UNKNOWN_CODE, "YAML tag that imports a module, or calls what is in it"
        ),
        "yaml/hyper-tag": ScanRule(ScanVerdict.UNKNOWN_CODE, "hyperpyyaml tag that imports, calls or includes"),
        "yaml/tag-alias": ScanRule(ScanVerdict.MALFORMED, "YAML that gives tags other names"),
        "source/script": ScanRule(ScanVerdict.DATA_ONLY, "source code; nothing that loads weights runs it by itself"),
        "torchscript/source": ScanRule(ScanVerdict.UNKNOWN_CODE, "code of a TorchScript program"),
        "torchscript/files": ScanRule(ScanVerdict.DANGEROUS, "TorchScript code that reads or writes files"),
    }
)
_TAG: Final = re.compile(r"!<[^>\s]*>|![^\s,\[\]{}\"']+")
_PYTHON: Final = re.compile(r"(?:!!|!<?tag:yaml\.org,2002:)python/([\w/]+):?([\w.]*)")
# Tags of PyYAML that make plain values.
_PLAIN_TAGS: Final = frozenset(
    ["none", "bool", "str", "unicode", "bytes", "int", "long", "float", "complex", "list", "tuple", "dict"]
)
# hyperpyyaml (SpeechBrain): what follows is imported, called, or read from a file.
_HYPER: Final = re.compile(r"!(new|apply|name|module|include|applyref):([\w./\\~-]+)")
_ALIAS: Final = re.compile(r"^%TAG\s", re.MULTILINE)
# A key by which hydra, LDM, MLflow or jsonargparse name what they import (also through an alias), the rest of its line,
# and the next.
_KEYED: Final = re.compile(
    r"""(?:^|[{,\s])(?:["']?(_target_|target|loader_module|class_path|name|type|module)["']?|\*([\w-]+))\s*:"""
    r"""[ \t\n]*([^\n]*)(?:\n([^\n]*))?""",
    re.MULTILINE,
)
_ANCHOR: Final = re.compile(r"""&([\w-]+)[ \t]+(?:!\S*[ \t]+)?["']?([\w.]+)""")
_PROPERTY: Final = re.compile(r"(?:[&!]\S*\s+)+")
_BLOCK: Final = re.compile(r"[|>][-+\d]*\s*(?:#.*)?\Z")
_NAME: Final = re.compile(r"""["']?([^\W\d][\w.]*)["']?\s*(?:[,}#].*)?\Z""")
_IMPORTED: Final = ("_target_", "loader_module")  # a bare name is a module, too
_NAMING: Final = frozenset({"target", "class_path", *_IMPORTED})


class _Loader(NamedTuple):
    """A loader that imports what `key` names in files with the word `sign`, unless it is of its own package."""

    key: str
    sign: str
    own: str


_LOADERS: Final = (
    _Loader("name", "pipeline", "pyannote."),
    _Loader("type", "init_parameters", "haystack"),
    _Loader("module", "bentoml_version", "bentoml."),
)
# Words that name files or modules that run: rule, what must stand in the file besides, and what follows.
_RUNNING: Final = (
    ("model_code_path", "", "config/own-code", "MLflow runs that file when the model is loaded."),
    ("custom_imports", "", "config/named-class", "mmengine imports these modules when it reads the file."),
    ("_base_", ".py", "config/own-code", "mmengine runs that file when it reads this one."),
)
# MONAI's expressions, as values or items.
_EXPRESSION: Final = re.compile(
    r"""(?:[:\[,]|^\s*-)\s*["']?(\$(?:\s*(?:import|from)\s[^\n]*|(?!\{)[^\n]*[\w)\]]\s*\([^\n]*))""", re.M
)
# A double-quoted key may spell its letters as numbers.
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_LOADS: Final = "yaml.load with an unsafe loader makes the object, which runs its code."
_IMPORTS: Final = "yaml.load with an unsafe loader imports the module, which runs its code."
_MADE: Final = "hyperpyyaml imports and calls it when the file is loaded."
_HYPER_KNOWN: Final = ("speechbrain.", "torch.", "torchaudio.", "transformers.", "numpy.", "math.", "random.")
# Operators of TorchScript that touch the file system, or leave it for a library's own code (ops.NAMESPACE.name).
_FILES: Final = re.compile(
    r"\b(?:torch\.(?:save|load|from_file)|ops\.(?:aten\.(?:save|load|from_file)|image\.(?:read|write)_file))\b"
)


def yaml(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A YAML file, by its text alone: no parser makes anything of it."""
    text = _text(source, place, budget)
    if isinstance(text, Skipped):
        yield text
        return
    text = _ESCAPE.sub(lambda m: _letter(m), text)
    for tag in dict.fromkeys(unquote(m[0]) for m in _TAG.finditer(text)):
        yield from _tagged(tag, source, place)
    if _ALIAS.search(text):
        yield finding(RULES, "yaml/tag-alias", source, place, "a %TAG line gives tags other names", consequence=_LOADS)
    yield from configs.expressions(list(dict.fromkeys(_EXPRESSION.findall(text))), source, place)
    for word, besides, rule, harm in _RUNNING:
        if re.search(rf"\b{word}\b", text) and besides in text:
            yield finding(configs.RULES, rule, source, place, f"{word} names code", name=word, consequence=harm)
    for name in dict.fromkeys(_targets(text)):
        if not name.startswith("mlflow."):
            yield from configs.target(name, source, place)


def _targets(text: str) -> Iterator[str]:
    """What the keys of `_KEYED` name: also by an alias, behind a tag, on the lines below, or put together by hydra."""
    anchors: dict[str, set[str]] = {}
    for name, value in _ANCHOR.findall(text):
        anchors.setdefault(name, set()).add(value)
    loaders = {loader.key: loader.own for loader in _LOADERS if loader.sign in text}
    for match in _KEYED.finditer(text):
        key, alias, value, below = match[1], match[2], match[3].strip(), match[4] or ""
        keys = ({key} if key else anchors.get(alias, set())) & (_NAMING | loaders.keys())
        imported = bool(keys & set(_IMPORTED))
        own = tuple(loaders[key] for key in keys & loaders.keys())
        for name in _names_in(_PROPERTY.sub("", value), below, anchors) if keys else ():
            if ("." in name or imported) and not (own and name.startswith(own)):
                yield name


def _names_in(value: str, below: str, anchors: Mapping[str, set[str]]) -> Iterable[str]:
    """The names that a value may be. `${{` is of GitHub's workflows, and no interpolation of OmegaConf's."""
    if value[:1] == "*":
        return sorted(anchors.get(re.split(r"[\s,}]", value[1:])[0], {"an.alias"}))
    if _BLOCK.match(value):
        value = below.strip()
    match = _NAME.match(value)
    if match is not None:
        return (match[1],)
    interpolated = "${" in value.partition("#")[0].replace("${{", "")
    return ("an.interpolation",) if interpolated else ()


def _tagged(tag: str, source: Source, place: MemberPath) -> Iterator[Piece]:
    """What a tag makes a loader do."""
    python = _PYTHON.match(tag)
    if python is not None and python[1] not in _PLAIN_TAGS:
        module, _, last = python[2].rpartition(".")
        harm = not last or consequence(module or "builtins", last) or consequence(python[2], "*")
        imported = python[1] in ("name", "module")
        rule = "yaml/python-tag" if harm else "yaml/python-name"
        yield finding(
            RULES, rule, source, place, f"the tag {tag}", name=tag, consequence=_IMPORTS if imported else _LOADS
        )
    for word, name in _HYPER.findall(tag) if python is None else ():
        module, _, last = name.rpartition(".")
        harm = consequence(module, last)
        if harm:
            yield finding(configs.RULES, "config/dangerous-target", source, place, f"!{word}: names {name}", name=name,
                          use=Use.CALLED, consequence=harm)  # fmt: skip
        elif word == "include" or not name.startswith(_HYPER_KNOWN):
            yield finding(
                RULES, "yaml/hyper-tag", source, place, f"!{word}: names {name}", name=name, consequence=_MADE
            )


def _letter(match: re.Match[str]) -> str:
    code = int(match[1] or match[2] or match[3], 16)
    return chr(code) if code < 0x110000 else "\ufffd"


def script(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """Source code: of a TorchScript program what it does to files, of others that it is there."""
    parts = place.members[-1].replace("\\", "/").split("/") if place.members else []
    if "code" not in parts or not place.name.endswith(".py"):
        yield finding(RULES, "source/script", source, place, "source code", at=0)
        return
    text = _text(source, place, budget)
    if isinstance(text, Skipped):
        yield text
        return
    words = "the code of a class of the program"
    yield finding(
        RULES, "torchscript/source", source, place, words, consequence="It runs when the model is loaded or called."
    )
    for name in dict.fromkeys(m[0] for m in _FILES.finditer(text)):
        yield finding(RULES, "torchscript/files", source, place, f"it calls {name}", name=name,
                    consequence="The program reads or writes a file of its choice.")  # fmt: skip


def _text(source: Source, place: MemberPath, budget: Budget) -> str | Skipped:
    if source.size > CONFIG_JSON:
        return Skipped(place.path, place.members, "text", f"it is longer than {CONFIG_JSON} bytes")
    budget.spend(source.size)
    data = source.read(0, source.size)
    for mark, codec in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(codec, "replace")
    return data.decode("utf-8-sig", "replace")
