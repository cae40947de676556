"""Answers that another engine carries on: wherever the first one fails, the client gets the undisturbed stream's bytes.

The engine here says, of any ids, always the same next token, as a real one does at temperature 0; its chunks have the
fields of vLLM 0.32 in their order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.answer_ids import ANSWERS, RESERVE_BYTES, ContinuationBudget
from router.prompt.answer_tail import StopStrings
from router.prompt.continuable_stream import EVENT_BYTES, ContinuableStream
from router.prompt.event_bytes import DONE
from router.prompt.usage import Usage

PROMPT = [5, 17, 9000, 3]
TEXTS = ["a", ' "token_ids":[7] ', "é", "", "\n\n", ' "finish_reason":"abort"', "data: [DONE]"]


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def next_token(ids: Sequence[int]) -> int:
    return (sum(ids) * 31 + len(ids) * 7) % 997


def answer(
    prompt: Sequence[int], tokens: int, *, id: str, chat: bool, asks_ids: bool, usage: bool = True
) -> list[bytes]:
    """Return the events of an answer of `tokens` tokens; `asks_ids`: the request has `return_token_ids`."""
    kind = ("chatcmpl-", "chat.completion.chunk") if chat else ("cmpl-", "text_completion")
    head = {"id": kind[0] + id, "object": kind[1], "created": len(id), "model": "m"}
    said, events, prompt_ids = list(prompt), [], list(prompt) if asks_ids else None
    if chat:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        events.append(event(head | {"choices": [choice], "prompt_token_ids": prompt_ids, "prompt_text": None}))
    for number in range(tokens):
        said.append(token := next_token(said))
        text = TEXTS[token % len(TEXTS)]
        choice = {"index": 0, **({"delta": {"content": text}} if chat else {"text": text}), "logprobs": None}
        choice |= {"finish_reason": "length" if number == tokens - 1 else None, "stop_reason": None}
        if not chat:
            choice["prompt_token_ids"] = prompt_ids if number == 0 else None
        choice["token_ids"] = [token] if asks_ids else None
        events.append(event(head | {"choices": [choice]}))
    if usage:
        counts: dict[str, Any] = {"prompt_tokens": len(prompt), "total_tokens": len(said), "completion_tokens": tokens}
        counts["prompt_tokens_details"] = {"cached_tokens": 2}
        events.append(event(head | {"choices": [], "usage": counts, "system_fingerprint": "f"}))
    return [*events, DONE]


def a_stream(chat: bool = True, **options: Any) -> ContinuableStream:
    return ContinuableStream(ContinuationBudget(1 << 20), chat=chat, **options)


def feed(stream: ContinuableStream, data: bytes, cuts: Sequence[int]) -> bytes:
    """Feed `data` in the pieces that `cuts` make of it."""
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return b"".join(stream.feed(data[a:b]) for a, b in pairwise(places) if a < b)


def carry_on(stream: ContinuableStream, total: int, *, chat: bool) -> bytes:
    """Return the whole answer of the engine that gets the prompt and the answer so far."""
    ids = [int(id) for id in (stream.begin_rest() or b"").split(b",")]
    assert ids[: len(PROMPT)] == PROMPT
    said = len(ids) - len(PROMPT)
    assert said == stream.tokens
    return b"".join(answer(ids, total - said, id="another", chat=chat, asks_ids=True))


@given(
    chat=st.booleans(),
    hide=st.booleans(),
    tools=st.booleans(),
    total=st.integers(1, 12),
    deaths=st.lists(st.integers(0, 1 << 20), max_size=3),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_the_client_gets_the_bytes_of_the_undisturbed_stream(
    chat: bool, hide: bool, tools: bool, total: int, deaths: list[int], cuts: list[int]
) -> None:
    expected = b"".join(answer(PROMPT, total, id="one", chat=chat, asks_ids=not hide))
    stream = a_stream(chat, hide_ids=hide, tools=tools)
    data = b"".join(answer(PROMPT, total, id="one", chat=chat, asks_ids=True))
    seen = b""
    for death in deaths:
        cut = death % len(data)
        seen += feed(stream, data[:cut], cuts)
        if stream.finished or not stream.begun:  # nothing is missing, or nothing was there
            seen += feed(stream, data[cut:], cuts)
            break
        assert stream.find_refusal() is None
        data = carry_on(stream, total, chat=chat)
    else:
        seen += feed(stream, data, cuts)
    assert seen == expected
    assert stream.flush() == b""


@pytest.mark.parametrize("chat", [True, False])
def test_after_every_event_and_every_byte(chat: bool) -> None:
    events = answer(PROMPT, 6, id="one", chat=chat, asks_ids=True)
    data, expected = b"".join(events), b"".join(answer(PROMPT, 6, id="one", chat=chat, asks_ids=False))
    finished = sum(map(len, events[:-2]))
    continued = 0
    for cut in range(len(events[0]), finished):
        stream = a_stream(chat)
        seen = stream.feed(data[:cut])
        assert seen.endswith(b"\n\n"), "only whole events pass"
        assert stream.find_refusal() is None
        seen += stream.feed(carry_on(stream, 6, chat=chat))
        assert seen == expected
        continued += 1
    assert continued > 100


@pytest.mark.parametrize(("after", "missing"), [(2, ["usage", "done"]), (1, ["done"]), (0, [])])
def test_an_answer_that_lacks_only_its_end_is_closed_here(after: int, missing: list[str]) -> None:
    events = answer(PROMPT, 3, id="one", chat=True, asks_ids=True)
    stream = a_stream()
    stream.feed(b"".join(events[: len(events) - after]))
    assert stream.finished
    closing = stream.closing(with_usage=True)
    found = ["usage"] if b'"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}' in closing else []
    assert found + ["done"] * closing.endswith(DONE) == missing
    assert stream.closing(with_usage=False) == (DONE if missing else b"")
    if "usage" in missing:
        assert json.loads(closing.split(b"\n\n")[0][6:])["id"] == "chatcmpl-one"


def test_usage_counts_both_parts_and_the_prompt_once() -> None:
    events = answer(PROMPT, 5, id="one", chat=True, asks_ids=True)
    stream = a_stream()
    assert stream.join_usage(Usage(4, 2, 5)) == Usage(4, 2, 5)
    stream.feed(b"".join(events[:3]))
    stream.begin_rest()
    assert stream.join_usage(Usage(6, 6, 3)) == Usage(4, 4, 5), "of the 6 cached ones 2 are of the answer"
    assert stream.join_usage(Usage(6, None, None)) == Usage(4, None, None)
    assert stream.join_usage(None) == Usage(4, None, 2)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("ids", [PROMPT, None])
def test_an_engine_that_did_not_use_the_ids_says_nothing_to_the_client(chat: bool, ids: list[int] | None) -> None:
    stream = a_stream(chat)
    stream.feed(b"".join(answer(PROMPT, 5, id="one", chat=chat, asks_ids=True)[:3]))
    stream.begin_rest()
    assert stream.feed(b"".join(answer(PROMPT, 5, id="two", chat=chat, asks_ids=ids is not None))) == b""
    assert stream.stopped
    stream.begin_rest()
    assert not stream.stopped


def with_delta(**delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": [1]}
    return event({"id": "chatcmpl-one", "choices": [choice]})


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (with_delta(content="x", reasoning=None), None),
        (with_delta(content='"reasoning":"hm"'), None),
        (with_delta(tool_calls=[{"index": 0}]), "tool_call"),
        (with_delta(content="x", tool_calls=[]), None),
        (with_delta(content="x").replace(b"[1]", b"null"), "no_token_ids"),
        (b"data: {}\r\n\r\n", "framing"),
        (b"data: " + b"x" * EVENT_BYTES, "framing"),
    ],
)
def test_what_the_engine_sends_may_end_it(chunk: bytes, reason: str | None) -> None:
    stream = a_stream(tools=True)
    stream.feed(answer(PROMPT, 5, id="one", chat=True, asks_ids=True)[0])
    stream.feed(chunk)
    assert stream.find_refusal() == reason
    stream.feed(with_delta(content="more"))
    assert stream.find_refusal() == reason, "for good"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_answer_can_be_carried_on_when_its_reasoning_is_over(field: str) -> None:
    stream = a_stream()
    stream.feed(answer(PROMPT, 5, id="one", chat=True, asks_ids=True)[0])
    found = []
    for chunk in (
        with_delta(content="a"),
        with_delta(**{field: "hm"}),
        with_delta(),
        with_delta(content=""),
        with_delta(content="b", **{field: "hm"}),
        with_delta(content="c"),
    ):
        stream.feed(chunk)
        found.append(stream.find_refusal())
    assert found == [None, "reasoning", "reasoning", "reasoning", "reasoning", None]
    stream.begin_rest()
    first = answer([*PROMPT, *[1] * 6], 5, id="two", chat=True, asks_ids=True)[0]
    assert stream.feed(first + with_delta(**{field: "hm"})) == b""
    assert stream.stopped, "the next engine's parser takes the answer for reasoning"


def test_where_a_parser_may_hold_text_back_the_last_ids_are_to_be_looked_at() -> None:
    stream = a_stream()
    stream.feed(answer(PROMPT, 5, id="one", chat=True, asks_ids=True)[0])
    stream.feed(with_delta(content="a").replace(b"[1]", b"[7]"))
    assert stream.resume_ids() is None
    stream.feed(with_delta().replace(b"[1]", b"[8]"))
    stream.feed(with_delta(content="<b").replace(b"[1]", b"[9,10]"))
    stream.feed(with_delta().replace(b"[1]", b"[11]"))
    assert stream.resume_ids() == [8, 9, 10, 11]
    assert not stream.is_all_sent("<b<")
    assert stream.drop_unsent()
    assert (stream.resume_ids(), stream.is_all_sent("<b")) == ([8, 9, 10], True)
    assert not stream.drop_unsent()
    assert stream.begin_rest() == b"5,17,9000,3,7,8,9,10"
    assert stream.resume_ids() is None, "nothing has been said since"


STOPS: list[tuple[list[str], bool]] = [([], False), ([" d"], False), (["cab", "bb"], False), (["cab", "bb"], True)]
WORDS = ["a", "b", "ca", "abc", "", "é", " d"]


def stopping(prompt: Sequence[int], tokens: int, id: str, stop: Sequence[str], included: bool) -> bytes:
    """Return the stream of an engine that treats stop strings as vLLM's detokenizer does."""
    said, events, text, sent = list(prompt), answer(prompt, 0, id=id, chat=True, asks_ids=True)[:1], "", 0
    held = max(map(len, stop), default=1) - 1 if not included else 0
    for number in range(tokens):
        said.append(token := next_token(said))
        text += WORDS[token % len(WORDS)]
        ends = [(text.find(one) + len(one), one) for one in stop if one in text]
        finish = "stop" if ends else "length" if number == tokens - 1 else None
        if ends:
            end, one = min(ends)
            text = text[: end if included else end - len(one)]
        to = len(text) if finish else max(sent, len(text) - held)
        choice = {"index": 0, "delta": {"content": text[sent:to]}, "logprobs": None, "finish_reason": finish}
        sent = to
        events.append(event({"id": id, "choices": [choice | {"token_ids": [token]}]}))
        if finish:
            break
    return b"".join(events) + DONE


