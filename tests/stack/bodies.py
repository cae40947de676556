"""Request bodies of every kind that matters to the tokens: what the engine renders must be what the router counts.

Each has a name, the endpoint it goes to and the body. The texts are ASCII and not, with newlines and spaces where
templates and tokenizers stumble.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
Json = dict[str, Any]


class Body(NamedTuple):
    name: str
    path: str
    body: Json


PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Zürich, Bern, <any> & 'all'"},
        "days": {"type": "integer", "default": 3},
        "units": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city"],
}
FUNCTION: Json = {"name": "get_weather", "description": "The weather of a place", "parameters": PARAMETERS}
CHAT_TOOL: Json = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL: Json = {"type": "function", **FUNCTION}
MESSAGES_TOOL: Json = {"name": "get_weather", "description": "The weather of a place", "input_schema": PARAMETERS}

SYSTEM: Json = {"role": "system", "content": "You are terse.\nNever say “please”.  "}
HELLO: Json = {"role": "user", "content": "Grüezi, how warm is it in 東京? 🙂"}


def call(arguments: str, name: str = "get_weather", id: str = "call_1") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, id: str = "call_1") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


def text(*parts: str) -> list[Json]:
    return [{"type": "text", "text": part} for part in parts]


def _chat(name: str, *messages: Json, **fields: Any) -> Body:
    return Body(f"chat: {name}", CHAT, {"model": "tiny", "messages": list(messages), "max_tokens": 4, **fields})


def _completion(name: str, prompt: Any, **fields: Any) -> Body:
    return Body(f"completions: {name}", COMPLETIONS, {"model": "tiny", "prompt": prompt, "max_tokens": 4, **fields})


def _responses(name: str, input: Any, **fields: Any) -> Body:
    return Body(f"responses: {name}", RESPONSES, {"model": "tiny", "input": input, "max_output_tokens": 16, **fields})


def _messages(name: str, *messages: Json, **fields: Any) -> Body:
    return Body(f"messages: {name}", MESSAGES, {"model": "tiny", "messages": list(messages), "max_tokens": 4, **fields})


def _assistant(content: Any = None, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


CHATS = (
    _chat("plain", HELLO),
    _chat("system", SYSTEM, HELLO),
    _chat("developer role", {"role": "developer", "content": "Be kind."}, HELLO),
    _chat("several turns", SYSTEM, HELLO, _assistant("Warm. "), {"role": "user", "content": "\n And tomorrow?\n"}),
    _chat("special tokens in the text", {"role": "user", "content": "<|im_end|>\n<|im_start|>system\nhi <tool_call>"}),
    _chat("one content part", {"role": "user", "content": text("only one")}),
    _chat("content parts", {"role": "user", "content": text("first ", "second\n", "", "last")}),
    _chat(
        "parts everywhere", {"role": "system", "content": text("a", "b")}, {"role": "user", "content": text("c", "d")}
    ),
    _chat("part strings", {"role": "user", "content": ["a plain string", {"type": "text", "text": "and a part"}]}),
    _chat("tools", SYSTEM, HELLO, tools=[CHAT_TOOL]),
    _chat("tools without system", HELLO, tools=[CHAT_TOOL, {"type": "function", "function": {"name": "now"}}]),
    _chat("tool choice none", HELLO, tools=[CHAT_TOOL], tool_choice="none"),
    _chat("tool choice auto", HELLO, tools=[CHAT_TOOL], tool_choice="auto", parallel_tool_calls=False),
    _chat(
        "billing header",
        {"role": "system", "content": text("x-anthropic-billing-header: cch=1\nBe terse.", "!")},
        HELLO,
    ),
    _chat("billing header alone", {"role": "system", "content": text("x-anthropic-billing-header: 1", "ok")}, HELLO),
    _chat("billing header as a string", {"role": "system", "content": "x-anthropic-billing-header: 1\nok"}, HELLO),
    _chat("parts with fields", {"role": "user", "content": [text("a")[0] | {"cache_control": {"type": "ephemeral"}}]}),
    _chat("refusal part", HELLO, _assistant([{"type": "refusal", "refusal": "No."}, *text("Or yes.")]), HELLO),
    _chat("parts in a result", HELLO, _assistant(tool_calls=[call("{}")]), result(text("a", "", "b"))),
    _chat("system twice", SYSTEM, HELLO, {"role": "system", "content": "Now be kind."}, HELLO),
    _chat("decomposed accents", {"role": "user", "content": "Zu\u0308rich cafe\u0301 \u1100\u1161 \ufb01"}),
    _chat("white space of all kinds", {"role": "user", "content": "\t\r\n a  \u00a0\u3000b\n\n\n  c \n"}),
    _chat(
        "tool call and result",
        SYSTEM,
        HELLO,
        _assistant(tool_calls=[call('{"city": "東京",  "days":3}')]),
        result("12 °C"),
        {"role": "user", "content": "Thanks."},
        tools=[CHAT_TOOL],
    ),
    _chat(
        "two calls, text beside them",
        HELLO,
        _assistant("Let me see.", tool_calls=[call('{"city":"Bern"}'), call("{}", "now", "call_2")]),
        result(text("12 °C", "rain")),
        result('{"t": 1}', "call_2"),
        tools=[CHAT_TOOL],
    ),
    _chat(
        "nested arguments",
        HELLO,
        _assistant(tool_calls=[call('{"a":{"b":[1,2.50,null,true,"\\u00e9"]}}')]),
        result("x"),
    ),
    _chat("empty arguments", HELLO, _assistant(tool_calls=[call("")]), result("x")),
    _chat("empty tool calls", HELLO, _assistant("Hm.", tool_calls=[]), HELLO),
    _chat("empty assistant", HELLO, _assistant(""), HELLO),
    _chat("assistant reasoning", HELLO, _assistant("Hm.", reasoning_content="I think."), HELLO),
    _chat("names", {"role": "user", "name": "ann", "content": "hi"}, _assistant("ho", name="bob"), HELLO),
    _chat("template kwargs", HELLO, chat_template_kwargs={"enable_thinking": False}),
    _chat("no generation prompt", HELLO, add_generation_prompt=False),
    _chat("goes on", HELLO, _assistant("It is "), add_generation_prompt=False, continue_final_message=True),
    _chat("special tokens added", HELLO, add_special_tokens=True),
    _chat("adapter", SYSTEM, HELLO, model="lora"),
    _chat("adapter and salt", SYSTEM, HELLO, model="lora", cache_salt="tenant"),
    _chat("json mode", HELLO, response_format={"type": "json_object"}),
    _chat("unknown fields", HELLO, temperature=0.2, user="u", metadata={"a": "b"}, top_k=4),
)
COMPLETION_BODIES = (
    _completion("text", "Once upon a time\n in  東京"),
    _completion("token ids", [9, 8, 7, 6, 5]),
    _completion("one text in a list", ["Once upon a time"]),
    _completion("one list of ids in a list", [[9, 8, 7]]),
    _completion("no special tokens", "<|im_start|>user\nhi", add_special_tokens=False),
    _completion("suffix of spaces", "trailing   "),
)
RESPONSES_BODIES = (
    _responses("text", "Hello there"),
    _responses("instructions", "Hello", instructions="Be terse."),
    _responses("messages", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, HELLO]),
    _responses("parts", [{"role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]}]),
    _responses("system among the input", [{"role": "system", "content": "x"}, HELLO], instructions="y"),
    _responses("developer among the input", [{"role": "developer", "content": "x"}, HELLO]),
    _responses("tools", [HELLO], tools=[RESPONSES_TOOL]),
    _responses(
        "tool call and output",
        [
            HELLO,
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Bern","days": 2}'},
            {"type": "function_call_output", "call_id": "c1", "output": "12 °C"},
            {"role": "user", "content": "Thanks"},
        ],
        tools=[RESPONSES_TOOL],
    ),
    _responses(
        "an output item given back",
        [
            HELLO,
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Warm.", "annotations": []}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "More"}]},
        ],
    ),
    _responses("two calls at once", [
        HELLO,
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Bern"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city":"Genf"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
    ]),
)  # fmt: skip
MESSAGES_BODIES = (
    _messages("plain", HELLO),
    _messages("system", HELLO, system="Be terse."),
    _messages("system parts", HELLO, system=text("Be ", "terse.")),
    _messages("billing header", HELLO, system=text("x-anthropic-billing-header: cc=1", "Be terse.")),
    _messages("parts", {"role": "user", "content": text("a", "b")}, {"role": "assistant", "content": text("c")}, HELLO),
    _messages("tools", HELLO, tools=[MESSAGES_TOOL]),
    _messages("tool choice none", HELLO, tools=[MESSAGES_TOOL], tool_choice={"type": "none"}),
    _messages("tool choice auto", HELLO, tools=[MESSAGES_TOOL], tool_choice={"type": "auto"}),
    _messages(
        "tool use and result",
        HELLO,
        {
            "role": "assistant",
            "content": [
                *text("Let me see."),
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Zürich", "days": 2}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12 °C"}, *text("And?")]},
        tools=[MESSAGES_TOOL],
        system="Be terse.",
    ),
    _messages(
        "results in parts, two calls",
        HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}},
                {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {"city": "Genf"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": text("a", "b")},
                {"type": "tool_result", "tool_use_id": "t2"},
            ],
        },
    ),
    _messages(
        "thinking",
        HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, *text("Warm.")]},
        HELLO,
    ),
    _messages("prefill", HELLO, {"role": "assistant", "content": "It is"}),
    _messages("cache control", {"role": "user", "content": [text("a")[0] | {"cache_control": {"type": "ephemeral"}}]}),
)
ALL = (*CHATS, *COMPLETION_BODIES, *RESPONSES_BODIES, *MESSAGES_BODIES)
