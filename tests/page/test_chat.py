"""Chat templates render as transformers renders them, their special tokens are marked, and one that eats memory, time
or output is stopped. A search finds tokens by text and number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.reports import makers as m

from weighbridge.adapters.chat import template as templates
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import ChatTemplate, TokenType, Vocab, VocabKind
from weighbridge.models.tokenizer.of_model import vocab_of
from weighbridge.page.chat.conversations import CONVERSATIONS
from weighbridge.page.chat.template import render, render_both
from weighbridge.page.chat.tokens import search, vocabulary

pytestmark = pytest.mark.costly

pytest.importorskip("jinja2")

CHATML = """{%- if tools %}
<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.content is not string %}
        {%- set text %}{% for part in message.content %}{{ part.text if part.type == 'text' else '<|image|>' }}{% endfor %}{% endset %}
    {%- else %}{% set text = message.content %}{% endif %}
    {%- if message.tool_calls %}{% set text = message.tool_calls[0].function | tojson(indent=2) %}{% endif %}
    {%- if loop.index > 50 %}{% break %}{% endif %}
<|im_start|>{{ message.role }}
    {% generation %}{{ text | trim }}{% if message.reasoning_content and enable_thinking %} ({{ message.reasoning_content }}){% endif %}{% endgeneration %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}{{ bos_token }}{{ strftime_now('%Y') }}"""  # noqa: E501
TOKENS = ["a", "<|im_start|>", "<|im_end|>", "<s>", "<|im", "1", "Par", "is"]
C, N = TokenType.CONTROL, TokenType.NORMAL


def vocab(text: str, *more: ChatTemplate) -> Vocab:
    types = [N, C, C, C, C, N, N, N]
    special = {"bos": 3, "eos": 2}
    return Vocab(VocabKind.BPE, TOKENS, types, special=special, templates=(ChatTemplate("default", text), *more))


@pytest.mark.oracle
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_template_renders_as_transformers_renders_it(name: str, prompt: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    given: dict[str, Any] = {**CONVERSATIONS[name]}
    messages, tools = given.pop("messages"), given.pop("tools", None)
    want, _ = utils.render_jinja_template(
        [messages], tools, None, CHATML, False, False, prompt, bos_token="<s>", eos_token="<|im_end|>", **given
    )
    found = render(vocab(CHATML), name, add_generation_prompt=prompt)
    assert (found.text, found.error, found.stopped) == (want[0], None, "")


@pytest.mark.oracle
def test_both_renderings_stand_side_by_side() -> None:
    pytest.importorskip("transformers")
    found = render_both(vocab(CHATML), "tools")
    assert found.reference is not None
    assert (found.same, found.lines) == (True, ())
    assert found.reference == found.ours == render(vocab(CHATML), "tools")


@pytest.mark.oracle
def test_where_the_renderings_differ() -> None:
    """transformers also gives a message's reasoning the name that gpt-oss reads it by; Jinja2 alone doesn't."""
    pytest.importorskip("transformers")
    found = render_both(vocab("a\n{% for m in messages %}{{ m.thinking }}\n{% endfor %}<s>"), "thinking")
    assert found.reference is not None
    assert not found.same
    assert "".join(pair.b or "" for pair in found.lines) == found.reference.text
    assert [pair.b for pair in found.lines if not pair.same] == ["Half of a dozen is 6. Twice that is 12.\n"]
    assert [span.id for span in found.reference.spans] == [3]


@pytest.mark.oracle
@pytest.mark.parametrize("text", ["{% for a in range(99999) %}{{ 'abcdefgh' * 99 }}{% endfor %}", "{{ [].append(1) }}"])
def test_the_same_end_is_no_difference(text: str) -> None:
    pytest.importorskip("transformers")
    found = render_both(vocab("before " + text))
    assert found.reference is not None
    assert found.reference.ended
    assert (found.same, found.lines) == (True, ())


def test_limits_are_those_of_the_template_in_transformers_too() -> None:
    pytest.importorskip("transformers")
    assert templates.render_by_transformers("{{ 'a' * (10 ** 10) }}", {"messages": []}).stopped == "memory"


def test_without_transformers_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "find_spec", lambda name: None)
    found = render_both(vocab(CHATML))
    assert (found.reference, found.same, found.ours.error) == (None, False, None)
    assert "transformers" in found.reason


def test_special_tokens_are_marked() -> None:
    found = render(vocab("<|im_start|>{{ messages[0].content }}<|im_end|><|im<s>"), "plain")
    assert [(found.text[s.start : s.end], s.id) for s in found.spans] == [
        ("<|im_start|>", 1), ("<|im_end|>", 2), ("<|im", 4), ("<s>", 3),
    ]  # fmt: skip


# What a template does to the machine -> the limit that stops it.
GREEDY = {
    "{{ 'a' * (10 ** 10) }}": "memory",
    "{% set x = namespace(s='ab' * 4096) %}{% for i in range(60) %}{% set x.s = x.s ~ x.s %}{% endfor %}": "memory",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "time",
    "{% for a in range(99999) %}{{ 'abcdefgh' * 99 }}{% endfor %}": "output",
}  # fmt: skip


@pytest.mark.parametrize("text", GREEDY)
def test_a_template_that_eats_the_machine_is_stopped(text: str) -> None:
    found = render(vocab(text))
    assert (found.stopped, found.error) == (GREEDY[text], None)
    assert len(found.text) <= 1 << 20


def test_a_template_that_waits_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(templates, "_WORKER", tmp_path / "worker.py")
    assert templates.render("", {}, wait=0.2).stopped == "time"
    (tmp_path / "worker.py").write_text("raise SystemExit(3)")
    assert "ended with 3" in (templates.render("", {}).error or "")


# What a template tries -> what its error has in it.
ERRORS = {
    "{{ raise_exception('no system message') }}": "no system message",
    "{% for %}": "TemplateSyntaxError",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "SecurityError",
    "{{ messages.append(1) }}": "SecurityError",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}": "SecurityError",
    "{{ range(10 ** 6) | list }}": "OverflowError",
    "{{ messages[9].content.text }}": "UndefinedError",
    "{{ " + "(" * 400 + "1" + ")" * 400 + " }}": "Error",
}


@pytest.mark.parametrize("text", ERRORS, ids=range(len(ERRORS)))
def test_an_error_is_reported(text: str) -> None:
    found = render(vocab("before " + text))
    assert ERRORS[text] in (found.error or "")
    assert found.stopped == ""


def test_hostile_text_is_plain_data() -> None:
    found = render(
        vocab("{{ messages[0].content }}"), {"messages": [{"role": "u", "content": "</script>\u202e\udc80"}]}
    )
    assert found.text == "</script>\u202e\udc80"


def test_what_has_no_template() -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        render(Vocab(VocabKind.BPE, TOKENS))
    with pytest.raises(UsageError, match="unknown template"):
        render(vocab("x"), template="rag")
    with pytest.raises(UsageError, match="unknown conversation"):
        render(vocab("x"), "nothing")
    assert render(vocab("x", ChatTemplate("rag", "y")), template="rag").text == "y"


def test_search() -> None:
    found = search(vocab("x"), "is")
    assert [t.text for t in found.tokens] == ["is"]
    assert [(t.id, t.text) for t in search(vocab("x"), "1").tokens] == [(1, "<|im_start|>"), (5, "1")]
    assert search(vocab("x"), "<|im").count == 3
    assert search(vocab("x"), "<|im", limit=1).tokens[0].text == "<|im"
    with pytest.raises(UsageError):
        search(vocab("x"), "")


def test_the_tokenizer_of_a_gguf(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.tokens": ("arr[str]", TOKENS),
        "tokenizer.ggml.token_type": ("arr[i32]", [1, 3, 3, 3, 4, 1, 1, 1]),
        "tokenizer.ggml.eos_token_id": ("u32", 7), "tokenizer.chat_template": ("str", "{{ eos_token }}"),
        "tokenizer.ggml.merges": ("arr[str]", []),
    }  # fmt: skip
    (tmp_path / "x.gguf").write_bytes(m.gguf(keys, {}))
    with open_model(tmp_path / "x.gguf") as model:
        found = vocab_of(model)
    report = vocabulary(found)
    assert (report.algorithm, report.size, report.templates) == ("gpt2", 8, ("default",))
    assert [(t.id, t.kind, t.roles) for t in report.special] == [
        (1, "control", ()), (2, "control", ()), (3, "control", ()), (4, "user_defined", ()), (7, "normal", ("eos",)),
    ]  # fmt: skip
    assert render(found).text == "is"
