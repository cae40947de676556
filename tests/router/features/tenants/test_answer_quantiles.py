"""What is reserved for an answer, of answers before it."""

from __future__ import annotations

from random import Random

from router.features.tenants.answer_quantiles import LATE, MAX_KEYS, REMEMBERED_TOKENS, AnswerQuantiles


def of(*lengths: int) -> int | None:
    quantiles = AnswerQuantiles()
    for tokens in lengths:
        quantiles.observe("k", tokens)
    return quantiles.read("k")


def test_nothing_is_known_of_a_key_without_an_answer() -> None:
    assert of() is None


def test_a_length_is_found_again_at_most_a_fifth_too_long() -> None:
    for tokens in (1, 2, 3, 7, 100, 256, 4000, 131_072):
        found = of(tokens)
        assert found is not None
        assert tokens <= found <= 1.19 * tokens


def test_long_answers_hide_only_behind_three_times_their_own_tokens() -> None:
    long = 16_384
    assert of(*(1 for _ in range(1000)), long) == long
    assert of(*(long for _ in range(3)), *(64 for _ in range(2 * 3 * long // 64))) == long
    assert of(*(long for _ in range(3)), *(64 for _ in range(4 * 3 * long // 64))) == 64


def test_a_longer_answer_counts_at_once_and_shorter_ones_some_answers_later() -> None:
    quantiles = AnswerQuantiles()
    seen = []
    for tokens in (10, 4096, *(64 for _ in range(4 * 4096 // 64 + LATE))):
        quantiles.observe("k", tokens)
        seen.append(quantiles.read("k"))
    assert seen[:2] == [11, 4096]
    assert seen[-1] == 64


def test_of_exponential_lengths_it_is_about_the_93rd_percentile() -> None:
    random = Random(3)
    lengths = [max(1, round(random.expovariate(1 / 300))) for _ in range(20_000)]
    found = of(*lengths)
    assert found is not None
    assert 0.90 < sum(tokens <= found for tokens in lengths) / len(lengths) < 0.97


def test_what_is_long_ago_weighs_less() -> None:
    quantiles = AnswerQuantiles()
    for tokens in (*(8192 for _ in range(REMEMBERED_TOKENS // 8192)), *(100 for _ in range(40_000))):
        quantiles.observe("k", tokens)
    assert quantiles.read("k") == 107


def test_keys_are_bounded() -> None:
    quantiles = AnswerQuantiles()
    for n in range(MAX_KEYS + 1):
        quantiles.observe(str(n), 10)
    assert (quantiles.read("0"), quantiles.read("1")) == (None, 11)
