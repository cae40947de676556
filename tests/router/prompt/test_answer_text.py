"""Answers without token ids, which another engine carries on by their text: wherever the first one fails, the client
gets the undisturbed stream's bytes.

The engine here says after any text always the same next word, as a real one mostly does at temperature 0.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.answer_ids import ANSWERS, ContinuationBudget
from router.prompt.answer_tail import StopStrings
from router.prompt.answer_text import decode_text
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.event_bytes import DONE
from router.prompt.usage import Usage

WORDS = [" a", "b", "\n", "é", ' "token_ids":[7] ,', "\\", " data: [DONE]", '"', "\t", "", ' "finish_reason":"abort".']
PROMPT_TOKENS = 4


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def next_word(text: str) -> str:
    word = WORDS[(sum(map(ord, text)) * 31 + len(text) * 7) % len(WORDS)]
    return word or "c"


def answer(text: str, tokens: int, *, id: str = "one", chat: bool = True, said: int = 0) -> list[bytes]:
    """Return the events of an engine that knows no `return_token_ids`: `tokens` words that follow `text`, of which
    `said` are of the answer.
    """
    head = {"id": id, "object": "chunk", "created": len(id), "model": "m"}
    events = []
    if chat:
        delta = {"role": "assistant", "content": ""}
        events.append(event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
    for number in range(tokens):
        text += (word := next_word(text))
        choice: dict[str, Any] = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word})}
        choice["finish_reason"] = "length" if number == tokens - 1 else None
        events.append(event(head | {"choices": [choice]}))
    prompt = PROMPT_TOKENS + said
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
    return [*events, event(head | {"choices": [], "usage": counts}), DONE]


def a_stream(chat: bool = True, **options: Any) -> ContinuableStream:
    return ContinuableStream(ContinuationBudget(1 << 20), chat=chat, **options)


def feed(stream: ContinuableStream, data: bytes, *, whole: bool = False) -> bytes:
    """Feed `data` event by event, as it mostly comes, or as a `whole`."""
    pieces = [data] if whole else data.replace(b"\n\n", b"\n\n\0").split(b"\0")
    return b"".join(stream.feed(piece) for piece in pieces if piece)


def carry_on(stream: ContinuableStream, prompt: str, total: int, chat: bool) -> bytes:
    """Return the answer of the engine that gets the prompt and the text so far."""
    so_far = stream.begin_rest(PROMPT_TOKENS)
    assert so_far is not None
    text, said = prompt + decode_text(so_far), stream.tokens
    return b"".join(answer(text, total - said, id="another", chat=chat, said=said))


@given(
    chat=st.booleans(),
    whole=st.booleans(),
    prompt=st.text("xyz", max_size=3),
    total=st.integers(1, 14),
    deaths=st.lists(st.integers(0, 1 << 20), max_size=3),
)
def test_the_client_gets_the_bytes_of_the_undisturbed_stream(
    chat: bool, whole: bool, prompt: str, total: int, deaths: list[int]
) -> None:
    data = expected = b"".join(answer(prompt, total, chat=chat))
    stream = a_stream(chat)
    seen = b""
    for death in deaths:
        cut = death % len(data)
        seen += feed(stream, data[:cut], whole=whole)
        if stream.finished or not stream.begun:  # nothing is missing, or nothing was there
            seen += feed(stream, data[cut:], whole=whole)
            break
        assert (stream.find_refusal(), stream.by) == (None, "text")
        data = carry_on(stream, prompt, total, chat)
    else:
        seen += feed(stream, data, whole=whole)
    assert seen == expected


@pytest.mark.parametrize("chat", [True, False])
def test_after_every_event_and_every_byte(chat: bool) -> None:
    events = answer("x", 8, chat=chat)
    data = b"".join(events)
    texts, continued = set(), 0
    for cut in range(len(events[0]), sum(map(len, events[:-2]))):
        stream = a_stream(chat)
        seen = feed(stream, data[:cut])
        assert seen == data[: len(seen)], "it passes as it is"
        assert seen.endswith(b"\n\n"), "only whole events pass"
        seen += feed(stream, carry_on(stream, "x", 8, chat))
        assert seen == data
        texts.add(stream.tokens)
        continued += 1
    assert continued > 100
    assert texts == {8}


@pytest.mark.parametrize(
    ("sent", "then", "seen"),
    [
        (["So", " "], [" it", " is"], "So it is"),
        (["So "], ["it"], "So it"),
        (["So", "\n", "\n"], ["\n", "\n", "It"], "So\n\nIt"),
        (["So\n\n"], ["\n\nIt"], "So\n\nIt"),
        (["So\n\n"], ["\n", " It"], "So\n\n It"),
        ([" ", ""], ["", " ", "It"], " It"),
    ],
)
def test_white_space_at_the_end_is_not_sent_to_the_next_engine_and_not_said_twice(
    sent: list[str], then: list[str], seen: str
) -> None:
    def chunks(words: list[str], finish: str | None) -> bytes:
        choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in words]
        choices[-1]["finish_reason"] = finish
        return b"".join(event({"id": "one", "choices": [choice]}) for choice in choices)

    stream = a_stream()
    got = feed(stream, chunks(sent, None))
    assert decode_text(stream.begin_rest() or b"") == "".join(sent).rstrip()
    got += feed(stream, chunks(then, "stop"))
    deltas = [json.loads(part[6:])["choices"][0]["delta"]["content"] for part in got.split(b"\n\n")[:-1]]
    assert "".join(deltas) == seen
    assert stream.finished


def test_usage_is_that_of_the_last_engine_less_the_prompt_and_else_unknown() -> None:
    events = answer("x", 8)
    for counted, whole in ((PROMPT_TOKENS, Usage(4, 3, 9)), (None, Usage(None, None, None))):
        stream = a_stream()
        assert stream.join_usage(Usage(4, 4, 5)) == Usage(4, 4, 5)
        feed(stream, b"".join(events[:4]))
        stream.begin_rest(counted)
        assert stream.join_usage(Usage(7, 3, 6)) == whole
        assert stream.join_usage(Usage(7, None, None)) == Usage(None, None, None)
        assert stream.join_usage(None) == Usage(None, None, None)
        seen = feed(stream, b"".join(answer("y", 4, id="another", said=3)))
        assert (b'"usage"' in seen) == (counted is not None), "no usage is better than a wrong one"
        assert seen.endswith(DONE)


def test_an_answer_that_lacks_only_its_end_is_closed_here_without_usage() -> None:
    stream = a_stream()
    feed(stream, b"".join(answer("x", 3)[:-2]))
    assert stream.finished
    assert stream.closing(with_usage=True) == DONE
    assert stream.count() == Usage(None, None, None)


def with_delta(ids: object = None, **delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": ids}
    return event({"id": "one", "choices": [choice]})


@pytest.mark.parametrize(
    ("options", "chunk", "reason"),
    [
        ({}, with_delta(content="x", reasoning=None, tool_calls=[]), None),
        ({"tools": True}, with_delta(content="x"), "no_token_ids"),
        ({"stop": StopStrings(3, included=False)}, with_delta(content="x"), "no_token_ids"),
        ({"hide_ids": False}, with_delta(content="x"), "no_token_ids"),
        ({}, with_delta(content="x", reasoning="hm"), "no_token_ids"),
        ({}, with_delta(tool_calls=[{"index": 0}]), "no_token_ids"),
        ({}, with_delta(content=[{"text": "x"}]), "no_token_ids"),
        ({}, with_delta(content="x", ids=[7]), "no_token_ids"),
        ({}, b'data: {"choices":[}\n\n', "no_token_ids"),
        ({}, b"data: {}\r\n\r\n", "framing"),
    ],
)
def test_where_text_is_not_enough_there_is_no_second_part(
    options: dict[str, Any], chunk: bytes, reason: str | None
) -> None:
    stream = a_stream(**options)
    stream.feed(answer("x", 3)[0])
    seen = stream.feed(chunk)
    assert seen == chunk.replace(b'"token_ids":[7]', b'"token_ids":null')
    assert stream.find_refusal() == reason
    stream.feed(with_delta(content="more"))
    assert stream.find_refusal() == reason, "for good"


@pytest.mark.parametrize(
    "chunk",
    [
        with_delta(reasoning="hm"),
        with_delta(content="x", ids=[7]),
        event({"error": {"message": "EngineCore died", "code": 500}}),
        with_delta(content="").replace(b'"finish_reason":null', b'"finish_reason":"abort"'),
    ],
)
def test_a_second_part_that_cannot_be_joined_is_stopped(chunk: bytes) -> None:
    stream = a_stream()
    feed(stream, b"".join(answer("x", 8)[:5]))
    so_far = stream.begin_rest()
    assert stream.feed(answer("x", 1)[0] + chunk) == b""
    assert (stream.stopped, stream.finished) == (True, False)
    assert stream.begin_rest() == so_far
    assert not stream.stopped


def test_the_text_counts_within_the_memory_and_is_given_back() -> None:
    budget = ContinuationBudget(10_000 * ANSWERS)
    stream = ContinuableStream(budget, chat=True)
    stream.feed(answer("x", 3)[0])
    stream.feed(with_delta(content="x" * 3000))
    assert 3000 < budget.taken_bytes <= 10_000
    assert stream.find_refusal() is None
    for _ in range(2):
        assert stream.feed(long := with_delta(content="x" * 8000)) == long
        assert (stream.find_refusal(), budget.taken_bytes) == ("memory", 0)


def with_ids(*ids: int, **delta: object) -> bytes:
    return with_delta(ids=list(ids), **delta)


def an_answer_with_ids() -> ContinuableStream:
    stream = a_stream()
    role = with_delta(role="assistant", content="")
    stream.feed(role.replace(b"}\n\n", b',"prompt_token_ids":[5,6]}\n\n'))
    stream.feed(with_ids(7, content="So ") + with_ids(8, content="it"))
    return stream


def test_where_an_engine_did_not_use_the_ids_the_text_takes_their_place() -> None:
    stream = an_answer_with_ids()
    assert stream.begin_rest() == b"5,6,7,8"
    assert stream.feed(b"".join(answer("x", 3))) == b""
    assert (stream.stopped, stream.ids_ignored) == (True, True)
    assert stream.ids_for_text() == [7, 8]
    stream.use_text("So it")
    assert (stream.by, stream.tokens, stream.find_refusal()) == ("text", 2, None)
    assert stream.begin_rest() == b"So it"
    seen = feed(stream, b"".join(answer("x", 3, id="another", said=3)))
    assert b"another" not in seen
    assert b'"usage":{"prompt_tokens":2,' in seen, "the prompt's ids were counted"
    assert seen.endswith(DONE)


def test_an_engine_that_failed_otherwise_did_not_ignore_the_ids() -> None:
    stream = an_answer_with_ids()
    stream.begin_rest()
    stream.feed(event({"error": {"message": "EngineCore died", "code": 500}}))
    assert (stream.stopped, stream.ids_ignored) == (True, False)


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}, {}])
def test_ids_are_not_replaced_by_text_where_there_is_more_than_text(delta: dict[str, object]) -> None:
    stream = an_answer_with_ids()
    assert stream.ids_for_text() == [7, 8]
    stream.feed(with_ids(9, **delta))
    stream.feed(with_ids(10, content="x"))
    assert stream.ids_for_text() is None


def test_a_text_that_does_not_fit_in_place_of_the_ids_ends_it() -> None:
    stream = an_answer_with_ids()
    stream.begin_rest()
    stream.feed(b"".join(answer("x", 3)))
    stream.use_text("x" * (1 << 17))
    assert stream.find_refusal() == "memory"
