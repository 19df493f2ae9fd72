"""`wb help TOPIC`: the pages of the docs, from the installed package."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture import house

from weighbridge.cli import guides
from weighbridge.cli.main import BY_NAME, main
from weighbridge.shipping.choice_table import table


def test_every_page_is_a_topic_and_no_command() -> None:
    assert set(guides.topics()) == {page.stem for page in house.ROOT.glob("docs/*.md")}
    assert not set(guides.topics()) & {*BY_NAME, guides.LIST}


def test_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "guide-families"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ")
    assert main(["help", "remote"]) == 0  # guide-remote
    assert main(["help", "topics"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()]
    assert set(guides.topics()) <= set(listed)


def test_a_command_of_that_name_is_shown_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "quantize"]) == 0
    assert capsys.readouterr().out.startswith("Usage: wb quantize")


def test_an_unknown_topic_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "guide-quantise"]) == 2
    assert "wb help guide-quantize" in capsys.readouterr().err
    assert main(["help", "zzz"]) == 2
    assert "wb help topics" in capsys.readouterr().err


def test_links_become_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """# Title
<!-- a note -->

See [fitting](guide-fit.md#memory), [a test](../tests/x.py), [a site](https://example.org) and ![a picture](p.png).

```
model[0](guide-fit.md)
```
"""
    (tmp_path / "index.md").write_text(text)
    monkeypatch.setattr(guides, "PLACES", (tmp_path / "none", tmp_path))
    assert guides.read("index").splitlines() == [
        "# Title",
        "See fitting (wb help guide-fit), a test, [a site](https://example.org) and a picture.",
        "", "```", "model[0](guide-fit.md)", "```",
    ]  # fmt: skip


def test_what_wb_choose_cites_is_a_topic() -> None:
    rules = table()
    cited = [r.source for r in (*rules.format, *rules.type)] + [c.source for c in rules.correction]
    ours = [source for source in cited if source.startswith(("docs/", "tests/"))]
    assert len(ours) > 15
    assert [source for source in ours if guides.topic_of(source) not in guides.topics()] == []
    assert guides.topic_of("llama.cpp tools/perplexity/README.md") is None
