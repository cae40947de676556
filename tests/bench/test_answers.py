"""The backend's stamps and counts, as the benchmark reads them back."""

from __future__ import annotations

import json

import pytest

from tests.bench import answers


def test_an_answer_tells_when_the_request_was_there() -> None:
    body = answers.answer(prompt_tokens=81_000, seen_ns=123_456_789_012)
    assert answers.seen_ns(body) == 123_456_789_012
    assert json.loads(body)["usage"] == {"prompt_tokens": 81_000, "completion_tokens": 1, "total_tokens": 81_001}
    with pytest.raises(ValueError, match="no stamp"):
        answers.seen_ns(b'{"error": "busy"}')


def test_the_last_whole_stamp_of_several_chunks_counts() -> None:
    two = answers.chunk(111) + answers.chunk(987_654_321)
    assert answers.chunk_ns(two) == 987_654_321
    assert answers.chunk_ns(two[: two.rindex(b"987")]) is None  # cut inside the stamp
    assert answers.chunk_ns(b"data: [DONE]\n\n") is None
    assert json.loads(answers.chunk(5).removeprefix(b"data: "))["choices"][0]["delta"] == {
        "content": " 0000000000000005"
    }


def test_token_ids_of_a_stream() -> None:
    opening = json.loads(answers.opening(3).removeprefix(b"data: "))
    assert opening["prompt_token_ids"] == [17, 17, 17]
    for with_ids, ids in ((True, [17]), (False, None)):
        chunk = json.loads(answers.chunk(5, with_ids=with_ids).removeprefix(b"data: "))
        assert chunk["choices"][0]["token_ids"] == ids


def test_the_prompt_has_the_tokens_that_the_request_says_wherever_it_says_so() -> None:
    long = "x" * 5000
    assert answers.prompt_tokens(json.dumps({"seed": 77, "messages": long}).encode()) == 77
    assert answers.prompt_tokens(json.dumps({"messages": long, "seed": 78}).encode()) == 78
    assert answers.prompt_tokens(b'{"messages": []}') == answers.PROMPT_TOKENS


def test_handed_ids_are_counted_as_an_engine_counts_them() -> None:
    handed = {"seed": 3, "messages": [], "kv_transfer_params": {"prompt_token_ids": [5, 6, 7, 8]}}
    assert answers.prompt_tokens(json.dumps(handed).encode()) == 4


def test_the_ending_has_usage_only_where_it_was_asked_for() -> None:
    assert answers.ending(40, with_usage=False) == b"data: [DONE]\n\n"
    assert b'"prompt_tokens":40' in answers.ending(40, with_usage=True)
