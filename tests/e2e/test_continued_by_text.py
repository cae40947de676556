"""Streams of engines that name no token ids, or use none, are carried on by their text, through a whole router.

The words of emulated engines survive being tokenised again, so the bytes can be compared here; on a real engine some
answers differ after the seam (`tests/stack/test_continued.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.e2e.conftest import Router
from tests.e2e.test_continued import (
    CHAT,
    COMPLETIONS,
    DONE,
    TOKENS,
    TOOLS,
    House,
    alike,
    ask,
    assert_clean_error,
    broken,
    ends,
    house,
    settled,
)
from tests.fakes.engines import eventually

__all__ = ["house"]
COUNTING: dict[str, Any] = {  # a policy that needs the prompt's tokens, so that the router counts them
    "policies": {"cached": {"scorers": [{"name": "prefix_overlap"}], "picker": {"name": "best"}}},
    "experiment": {"arms": {"all": {"policy": "load", "share": 100}}, "shadows": ["cached"], "seed": 3},
}
USAGE = re.compile(rb'data: \{[^\n]*"usage":[^\n]*\n\n')
SHORT = 16  # bytes of a chat's text, below which it is not carried on
LATE = 1100  # bytes of a stream, by which it has more


def text_of(answer: bytes, path: str) -> str:
    chunks = [json.loads(part[6:]) for part in answer.split(b"\n\n") if part.startswith(b'data: {"id"')]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" if path == CHAT else choice["text"] for choice in choices)


def without_ids(r: Router) -> None:
    for fake in r.engines:
        fake.faults(no_ids=True)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("wants_usage", "counted"), [(True, True), (True, False), (False, True)])
async def test_wherever_the_engine_is_cut_the_client_gets_the_whole_stream(
    house: House, path: str, wants_usage: bool, counted: bool
) -> None:
    """`counted`: the router has counted the tokens of the prompt, else nobody knows the usage of such an answer."""
    asked: dict[str, Any] = {"stream_options": {"include_usage": True}} if wants_usage else {}
    async with house(**(COUNTING if counted else {})) as r:
        without_ids(r)
        undisturbed = await ask(r, path, **asked)
        usage = ((await r.record(undisturbed))["prompt_tokens"], TOKENS)
        raw = (await ask(r, path, stream_options={"include_usage": True})).content
        boundaries = [match.end() for match in re.finditer(rb"\n\n", raw)]
        finished = boundaries[-3]  # then come usage and the last event
        carried_on = 0
        for place in sorted({*boundaries[:-1], *range(7, len(raw), 307)}):
            r.engines[0].faults(die_after_bytes=place)
            answer = await ask(r, path, **asked)
            record = await r.record(answer)
            said = raw[: max((end for end in boundaries if end <= place), default=0)]
            if place >= finished:  # nothing is left to compute, and nobody has counted
                assert ends(record) == ["continued"]
                assert (record["prompt_tokens"], record["output_tokens"]) == (None, None)
                assert answer.content.endswith(DONE)
            elif path == CHAT and 0 < len(text_of(said, path)) < SHORT:
                assert_clean_error(answer)
                assert (ends(record), record["uncontinued"]) == (["broken"], "no_token_ids")
            else:
                expected = alike(undisturbed) if counted or not said else USAGE.sub(b"", alike(undisturbed))
                assert alike(answer) == expected, place
                assert (record["uncontinued"], record["error"], ends(record)) == (None, None, ["continued", "ok"])
                assert record["attempts"][0]["continued_by"] is None
                assert record["attempts"][1]["continued_by"] == ("text" if said else None)
                known = usage if counted or not said else (None, None)
                assert (record["prompt_tokens"], record["output_tokens"]) == known
                carried_on += bool(said)
        assert carried_on > 3
        assert await r.metric("warmroute_broken_answers_total", outcome="continued_text") >= carried_on
        await eventually(lambda: settled(r))


async def test_the_next_engine_is_told_to_leave_the_last_message_open(house: House) -> None:
    async with house() as r:
        without_ids(r)
        _, record = await broken(r, LATE, return_token_ids=None)
        body = json.loads(r.engines[1].seen(CHAT)[-1].body)
        assert body["messages"][-1]["role"] == "assistant"
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert body["max_tokens"] == TOKENS - record["attempts"][1]["continued_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "none"},
        {"stop": ["never said"]},
        {"return_token_ids": True},
        {"messages": [{"role": "assistant", "content": "So"}], "continue_final_message": True}
        | {"add_generation_prompt": False},
    ],
)
async def test_where_text_is_not_enough_the_stream_ends_with_an_error(house: House, fields: dict[str, Any]) -> None:
    async with house() as r:
        without_ids(r)
        answer, record = await broken(r, LATE, **fields)
        assert_clean_error(answer)
        assert (ends(record), record["uncontinued"]) == (["broken"], "no_token_ids")


async def test_a_prompt_of_token_ids_has_no_text_to_go_on_from(house: House) -> None:
    async with house() as r:
        without_ids(r)
        r.engines[0].faults(die_after_bytes=LATE)
        answer = await ask(r, COMPLETIONS, prompt=[5, 6, 7])
        assert (await r.record(answer))["uncontinued"] == "no_token_ids"


async def test_a_text_that_does_not_fit_the_memory_is_not_carried_on(house: House) -> None:
    async with house(limits={"continuation_bytes": 100}) as r:
        without_ids(r)
        _, record = await broken(r, LATE)
        assert record["uncontinued"] == "memory"


@pytest.mark.parametrize("tokenizers", [None, {}])
async def test_an_engine_that_does_not_use_the_ids_gets_the_text(
    house: House, tokenizers: dict[str, Any] | None
) -> None:
    """As one before vLLM 0.32; the text comes from the router's tokenizer, or from an engine."""
    async with house(**({} if tokenizers is None else {"tokenizers": tokenizers})) as r:
        undisturbed = await ask(r)
        r.engines[1].faults(ignore_ids=True)
        answer, record = await broken(r, LATE)
        assert alike(answer) == alike(undisturbed)
        assert ends(record) == ["continued", "rejected", "ok"]
        assert [attempt["continued_by"] for attempt in record["attempts"]] == [None, "ids", "text"]
        assert record["target"] == record["attempts"][1]["target"], "the same engine is asked again"
        assert (await r.record(undisturbed))["prompt_tokens"] == record["prompt_tokens"]
        raw = (await ask(r, return_token_ids=True)).content
        early = [match.end() for match in re.finditer(rb"\n\n", raw)][1]
        answer, record = await broken(r, early)  # a text too short for older engines to find it in the prompt
        assert_clean_error(answer)
        assert (ends(record), record["uncontinued"]) == (["broken", "rejected"], "no_target")
