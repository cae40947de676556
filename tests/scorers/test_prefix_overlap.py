import pytest

from scorers.prefix_overlap import PrefixOverlap
from tests.suites.views import a_row, a_view, an_overlap


def test_what_is_not_held_costs() -> None:
    # 100 tokens; a holds 80 -> 1 - 80/100 = 0.2; b holds nothing -> 1
    view = a_view(a_row("a", an_overlap(80)), a_row("b", an_overlap(0)), prompt_tokens=100)
    assert PrefixOverlap().score(view) == pytest.approx([0.2, 1.0])


def test_slower_tiers_count_less() -> None:
    # 40 on the GPU, 20 more in host memory, 20 more on disk: 1 - (40 * 1.0 + 20 * 0.8 + 20 * 0.5) / 100 = 0.34
    view = a_view(a_row("a", an_overlap(40, cpu=60, disk=80)), prompt_tokens=100)
    assert PrefixOverlap().score(view) == pytest.approx([0.34])


def test_what_was_just_sent_counts_as_on_the_gpu() -> None:
    # the GPU holds 16 by events, 70 expected, host memory 60, disk 80: 1 - (70 * 1.0 + 0 + 10 * 0.5) / 100 = 0.25
    view = a_view(a_row("a", an_overlap(16, cpu=60, disk=80, expected=70)), prompt_tokens=100)
    assert PrefixOverlap().score(view) == pytest.approx([0.25])


def test_expectation_can_be_turned_off() -> None:
    view = a_view(a_row("a", an_overlap(16, expected=96)), prompt_tokens=100)
    assert PrefixOverlap(expected=False).score(view) == pytest.approx([0.84])


def test_long_matches_are_worth_more_than_their_share() -> None:
    # 0.2 * (1 - share) + 0.8 * (1 - (tokens / 16000)^2): half and all of 8,000, none, and half of a prompt of 32,000
    scorer = PrefixOverlap(length_weight=0.8, length_tokens=16_000)
    view = a_view(a_row("a", an_overlap(4000)), a_row("b", an_overlap(8000)), a_row("c", an_overlap(0)))
    assert scorer.score(view._replace(prompt_tokens=8000)) == pytest.approx([0.1 + 0.75, 0.6, 1.0])
    long = a_view(a_row("a", an_overlap(16_000)), prompt_tokens=32_000)
    assert scorer.score(long) == pytest.approx([0.1])


def test_unknown_overlap_costs_what_is_usual() -> None:
    # known: 80 and 0 tokens, mean 40 -> 1 - 40/100 = 0.6
    view = a_view(a_row("a", an_overlap(80)), a_row("b"), a_row("c", an_overlap(0)), prompt_tokens=100)
    assert PrefixOverlap().score(view) == pytest.approx([0.2, 0.6, 1.0])


def test_of_a_prompt_of_unknown_length_the_longest_overlap_is_the_whole() -> None:
    # longest known: 64 -> 1 - 64/64 = 0; 1 - 16/64 = 0.75
    view = a_view(a_row("a", an_overlap(64)), a_row("b", an_overlap(16)), prompt_tokens=None)
    assert PrefixOverlap().score(view) == pytest.approx([0.0, 0.75])


@pytest.mark.parametrize("rows", [(a_row("a"), a_row("b")), (a_row("a", an_overlap(0)), a_row("b", an_overlap(0)))])
@pytest.mark.parametrize("prompt_tokens", [None, 0, 100])
def test_nothing_known_or_held_prefers_nobody(rows: tuple, prompt_tokens: int | None) -> None:
    assert PrefixOverlap().score(a_view(*rows, prompt_tokens=prompt_tokens)) == [1.0, 1.0]


def test_weights_stay_in_bounds() -> None:
    with pytest.raises(ValueError, match=r"cpu: found 1.2, wanted a share from 0 to 1"):
        PrefixOverlap(cpu=1.2)
