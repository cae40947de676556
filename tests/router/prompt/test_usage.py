"""Usage from the ends of answers, and the stream filter at every possible cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.prompt import Endpoint
from router.prompt.usage import TAIL_BYTES, HideUsage, Usage, UsageTail

COMPLETION = (
    b'{"id":"cmpl-8045be073cb13fd2","object":"text_completion","created":1795226519,"model":"m","choices":[{"index":0,'
    b'"text":" status calling","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[3332,2685],'
    b'"prompt_logprobs":null,"prompt_token_ids":[767,580],"routed_experts":null}],"service_tier":null,'
    b'"system_fingerprint":"vllm-0.32.0-e662e01b","usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null},'
    b'"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
)
MESSAGE = (
    b'{"id":"chatcmpl-bf1dfce35b5b53d8","type":"message","role":"assistant","content":[{"type":"text","text":"tools '
    b'syntaxEnumminute"}],"model":"m","stop_reason":"max_tokens","usage":{"input_tokens":11,"output_tokens":4}}'
)
RESPONSE = (
    b'{"id":"resp_8b434fad3772e3d4","created_at":1795226285,"incomplete_details":{"reason":"max_output_tokens"},'
    b'"instructions":null,"model":"m","object":"response","output":[{"id":"msg_86742e17b3d6e0e0","content":[{"text":'
    b'"TYPE readyream","type":"output_text"}],"role":"assistant"}],"usage":{"input_tokens":11,"input_tokens_details":'
    b'{"cached_tokens":8,"cache_write_tokens":0,"input_tokens_per_turn":[]},"output_tokens":4,"output_tokens_details":'
    b'{"reasoning_tokens":0},"total_tokens":15},"user":null,"input_messages":null,"output_messages":null}'
)
CHUNK = b'data: {"id":"c1","object":"chunk","choices":[{"index":0,"delta":{"content":"a \\"usage\\": {}"}}]}\n\n'
USAGE = (
    b'data: {"id":"c1","object":"chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":40,'
    b'"total_tokens":43,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}\n\n'
)
LAST = b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = CHUNK * 3 + LAST + USAGE + DONE


def read(endpoint: Endpoint, *chunks: bytes) -> UsageTail:
    tail = UsageTail(endpoint)
    for chunk in chunks:
        tail.feed(chunk)
    return tail


@pytest.mark.parametrize(
    ("endpoint", "answer", "usage"),
    [
        (Endpoint.COMPLETIONS, COMPLETION, Usage(2, 0, 2)),
        (Endpoint.RESPONSES, RESPONSE, Usage(11, 8, 4)),
        (Endpoint.MESSAGES, MESSAGE, Usage(11, None, 4)),
        (Endpoint.CHAT, STREAM, Usage(40, 32, 3)),
        (Endpoint.CHAT, b'{"usage" : { "prompt_tokens" : 7, "prompt_tokens_details": null }}', Usage(7, None, None)),
        (Endpoint.CHAT, CHUNK * 4 + DONE, None),
        (Endpoint.CHAT, b'{"error":{"message":"no"}}', None),
        (Endpoint.CHAT, b'{"choices":[],"usage":null}', None),
        (Endpoint.CHAT, b'data: {"usage":{"prompt_tokens":4', None),
    ],
)
def test_usage(endpoint: Endpoint, answer: bytes, usage: Usage | None) -> None:
    assert read(endpoint, answer).read_usage() == usage


def test_anthropic_stream_takes_what_only_the_beginning_says() -> None:
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":4,"output_tokens":0,'
    )
    start += b'"cache_read_input_tokens":32,"cache_creation_input_tokens":2}}}\n\n'
    delta = b'event: message_delta\ndata: {"delta":{},"usage":{"input_tokens":4,"output_tokens":9}}\n\n'
    noise = b'event: content_block_delta\ndata: {"delta":{"text":"' + b"x" * 100 + b'"}}\n\n'
    assert read(Endpoint.MESSAGES, start, *[noise] * 1000, delta).read_usage() == Usage(38, 32, 9)
    assert read(Endpoint.MESSAGES, start, noise).read_usage() == Usage(38, 32, 0)


def a_stop(reason: str | None) -> bytes:
    said = "null" if reason is None else f'"{reason}"'
    return f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":{said},"stop_reason":null}}]}}\n\n'.encode()


FUNCTION_CALL = b'{"response":{"output":[{"arguments":"{}","name":"f","type":"function_call"}],"usage":null}}'


@pytest.mark.parametrize(
    ("endpoint", "answer", "calls"),
    [
        (Endpoint.COMPLETIONS, COMPLETION, False),
        (Endpoint.MESSAGES, MESSAGE, False),
        (Endpoint.MESSAGES, MESSAGE.replace(b"max_tokens", b"tool_use"), True),
        (Endpoint.MESSAGES, b'event: message_delta\ndata: {"delta":{"stop_reason" : "tool_use"},"usage":{}}\n\n', True),
        (Endpoint.CHAT, STREAM, False),
        (Endpoint.CHAT, CHUNK + a_stop("tool_calls") + USAGE + DONE, True),
        (Endpoint.CHAT, CHUNK + a_stop("function_call") + DONE, True),
        (Endpoint.CHAT, CHUNK + a_stop("length") + USAGE + DONE, False),
        (Endpoint.CHAT, CHUNK + a_stop(None), None),
        (Endpoint.CHAT, CHUNK, None),
        (Endpoint.CHAT, b'{"choices":[{"message":{"content":"\\"finish_reason\\":\\"tool_calls\\""}}]}', None),
        (Endpoint.RESPONSES, RESPONSE, False),
        (Endpoint.RESPONSES, FUNCTION_CALL, True),
        (Endpoint.RESPONSES, RESPONSE.replace(b"TYPE", b'\\"type\\":\\"function_call\\"'), False),
        (Endpoint.RESPONSES, b"x" * 2 * TAIL_BYTES, False),
    ],
)
def test_whether_an_answer_ends_in_a_tool_call(endpoint: Endpoint, answer: bytes, calls: bool | None) -> None:
    tail = read(endpoint, answer)
    assert tail.ends_in_tool_call() is calls
    usage = tail.read_usage()
    assert (tail.ends_in_tool_call(), tail.read_usage()) == (calls, usage), "either may be read first, and twice"


def test_a_long_stream_of_responses_does_not_tell_what_its_beginning_had() -> None:
    item = b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
    assert read(Endpoint.RESPONSES, *[item] * 1000).ends_in_tool_call() is None
    assert read(Endpoint.RESPONSES, *[item] * 1000, FUNCTION_CALL).ends_in_tool_call() is True
    assert read(Endpoint.RESPONSES, *[item] * 10).ends_in_tool_call() is False


def test_responses_stream() -> None:
    created = b'event: response.created\ndata: {"response":{"id":"resp_1","usage":null},"type":"response.created"}\n\n'
    completed = b'event: response.completed\ndata: {"response":' + RESPONSE + b',"type":"response.completed"}\n\n'
    tail = read(Endpoint.RESPONSES, created, completed)
    assert tail.read_usage() == Usage(11, 8, 4)
    assert tail.response_id() == "resp_1"


def test_response_id_is_only_for_responses() -> None:
    assert read(Endpoint.RESPONSES, RESPONSE).response_id() == "resp_8b434fad3772e3d4"
    assert read(Endpoint.CHAT, RESPONSE).response_id() is None
    assert read(Endpoint.RESPONSES, b"{}").response_id() is None


def test_the_tail_is_bounded() -> None:
    tail = read(Endpoint.CHAT, *[CHUNK] * 10_000, USAGE)
    assert sum(map(len, tail._chunks)) < TAIL_BYTES + len(CHUNK)
    assert tail.read_usage() == Usage(40, 32, 3)


@given(st.lists(st.binary(max_size=40)))
def test_no_answer_breaks_it(chunks: list[bytes]) -> None:
    for endpoint in Endpoint:
        tail = read(endpoint, *chunks, b'"usage":{', *chunks)
        assert tail.read_usage() is None or isinstance(tail.read_usage(), Usage)
        assert tail.ends_in_tool_call() in (None, False, True)


def hidden(*chunks: bytes) -> list[bytes]:
    hide = HideUsage()
    return [*(hide.feed(chunk) for chunk in chunks), hide.end()]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_exactly_the_usage_chunk_goes_wherever_the_stream_is_cut(places: list[int]) -> None:
    assert b"".join(hidden(*cut(STREAM, places))) == CHUNK * 3 + LAST + DONE


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_other_streams_pass_untouched(places: list[int], crlf: bool) -> None:
    stream = b": ping\n\n" + CHUNK + b'data: {"choices":[],"x":1}\n\ndata: {"error":{}}\n\nhalf' + LAST + b"data: {"
    stream = stream.replace(b"\n", b"\r\n") if crlf else stream
    assert b"".join(hidden(*cut(stream, places))) == stream


@pytest.mark.parametrize(
    "answer",
    [
        b'"usage":{' * 30_000,
        b'{"a":' + b'"usage":{"prompt_tokens":' * 10_000,
        b'"usage":' + b" " * 100_000 + b'"usage"',
    ],
)
def test_an_answer_made_of_keys_is_given_up(answer: bytes) -> None:
    tail = UsageTail(Endpoint.CHAT)
    tail.feed(answer)
    assert tail.read_usage() is None


@pytest.mark.parametrize("count", ["-1", "true", "1e9", "99999999999", "9" * 4000, '"5"'])
def test_counts_that_are_none(count: str) -> None:
    tail = UsageTail(Endpoint.CHAT)
    tail.feed(b'{"usage":{"prompt_tokens":%b,"completion_tokens":2}}' % count.encode())
    assert tail.read_usage() == Usage(None, None, 2)


def test_byte_by_byte() -> None:
    assert b"".join(hidden(*(bytes([byte]) for byte in STREAM))) == CHUNK * 3 + LAST + DONE


def test_whole_events_are_never_held() -> None:
    hide = HideUsage()
    assert hide.feed(CHUNK) == CHUNK
    assert hide.feed(CHUNK + CHUNK[:20]) == CHUNK
    assert hide.feed(CHUNK[20:] + LAST) == CHUNK + LAST
    assert hide.feed(USAGE) == b""
    assert hide.feed(DONE) == DONE
    assert hide.end() == b""


def test_a_partial_event_goes_out_once_it_cannot_be_the_usage_chunk() -> None:
    hide = HideUsage()
    cut_at = CHUNK.index(b"[{") + 2
    assert hide.feed(CHUNK[:20]) == b""
    assert hide.feed(CHUNK[20:cut_at]) == CHUNK[:cut_at]
    assert hide.feed(CHUNK[cut_at : cut_at + 9]) == CHUNK[cut_at : cut_at + 9]


def test_only_one_chunk_is_dropped() -> None:
    assert b"".join(hidden(USAGE, CHUNK, USAGE)) == CHUNK + USAGE


def test_usage_inside_a_chunk_with_choices_stays() -> None:
    chunk = json.loads(CHUNK[6:]) | {"usage": {"prompt_tokens": 1}}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert b"".join(hidden(event)) == event


def test_with_other_line_ends() -> None:
    stream = STREAM.replace(b"\n", b"\r\n")
    expected = (CHUNK * 3 + LAST + DONE).replace(b"\n", b"\r\n")
    assert b"".join(hidden(*(bytes([byte]) for byte in stream))) == expected


@pytest.mark.parametrize(
    ("chunks", "whole"),
    [
        ([b'data: {"a":1}\n\n', b"data: [DONE]\n\n"], True),
        ([b'data: {"a":1}\n\ndata: [DONE]\n\n'], True),
        ([b'data: {"a":1}\n\n', b"data: [DO", b"NE]\n\n"], True),
        ([b'event: message_stop\ndata: {"type":"message_stop"}\n\n'], True),
        ([b"event: response.completed\ndata: {}\n\n"], True),
        ([b'data: {"a":1}\n\n'], False),
        ([b'data: {"content":"\\ndata: [DONE]"}\n\n'], False),
        ([], False),
    ],
)
def test_a_stream_is_whole_with_its_last_word(chunks: list[bytes], whole: bool) -> None:
    tail = UsageTail(Endpoint.CHAT)
    for chunk in chunks:
        tail.feed(chunk)
    assert tail.ended() is whole
