"""Scans the values of JSON and YAML files for names of code, templates, and files elsewhere.

JSON is read as Python's own reader does it (NaN, duplicate keys, integers of any width), since loaders use that one. A
repeated key that matters is a finding, as other readers use its first value.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import JINJA_TOTAL
from weighbridge.base.words import plural
from weighbridge.containers.sharded import shard_name
from weighbridge.reports.scan import names
from weighbridge.reports.scan.model import Part, Piece, ScanFinding, Use, escape
from weighbridge.reports.scan.pickle.denylist import consequence
from weighbridge.reports.scan.template import scanner as templates
from weighbridge.reports.scan.text import named_code
from weighbridge.reports.scan.text.yaml_tree import Opaque, ParsedMapping

_TRUSTED: Final = "With trust_remote_code=True this code is imported and runs with all rights of the user."
_KERAS: Final = ("keras", "tensorflow", "tf_keras", "keras_hub", "keras_nlp", "keras_cv", "builtins.NoneType")
# Operators of ATen, which the graph of an exported program calls (torch/_export/serde): they compute, except for the
# one that maps a file.
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(aten|prims)\.(?!from_file\.)(?!__(?!i?(and|or|xor|lshift|rshift)__\.))[a-zA-Z_]\w*\.[a-zA-Z]\w*",
    re.ASCII,
)
_NODES: Final = 2_000_000
_GRAVE: Final = ("any program", "any Python", "any object")  # in the consequences of denylist.toml
_SHOWN: Final = 20  # harmful expressions that are reported
_EVALUATED: Final = 4096  # characters of one that are read
# MONAI's expressions: an import, or a call.
_EXPRESSION: Final = re.compile(r"\$\s*(?:import|from)\s|\$(?!\{).*[\w)\]]\s*\(", re.DOTALL)
_IMPORTS: Final = re.compile(r"\$\s*(?:import|from)\s")
# `${name}`, or `$ {name} more`, isn't Python but another kind of template.
_TEMPLATE: Final = re.compile(r"\$\s*\{\w*\}\s+(?!(?:if|or|and|in|is|not|for)\b)\w")
_GLOBALS: Final = frozenset({"monai", "torch", "np", "numpy"})  # modules that expressions have without an import
_NAMES: Final = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*")
_TOKENS: Final = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
# Keras functions that a config may name as a value: all others only compute.
_KERAS_UTILITIES: Final = ("keras.utils", "keras.config", "keras.saving", "keras.src.utils", "keras.src.saving",
                           "keras.src.backend.config", "keras.api.utils", "keras.api.config")  # fmt: skip
_KERAS_LOADERS: Final = ("get_file", "enable_unsafe_deserialization", "load_model")
# Keras layers that read a file, and the setting with its path.
_KERAS_FILES: Final = MappingProxyType(
    {"TFSMLayer": "filepath", "StringLookup": "vocabulary", "IntegerLookup": "vocabulary",
     "TextVectorization": "vocabulary"}
)  # fmt: skip
# Loaders read files with these names as JSON; a file with another name may be anything.
_LOADED: Final = frozenset(
    {"config.json", "tokenizer_config.json", "generation_config.json", "model_index.json", "processor_config.json",
     "preprocessor_config.json", "chat_template.json", "adapter_config.json"}
)  # fmt: skip


class Unread(NamedTuple):
    """The rule that a text breaks which has no value, and why."""

    rule: str
    reason: str


def read_json(data: bytes) -> Any:
    """The value of a JSON text, whatever bytes its strings have; an `Unread` if there is none."""

    def mapping(pairs: list[tuple[str, Any]]) -> ParsedMapping:
        return ParsedMapping().fill(pairs)

    try:
        return json.loads(data.decode(json.detect_encoding(data), "replace"), object_pairs_hook=mapping)
    except RecursionError:
        return Unread("config/unproven", "it is nested too deeply to be read")
    except ValueError as error:
        if not isinstance(error, json.JSONDecodeError):  # int() refuses thousands of digits
            return Unread("config/unproven", "it has an integer too long to be read")
        return Unread("config/unreadable", f"it can't be read as JSON: {error}")


def is_loaded(name: str) -> bool:
    """Whether loaders read a file called `name` as JSON."""
    return name.lower() in _LOADED


def check(value: Any, part: Part) -> Iterator[Piece]:
    """The findings on a file's value."""
    walk = _ConfigWalk(part)
    for row, name in named_code.named(part.place.name.lower(), value):
        module, _, last = name.rpartition(".")
        harm = names.harm_of(module, last)
        rule = "config/dangerous-target" if harm else row.rule
        nearby = walk.nearby(name.removesuffix(".py").partition(".")[0])
        message = f"{'.'.join(map(str, row.path))} names {name}{nearby}"
        yield walk.report(rule, message, name, harm or f"{row.loader}.")
    yield from walk.check_all(value)


