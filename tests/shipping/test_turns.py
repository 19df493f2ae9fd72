"""Go templates made of Jinja ones: both are rendered, the Jinja by jinja2, the Go by the tests' own reader of Go's
documentation."""

from __future__ import annotations

from datetime import date

import pytest
from tests.oracles import tree
from tests.shipping.go_template import render
from tests.shipping.models import CHATML

from weighbridge.adapters.chat import template as templates
from weighbridge.adapters.chat.template import Conversation, render_chats
from weighbridge.base.errors import UnsupportedError
from weighbridge.shipping.ollama.dates import seconds
from weighbridge.shipping.ollama.turns import translate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_GEMMA3 = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] + '\n\n' -%}"
    "{%- set rest = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}"
    "{%- for m in rest -%}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
    "(first if loop.first else '') }}{{ m.content | trim }}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
_QWEN = (
    "{%- if tools %}{{ 'TOOLS' + (tools | tojson) }}{%- endif %}"
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and '</think>' in m.content %}{{- m.content.split('</think>')[-1].lstrip('\n') }}"
    "{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
_LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set sys = '' %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (sys if loop.first else '') + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% if loop.last and "
    "add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML, "llama3": _LLAMA3, "gemma": _GEMMA, "gemma3": _GEMMA3, "qwen": _QWEN, "llama2": _LLAMA2,
    "zephyr": _ZEPHYR,
    "braces": "{% for m in messages %}{{ '{{' + m.role + '}}' + m.content + '\\\\\"\\t' }}{% endfor %}{{ '-}} A' }}",
}  # fmt: skip
SYSTEM, USER, REPLY = ("system", "Be\nkind."), ("user", 'What is "{{ x }}"?'), ("assistant", "A: -}}\n\nb")
CHATS = {
    "one": (USER,), "system": (SYSTEM, USER), "three": (USER, REPLY, ("user", "More")),
    "five": (SYSTEM, USER, REPLY, ("user", "More"), ("assistant", "Yes"), ("user", "Bye")),
}  # fmt: skip
# Words of the differences that are listed.
LISTED = {"llama3": "spaces", "gemma": "no system", "gemma3": "spaces", "qwen": "reasoning|tools"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_both_templates_write_the_same(name: str) -> None:
    go = translate(TEMPLATES[name], SPECIAL)
    chats = [c for key, c in CHATS.items() if name != "gemma" or c[0][0] != "system"]
    jinja = render_chats(TEMPLATES[name], [Conversation(c, special=SPECIAL) for c in chats])
    for chat, expected in zip(chats, jinja, strict=True):
        assert expected.text is not None, expected.error
        messages = [{"Role": role, "Content": content} for role, content in chat]
        assert render(go.text, {"Messages": messages}) == expected.text.removeprefix("<s>")


@pytest.mark.parametrize("name", LISTED)
def test_what_a_go_template_cannot_do_is_listed(name: str) -> None:
    found = " ".join(translate(TEMPLATES[name], SPECIAL).differences)
    assert all(word in found for word in LISTED[name].split("|"))
    assert translate(CHATML, SPECIAL).differences == ()


def test_a_system_text_goes_before_the_user_where_there_is_no_role_for_it() -> None:
    """As Ollama's own gemma-instruct template renders it."""
    messages = [{"Role": "system", "Content": "S"}, {"Role": "user", "Content": "Hi"}]
    rendered = render(translate(_GEMMA, SPECIAL).text, {"Messages": messages})
    assert rendered == "<start_of_turn>user\nS\nHi<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y"])
def test_dates_are_those_of_the_day(form: str) -> None:
    go = translate("{{ 'Today: ' + strftime_now('" + form + "') + '.' }}" + CHATML, SPECIAL).text
    data = {"Messages": [{"Role": "user", "Content": "Hi"}]}
    for day in (date(2032, 2, 29), date(2033, 1, 1), *(date(2027, month, 9) for month in range(1, 13))):
        assert render(go, data, day).startswith(f"Today: {day.strftime(form)}.")


