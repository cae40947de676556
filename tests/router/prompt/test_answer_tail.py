"""The last events of a stream: what the client has of the text of the last tokens."""

from __future__ import annotations

import json

import pytest

from router.prompt.answer_tail import EVENTS, AnswerTail, StopStrings


def tail(*texts: str, stop: StopStrings | None = None, chat: bool = True) -> AnswerTail:
    """A tail with one token per text."""
    made = AnswerTail(stop)
    for number, text in enumerate(texts):
        said = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        made.events.append(b"data: " + json.dumps({"choices": [said | {"token_ids": [number]}]}).encode() + b"\n\n")
    return made


@pytest.mark.parametrize(
    ("sent", "said", "all_"),
    [
        (["Hello", " world"], "Hello world", True),
        (["Hello", " world"], "Hello world <", False),
        (["a", ""], "a<", False),
        ([" ", ""], " <", False),
        ([" word"], "word", True),  # a decoder that drops a leading space
        (["é", "x"], "\ufffdx", True),  # the first token ends a character
        (["x", ""], "x\ufffd", True),  # the last one begins one
        (["x", ""], "x", True),  # a token without text
        (["<", "<"], "<<<", False),
        (["", ""], "<tool", False),
        (["", ""], "\ufffd", True),
        ([" "], " ", True),
        ([" "], "  ", False),
    ],
)
def test_whether_all_text_was_sent(sent: list[str], said: str, all_: bool) -> None:
    assert tail(*sent).is_all(said) == all_
    assert tail(*sent, chat=False).is_all(said) == all_


def test_tokens_without_text_at_the_end_may_be_dropped() -> None:
    one = tail("a", "", "b", "", "")
    assert one.drop_unsent() == 2
    assert one.ids() == [0, 1, 2]
    assert one.drop_unsent() == 0


@pytest.mark.parametrize(
    ("texts", "stop", "seam"),
    [
        # 3 characters are held: the tokens of the last 3 that were sent, and more of the one before
        (["abcd", "efgh", "ij", "k"], StopStrings(4, included=False), (2, "")),
        (["abcd", "efgh", "ijk", "l"], StopStrings(4, included=False), (2, "l")),
        (["abcd", "efgh", "ijk", "l"], StopStrings(4, included=True), (2, "ijkl")),
        (["ab", "c"], StopStrings(9, included=False), (2, "abc")),  # from the part's beginning
        (["", "", ""], StopStrings(9, included=False), (3, "")),
        (["a"] + [""] * 40, StopStrings(3, included=False), None),
        (["a", "bcd", "efg"], StopStrings(1, included=False), (0, "")),
    ],
)
def test_how_far_to_go_back_for_stop_strings(texts: list[str], stop: StopStrings, seam: tuple[int, str] | None) -> None:
    assert tail(*texts, stop=stop).rewind() == seam


def test_only_the_last_events_are_kept() -> None:
    assert tail(*"abcdefghijklm").ids() == list(range(13))[-EVENTS:]
