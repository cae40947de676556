from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import View
from scorers.token_load import TokenLoad
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, views


def test_tokens_in_flight_against_a_full_load() -> None:
    # 1,048,576 / 4,194,304 = 0.25; what is full stays full
    view = a_view(*[a_row(f"h{n}", load=a_load(prefill_tokens=n)) for n in (0, 1_048_576, 4_194_304, 9_000_000)])
    assert TokenLoad().score(view) == [0.0, 0.25, 1.0, 1.0]
    assert TokenLoad(full_tokens=2_097_152).score(view) == [0.0, 0.5, 1.0, 1.0]


def test_what_has_its_first_token_is_no_load_any_more() -> None:
    assert TokenLoad().score(a_view(a_row("a", load=a_load(requests=9, context_tokens=1_000_000)))) == [0.0]


def test_parameters_have_bounds() -> None:
    with pytest.raises(ValueError, match=r"full_tokens: found 0, wanted at least 1"):
        TokenLoad(full_tokens=0)


@pytest.mark.parametrize("scorer", [TokenLoad(), TokenLoad(full_tokens=1), TokenLoad(full_tokens=50_000)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: TokenLoad, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
