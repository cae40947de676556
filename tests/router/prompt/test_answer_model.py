"""The client's name for a model in an answer, however the answer is cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.prompt.answer_model import AnswerModel


def pass_through(pieces: list[bytes], model: str = "llama", alias: str = "chat") -> bytes:
    rename = AnswerModel(model, alias)
    return b"".join([rename.feed(piece) for piece in pieces]) + rename.flush()


def test_it_is_replaced_in_a_whole_answer_and_in_every_event() -> None:
    assert pass_through([b'{"id":"1","model":"llama","choices":[]}']) == b'{"id":"1","model":"chat","choices":[]}'
    event = b'data: {"id":"1","model":"llama","choices":[]}\n\n'
    assert pass_through([event, event]) == event.replace(b"llama", b"chat") * 2


def test_generated_text_that_looks_like_it_stays() -> None:
    text = json.dumps({"content": '{"model":"llama"}'}).encode()
    assert pass_through([text]) == text
    other = b'{"model":"llama-2","the model":"llama"}'
    assert pass_through([other]) == other


def test_another_name_and_an_answer_with_spaces_stay() -> None:
    assert pass_through([b'{"model": "llama"}']) == b'{"model": "llama"}'


def test_a_piece_that_ends_with_an_event_is_sent_at_once() -> None:
    rename = AnswerModel("llama", "chat")
    assert rename.feed(b'data: {"model":"llama"}\n\n') == b'data: {"model":"chat"}\n\n'
    assert rename.feed(b'data: {"x":1,"mod') == b'data: {"x":1,'
    assert rename.feed(b'es":2}\n\n') == b'"modes":2}\n\n'


EVENTS = b"".join(
    [
        b'data: {"id":"a","model":"llama","choices":[{"delta":{"content":"\\"model\\":\\"llama\\""}}]}\n\n',
        b'data: {"model":"llama","usage":{"a":1}}\n\n',
        b'data: {"model":"llam","x":"model"}\n\ndata: [DONE]\n\n"model":"ll',
    ]
)


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(EVENTS)]
    pieces = [EVENTS[start:end] for start, end in pairwise(at)]
    assert pass_through(pieces) == EVENTS.replace(b'"model":"llama"', b'"model":"chat"')
