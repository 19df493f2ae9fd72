"""Scans JSON files beside weights: what in them names code, templates, or files elsewhere.

Files are read as Python's own reader does it (NaN, duplicate keys, any width of integers), since that is the one that
loads them; a repeated key that matters is a finding, as other readers take the other one.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.containers.sharded import shard_name
from weighbridge.io.source import Source
from weighbridge.reports.scan import named_code
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    Skipped,
    Use,
    escape,
    finding,
)
from weighbridge.reports.scan.pickle.denylist import consequence
from weighbridge.reports.scan.template import scanner as templates

_D, _M, _U = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "config/own-code": ScanRule(
            _U, "config that names Python code in its own folder (`auto_map`, custom pipelines)"
        ),
        "config/remote-code": ScanRule(_U, "config that names Python code in another repository"),
        "config/trust": ScanRule(_U, "config that tells the loader to trust code of the repository"),
        "config/named-class": ScanRule(_U, "config that names a module or class that its loader doesn't come with"),
        "config/unproven": ScanRule(
            ScanVerdict.UNPROVEN, "config that other readers may take, nested or long beyond ours"
        ),
        "config/keras-code": ScanRule(_D, "Keras config that holds a pickle, or calls what loads code"),
        "config/keras-file": ScanRule(_U, "Keras layer that reads a file or a SavedModel when it is made"),
        "config/target": ScanRule(_U, "config that names a class or function to be called (`_target_`)"),
        "config/dangerous-target": ScanRule(_D, "config that names a function to be called that is known to do harm"),
        "config/expression": ScanRule(_U, "config with Python expressions, which MONAI evaluates"),
        "config/dangerous-expression": ScanRule(
            _D, "config with a Python expression that names what is known to do harm, or Python's insides"
        ),
        "config/lambda": ScanRule(_D, "Keras layer that holds Python code (Lambda)"),
        "config/foreign-class": ScanRule(_U, "Keras config that names a class of a module that is none of Keras'"),
        "config/repeated-key": ScanRule(
            _M, "key that matters here and stands there twice: readers take different ones"
        ),
        "config/unreadable": ScanRule(_M, "config that Python's JSON reader would not take"),
        "index/outside": ScanRule(_D, "shard whose name leads out of the folder"),
    }
)
_TRUSTED: Final = "With trust_remote_code=True this code is imported and runs, with all that the user may do."
# Modules whose classes model configs honestly name: what they make is a model, an optimizer, a dataset.
_KNOWN_TARGETS: Final = ("nemo.", "torch.nn.", "torch.optim.", "omegaconf.", "pytorch_lightning.", "lightning.",
                         "transformers.", "diffusers.", "hydra.utils.get_class", "peft.", "monai.")  # fmt: skip
_KERAS: Final = ("keras", "tensorflow", "tf_keras", "keras_hub", "keras_nlp", "keras_cv", "builtins.NoneType")
_NODES: Final = 2_000_000
_GRAVE: Final = ("any program", "any Python", "any object")  # of the consequences in denylist.toml
_SHOWN: Final = 20  # harmful expressions that are reported
_EVALUATED: Final = 4096  # characters of one that are read
# MONAI's expressions: an import, or what calls something.
_EXPRESSION: Final = re.compile(r"\$\s*(?:import|from)\s|\$(?!\{).*[\w)\]]\s*\(", re.DOTALL)
_IMPORTS: Final = re.compile(r"\$\s*(?:import|from)\s")
_GLOBALS: Final = frozenset({"monai", "torch", "np", "numpy"})  # modules that expressions have without an import
_NAMES: Final = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*")
_TOKENS: Final = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
# Keras functions that a config may name as a value: all but these are numbers' work.
_KERAS_UTILITIES: Final = ("keras.utils", "keras.config", "keras.saving", "keras.src.utils", "keras.src.saving",
                           "keras.src.backend.config", "keras.api.utils", "keras.api.config")  # fmt: skip
_KERAS_FILES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"TFSMLayer": ("filepath",), "StringLookup": ("vocabulary",), "IntegerLookup": ("vocabulary",),
     "TextVectorization": ("vocabulary",)}
)  # fmt: skip
# Configs that loaders read by these names must be JSON; other files may be anything that is called so.
_LOADED: Final = frozenset(
    {"config.json", "tokenizer_config.json", "generation_config.json", "model_index.json", "processor_config.json",
     "preprocessor_config.json", "chat_template.json", "adapter_config.json"}
)  # fmt: skip


class _Object(dict[str, Any]):
    """A JSON object as Python takes it, and the keys that stand in it more than once."""

    repeated: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        made.repeated = frozenset(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
    return made


class _Unread(NamedTuple):
    """Why there is no value."""

    rule: str
    words: str


def _read(data: bytes) -> Any:
    """The value of a JSON text, whatever bytes its strings have."""
    try:
        return json.loads(data.decode(json.detect_encoding(data), "replace"), object_pairs_hook=_object)
    except RecursionError:
        return _Unread("config/unproven", "it is nested too deeply to be read")
    except ValueError as error:
        if "digits" in str(error):
            return _Unread("config/unproven", "it has an integer too long to be read")
        return _Unread("config/unreadable", f"it can't be read as JSON: {error}")


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A JSON file."""
    if source.size > CONFIG_JSON:
        yield Skipped(place.path, place.members, "JSON", f"it is longer than {CONFIG_JSON} bytes")
        return
    budget.spend(source.size)
    value = _read(source.read(0, source.size))
    if isinstance(value, _Unread):
        if value.rule != "config/unreadable" or place.name.lower() in _LOADED:
            yield finding(RULES, value.rule, source, place, value.words)
        return
    walk = _ConfigWalk(source, place)
    for row, name in named_code.named(place.name.lower(), value):
        yield walk.named(row, name)
    yield from walk.all(value)