class _ConfigWalk:
    """Visits all objects of one file and checks each key that matters."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.expressions: list[str] = []
        self.left = JINJA_TOTAL  # characters of templates that are read

    def check_all(self, value: Any) -> Iterator[ScanFinding]:
        stack, count = [value], 0
        seen: set[int] = set()  # of YAML's collections, which aliases repeat
        while stack and count < _NODES:
            node, count = stack.pop(), count + 1
            if isinstance(node, ParsedMapping | list):
                if id(node) in seen:
                    continue
                seen.add(id(node))
            if isinstance(node, ParsedMapping):
                for key in node.keys() & _KEYS.keys():
                    yield from _KEYS[key](self, node[key], node)
                for key in sorted(node.repeated & _KEYS.keys()):
                    yield self.report("config/repeated-key", f"the key {key!r} occurs twice")
                stack += node.values()
            elif isinstance(node, list):
                stack += node
            elif isinstance(node, str) and node[:1] == "$":
                self.expressions.append(node)
        if self.part.place.name.lower() not in _TOKENS:
            texts = [text for text in dict.fromkeys(self.expressions) if _EXPRESSION.match(text)]
            # Texts of other languages that don't name anything in Python aren't reported.
            judged = [(text, harm) for text in texts if (harm := _harm_of(text)) is not None]
            for text, harm in [(text, harm) for text, harm in judged if harm][:_SHOWN]:
                yield self.part.finding(
                    "config/dangerous-expression", f"the expression {escape(text)}", use=Use.CALLED, consequence=harm
                )
            if judged:
                message = f"{plural(len(judged), 'expression')}, including {escape(judged[0][0])}"
                yield self.part.finding("config/expression", message, use=Use.CALLED,
                                   consequence="MONAI evaluates them when the model is created.")  # fmt: skip
        if stack:
            raise UnsupportedError(f"{self.part.source.name}: more than {_NODES} values in one file")

    def report(self, rule: str, message: str, name: str | None = None, consequence: str = "") -> ScanFinding:
        use = Use.IMPORTED if name else None
        return self.part.finding(rule, message, name=name, use=use, consequence=consequence)

    # ---- code

    def auto_map(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        for name in _texts(value):
            yield self.own_code(name)

    def own_code(self, name: str) -> ScanFinding:
        """Reports `file.Class`, or `owner/repository--file.Class`."""
        repository, dashes, local = name.rpartition("--")
        if dashes:
            message = f"code of the repository {repository!r}: {local}"
            return self.report("config/remote-code", message, name, _TRUSTED)
        message = f"its own code: {name}{self.nearby(local.partition('.')[0])}"
        return self.report("config/own-code", message, name, _TRUSTED)

    def nearby(self, module: str) -> str:
        """Says whether the module's file is next to the config."""
        if self.part.place.members or not module.isidentifier():
            return ""
        exists = os.path.lexists(Path(self.part.place.path).parent / f"{module}.py")
        return f" ({module}.py exists)" if exists else f" ({module}.py is not in the folder)"

    def pipelines(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        for name, pipeline in value.items() if isinstance(value, dict) else ():
            code = pipeline.get("impl") if isinstance(pipeline, dict) else None
            yield self.own_code(code) if isinstance(code, str) else self.report("config/own-code", f"pipeline {name!r}")

    def imports(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        for name in _texts(value.get("imports") if isinstance(value, dict) else value):
            yield from self.judge(f"{name}.*")

    def base(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        for name in _texts(value):
            if name.endswith(".py"):
                yield self.report("config/own-code", f"it extends {name}", name, "mmengine runs that file.")

    def trust(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        if value is True:
            yield self.report("config/trust", "`trust_remote_code` is set")

    def target(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        """A dotted name that is imported and called, or one that only the loader can assemble."""
        computed = isinstance(value, Opaque) or (isinstance(value, str) and "${" in value.replace("${{", ""))
        if computed or (isinstance(value, str) and named_code.DOTTED.fullmatch(value.strip())):
            yield from self.judge(value)

    def module(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        """A name that is imported and called, even without a dot."""
        if isinstance(value, str) and value.strip() and not value.startswith("mlflow."):
            yield from self.judge(value)

    def judge(self, name: str) -> Iterator[ScanFinding]:
        """Reports what `_target_: name` calls."""
        if _OPERATOR.fullmatch(name):
            return
        is_known, harm = names.judge(name)
        message = f"a target names {name}"
        if harm:
            yield self.part.finding(
                "config/dangerous-target", message, name=name.strip(), use=Use.CALLED, consequence=harm
            )
        elif not is_known or isinstance(name, Opaque):
            yield self.part.finding("config/target", message, name=name, use=Use.CALLED,
                                    consequence="Hydra and NeMo import and call it on creation.")  # fmt: skip

    def model_code(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        for name in _texts(value):
            yield self.report("config/own-code", f"model_code_path names {name}", name,
                              "MLflow runs that file when the model is loaded.")  # fmt: skip

    def pipeline(self, value: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        """pyannote.audio."""
        if isinstance(value, dict):
            yield from self.foreign(value.get("name"), "pyannote.", node)

    def preprocessors(self, value: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        for child in value.values() if isinstance(value, dict) else ():
            yield from self.pipeline(child, node)

    def haystack(self, _: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        yield from self.foreign(node.get("type"), "haystack", node)

    def components(self, value: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        for child in value.values() if isinstance(value, dict) else ():
            if isinstance(child, dict) and "init_parameters" not in child:
                yield from self.foreign(child.get("type"), "haystack", node)

    def bentoml(self, value: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        if isinstance(value, dict) and "bentoml_version" in value:
            yield from self.foreign(node.get("module"), "bentoml.", node)

    def foreign(self, value: Any, package: str, node: ParsedMapping) -> Iterator[ScanFinding]:
        """A name that a loader imports, unless it is in the loader's own package."""
        if isinstance(value, str) and not (value.startswith(package) and names.is_class(value, (package.rstrip("."),))):
            yield from self.target(value, node)

    def class_name(self, value: Any, node: ParsedMapping) -> Iterator[ScanFinding]:
        """Keras: a Lambda layer, or a class of a module outside Keras (CVE-2025-1550)."""
        inner, module = node.get("config"), node.get("module")
        if value in ("Lambda", "__lambda__"):
            message = "a Keras Lambda, whose code is Python bytecode"
            yield self.report("config/lambda", message, consequence="Keras runs it when the model is called.")
        if value == "TorchModuleWrapper":
            yield self.report("config/keras-code", "a TorchModuleWrapper, which holds a pickle", "TorchModuleWrapper",
                              "Keras unpickles it with torch.load when the model is loaded.")  # fmt: skip
        if value == "function" and isinstance(inner, str) and (
            str(module).startswith(_KERAS_UTILITIES) or inner in _KERAS_LOADERS
        ):  # fmt: skip
            yield self.report("config/keras-code", f"{module}.{inner} is called", inner,
                              "Keras calls it with arguments from the file.")  # fmt: skip
        if not isinstance(value, str):
            return
        path = inner.get(_KERAS_FILES.get(value)) if isinstance(inner, dict) else None
        if isinstance(path, str):
            yield self.report("config/keras-file", f"{value} reads {escape(path)}", value, "It reads another file.")
        if isinstance(module, str) and module.partition(".")[0] not in _KERAS:
            harm = names.harm_of(module, value)
            rule = "config/dangerous-target" if harm else "config/foreign-class"
            yield self.report(rule, f"{module}.{value} is imported", f"{module}.{value}",
                              harm or "Keras imports the module, which runs its code.")  # fmt: skip

    def template(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        if isinstance(value, dict) and "template" not in value:
            value = [{"name": name, "template": text} for name, text in value.items()]
        several = value if isinstance(value, list) else [value]
        for number, entry in enumerate(several):
            text, label = entry, "the chat template" if len(several) == 1 else f"template {number}"
            if isinstance(entry, dict):
                text, label = entry.get("template"), f"template {entry.get('name')!r}"
            if isinstance(text, str) and self.left >= 0:
                self.left -= len(text)
                if self.left < 0:
                    message = f"the templates of the file are longer than {JINJA_TOTAL} characters"
                    yield self.part.finding("template/unproven", message)
                    return
                yield from templates.check(text, self.part, escape(label))

    # ---- files

    def weight_map(self, value: Any, _: ParsedMapping) -> Iterator[ScanFinding]:
        if not isinstance(value, dict):
            return
        for name in dict.fromkeys(v if isinstance(v, str) else repr(v)[:100] for v in value.values()):
            try:
                shard_name(name, "", "")
            except FormatError:
                message = f"a shard is called {name!r}, which isn't a plain file name"
                yield self.report("index/outside", message, consequence="Loaders read or fetch a file elsewhere.")


def _harm_of(expression: str) -> str | None:
    """The harm of an expression; "" if it imports or calls something whose harm is unknown; None if it uses no name
    that MONAI provides."""
    if _TEMPLATE.match(expression):
        return None
    harmless = "" if len(expression) > _EVALUATED or _IMPORTS.match(expression) else None
    for match in _NAMES.finditer(expression[:_EVALUATED]):
        steps = [step.strip() for step in match[0].split(".")]
        if any(step.startswith("__") for step in steps):
            return "It accesses Python internals."
        harm = consequence(".".join(steps[:-1]) or "builtins", steps[-1])
        if harm and any(phrase in harm for phrase in _GRAVE):  # legitimate ones list files and load weights
            return harm
        harmless = "" if harm or steps[0] in _GLOBALS else harmless
    return harmless


def _texts(value: Any) -> Iterator[str]:
    """The strings in nested lists and dicts: `auto_map` has strings, pairs, and dicts of them."""
    stack, seen = [value], set[int]()
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict | list) and id(node) not in seen:
            seen.add(id(node))
            stack += node.values() if isinstance(node, dict) else node


_Check = Callable[[_ConfigWalk, Any, ParsedMapping], Iterator[ScanFinding]]
_KEYS: Final[Mapping[str, _Check]] = MappingProxyType(
    {
        "auto_map": _ConfigWalk.auto_map,
        "custom_pipelines": _ConfigWalk.pipelines,
        "trust_remote_code": _ConfigWalk.trust,
        "_target_": _ConfigWalk.module,
        "loader_module": _ConfigWalk.module,
        "model_code_path": _ConfigWalk.model_code,
        "pipeline": _ConfigWalk.pipeline,
        "preprocessors": _ConfigWalk.preprocessors,
        "init_parameters": _ConfigWalk.haystack,
        "components": _ConfigWalk.components,
        "context": _ConfigWalk.bentoml,
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
