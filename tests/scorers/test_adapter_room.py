import pytest

from scorers.adapter_room import AdapterRoom
from tests.suites.views import a_load, a_row, a_view


@pytest.mark.parametrize(
    ("load", "stays"),
    [
        ({"adapters": frozenset({"sql"}), "max_adapters": 1}, True),  # runs it already
        (
            {"adapters": frozenset({"x"}), "waiting_adapters": frozenset({"sql"}), "max_adapters": 1},
            True,
        ),  # will
        ({"adapters": frozenset({"x"}), "max_adapters": 2}, True),  # 1 of 2 slots taken
        ({"adapters": frozenset({"x", "y"}), "max_adapters": 2}, False),
        ({"adapters": frozenset({"x"}), "waiting_adapters": frozenset({"y"}), "max_adapters": 2}, False),
        ({"adapters": frozenset({"x", "y"}), "max_adapters": None}, True),  # not told: stays
        ({}, True),
    ],
)
def test_adapters_need_a_slot(load: dict, stays: bool) -> None:
    assert AdapterRoom().keep(a_view(a_row("a", load=a_load(**load)), adapter="sql")) == [stays]


def test_requests_for_the_base_model_pass() -> None:
    full = a_row("a", load=a_load(adapters=frozenset({"x"}), max_adapters=1))
    assert AdapterRoom().keep(a_view(full, adapter=None)) == [True]