class _ConfigWalk:
    """All objects of one file, each key that matters with its check."""

    def __init__(self, source: Source, place: MemberPath) -> None:
        self.source, self.place = source, place
        self.expressions: list[str] = []

    def all(self, value: Any) -> Iterator[ScanFinding]:
        stack, count = [value], 0
        while stack and count < _NODES:
            node, count = stack.pop(), count + 1
            if isinstance(node, _Object):
                yield from self.object(node)
                stack += node.values()
            elif isinstance(node, list):
                stack += node
            elif isinstance(node, str) and node[:1] == "$":
                self.expressions.append(node)
        yield from self.evaluated()
        if stack:
            raise UnsupportedError(f"{self.source.name}: more than {_NODES} values in one JSON file")

    def object(self, node: _Object) -> Iterator[ScanFinding]:
        for key in node.keys() & _KEYS.keys():
            yield from _KEYS[key](self, node[key], node)
        for key in sorted(node.repeated & _KEYS.keys()):
            yield self.say("config/repeated-key", f"the key {key!r} stands there twice")

    def say(self, rule: str, words: str, name: str | None = None, consequence: str = "") -> ScanFinding:
        use = Use.IMPORTED if name else None
        return finding(RULES, rule, self.source, self.place, words, name=name, use=use, consequence=consequence)

    # ---- code

    def named(self, row: named_code.NamedCode, name: str) -> ScanFinding:
        module, _, last = name.rpartition(".")
        harm = consequence(module, last)
        rule = "config/dangerous-target" if harm else row.rule
        words = f"{'.'.join(map(str, row.path))} names {name}{self.nearby(name.removesuffix('.py').partition('.')[0])}"
        return self.say(rule, words, name, harm or f"{row.loader}.")

    def auto_map(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        for name in _texts(value):
            yield self.code(name)

    def code(self, name: str) -> ScanFinding:
        """`file.Class`, or `owner/repository--file.Class`."""
        repository, dashes, own = name.rpartition("--")
        if dashes:
            words = f"code of another repository, {repository!r}: {own}"
            return self.say("config/remote-code", words, name, _TRUSTED)
        return self.say(
            "config/own-code", f"code of its own: {name}{self.nearby(own.partition('.')[0])}", name, _TRUSTED
        )

    def nearby(self, module: str) -> str:
        """Whether the module's file lies beside the config."""
        if self.place.members or not module.isidentifier():
            return ""
        there = os.path.lexists(Path(self.place.path).parent / f"{module}.py")
        return f" ({module}.py is there)" if there else f" ({module}.py is not in the folder)"

    def pipelines(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        for name, pipeline in value.items() if isinstance(value, dict) else ():
            code = pipeline.get("impl") if isinstance(pipeline, dict) else None
            yield self.code(code) if isinstance(code, str) else self.say("config/own-code", f"pipeline {name!r}")

    def evaluated(self) -> Iterator[ScanFinding]:
        """The texts that are expressions to MONAI: those that do harm, and how many others there are."""
        known = self.place.name.lower() in _TOKENS
        texts = [] if known else [t for t in dict.fromkeys(self.expressions) if _EXPRESSION.match(t)]
        yield from expressions(texts, self.source, self.place)

    def imports(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        for name in _texts(value.get("imports") if isinstance(value, dict) else value):
            yield from target(f"{name}.*", self.source, self.place)

    def base(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        for name in _texts(value):
            if name.endswith(".py"):
                yield self.say("config/own-code", f"it goes on in {name}", name, "mmengine runs that file.")

    def trust(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        if value is True:
            yield self.say("config/trust", "`trust_remote_code` is set")

    def target(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        if isinstance(value, str) and _DOTTED.fullmatch(value.strip()):
            yield from target(value, self.source, self.place)

    def class_name(self, value: Any, node: _Object) -> Iterator[ScanFinding]:
        """Keras: a Lambda layer, or a class of a module that is none of its own (CVE-2025-1550)."""
        if value in ("Lambda", "__lambda__"):
            words = "a Keras Lambda, whose code is Python bytecode"
            yield self.say("config/lambda", words, consequence="Keras runs it when the model is called.")
        inner = node.get("config")
        if value == "TorchModuleWrapper":
            yield self.say("config/keras-code", "a TorchModuleWrapper, which holds a pickle", "TorchModuleWrapper",
                           "Keras unpickles it with torch.load when the model is loaded.")  # fmt: skip
        if value == "function" and isinstance(inner, str) and _loads_code(str(node.get("module")), inner):
            yield self.say("config/keras-code", f"{node.get('module')}.{inner} is called", inner,
                           "Keras calls it with arguments of the file's choice.")  # fmt: skip
        path = next((inner[k] for k in _KERAS_FILES.get(value, ()) if isinstance(inner, dict) and k in inner), None)
        if isinstance(path, str):
            yield self.say("config/keras-file", f"{value} reads {escape(path)}", value, "It reads a file elsewhere.")
        module = node.get("module")
        if not isinstance(module, str) or not isinstance(value, str) or not _is_foreign(module):
            return
        harm = consequence(module, value)
        yield self.say("config/dangerous-target" if harm else "config/foreign-class", f"{module}.{value} is imported",
                       f"{module}.{value}", harm or "Keras imports the module, which runs its code.")  # fmt: skip

    def template(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        if isinstance(value, dict) and "template" not in value:
            value = [{"name": name, "template": text} for name, text in value.items()]
        several = value if isinstance(value, list) else [value]
        for number, one in enumerate(several):
            text = one.get("template") if isinstance(one, dict) else one
            name = f"template {one.get('name')!r}" if isinstance(one, dict) else "the chat template"
            if isinstance(text, str):
                what = name if len(several) == 1 or isinstance(one, dict) else f"template {number}"
                yield from templates.check(text, self.source, self.place, escape(what))

    # ---- files

    def weight_map(self, value: Any, _: _Object) -> Iterator[ScanFinding]:
        if not isinstance(value, dict):
            return
        for name in dict.fromkeys(v if isinstance(v, str) else repr(v)[:100] for v in value.values()):
            try:
                shard_name(name, "", "")
            except FormatError:
                words = f"a shard is called {name!r}, which is no plain file name"
                yield self.say("index/outside", words, consequence="Loaders read a file elsewhere, or fetch it.")


def target(name: str, source: Source, place: MemberPath) -> Iterator[ScanFinding]:
    """What `_target_: name` would call."""
    module, _, last = name.strip().rpartition(".")
    harm = consequence(module, last)
    if harm:
        yield finding(RULES, "config/dangerous-target", source, place, f"a target names {name}", name=name,
                    use=Use.CALLED, consequence=harm)  # fmt: skip
    elif not name.strip().startswith(_KNOWN_TARGETS):
        yield finding(RULES, "config/target", source, place, f"a target names {name}", name=name, use=Use.CALLED,
                    consequence="Hydra and NeMo import and call it when the model is made.")  # fmt: skip


def expressions(texts: Sequence[str], source: Source, place: MemberPath) -> Iterator[ScanFinding]:
    """What MONAI would evaluate: of other languages with such texts only what Python has as well."""
    judged = [(text, _harm_of(text)) for text in texts]
    reported = [(text, harm) for text, harm in judged if harm is not None]
    for text, harm in [one for one in reported if one[1]][:_SHOWN]:
        words = f"the expression {escape(text)}"
        yield finding(
            RULES, "config/dangerous-expression", source, place, words, use=Use.CALLED, consequence=harm or ""
        )
    if reported:
        words = f"{len(reported)} expressions, {escape(reported[0][0])} among them"
        yield finding(RULES, "config/expression", source, place, words, use=Use.CALLED,
                      consequence="MONAI evaluates them when the model is made.")  # fmt: skip


# `${name}`, or `$ {name} more`, is no Python: a template of another kind.
_TEMPLATE: Final = re.compile(r"\$\s*\{\w*\}\s+(?!(?:if|or|and|in|is|not|for)\b)\w")


def _harm_of(expression: str) -> str | None:
    """What harm an expression does; "" where it imports or calls something that may do any; None where it names nothing
    that MONAI has."""
    if _TEMPLATE.match(expression):
        return None
    out = "" if len(expression) > _EVALUATED or _IMPORTS.match(expression) else None
    for match in _NAMES.finditer(expression[:_EVALUATED]):
        parts = [part.strip() for part in match[0].split(".")]
        if any(part.startswith("__") for part in parts):
            return "It reaches for Python's insides."
        harm = consequence(".".join(parts[:-1]) or "builtins", parts[-1])
        if harm and any(word in harm for word in _GRAVE):  # honest ones list files, and load weights
            return harm
        out = "" if harm or parts[0] in _GLOBALS else out
    return out


def _loads_code(module: str, name: str) -> bool:
    return module.startswith(_KERAS_UTILITIES) or name in ("get_file", "enable_unsafe_deserialization", "load_model")


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in _KERAS


def _texts(value: Any) -> Iterator[str]:
    """Strings of a value of lists and dicts: `auto_map` has strings, pairs, and dicts of them."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node


_Check = Callable[[_ConfigWalk, Any, _Object], Iterator[ScanFinding]]
_KEYS: Final[Mapping[str, _Check]] = MappingProxyType(
    {
        "auto_map": _ConfigWalk.auto_map,
        "custom_pipelines": _ConfigWalk.pipelines,
        "trust_remote_code": _ConfigWalk.trust,
        "_target_": _ConfigWalk.target,
        "target": _ConfigWalk.target,
        "class_path": _ConfigWalk.target,
        "custom_imports": _ConfigWalk.imports,
        "_base_": _ConfigWalk.base,
        "class_name": _ConfigWalk.class_name,
        "chat_template": _ConfigWalk.template,
        "chat_templates": _ConfigWalk.template,
        "weight_map": _ConfigWalk.weight_map,
    }
)
