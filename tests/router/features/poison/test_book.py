"""Which prompts are refused after engines have died on them: stories of deaths."""

from __future__ import annotations

from array import array

from router.features.poison.book import KEPT_S, MOST, SAME_DEATH_S, PoisonBook, PoisonPrompt, name_prompt
from router.kvcache.tokenized_prompt import TokenizedPrompt

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def died(digest: bytes, at_s: float, last: str = "y/0") -> PoisonPrompt:
    return PoisonPrompt(digest, at_s + KEPT_S, 0.0, "m", None, ("x/0", last))


def refused(book: PoisonBook, now: float) -> set[bytes]:
    return {prompt.digest for prompt in book.list(now)}


def test_a_prompt_that_died_alone_is_refused_for_a_while() -> None:
    book = PoisonBook()
    assert book.blame(died(A, 0.0)) == []
    assert book.find(A, KEPT_S - 0.1) is not None
    assert book.find(B, 1.0) is None
    assert refused(book, KEPT_S) == set()
    assert book.find(A, KEPT_S) is None
    assert len(book) == 0


def test_prompts_that_died_together_are_suspects_until_one_dies_again() -> None:
    book = PoisonBook()
    assert book.blame(died(A, 0.0)) == []
    assert [other.digest for other in book.blame(died(B, 0.1))] == [A], "it could be either"
    assert book.blame(died(C, 0.2)) == []
    assert refused(book, 0.3) == set()
    assert all(book.suspects(digest) for digest in (A, B, C))
    book.acquit(B)
    assert not book.suspects(B)
    book.blame(died(A, 30.0))
    assert refused(book, 31.0) == {A}
    book.blame(died(C, 30.1))
    assert refused(book, 31.0) == {A, C}, "both were there both times"


def test_a_newcomer_beside_a_proven_prompt_is_a_suspect() -> None:
    book = PoisonBook()
    book.blame(died(A, 0.0))
    book.blame(died(B, 0.1))
    book.blame(died(A, 30.0))
    assert book.blame(died(C, 30.1)) == []
    assert refused(book, 31.0) == {A}


def test_other_engines_or_other_times_are_other_deaths() -> None:
    book = PoisonBook()
    book.blame(died(A, 0.0))
    book.blame(died(B, 0.1, last="z/0"))
    book.blame(died(C, 0.1 + SAME_DEATH_S))
    assert refused(book, 3.0) == {A, B, C}


def test_a_suspicion_ends_like_a_refusal() -> None:
    book = PoisonBook()
    book.blame(died(A, 0.0))
    book.blame(died(B, 0.1))
    book.blame(died(A, KEPT_S + 1))
    book.blame(died(B, KEPT_S + 1.1))
    assert refused(book, KEPT_S + 2) == set(), "it begins from anew"


def test_what_is_lifted_is_served() -> None:
    book = PoisonBook()
    book.blame(died(A, 0.0))
    assert book.lift(A)
    assert not book.lift(A)
    assert refused(book, 1.0) == set()


def test_the_latest_are_kept() -> None:
    book = PoisonBook()
    for number in range(MOST + 5):
        book.blame(died(number.to_bytes(16, "big"), 10.0 * number))
    assert len(book) == MOST
    assert book.find((4).to_bytes(16, "big"), 0.0) is None
    for number in range(MOST + 5):
        book.blame(died(number.to_bytes(16, "little"), 1e6))
    assert len(book._suspects) <= MOST


def test_a_prompt_is_named_by_its_tokens_or_else_by_its_body() -> None:
    known = TokenizedPrompt(array("I", [1, 2, 3]), True, "given", {}, 0.0, 0.0)
    assert name_prompt("m", known, b"one") == name_prompt("m", known, b"another temperature")
    assert name_prompt("m", known, b"") != name_prompt("n", known, b"")
    partial = known._replace(complete=False)  # as far as its first image
    assert name_prompt("m", partial, b"one") != name_prompt("m", partial, b"other")
    assert name_prompt("m", None, b"one") == name_prompt("m", None, b"one") != name_prompt("m", None, b"other")


def test_prompts_with_a_5xx_of_two_engines_are_served_and_remembered_for_a_while() -> None:
    book = PoisonBook()
    for number in range(MOST + 1):
        book.add_failed(b"%d" % number, 600.0 + number)
    assert not book.is_empty
    assert not book.has_failed(b"0", 0.0), "the oldest is forgotten"
    assert book.has_failed(b"1", 600.9)
    assert book.find(b"1", 0.0) is None
    assert not book.has_failed(b"1", 601.0)
    assert not book.has_failed(b"%d" % MOST, 600.0 + MOST)
    assert book.is_empty
