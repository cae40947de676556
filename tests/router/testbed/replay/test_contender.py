"""What one policy would have done on the views of others, worked by hand."""

import pytest

from router.scheduling.experiments.dry_run import TargetMove
from router.testbed.replay.contender import Contender
from tests.router.testbed.replay.scene import named, to
from tests.suites.views import a_load, a_row, a_view, an_overlap

WARM = a_row("a", an_overlap(800), a_load(requests=1))
COLD = a_row("b", an_overlap(0))
VIEW = a_view(WARM, COLD, prompt_tokens=1000)


def test_differences_are_its_own_choice_minus_what_was_made() -> None:
    contender = Contender(named("least_requests"))  # always b
    for made in (WARM, WARM, COLD, COLD):
        contender.add(VIEW, "whole", made)
    found = contender.contended()
    assert (found.choices, found.agreed, found.agreement, found.failed) == (4, 2, 0.5, 0)
    # a: 5 + 25 + 200 * 900 * 1e-6 = 30.18 ms; b: 5 + 125 + 1000 * 500 * 1e-6 = 130.5 ms; half of them move
    assert found.ttft_ms == pytest.approx((130.5 - 30.18) / 2)
    assert found.ttft_p10_ms == pytest.approx(130.5 - 30.18, rel=0.01)
    assert found.ttft_p90_ms == found.ttft_p10_ms
    assert found.overlap_tokens == -400
    assert (found.uneven_made, found.uneven) == (1, 2)
    assert found.moves == (TargetMove("a/0", "b/0", 2),)


def test_its_sessions_are_its_own() -> None:
    contender = Contender(named("session_affinity"))
    view = VIEW._replace(session="s")
    contender.add(view._replace(last_target="b/0"), "whole", WARM)
    contender.add(view._replace(last_target="a/0"), "whole", WARM)
    assert contender.contended().moves == (TargetMove("a/0", "b/0", 2),)


def test_one_that_always_agrees_has_no_differences() -> None:
    contender = Contender(to("a/0"))
    contender.add(VIEW, "whole", WARM)
    found = contender.contended()
    assert (found.ttft_ms, found.overlap_tokens, found.moves) == (0, 0, ())
    assert (found.ttft_p10_ms, found.ttft_p90_ms) == (None, None)


def test_one_that_breaks_is_counted_and_goes_on() -> None:
    contender = Contender(to("broken"))
    for _ in range(3):
        contender.add(VIEW, "whole", WARM)
    found = contender.contended()
    assert (found.choices, found.failed, found.agreement, found.ttft_ms) == (0, 3, None, None)
    assert found.fault == "policy broken: fixed: RuntimeError: boom"


def test_where_candidates_were_left_out_whose_choice_hangs_on_them_is_counted() -> None:
    contender = Contender(named("least_requests"))
    for view in (VIEW, VIEW._replace(others=98), VIEW._replace(others=98)):
        contender.add(view, "whole", WARM, named("expected_ttft"))
    contender.add(VIEW._replace(others=98), "whole", WARM, named("least_requests"))
    assert (contender.contended().choices, contender.contended().partial) == (4, 2)


def test_where_nobody_looked_at_caches_one_that_counts_on_them_is_blind() -> None:
    unseen = a_view(a_row("a"), a_row("b"))
    for name, expected in (("prefix_overlap", 2), ("least_requests", 0)):
        contender = Contender(named(name))
        for view in (unseen, unseen, VIEW):
            contender.add(view, "whole", view.rows[0])
        assert contender.contended().blind == expected
