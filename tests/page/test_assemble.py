"""The page as a document: what is linked, inlined and escaped."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.architecture import house
from tests.page.samples import SEVEN_B, sparse
from tests.programs import load_program

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.page import assemble
from weighbridge.page.data import PageData, encode
from weighbridge.page.endpoints import exact, front_coded
from weighbridge.page.export import export, key


def vendor() -> Any:
    return load_program(house.ROOT / "requirements" / "vendor.py")


def test_third_party_files_are_those_that_are_pinned() -> None:
    rows = {row["to"]: row["sha256"] for package in vendor().packages() for row in package["files"]}
    folder = assemble.STATIC / "vendor"
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()} == rows


def test_third_party_code_is_marked_with_its_licence() -> None:
    script = assemble.linked()
    for package in vendor().packages():
        assert re.search(rf"\b{package['name']}\b[^\n]*{package['licence']}", script, re.IGNORECASE), package["name"]


def test_every_module_is_linked_once_and_after_its_imports() -> None:
    script = assemble.linked()
    names = [str(p.relative_to(assemble.STATIC)) for p in assemble.STATIC.rglob("*.js") if p.name != assemble.WIDGET]
    places = {name: script.index(f'$["{name}"] = ') for name in names}
    assert len(places) == len(re.findall(r'^\$\["[\w/.-]+"\] = ', script, re.MULTILINE))
    for name in names:
        for _, other in assemble.read_module(name).imports:
            assert places[other] < places[name], f"{name} imports {other}"


def test_modules_have_no_other_form_of_import_or_export() -> None:
    for path in assemble.STATIC.rglob("*.js"):
        if path.parent.name != "vendor" and path.name != assemble.WIDGET:
            module = assemble.read_module(str(path.relative_to(assemble.STATIC)))
            assert not re.search(r"^\s*(import|export)\b", module.body, re.MULTILINE), path.name


@pytest.mark.parametrize("word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "eval(",
                                  "new Function", "document.write", "http://", "https://"])  # fmt: skip
def test_the_page_makes_no_html_of_texts_and_names_no_other_site(word: str) -> None:
    for path in (p for p in assemble.STATIC.rglob("*") if p.is_file() and p.parent.name != "vendor"):
        assert word not in path.read_text("utf-8"), path.name


def test_the_policy_allows_these_texts_alone() -> None:
    made = assemble.page("x")
    script = re.search(r'<script type="module">(.*?)</script>', made.html, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", made.html, re.DOTALL)
    assert script is not None
    assert style is not None
    for text in (script[1], style[1]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in made.policy
    assert "unsafe" not in made.policy


def answers_of(html: str) -> dict[str, Any]:
    """What an exported page holds."""
    found = re.search(
        r'<script type="(?:application/json|text/plain)" id="answers"([^>]*)>(.*?)</script>', html, re.DOTALL
    )
    assert found is not None
    text = gzip.decompress(base64.b64decode(found[2])).decode() if "gzip" in found[1] else found[2]
    answers: dict[str, Any] = json.loads(text)
    return answers


@pytest.mark.costly
def test_an_exported_page_holds_the_names_of_files_as_they_are(models: Path) -> None:
    with PageData(models / "hostile.safetensors") as data:
        html = export(data, findings=False)
        names = [e.name for e in data.models[0].index.entries]
    assert "window.pwned" in html
    assert "</script><script>window" not in html
    assert "\u2028" not in html
    assert "\u2029" not in html
    coded = answers_of(html)["tensors?model=0"]["answer"]["names"]
    assert decoded(coded) == names
    assert "</script>" in answers_of(html)["metadata?model=0"]["answer"]


@pytest.mark.costly
def test_what_cant_be_answered_says_so_in_an_exported_page(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighbridge.base.errors import UnsupportedError
    from weighbridge.page import endpoints

    def fails(*_: object, **given: object) -> None:
        raise UnsupportedError("not this one", hint="another")

    table = {**endpoints.ENDPOINTS, "summary": endpoints.Endpoint(fails, ("model",))}
    monkeypatch.setattr(endpoints, "ENDPOINTS", table)
    with PageData(models / "f16.gguf") as data:
        found = answers_of(export(data, findings=False))
    assert found["summary?model=0"] == {"error": "not this one", "hint": "another"}


def test_the_page_of_a_model_of_7_billion_is_under_a_megabyte(tmp_path: Path) -> None:
    path = sparse(tmp_path / "model.safetensors", SEVEN_B)
    wb.export_view(path, tmp_path / "page.html")
    size = (tmp_path / "page.html").stat().st_size
    assert 100_000 < size < 1_000_000
    with pytest.raises(RefusedError):
        wb.export_view(path, tmp_path / "page.html")
    wb.export_view(path, tmp_path / "page.html", overwrite=True)
    assert (tmp_path / "page.html").stat().st_size == size


@pytest.mark.costly
def test_values_are_exported_where_they_are_asked_for(models: Path) -> None:
    seen: list[tuple[int, int]] = []
    with PageData(models / "f16.gguf", models / "q4.gguf") as data:
        found = answers_of(export(data, findings=False, values=True, progress=lambda d, t, _: seen.append((d, t))))
        assert not any(name.startswith("statistics") for name in answers_of(export(data, findings=False)))
        for question in ("statistics?model=1&tensor=2", "channels?model=0&tensor=0", "heat?model=0", "diff?a=0&b=1"):
            name, _, given = question.partition("?")
            want = data.answer(name, dict(part.split("=") for part in given.split("&") if part))
            assert found[question]["answer"] == json.loads(want)
        assert sum(name.startswith("statistics") for name in found) == sum(len(m.index) for m in data.models)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.costly
def test_values_of_too_many_tensors_are_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="100,032 tensors"):
        wb.export_view(models / "many.safetensors", tmp_path / "page.html", values=True)
    assert not list(tmp_path.iterdir())


def test_many_answers_are_compressed_and_few_are_not(models: Path) -> None:
    with PageData(models / "hostile.safetensors") as data:
        assert 'data-encoding="gzip"' not in export(data, findings=False)
    with PageData(models / "q4.gguf", models / "f16.gguf") as data:
        html = export(data, findings=False)
    assert ('data-encoding="gzip"' in html) == (len(json.dumps(answers_of(html), separators=(",", ":"))) > 64 << 10)


def test_a_question_has_one_key() -> None:
    assert key(("layout", {"model": 0, "file": 2})) == "layout?file=2&model=0"
    assert key(("start", {})) == "start?"


def decoded(coded: dict[str, list[Any]]) -> list[str]:
    """Front-coded names as JavaScript undoes them: in UTF-16 units."""
    names, before = [], b""
    for common, rest in zip(coded["common"], coded["rest"], strict=True):
        before = before[: 2 * common] + rest.encode("utf-16-le", "surrogatepass")
        names.append(before.decode("utf-16-le", "surrogatepass"))
    return names


@given(st.lists(st.text(alphabet="ab.\U0001f600\U0001f601é")))
def test_front_coding_can_be_undone_and_cuts_no_pair(names: list[str]) -> None:
    coded: dict[str, list[Any]] = dict(front_coded(tuple(names)))
    assert decoded(coded) == names
    assert all(rest[:1] < "\ud800" or rest[:1] > "\udfff" for rest in coded["rest"])


def test_two_characters_that_share_half_a_pair_share_nothing() -> None:
    assert front_coded(("a\U0001f600b", "a\U0001f601b", "a\U0001f601c")) == {
        "common": [0, 1, 3],
        "rest": ["a\U0001f600b", "\U0001f601b", "c"],
    }


def test_numbers_that_javascript_would_round_are_texts() -> None:
    assert exact((1, 2**53 - 1)) == (1, 2**53 - 1)
    assert exact((1, 2**53)) == ("1", str(2**53))
    assert exact(()) == ()


def test_half_a_pair_can_be_said() -> None:
    assert json.loads(encode({"a\udc80": float("inf")})) == {"a\udc80": "Infinity"}
