from scorers.least_requests import LeastRequests
from tests.suites.views import a_load, a_row, a_view


def test_own_bookings_are_the_cost_whatever_the_engine_says() -> None:
    view = a_view(a_row("a", load=a_load(requests=3, elsewhere=0)), a_row("b", load=a_load(requests=1, elsewhere=50)))
    assert LeastRequests().score(view) == [3, 1]
