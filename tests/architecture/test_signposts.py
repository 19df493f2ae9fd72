"""Every file and name that the docs, docstrings and comments point to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.architecture import house

import weighbridge
from weighbridge.base import plugins

_FILE = re.compile(r"`([\w./-]+\.(?:py|pyi|toml|cpp|h|md))`(?: `([A-Za-z_][\w.]*)`)?")
_DOTTED = re.compile(r"`((?:weighbridge|wb)(?:\.\w+)+)(?:\([^`]*)?`")
_MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`")
#: Scripts of llama.cpp; entry-point groups, a GGUF's key and a placeholder.
_OTHERS = {
    "convert_hf_to_gguf.py",
    "convert_lora_to_gguf.py",
    "convert-pt-to-ggml.py",
    "convert-h5-to-ggml.py",
    "zero_to_fp32.py",
}
_NOT_NAMES = {
    plugins.FORMATS,
    plugins.PACKINGS,
    plugins.BLOCK_TYPES,
    plugins.FAMILIES,
    plugins.PROVIDERS,
    "weighbridge.reserved",
    "wb.plan_NAME",
}
#: Results of commands lie below it: no file of a checkout.
_RESULTS = "build/"
#: Generated from the reference's own tests.
_PAGES_OF_PEERS = ("docs/peers-safetensors.md",)
#: First folders of our paths. Others are paths in the sources of llama.cpp, torch ..., cited without backticks.
_OURS = {path.name for path in [*house.PACKAGE.iterdir(), *house.ROOT.iterdir()] if path.is_dir()}


class Text(NamedTuple):
    place: str
    text: str


@cache
def texts() -> tuple[Text, ...]:
    """Docstrings and comments of the package and its tests, and the lines of the pages."""
    tracked = [path for path in house.tracked() if "redteam" not in path.parts]
    found = []
    for path in tracked:
        if path.suffix == ".py":
            lines = [(t.line, t.text) for t in house.texts(path) if t.comment or t.text.startswith('"""')]
        elif path.suffix == ".md":
            lines = list(enumerate(path.read_text("utf-8").splitlines(), 1))
        else:
            continue
        found += [Text(f"{path.relative_to(house.ROOT)}:{line}", text) for line, text in lines]
    return tuple(found)


@cache
def names() -> frozenset[str]:
    """`room/file.py` for each file below the package, and the path of each file from the root."""
    tracked = house.tracked()
    from_root = {path.relative_to(house.ROOT).as_posix() for path in tracked}
    rooms = {path.relative_to(house.PACKAGE).as_posix() for path in tracked if house.PACKAGE in path.parents}
    return frozenset(from_root | rooms)


@cache
def file_of(name: str) -> Path | None:
    """The file that a text names by its path from the root or from the package, or by its bare name."""
    if name in names():
        path = house.PACKAGE / name
        return path if path.exists() else house.ROOT / name
    if "/" in name:
        ends = [known for known in names() if known.endswith(f"/{name}")]
        return house.ROOT / ends[0] if ends else None
    return next((path for path in house.tracked() if path.name == name), None)


@cache
def definitions(path: Path) -> frozenset[str]:
    """The names that a file defines: `function`, `Class`, `Class.method`, `CONSTANT`."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                for part in ast.walk(target) if target is not None else ():
                    if isinstance(part, ast.Name):
                        yield prefix + part.id
                    elif isinstance(part, ast.Attribute):
                        yield prefix + part.attr
            if isinstance(node, ast.If | ast.Try | ast.With | ast.FunctionDef):
                if isinstance(node, ast.FunctionDef) and not prefix:
                    continue
                yield from inside(node.body, prefix)

    return frozenset(inside(house.tree(path).body, ""))


@cache
def members() -> dict[str, frozenset[str]]:
    """Class -> its members, of all classes of the package; a class with a base outside of it isn't listed."""
    bases: dict[str, list[str]] = {}
    own: dict[str, set[str]] = {}
    for path in house.modules():
        for node in house.nodes(path):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, []).extend(ast.unparse(base).split("[")[0] for base in node.bases)
                prefix = f"{node.name}."
                own.setdefault(node.name, set()).update(
                    name.removeprefix(prefix) for name in definitions(path) if name.startswith(prefix)
                )
                for method in node.body:
                    for part in ast.walk(method) if isinstance(method, ast.FunctionDef) else ():
                        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                            own[node.name].add(part.attr)
    abstract = {"ABC", "Protocol", "Generic", "NamedTuple", "msgspec.Struct", "Struct", "Exception", "ValueError"}

    def all_of(name: str, depth: int = 0) -> set[str] | None:
        if name in abstract:
            return set()
        if name not in own or depth > 8:
            return None
        parts = [all_of(base, depth + 1) for base in bases[name]]
        if any(part is None for part in parts):
            return None
        return own[name].union(*(part for part in parts if part))

    return {name: frozenset(found) for name in own if (found := all_of(name)) is not None}


def test_files_exist() -> None:
    wrong = []
    for place, text in texts():
        for name, inside in _FILE.findall(text):
            first = name.partition("/")[0]
            cited = ("/" in name and first not in _OURS) or name in _OTHERS or place.startswith(_PAGES_OF_PEERS)
            if cited or name.startswith(_RESULTS):
                continue
            path = file_of(name)
            if path is None and ("/" in name or name.endswith(".py")):
                wrong.append(f"{place}: {name}")
            elif path is not None and inside and path.suffix == ".py" and inside not in definitions(path):
                wrong.append(f"{place}: {inside} in {name}")
    assert wrong == []


def test_dotted_names_exist() -> None:
    wrong = []
    for place, text in texts():
        for dotted in set(_DOTTED.findall(text)) - _NOT_NAMES:
            value: object = weighbridge
            path = "weighbridge"
            for part in dotted.split(".")[1:]:
                path += f".{part}"
                value = _attribute(value, part, path)
                if value is None:
                    wrong.append(f"{place}: {dotted}")
                    break
    assert wrong == []


def _attribute(value: object, name: str, path: str) -> object | None:
    import importlib

    if hasattr(value, name):
        found: object = getattr(value, name)
        return found
    fields = getattr(value, "__dataclass_fields__", None) or getattr(value, "__annotations__", None) or {}
    if name in fields:
        return object()
    try:
        return importlib.import_module(path)
    except ImportError:
        return None


def test_members_exist() -> None:
    known = members()
    wrong = [
        f"{place}: {owner}.{name}"
        for place, text in texts()
        for owner, name in _MEMBER.findall(text)
        if owner in known and name not in known[owner] and f"{owner}.{name}" != "Modelfile.q4"  # a file's name
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [("`io/nowhere.py`", True), ("`io/source.py` `no_such`", True), ("`io/source.py` `Source.read`", False)],
)
def test_a_stale_signpost_is_seen(text: str, fault: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "texts", lambda: (Text("here:1", text),))
    if fault:
        with pytest.raises(AssertionError):
            test_files_exist()
    else:
        test_files_exist()
