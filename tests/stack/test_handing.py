"""Real engines get a chat's token ids from the router, and answer as if they had made them: the same text, the same
tool calls, the same counts.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stack.behind import Asked, Behind
from tests.stack.bodies import CHAT, CHAT_TOOL, CHATS, HELLO, SYSTEM, Body, Json
from tests.stack.children import until
from tests.stack.engines import MODEL, Engine
from tests.stack.prompts import prose, user

pytestmark = pytest.mark.stack

WHOLE: Json = {"temperature": 0, "max_tokens": 12}
NAMED = {"type": "function", "function": {"name": CHAT_TOOL["function"]["name"]}}
MORE = (
    Body("a tool that must be called", CHAT, {"messages": [SYSTEM, HELLO], "tools": [CHAT_TOOL], "tool_choice": NAMED}),
    Body("two choices", CHAT, {"messages": [HELLO], "n": 2, "temperature": 0.7, "seed": 1}),
    Body("beams", CHAT, {"messages": [HELLO], "n": 2, "use_beam_search": True}),
    Body("log probabilities", CHAT, {"messages": [HELLO], "logprobs": True, "top_logprobs": 2}),
    Body("ids in the answer", CHAT, {"messages": [HELLO], "return_token_ids": True}),
    Body("a schema", CHAT, {"messages": [HELLO], "response_format": {"type": "json_object"}, "max_tokens": 20}),
    Body("three blocks", CHAT, {"messages": [user(prose("handing", 300))]}),
)


@pytest.fixture(scope="module")
def taking(behind: Behind) -> Behind:
    """The router, once both engines were seen to take ids."""
    for engine in behind.engines:
        until(f"{engine.name} was tried", lambda: (behind.instance(engine.name)["token_ids"] or {}).get("takes"))  # noqa: B023
    return behind


def handed(asked: Asked) -> bool:
    return bool(asked.record["attempts"][-1]["token_id_passthrough"])


def until_handed(router: Behind, body: Json) -> None:
    """Send at most twice: the first of a kind is sent without ids, and every 64th may be, too."""
    for _ in range(3):
        if handed(router.send(CHAT, body)):
            return
    raise AssertionError(f"not handed: {json.dumps(body)[:300]}")


def shown(answer: Json) -> Json:
    """Return an answer without the fields that are new each time."""
    answer = {name: value for name, value in answer.items() if name not in ("id", "created")}
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls") or []:
            call["id"] = "any"
    return answer


def told(answer: Any) -> Json:
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.parametrize("body", [*CHATS, *MORE], ids=lambda body: body.name)
def test_an_answer_with_ids_is_the_answer_without(taking: Behind, body: Body) -> None:
    asked = {"model": MODEL, **WHOLE, **body.body}
    if "seed" not in asked:
        asked["temperature"] = 0
    until_handed(taking, asked)
    through = taking.http.post(CHAT, json=asked)
    record = taking._record(through.headers["x-warmroute-record"])
    engine = taking.engine(record["target"].rpartition("/")[0])
    straight = told(engine.http.post(CHAT, json=asked))
    assert record["attempts"][-1]["token_id_passthrough"]
    assert shown(told(through)) == shown(straight)
    details = straight["usage"]["prompt_tokens_details"]
    if details is not None:  # beams tell none
        assert record["cached_tokens"] == details["cached_tokens"]


def test_a_stream_with_ids_is_the_stream_without(taking: Behind) -> None:
    body = {"messages": [user(prose("streamed", 300))], "stream": True, **WHOLE}
    first, second, third = (taking.send(CHAT, body) for _ in range(3))
    assert [handed(second), handed(third)].count(True) >= 1
    assert first.text == second.text == third.text != ""
    assert first.record["prompt_tokens"] == second.record["prompt_tokens"] == third.record["prompt_tokens"]
    assert second.cached == third.cached == third.predicted


@pytest.mark.parametrize(
    "field", [{"echo": True}, {"truncate_prompt_tokens": 8}, {"prompt_logprobs": 1}, {"return_prompt_text": True}]
)
def test_what_needs_the_messages_rendered_goes_without(taking: Behind, field: Json) -> None:
    body = {"messages": [HELLO], **WHOLE, **field}
    through = taking.http.post(CHAT, json={"model": MODEL, **body})
    record = taking._record(through.headers["x-warmroute-record"])
    engine = taking.engine(record["target"].rpartition("/")[0])
    assert not record["attempts"][-1]["token_id_passthrough"]
    assert shown(told(through)) == shown(told(engine.http.post(CHAT, json={"model": MODEL, **body})))


def test_a_prompt_beyond_the_context_is_refused_in_the_engine_s_words(taking: Behind, engines: list[Engine]) -> None:
    body = {"model": MODEL, "messages": [user(prose("long", 9000))], **WHOLE}
    through = taking.http.post(CHAT, json=body)
    straight = engines[0].http.post(CHAT, json=body)
    assert (through.status_code, through.json()) == (400, straight.json())


def test_an_engine_refuses_ids_that_are_none_of_its_own_by_the_parameter_s_name(engines: list[Engine]) -> None:
    """What `backends/vllm/token_ids.py` goes by."""
    body = {"model": MODEL, "messages": [HELLO], "kv_transfer_params": {"prompt_token_ids": [10**8]}}
    answer = engines[0].http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"
