"""Scans text files: JSON, YAML under any name, Python sources, shell scripts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from weighbridge.base.limits import CONFIG_JSON, YAML_SIZE
from weighbridge.reports.scan import names
from weighbridge.reports.scan.model import Part, Piece, Skipped, Use
from weighbridge.reports.scan.text import configs, yaml_tree

SCRIPT_NAMES: Final = ("*.py", "*.pyw", "*.sh", "*.bash", "*.bat", "*.ps1")
YAML_NAMES: Final = ("*.yaml", "*.yml", "mlmodel", "*.dvc")
_PYTHON: Final = re.compile(r"(?:.*:|!+)?python/([\w/]+):?([\w.]*)")
# Tags of PyYAML that make plain values.
_PLAIN_TAGS: Final = frozenset(
    ["none", "bool", "str", "unicode", "bytes", "int", "long", "float", "complex", "list", "tuple", "dict"]
)
# hyperpyyaml (SpeechBrain): the rest of the tag is imported, called, or read from a file.
_HYPER: Final = re.compile(r"!(new|apply|name|module|include|applyref):(.*)", re.DOTALL)
# A text names nothing to a loader of YAML without one of these: a tag, a key, an expression, escaped letters.
_KEYS: Final = (
    r"_target_|\btarget\b|class_path|loader_module|model_code_path|custom_imports|_base_|auto_map|chat_template"
    r"|trust_remote_code|class_name|init_parameters|components|bentoml_version|pipeline|preprocessors|weight_map"
)
_MAY_NAME: Final = re.compile(rf"!|\\|\$|{_KEYS}")
# For texts that PyYAML refuses: tags and keys that other loaders of YAML obey.
_NAMES_CODE: Final = re.compile(
    r"(?:^|[\s\[{,:?-])(?:!!?<?(?:tag:yaml\.org,2002:)?python/|![\w!-]*(?:new|apply|name|module|include|applyref):)"
    r"|^%TAG\s|(?<!\w)(?:_target_|class_path|loader_module)(?!\w)", re.MULTILINE
)  # fmt: skip
# Line breaks of YAML 1.1 that are letters in YAML 1.2.
_OLD_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
# Double-quoted text may have escaped letters, and continue on the next line.
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|\r?\n[ \t]*)")
_LONG: Final = f"it is longer than {YAML_SIZE} characters"
_LOADS: Final = "yaml.load with an unsafe loader creates the object, which runs its code."
_IMPORTS: Final = "yaml.load with an unsafe loader imports the module, which runs its code."
_HYPER_LOADS: Final = "hyperpyyaml imports and calls it when the file is loaded."
# Operators of TorchScript that access the file system, or call a library's code (ops.NAMESPACE.name).
_FILES: Final = re.compile(
    r"\b(?:torch\.(?:save|load|from_file)|ops\.(?:aten\.(?:save|load|from_file)|image\.(?:read|write)_file))\b"
)


def json(part: Part) -> Iterator[Piece]:
    """Scans a JSON file, or a text that isn't JSON despite its name."""
    if part.source.size > CONFIG_JSON:
        yield part.skipped("JSON", f"it is longer than {CONFIG_JSON} bytes")
        return
    part.budget.spend(part.source.size)
    value = configs.read_json(part.source.read(0, part.source.size))
    if isinstance(value, configs.Unread):
        # Any file may have this name, unless loaders read files of this name as JSON.
        if value.rule != "config/unreadable" or configs.is_loaded(part.place.name):
            yield part.finding(value.rule, value.reason)
        yield from _scan_text(part)
    else:
        yield from configs.check(value, part)


def scan(part: Part) -> Iterator[Piece]:
    """Scans a text of any name, which a loader may read as YAML. JSON and source code have their own scanners."""
    if not _is_named(part, ("*.json", *SCRIPT_NAMES)):
        yield from _scan_text(part)


def _is_named(part: Part, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(part.place.name.lower(), pattern) for pattern in patterns)


def _scan_text(part: Part) -> Iterator[Piece]:
    text = _read_text(part)
    if isinstance(text, Skipped):
        yield text
        return
    if not _MAY_NAME.search(text):
        return
    parsed = yaml_tree.read(text) if len(text) <= YAML_SIZE else yaml_tree.YamlText(refused=_LONG)
    for tag in dict.fromkeys(map(unquote, parsed.tags)):
        yield from _check_tag(tag, part)
    if parsed.handles:
        yield part.finding("yaml/tag-alias", "a %TAG line renames tags", consequence=_LOADS)
    yield from configs.check([value for value in parsed.documents if not isinstance(value, str)], part)
    names_code = _NAMES_CODE.search(_ESCAPE.sub(_unescape, text))
    if parsed.refused and (_is_named(part, YAML_NAMES) or names_code):
        yield part.finding("yaml/unproven", parsed.refused)
    elif _OLD_BREAKS.search(text) and names_code:
        yield part.finding("yaml/unproven", "line breaks that are letters in YAML 1.2")


def _check_tag(tag: str, part: Part) -> Iterator[Piece]:
    """Reports tags that make a loader import or call."""
    python = _PYTHON.match(tag)
    if python is not None and python[1] not in _PLAIN_TAGS:
        module, _, last = python[2].rpartition(".")
        harm = not last or names.harm_of(module or "builtins", last) or names.harm_of(python[2], "*")
        consequence = _IMPORTS if python[1] in ("name", "module") else _LOADS
        rule = "yaml/python-tag" if harm else "yaml/python-name"
        yield part.finding(rule, f"the tag {tag}", name=tag, consequence=consequence)
    hyper = _HYPER.match(tag) if python is None else None
    if hyper is not None:
        word, name = hyper[1], hyper[2].strip()
        is_known, harm = names.judge(name)
        message = f"!{word}: names {name}"
        if harm:
            yield part.finding("config/dangerous-target", message, name=name, use=Use.CALLED, consequence=harm)
        elif word == "include" or not is_known:
            yield part.finding("yaml/hyper-tag", message, name=name, consequence=_HYPER_LOADS)


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    code = int(digits, 16) if digits else -1
    return "" if code < 0 else chr(code) if code < 0x110000 else "\ufffd"


def script(part: Part) -> Iterator[Piece]:
    """Reports source code, and the file access of TorchScript code."""
    steps = part.place.members[-1].replace("\\", "/").split("/") if part.place.members else []
    if "code" not in steps or not part.place.name.endswith(".py"):
        yield part.finding("source/script", "source code", at=0)
        return
    text = _read_text(part)
    if isinstance(text, Skipped):
        yield text
        return
    yield part.finding("torchscript/source", "the code of a class of the program",
                       consequence="It runs when the model is loaded or called.")  # fmt: skip
    for name in dict.fromkeys(m[0] for m in _FILES.finditer(text)):
        yield part.finding("torchscript/files", f"it calls {name}", name=name,
                           consequence="The program reads or writes any file.")  # fmt: skip


def _read_text(part: Part) -> str | Skipped:
    if part.source.size > CONFIG_JSON:
        return part.skipped("text", f"it is longer than {CONFIG_JSON} bytes")
    part.budget.spend(part.source.size)
    data = part.source.read(0, part.source.size)
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf16 else "utf-8-sig", "replace")
