"""Any cut: whatever transforms a stream gives the same bytes for every partition of its input, and learns the same.

Each transform alone, and their composition as `ResponseObserver` builds it: stream, hide, rename. The oracle is the
input in one piece; where nothing is hidden and nothing renamed it is the input itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.prompt.answer_ids import ContinuationBudget
from router.prompt.answer_model import AnswerModel
from router.prompt.answer_tail import StopStrings
from router.prompt.continuable_stream import EVENT_BYTES, ContinuableStream
from router.prompt.event_bytes import DONE
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.prompt.usage import LARGEST_EVENT_BYTES, HideUsage, UsageTail
from router.request.response_observer import ResponseObserver
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduler import Scheduler
from tests.router.request.requests import a_request, a_target
from tests.router.request.some_services import some_services
from tests.suites.properties import examples

MODEL, ALIAS = "llama", "the-chat"
TEXTS = [
    "a",
    " bc",
    "é",
    "",
    "\n\n",
    "\r\n\r\n",
    '"model":"llama"',
    ' "token_ids":[7] ',
    "data: [DONE]",
    '"usage":{}',
    "\\",
]


def event(chunk: object, end: bytes = b"\n\n", gap: str = "") -> bytes:
    text = json.dumps(chunk, separators=("," + gap, ":" + gap), ensure_ascii=False)
    return b"data: " + text.encode() + end


def choice(
    chat: bool, text: str | None, ids: list[int] | None, finish: str | None = None, **delta: Any
) -> dict[str, Any]:
    said: dict[str, Any] = ({} if text is None else {"content": text}) | delta
    one: dict[str, Any] = {"index": 0, **({"delta": said} if chat else {"text": text or ""}), "logprobs": None}
    one["finish_reason"] = finish
    return one if ids is None else one | {"token_ids": ids}


USAGE = {"prompt_tokens": 4, "total_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
ERRORS = [
    b'data: {"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}\n\n',
    b'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}\n\n',
    b'data:{ "error" :{"object":"error","message":"no code"}}\n\n',
    b'data: {"error":"a word"}\n\n',
]
ODD = [
    b": ping\n\n",
    b": ping\r\n\r\n",
    b"\n",
    b"\r\n",
    b"event: x\ndata: 1\ndata: 2\n\n",
    b'data: {"choices":\ndata: []}\n\n',
    b"data: \xff\xfe\n\n",
    b"data:\n\n",
    b"id: 7\nretry: 10\n\n",
    b'data: {"model":"llama"\n\n',
    b'data: {"choices":[],"usage":{}}\n\n',
    b'data: {"usage":{"prompt_tokens":1},"choices":[{"a":[]}]}\n\n',
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return the stream of some engine: with ids or without, of any shape."""
    chat, ids, framing = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([b"\n\n"] * 4 + [b"\r\n\r\n"]))
    gap = draw(st.sampled_from(["", "", "", " "]))
    head: dict[str, Any] = {"id": "chatcmpl-one", "object": "chunk", "created": 1, "model": MODEL}
    prompt = {"prompt_token_ids": [5, 17]} if ids else {}
    events = []
    if chat:
        role = choice(True, "", None, role="assistant")
        events.append(event(head | {"choices": [role]} | prompt, framing, gap))
    for number in range(draw(st.integers(0, 6))):
        what = draw(st.sampled_from(["text"] * 6 + ["reasoning", "call", "empty", "abort", "odd", "error", "no ids"]))
        at = [number, 100 + number][: draw(st.integers(0, 2))] if ids and what != "no ids" else None
        one = choice(chat, draw(st.sampled_from(TEXTS)), at)
        if what == "reasoning":
            one = choice(chat, None, at, reasoning="hm")
        elif what == "call":
            one = choice(chat, None, at, tool_calls=[{"index": 0}])
        elif what == "empty":
            one = choice(chat, None, at)
        elif what == "abort":
            one = choice(chat, "x", at, "abort")
        if what == "odd":
            events.append(draw(st.sampled_from(ODD)))
        elif what == "error":
            events.append(draw(st.sampled_from(ERRORS)))
        else:
            if not chat and number == 0:
                one |= prompt
            events.append(event(head | {"choices": [one]}, framing, gap))
    if draw(st.booleans()):
        events.append(event(head | {"choices": [choice(chat, "end", [9] if ids else None, "stop")]}, framing, gap))
    if draw(st.booleans()):
        events.append(event(head | {"choices": [], "usage": USAGE}, framing, gap))
    if draw(st.booleans()):
        events.append(DONE.replace(b"\n\n", framing))
    data = b"".join(events)
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 2, 5]))]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces that `places` make of `data`."""
    bounds = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]


def partitions(data: bytes, more: Sequence[Sequence[int]]) -> Iterator[list[bytes]]:
    """Yield every partition into two pieces, the one into single bytes, and those of `more`."""
    for place in range(1, len(data)):
        yield [data[:place], data[place:]]
    yield [data[n : n + 1] for n in range(len(data))]
    for places in more:
        yield cut(data, places)


CUTS = st.lists(st.lists(st.integers(0, 1 << 20), max_size=12), min_size=3, max_size=3)
OPTIONS = st.fixed_dictionaries(
    {
        "chat": st.booleans(),
        "tools": st.booleans(),
        "stop": st.sampled_from([None, StopStrings(3, False)]),
        "hide_ids": st.booleans(),
        "hide_usage": st.booleans(),
    }
)


class Passed(NamedTuple):
    """What a client got of a stream, and what the router knows after it."""

    seen: bytes
    state: tuple[Any, ...]


def through_stream(pieces: list[bytes], options: dict[str, Any]) -> Passed:
    stream = ContinuableStream(ContinuationBudget(1 << 20), **options)
    seen = b""
    for piece in pieces:
        seen += stream.feed(piece)
        if stream.stopped:
            break
    else:
        seen += stream.flush()
    refusal = stream.find_refusal()
    state = stream.stopped, stream.finished and refusal is None, refusal, stream.tokens, stream.by, stream.begun
    return Passed(seen, (*state, stream.resume_ids() if refusal is None else None, stream.closing(with_usage=True)))


def through_hide(pieces: list[bytes]) -> Passed:
    hide = HideUsage()
    return Passed(b"".join([hide.feed(piece) for piece in pieces]) + hide.end(), ())


def through_rename(pieces: list[bytes], model: str = MODEL, alias: str = ALIAS) -> Passed:
    rename = AnswerModel(model, alias)
    return Passed(b"".join([rename.feed(piece) for piece in pieces]) + rename.flush(), ())


def assert_same(data: bytes, more: Sequence[Sequence[int]], passed: Callable[[list[bytes]], Passed]) -> bytes:
    """Check that all partitions give the same, and return the bytes."""
    whole = passed([data] if data else [])
    for pieces in partitions(data, more):
        assert passed(pieces) == whole, pieces
    return whole.seen


@examples(200)
@given(streams(), OPTIONS, CUTS)
def test_a_stream_that_can_be_carried_on(data: bytes, options: dict[str, Any], more: list[list[int]]) -> None:
    seen = assert_same(data, more, lambda pieces: through_stream(pieces, options))
    if not options["hide_ids"] and not options["hide_usage"]:
        assert data.startswith(seen), "it ends early only where the engine reports its failure"


@given(streams(), CUTS)
def test_hidden_usage(data: bytes, more: list[list[int]]) -> None:
    assert_same(data, more, through_hide)


@given(streams(), CUTS)
def test_the_clients_name_of_the_model(data: bytes, more: list[list[int]]) -> None:
    seen = assert_same(data, more, through_rename)
    assert seen == data.replace(b'"model":"llama"', b'"model":"the-chat"')


@given(
    st.lists(st.sampled_from([b'"', b'"model":"', b"x}", b"mod", b'"model', b":", b"\n", b"}"]), max_size=8).map(
        b"".join
    ),
    st.sampled_from(["x}", "x", "model", '"', "\n"]),
    st.sampled_from(["model", "x", 'a"model":"x', ""]),
    CUTS,
)
def test_the_clients_name_of_the_model_in_bytes_that_look_like_it(
    data: bytes, model: str, alias: str, more: list[list[int]]
) -> None:
    assert_same(data, more, lambda pieces: through_rename(pieces, model, alias))


class Scene:
    """One attempt as the relay sees it, with the transforms that its request needs."""

    def __init__(self, options: dict[str, Any], *, continued: bool, renamed: bool) -> None:
        hidden = {name: options[name] for name in ("hide_usage", "hide_ids")}
        prompt = Prompt(
            Endpoint.CHAT, "/v1/chat/completions", "m", b"", UnknownIds("not_needed"), stream=True, **hidden
        )
        self.request = a_request(prompt)
        self.request.stream = ContinuableStream(ContinuationBudget(1 << 20), **options) if continued else None
        self.request.rename = AnswerModel(MODEL, ALIAS) if renamed else None
        self.request.counts_events = True
        record = Record("r-0", 0, 0.0, 0.0, "/v1/chat/completions", "m", True, "unknown", None, Stages())
        attempt = SimpleNamespace(continued_tokens=None)
        target = a_target()
        self.ticket: Any = SimpleNamespace(record=record, attempt=attempt, target=target, status=200, end="client_gone")
        services = some_services(
            scheduler=Scheduler.__new__(Scheduler),  # nothing of it is used
            tokenization=SimpleNamespace(),
            clock=ManualClock(0.0),
            data_path=SimpleNamespace(renames=True),
        )
        self.observer = ResponseObserver(self.ticket, self.request, services)

    def relay(self, pieces: list[bytes]) -> Passed:
        seen = b""
        for piece in pieces:
            seen += self.observer.feed(piece)
            if self.observer.stopped:
                break
        else:
            seen += self.observer.flush()
        tail = self.observer._tail
        assert tail is not None
        known = () if self.observer.stopped else (tail.read_usage(), tail.ended(), tail.ends_in_tool_call())
        return Passed(seen, (self.observer.stopped, known, None if self.observer.stopped else self.request.events))


@examples(200)
@given(streams(), OPTIONS, st.booleans(), st.booleans(), CUTS)
def test_all_of_them_as_the_observer_composes_them(
    data: bytes, options: dict[str, Any], continued: bool, renamed: bool, more: list[list[int]]
) -> None:
    seen = assert_same(data, more, lambda pieces: Scene(options, continued=continued, renamed=renamed).relay(pieces))
    if not (renamed or options["hide_usage"] or (continued and options["hide_ids"])):
        assert data.startswith(seen) if continued else seen == data


def tail_state(pieces: list[bytes], endpoint: Endpoint) -> Passed:
    tail = UsageTail(endpoint)
    for piece in pieces:
        tail.feed(piece)
    return Passed(b"", (tail.read_usage(), tail.ended(), tail.ends_in_tool_call(), tail.response_id()))


@given(streams(), st.sampled_from([Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES]), CUTS)
def test_what_is_read_of_its_end(data: bytes, endpoint: Endpoint, more: list[list[int]]) -> None:
    assert_same(data, more, lambda pieces: tail_state(pieces, endpoint))


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("options", [{"tools": True}, {"stop": StopStrings(3, False)}, {}])
def test_an_engine_without_ids(chat: bool, end: bytes, options: dict[str, Any]) -> None:
    """vLLM before 0.10.2: nothing is hidden, so each cut gives the bytes of the engine."""
    said = [choice(chat, text, None) for text in ("a", " b", "c")] + [choice(chat, "d", None, "stop")]
    data = b"".join(event({"id": "one", "model": MODEL, "choices": [one]}, end) for one in said)
    data += DONE.replace(b"\n\n", end)
    assert assert_same(data, (), lambda pieces: through_stream(pieces, {"chat": chat} | options)) == data


def test_an_event_without_ids_in_front_of_one_with_ids() -> None:
    one, other = choice(True, "a", [1]), choice(True, "b", None)
    events = [event({"choices": [one], "prompt_token_ids": [1]}), event({"choices": [one]})]
    data = b"".join([*events, event({"choices": [other]}), event({"choices": [one]})])
    assert_same(data, [], lambda pieces: through_stream(pieces, {"chat": True}))


def test_plain_text_behind_the_end_changes_nothing() -> None:
    said = [choice(True, "a", None), choice(True, "b", None, "stop"), choice(True, "c", None)]
    data = b"".join(event({"choices": [one]}) for one in said)
    assert_same(data, [], lambda pieces: through_stream(pieces, {"chat": True}))


@pytest.mark.parametrize("size", [EVENT_BYTES, EVENT_BYTES + 1])
def test_a_large_event(size: int) -> None:
    """It is as large in one piece as in many, so the ids of what follows are hidden in both or in none."""
    large = b"data: " + b"x" * (size - 8) + b"\n\n"
    one = choice(True, "a", [1])
    data = large + event({"choices": [one], "prompt_token_ids": [1]}) + event({"choices": [one]}) + DONE
    whole = through_stream([data], {"chat": True})
    for place in (1, size - 2, size - 1, size, size + 1, EVENT_BYTES - 1, EVENT_BYTES, EVENT_BYTES + 1, len(data) - 1):
        assert through_stream([data[:place], data[place:]], {"chat": True}) == whole, place
    assert through_stream(cut(data, range(0, len(data), 65536)), {"chat": True}) == whole
    assert whole.state[2] == ("framing" if size > EVENT_BYTES else None)


@pytest.mark.parametrize("size", [LARGEST_EVENT_BYTES - 40, LARGEST_EVENT_BYTES, LARGEST_EVENT_BYTES + 40])
def test_a_large_usage_chunk(size: int) -> None:
    chunk = event({"choices": [], "usage": USAGE, "x": ""})
    data = chunk.replace(b'"x":""', b'"x":"%b"' % (b"y" * (size - len(chunk)))) + DONE
    whole = through_hide([data])
    for place in (1, 100, size - 2, size - 1, size, size + 1):
        assert through_hide([data[:place], data[place:]]) == whole, place
    assert through_hide(cut(data, range(0, len(data), 999))) == whole
