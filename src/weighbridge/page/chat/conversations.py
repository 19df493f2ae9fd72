"""Example conversations that a chat template has to handle."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_USER: Final = {"role": "user", "content": "What is the capital of France?"}
_ANSWER: Final = {"role": "assistant", "content": "Paris."}
_SYSTEM: Final = {"role": "system", "content": "You are a helpful assistant."}
_WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    },
}
_CALL: Final = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    ],
}
_RESULT: Final = {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"celsius": 21}'}
_ASK: Final = {"role": "user", "content": "How warm is it in Paris?"}
_THOUGHT: Final = {
    "role": "assistant",
    "content": "12.",
    "reasoning_content": "Half of a dozen is 6. Twice that is 12.",
}

#: The variables of a template, by the name of the conversation.
CONVERSATIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "plain": {"messages": [_USER]},
        "turns": {"messages": [_USER, _ANSWER, {"role": "user", "content": "And of Italy?"}]},
        "system": {"messages": [_SYSTEM, _USER]},
        "tools": {"messages": [_SYSTEM, _ASK, _CALL, _RESULT], "tools": [_WEATHER]},
        "thinking": {
            "messages": [
                {"role": "user", "content": "What is a dozen?"},
                _THOUGHT,
                {"role": "user", "content": "Sure?"},
            ],
            "enable_thinking": True,
        },
        "no thinking": {"messages": [_USER], "enable_thinking": False},
        "image": {
            "messages": [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is in this picture?"}]}
            ]
        },
    }
)
