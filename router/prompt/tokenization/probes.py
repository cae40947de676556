"""Probe prompts that compare rendering and tokenising with the engine; each covers one thing that is easily done
wrong.

Probes are request bodies, so that a check covers the whole path from a body to its ids. Engines with a renderer of
their own print some chats differently from the model's template (two text parts, a system prompt that ends with a
full stop, a tool without description, a default in a schema), and so have other ids or other counts for these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from router.prompt.tokenization.special_text import spell

TEXT_PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"
SPECIAL_TEXT = "special-text"  # name of the probe that spells special tokens
DATE = "date"  # in place of a probe's name: only the date in the prompt differs
DECLINED_TOOLS = "declined-tools"  # name of the probe whose tools an engine may leave out

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells the weather <now> & later: "as is", in °C',
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "enum": ["Zürich", "東京"]},
                "days": {"type": "integer", "default": 3},
            },
            "required": ["town"],
        },
    },
}
_NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
_ASK = {"role": "user", "content": "How is the weather in Zürich?"}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Z\\u00fcrich", "days": 2, "exact": 1.0}'},
}
_ODD = "naïve 東京 🎉👩\u200d🚀 مرحبا \u00a0 e\u0301 \t\r\n <|x|> {{ y }}"
_SYSTEM = {"role": "system", "content": "You are terse.\n\n  Indent  stays. "}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "user", "content": "Hello there, how are you?"}]},
    "full-stop": {"messages": [{"role": "system", "content": "You are a helpful assistant."}, _ASK]},
    "multi-turn": {
        "messages": [
            _SYSTEM,
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two.\n"},
            {"role": "user", "content": " three  "},
        ]
    },
    "unicode": {
        "messages": [{"role": "user", "content": "naïve 東京 🎉👩‍🚀 مرحبا \u00a0 e\u0301 \t\r\n <|x|> {{ y }}"}]
    },
    "content-parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]},
        ]
    },
    "system-and-tools": {"messages": [_SYSTEM, _ASK], "tools": [_WEATHER]},
    "undescribed-tool": {"messages": [_ASK], "tools": [_NOW]},
    "tool-results": {
        "messages": [
            _ASK,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear", "t": 21}'},
            {"role": "assistant", "content": "Clear, 21 °C."},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [_WEATHER],
    },
    DECLINED_TOOLS: {"messages": [_ASK], "tools": [_NOW], "tool_choice": "none"},
}
_ROUND = [{"role": "assistant", "content": None, "tool_calls": [_CALL]}, CHATS["tool-results"]["messages"][2]]
AGENT: list[dict[str, Any]] = [  # typical agent chats, the simpler ones for templates that refuse tools or roles
    {
        "model": "any",
        "messages": [_SYSTEM, _ASK, *_ROUND * 4, *CHATS["tool-results"]["messages"][3:]],
        "tools": [_WEATHER],
    },
    {"model": "any", "messages": CHATS["multi-turn"]["messages"]},
    {"model": "any", "messages": [_ASK, {"role": "assistant", "content": "Clear."}, _ASK]},
]
TEXTS = {"text": "The quick brown fox\n  jumps over 13 lazy dogs — naïve 東京 🎉.  "}


class Probe(NamedTuple):
    """One probe: its request, without a model."""

    name: str
    path: str
    fields: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        return self.path == CHAT_PATH


def list_probes(special_tokens: Iterable[str] = ()) -> list[Probe]:
    """Return all probes, the cheapest first; the last one spells `special_tokens` and those of many models."""
    texts = [Probe(name, TEXT_PATH, {"prompt": text}) for name, text in TEXTS.items()]
    chats = [Probe(name, CHAT_PATH, chat) for name, chat in CHATS.items()]
    spelled = {"messages": [{"role": "user", "content": f"Repeat: {spell(special_tokens)} Thanks."}]}
    return [*texts, *chats, Probe(SPECIAL_TEXT, CHAT_PATH, spelled)]