def read_text(data: bytes) -> tuple[str, str | None]:
    chunks = [json.loads(part[6:]) for part in data.split(b"\n\n") if part.startswith(b"data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    return "".join(choice["delta"]["content"] for choice in choices), choices[-1]["finish_reason"]


@given(
    prompt=st.lists(st.integers(0, 999), min_size=1, max_size=3),
    total=st.integers(1, 30),
    stops=st.sampled_from(STOPS),
    deaths=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=3),
)
def test_stop_strings_over_the_seam(
    prompt: list[int], total: int, stops: tuple[list[str], bool], deaths: list[int]
) -> None:
    stop, included = stops
    data = stopping(prompt, total, "one", stop, included)
    expected = read_text(data)
    strings = StopStrings(max(map(len, stop)), included) if stop else None
    stream = a_stream(stop=strings)
    seen = b""
    for death in deaths:
        cut = death % len(data)
        seen += stream.feed(data[:cut])
        if stream.finished or not stream.begun:
            seen += stream.feed(data[cut:])
            break
        assert stream.find_refusal() is None
        assert stream.rewind()
        ids = [int(id) for id in (stream.begin_rest() or b"").split(b",")]
        data = stopping(ids, total - stream.tokens, "another", stop, included)
        assert ids == prompt + ids[len(prompt) :]
    else:
        seen += stream.feed(data)
    assert read_text(seen) == expected


def test_an_engine_that_says_something_else_before_the_seam_is_refused_and_forgotten() -> None:
    prompt, stop = [4], ["xxxxxx"]
    data = stopping(prompt, 20, "one", stop, False)
    stream = a_stream(stop=StopStrings(6, False))
    stream.feed(data[: len(data) * 2 // 3])
    assert stream.rewind()
    ids = stream.begin_rest() or b""
    assert stream._again_left, "some text of the tokens that come again was sent"
    other = stopping([int(id) for id in ids.split(b",")], 9, "two", stop, False).replace(
        b'"content":"', b'"content":"?'
    )
    assert stream.feed(other) == b""
    assert (stream.stopped, stream.finished) == (True, False)
    assert stream.begin_rest() == ids


@pytest.mark.parametrize(("tools", "reason"), [(False, None), (True, "no_token_ids")])
def test_the_answer_of_an_engine_that_sends_no_ids_passes_as_it_is(tools: bool, reason: str | None) -> None:
    """Whether its text is enough to carry it on: `test_answer_text.py`."""
    data = b"".join(answer(PROMPT, 5, id="one", chat=True, asks_ids=False))
    stream = a_stream(tools=tools)
    assert stream.feed(data) == data
    assert stream.find_refusal() == reason


@pytest.mark.parametrize(
    "end",
    [
        event({"error": {"message": "EngineCore died", "code": 500}}) + DONE,
        with_delta(content="").replace(b'"finish_reason":null', b'"finish_reason":"abort"') + DONE,
    ],
)
def test_an_engine_that_reports_its_own_failure_in_the_stream_is_stopped(end: bytes) -> None:
    events = answer(PROMPT, 5, id="one", chat=True, asks_ids=True)
    stream = a_stream()
    stream.feed(b"".join(events[:3]))
    assert stream.feed(end) == b""
    assert (stream.stopped, stream.finished, stream.find_refusal()) == (True, False, None)


def of_ids(count: int) -> bytes:
    return with_delta(content="x").replace(b"[1]", b"[" + b",".join([b"12345"] * count) + b"]")


def test_memory_is_bounded_for_one_answer_and_what_follows_stays_hidden() -> None:
    budget = ContinuationBudget(10_000 * ANSWERS)
    stream = ContinuableStream(budget, chat=True)
    stream.feed(answer(PROMPT, 3, id="one", chat=True, asks_ids=True)[0])
    hidden = of_ids(1)[: of_ids(1).index(b'"token_ids"')] + b'"token_ids":null}]}\n\n'
    stream.feed(of_ids(500))
    assert 3000 < budget.taken_bytes <= 10_000
    assert stream.find_refusal() is None
    for _ in range(2):
        assert stream.feed(of_ids(1500)) == hidden
        assert stream.find_refusal() == "memory"
        assert budget.taken_bytes == 0


def test_memory_is_bounded_over_all_answers_and_given_back() -> None:
    budget = ContinuationBudget(RESERVE_BYTES * ANSWERS * 2)
    streams = [ContinuableStream(budget, chat=True) for _ in range(40)]
    for stream in streams:
        stream.feed(answer(PROMPT, 3, id="one", chat=True, asks_ids=True)[0])
        stream.feed(of_ids(500))
    assert budget.taken_bytes <= budget.capacity_bytes
    refused = [stream.find_refusal() for stream in streams]
    assert 0 < refused.count("memory") < 40
    assert refused == sorted(refused, key=lambda reason: reason is not None), "who came later finds no room"
    for stream in streams * 2:
        stream.close()
    assert budget.taken_bytes == 0


def test_an_unfinished_event_of_a_whole_answer_is_not_lost() -> None:
    stream = a_stream()
    assert stream.feed(b"data: {}\n\n: bye") == b"data: {}\n\n"
    assert stream.flush() == b": bye"
