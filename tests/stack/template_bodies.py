"""Requests for many chat templates: every kind of message under every option that reaches a template, and random chats.

`FIXED` are the bodies of `bodies.py` and the product of conversations and options; `random_chats` follow from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.stack.bodies import (
    CHAT,
    CHAT_TOOL,
    CHATS,
    HELLO,
    MESSAGES_BODIES,
    RESPONSES_BODIES,
    SYSTEM,
    Body,
    Json,
    call,
    result,
    text,
)
from tests.stack.engines import MODEL

MARKS = (  # special tokens of model families, as users spell them
    *("<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<<SYS>>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    *("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>"),
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜tool▁calls▁begin｜>",
        "<|user|>",
        "<|assistant|>",
    ),
    *("[gMASK]", "<sop>", "<|observation|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
)
NOW: Json = {"type": "function", "function": {"name": "now"}}
NESTED: Json = {
    "type": "function",
    "function": {
        "name": "plan",
        "description": 'Plan "a" trip\n— for <b>two</b>',
        "strict": True,
        "parameters": {
            "type": "object",
            "$defs": {"Leg": {"type": "object", "properties": {"to": {"type": "string"}, "km": {"type": "number"}}}},
            "properties": {
                "legs": {"type": "array", "items": {"$ref": "#/$defs/Leg"}, "minItems": 1},
                "mode": {"anyOf": [{"type": "string", "enum": ["train", "bus"]}, {"type": "null"}], "default": None},
                "when": {"type": ["string", "null"], "format": "date-time"},
            },
            "required": ["legs"],
            "additionalProperties": False,
        },
    },
}
DOCUMENTS = [{"title": "Zürich", "text": "A city."}, {"title": "", "text": "東京 & <b>"}]


def user(content: Any, **fields: Any) -> Json:
    return {"role": "user", "content": content, **fields}


def assistant(content: Any = None, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


CONVERSATIONS: dict[str, list[Json]] = {
    "question": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [SYSTEM, HELLO, assistant("Warm."), user("And tomorrow?"), assistant(" Cold \n"), user("  Why?\n\n")],
    "tool result": [
        HELLO,
        assistant(tool_calls=[call('{"city": "Zürich", "days": 2}', id="callabcde")]),
        result("12 °C", "callabcde"),
    ],
    "two results": [
        SYSTEM,
        HELLO,
        assistant("Let me see.", tool_calls=[call('{"city":"Bern"}', id="call00001"), call("{}", "now", "call00002")]),
        result("12", "call00001"),
        result('{"time": "12:00"}', "call00002"),
        assistant("Noon."),
        user("Thanks."),
    ],
    "reasoning": [HELLO, assistant("Warm.", reasoning_content="It is\nsummer.", reasoning="July."), user("Sure?")],
    "thoughts in the text": [HELLO, assistant("<think>\nSummer.\n</think>\n\nWarm."), user("Sure?")],
    "parts": [{"role": "system", "content": text("Be ", "terse.")}, user(text("first", "", " last "))],
    "developer": [{"role": "developer", "content": "Be kind."}, HELLO, assistant("Hi."), user("Go on.")],
    "special tokens": [user(" ".join(MARKS)), assistant("".join(MARKS)), user("\n".join(reversed(MARKS)))],
}
OPTIONS: dict[str, Json] = {
    "plainly": {},
    "no generation prompt": {"add_generation_prompt": False},
    "tools": {"tools": [CHAT_TOOL, NOW, NESTED]},
    "thinking on": {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "thinking off": {"chat_template_kwargs": {"enable_thinking": False, "thinking": False, "date_string": "1 May"}},
    "effort and documents": {"reasoning_effort": "high", "documents": DOCUMENTS},
}


def _fixed() -> Iterator[Body]:
    yield from (body for body in (*CHATS, *RESPONSES_BODIES, *MESSAGES_BODIES) if body.body["model"] == MODEL)
    for conversation, messages in CONVERSATIONS.items():
        for option, fields in OPTIONS.items():
            yield _body(f"{conversation}, {option}", messages, fields)
        last = [*messages, assistant("It is ")]
        yield _body(
            f"{conversation}, continued", last, {"continue_final_message": True, "add_generation_prompt": False}
        )


def _body(name: str, messages: list[Json], fields: Json) -> Body:
    return Body(name, CHAT, {"model": MODEL, "messages": messages, "max_tokens": 4, **fields})


FIXED = tuple(_fixed())

WORDS = (
    *("warm", "Zürich", "東京", "🙂", "👩\u200d🚀", "e\u0301", "", " ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000"),
    *("it's", "1234", "3.14", "{{ x }}", "{% if %}", '{"a": [1, 2]}', "<b>&amp;", "'\"\\", "```py\nx = 1\n```", "None"),
    *("the cache of an engine", "مرحبا", "नमस्ते", "x" * 40),
)


def random_chats(seed: str, count: int) -> Iterator[Body]:
    """Yield chats whose turns mostly alternate, as templates demand, and of which some are in no order at all."""
    dice = random.Random(seed)
    for number in range(count):
        roles = _roles(dice)
        messages = [_message(dice, role) for role in roles]
        fields: Json = {}
        if dice.random() < 0.4:
            fields["tools"] = dice.sample([CHAT_TOOL, NOW, NESTED], dice.randint(1, 3))
        if dice.random() < 0.2:
            fields["chat_template_kwargs"] = {dice.choice(("enable_thinking", "thinking")): dice.random() < 0.5}
        if dice.random() < 0.1:
            fields["reasoning_effort"] = dice.choice(("low", "medium", "high"))
        if roles[-1] == "assistant":
            continued = dice.random() < 0.5
            fields |= {"add_generation_prompt": False, "continue_final_message": continued}
        elif dice.random() < 0.1:
            fields["add_generation_prompt"] = False
        yield _body(f"random {seed}/{number}", messages, fields)


def _roles(dice: random.Random) -> list[str]:
    if dice.random() < 0.2:
        return dice.choices(("system", "developer", "user", "assistant", "tool"), k=dice.randint(1, 6))
    roles = ["system"] if dice.random() < 0.5 else []
    for _ in range(dice.randint(1, 3)):
        roles.append("user")
        if dice.random() < 0.3:
            roles += ["assistant", "tool"]
        roles.append("assistant")
    return roles if dice.random() < 0.2 else roles[:-1]


def _message(dice: random.Random, role: str) -> Json:
    content: Any = _text(dice)
    if dice.random() < 0.2:
        content = text(*(_text(dice) for _ in range(dice.randint(1, 3))))
    message: Json = {"role": role, "content": content}
    if role == "assistant":
        if dice.random() < 0.3:
            calls = dice.randint(1, 2)
            message["tool_calls"] = [call(_arguments(dice), id=f"call0000{number}") for number in range(calls)]
            message["content"] = dice.choice((None, "", content))
        if dice.random() < 0.2:
            message[dice.choice(("reasoning", "reasoning_content"))] = _text(dice)
    if role == "tool":
        message["tool_call_id"] = "call00000"
    if dice.random() < 0.1:
        message["name"] = "ann"
    return message


def _text(dice: random.Random) -> str:
    return "".join(dice.choices((*WORDS, *MARKS), weights=[*[3] * len(WORDS), *[1] * len(MARKS)], k=dice.randint(0, 8)))


def _arguments(dice: random.Random) -> str:
    return dice.choice(('{"city": "Zürich"}', '{"city":"東京","days":2.50}', "{}", '{"a": {"b": [null, true, "<x>"]}}'))