_NEMO = (
    "{% set sys = messages[0].content if messages[0].role == 'system' else '' %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '[INST]' + (sys + '|' if sys and loop.last else '') + m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)


def test_the_system_message_goes_into_the_last_user_message() -> None:
    go = translate(_NEMO, SPECIAL)
    assert go.turns.system_last
    jinja = render_chats(_NEMO, [Conversation(c, special=SPECIAL) for c in CHATS.values()])
    for chat, expected in zip(CHATS.values(), jinja, strict=True):
        messages = [{"Role": role, "Content": content} for role, content in chat]
        assert render(go.text, {"Messages": messages}) == expected.text


REFUSED = {
    "date": ("{{ strftime_now('%d/%m/%y') }}" + CHATML, "date"),
    "tools": ("{% for tool in tools %}{{ tool }}{% endfor %}" + CHATML, "needs tools"),
    "last": ("{% for m in messages %}{% if m.role == 'user' and loop.last %}{{ messages[0].content }}|{% endif %}"
             "{{ m.role + m.content }}{% endfor %}", "turn by turn|in order"),
    "upper": ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "in order"),
    "syntax": ("{% for m in %}", "can't be rendered"),
    "class": ("{{ ''.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}", "can't be rendered"),
    "memory": ("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
               "can't be rendered|come to an end"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_the_reason_and_the_other_way(name: str) -> None:
    template, reason = REFUSED[name]
    with pytest.raises(UnsupportedError, match=reason) as caught:
        translate(template, SPECIAL)
    assert name == "memory" or 'template="none"' in str(caught.value)


@pytest.mark.costly
def test_a_template_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_SECONDS", 1.0)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(UnsupportedError, match="come to an end"):
        render_chats(endless, [Conversation((USER,))])


@pytest.mark.costly
def test_the_environment_is_that_of_transformers() -> None:
    """transformers' own renderer, on templates that use what it adds to jinja2."""
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    for template in (*TEMPLATES.values(), "{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}"):
        messages = [{"role": role, "content": content} for role, content in CHATS["three"]]
        expected, _ = chat.render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=True, **SPECIAL
        )
        assert render_chats(template, [Conversation(CHATS["three"], special=SPECIAL)])[0].text == expected[0]


PUBLISHED = [
    "google-gemma-2-2b-it", "meta-llama-Llama-3.1-8B-Instruct", "Kimi-K2-Instruct", "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-V3.2", "google-gemma-4-31B-it", "NVIDIA-Nemotron-Nano-v2", "Qwen3-Coder",
    "mistralai-Mistral-Nemo-Instruct-2407",
]  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(name: str) -> None:
    """Of llama.cpp's collection; rendered by transformers and by the tests' reader of Go's documentation."""
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    template = (tree.require() / "models" / "templates" / f"{name}.jinja").read_text()
    messages = [{"role": role, "content": content} for role, content in CHATS["three"]]
    expected, _ = chat.render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **SPECIAL)
    go = translate(template, SPECIAL)
    rendered = render(go.text, {"Messages": [{"Role": m["role"], "Content": m["content"]} for m in messages]})
    assert rendered == expected[0].removeprefix("<s>")


# With the day that they write: in one form, and in words beside it; Mistral's is also that of yesterday.
DATED = ["meta-llama-Llama-3.2-3B-Instruct", "Mistral-Small-3.2-24B-Instruct-2506", "openai-gpt-oss-120b"]


@pytest.mark.costly
@pytest.mark.parametrize("name", DATED)
def test_published_templates_with_a_date(name: str) -> None:
    template = (tree.require() / "models" / "templates" / f"{name}.jinja").read_text()
    go, leap = translate(template, SPECIAL), date(2032, 3, 1)
    chats = [Conversation(chat, now=seconds(leap), special=SPECIAL) for chat in CHATS.values()]
    for chat, expected in zip(CHATS.values(), render_chats(template, chats), strict=True):
        messages = [{"Role": role, "Content": content} for role, content in chat]
        assert expected.text is not None
        assert render(go.text, {"Messages": messages}, leap) == expected.text.removeprefix("<s>")


# They need what a conversation of plain messages hasn't: tools, functions, a reasoning, parts of a message.
REFUSED_PUBLISHED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "can't be rendered",
    "IFM-K2-Horizon": "missing a thinking field",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "needs tools",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "needs tools",
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
    "google-translategemma-4b-it": "must provide `content` as an iterable",
}


@pytest.mark.costly
@pytest.mark.parametrize("name", REFUSED_PUBLISHED)
def test_the_published_templates_that_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED_PUBLISHED[name]):
        translate((tree.require() / "models" / "templates" / f"{name}.jinja").read_text(), SPECIAL)
