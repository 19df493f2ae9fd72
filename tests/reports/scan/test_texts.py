"""Whatever PyYAML sees in a text, a scan sees: every spelling, in every encoding, under every name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import ScanVerdict
from weighbridge.reports.scan.text import scanner as texts
from weighbridge.reports.scan.text import yaml_tree

NAMES = ("config.yaml", "c.YML", "MLmodel", "config", "model.cfg", "notes.txt", "x.conf", "README.md", "odd.json", "h")
BREAKS = ("\n", "\r", "\r\n", "\x85", "\u2028", "\u2029")
CODECS = ("utf-8", "utf-8-sig", "utf-16")
#: Texts in which PyYAML's safe loader finds a mapping with `_target_: os.system`; ~ is a line's end.
TARGETS = (
    "m:~  _target_: os.system~",
    "m:~  _target_:~    # the class~    os.system~",
    "m:~  _target_: # the class~    os.system~",
    'm:~  _target_: "os.sys\\~    tem"~',
    'm: {"\\x5ftarget_": "os\\u002esystem"}~',
    "m: {_target_: os.system, a: 1}~",
    "m: {? _target_ : 'os.system'}~",
    "? m~: ? _target_~  : os.system~",
    "a: &t os.system~m:~  _target_: *t~",
    "k: &k _target_~m:~  *k : os.system~",
    "m:~  ? *k~  : 1~",
    "m: !!map~  !!str _target_: !!str os.system~",
    "m: !x &a~  _target_: ! os.system~",
    "m:~  _target_: >-~    os.system~",
    "m:~  _target_: |-~    os.system~",
    "m:~  _target_: 'os.system'  # c~",
    "- - - _target_: os.system~",
    "? {_target_: os.system}~: 1~",
    "? [{_target_: os.system}]~: 1~",
    "a: 1~---~_target_: os.system~",
    "--- {_target_: os.system}~...~",
    "%YAML 1.1~---~_target_: os.system~",
    "a: &b {_target_: os.system}~c: {<<: *b}~",
    "a: '~~ x'~_target_: os.system~",
    '{"_target_":"os.system"}~# c~',
    "a: |~ text~_target_: os.system~",
)
#: Texts with a tag that PyYAML's unsafe loader obeys.
TAGS = (
    "a: !!python/object/apply:os.system ['true']~",
    "!!python/object/apply:os.system ['true']~",
    "a: !<tag:yaml.org,2002:python/object/apply:os.system> ['true']~",
    "a: !!%70ython/object/apply:os.system ['true']~",
    "# c~%TAG !e! tag:yaml.org,2002:python/~---~a: !e!object/apply:os.system ['true']~",
    "%TAG ! tag:yaml.org,2002:python/~---~a: !object/apply:os.system ['true']~",
    "%TAG !! tag:yaml.org,2002:python/~---~a: !!object/apply:os.system ['true']~",
    "a: &b !!python/object/apply:os.system~  - 'true'~",
    "? !!python/name:os.system~: 1~",
    "{a: !!python/object/apply:os.system {args: [x]}}~",
    "a: 1~---~!!python/object/apply:os.system [x]~",
    "<html>: !!python/object/apply:os.system [x]~",
    '{"a": !!python/object/apply:os.system [x]}~',
)


def _objects(value: Any) -> Iterator[Any]:
    stack, seen = [value], set[int]()
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list | tuple) and id(node) not in seen:
            seen.add(id(node))
            yield node
            stack += [*node.keys(), *node.values()] if isinstance(node, dict) else node


class Lax(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's loader, to which any tag is what it tags, and anything a key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        pairs = [(self.construct_object(k, True), self.construct_object(v, True)) for k, v in node.value]
        return {k if isinstance(k, str) else (id(k), str(k)): v for k, v in pairs} | {("keys",): [k for k, _ in pairs]}


def _whatever(loader: Lax, suffix: str, node: Any) -> Any:
    make = {"scalar": loader.construct_scalar, "sequence": loader.construct_sequence}.get(node.id)
    return make(node) if make else loader.construct_mapping(node)


Lax.add_multi_constructor("", _whatever)
Lax.add_constructor("tag:yaml.org,2002:map", Lax.construct_mapping)


def targets(text: str | bytes) -> set[str]:
    """What `_target_` names, to PyYAML."""
    try:
        documents = list(yaml.load_all(text, Lax))
    except yaml.YAMLError:
        return set()
    return {str(o["_target_"]) for o in _objects(documents) if isinstance(o, dict) and "_target_" in o}


def verdict(data: bytes, name: str) -> ScanVerdict:
    return scan_source(BytesSource(data, name), name).verdict


SPELLED = [t for t in TARGETS if "*k~" not in t]


@pytest.mark.parametrize("text", SPELLED, ids=range(len(SPELLED)))
def test_a_target_is_seen_however_it_is_spelled(text: str) -> None:
    for line, codec, name in product(BREAKS, CODECS, NAMES):
        data = text.replace("~", line).encode(codec)
        if "os.system" in targets(data):
            assert verdict(data, name) is ScanVerdict.DANGEROUS, (line, codec, name)
    assert "os.system" in targets(text.replace("~", "\n"))


@pytest.mark.parametrize("text", TAGS, ids=range(len(TAGS)))
def test_a_tag_is_seen_however_it_is_spelled(text: str) -> None:
    for line, codec, name in product(BREAKS, CODECS, NAMES):
        data = text.replace("~", line).encode(codec)
        tags = {e.tag for e in yaml.parse(data) if isinstance(e, yaml.NodeEvent) and getattr(e, "tag", None)}
        assert any("python/" in tag for tag in tags)
        assert verdict(data, name) is ScanVerdict.DANGEROUS, (line, codec, name)


def test_text_that_pyyaml_refuses_is_unproven_where_it_could_name_code() -> None:
    for text in ("\t_target_: x\n[", "a: !new:x.Y\n\t- [", '"\\x5ftarget_": [', "a: 1\n%TAG ! x\nb: ["):
        for name in NAMES:
            assert verdict(text.encode(), name) is ScanVerdict.UNPROVEN, (text, name)


def test_prose_is_data() -> None:
    for text in ("# Title\n\n![image](a.png) Hello!\n\n```python\nx: int = {\n```\n", "a\n\tb: [c\n", "Hello\\x41!\n"):
        assert verdict(text.encode(), "README.md") is ScanVerdict.DATA_ONLY


PIECES = st.sampled_from(
    ["_target_", "os.system", ": ", "\n", "  ", "- ", "? ", "#", "'", '"', "\\x5f", "\\\n", "{", "}", "[", "]", ",",
     "&a ", "*a", "!!str ", "!x ", "|\n", ">-\n", "---\n", "...\n", "\r", "\u2028", "a", "<<: ", "%TAG ! x:\n", "\t"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=24))
@examples(1500)
def test_what_pyyaml_sees_in_any_text_is_seen(pieces: list[str]) -> None:
    text = "".join(pieces)
    values = _objects(yaml_tree.read(text).documents)
    seen = {str(o["_target_"]) for o in values if isinstance(o, dict) and "_target_" in o}
    assert {name for name in targets(text) if name not in ("None", "")} <= seen


def test_a_long_text_is_unproven_if_it_could_name_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "YAML_SIZE", 40)
    prose, code = b"Hello! " * 9, b"Hello! " * 9 + b"\n_target_: os.system\n"
    verdicts = [verdict(data, name) for data in (prose, code) for name in ("a.txt", "a.yaml")]
    assert verdicts == ["data-only", "unproven", "unproven", "unproven"]


def test_source_code_is_no_yaml() -> None:
    assert verdict(b'X = {"_target_": "a.b"}  # Hello!\ny = [\n', "modeling_x.py") is ScanVerdict.DATA_ONLY


def test_every_word_that_a_scan_reads_opens_the_gate() -> None:
    from weighbridge.reports.scan.text import configs

    read = set(configs._KEYS) - {"context", "chat_templates", "custom_pipelines"}
    assert not [word for word in read if not texts._MAY_NAME.search(f"{word}: x")]
    for word in ("context: {bentoml_version: 1}", "chat_templates: x", "custom_pipelines: x"):
        assert texts._MAY_NAME.search(word)


def test_aliases_that_form_a_cycle_are_followed_once() -> None:
    data = b"a: &a [*a, {type: my.Thing}]\nb: !x 1\n"
    report = scan_source(BytesSource(data, "config.json"), "config.json")
    assert {f.rule for f in report.findings} == {"config/unreadable", "config/named-class"}
