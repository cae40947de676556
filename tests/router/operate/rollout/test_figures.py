"""The figures of a metrics page, and what happened between two of them."""

from __future__ import annotations

from math import inf

import pytest

from router.operate.rollout.figures import TrafficFigures, read_figures

PAGE = """# TYPE warmroute_requests_total counter
warmroute_requests_total{endpoint="/v1/completions",model="m",status="2xx"} 90.0
warmroute_requests_total{endpoint="/v1/completions",model="m",status="5xx"} 10.0
# TYPE warmroute_errors_total counter
warmroute_errors_total{endpoint="/v1/completions",reason="died"} 7.0
warmroute_errors_total{endpoint="/v1/completions",reason="client_gone"} 3.0
# TYPE warmroute_prompt_tokens_total counter
warmroute_prompt_tokens_total{model="m"} 1000.0
# TYPE warmroute_delivered_tokens_total counter
warmroute_delivered_tokens_total{model="m"} 600.0
# TYPE warmroute_ttft_seconds histogram
warmroute_ttft_seconds_bucket{endpoint="a",model="m",le="0.1"} 40.0
warmroute_ttft_seconds_bucket{endpoint="a",model="m",le="0.5"} 50.0
warmroute_ttft_seconds_bucket{endpoint="a",model="m",le="+Inf"} 50.0
warmroute_ttft_seconds_bucket{endpoint="b",model="m",le="0.1"} 40.0
warmroute_ttft_seconds_bucket{endpoint="b",model="m",le="0.5"} 50.0
warmroute_ttft_seconds_bucket{endpoint="b",model="m",le="+Inf"} 50.0
warmroute_ttft_seconds_count{endpoint="b",model="m"} 50.0
"""


def test_a_page_is_summed_over_its_labels_without_what_clients_did() -> None:
    figures = read_figures(PAGE)
    assert figures == TrafficFigures(100, 7, 1000, 600, {0.1: 80, 0.5: 100, inf: 100})
    assert (figures.failed_share, figures.hit_share) == (0.07, 0.6)
    assert figures.ttft_p90_s == pytest.approx(0.3)  # rank 90: half of the way from 80 at 0.1 s to 100 at 0.5 s


def test_what_happened_since() -> None:
    begin = TrafficFigures(60, 7, 500, 500, {0.1: 80, 0.5: 80, inf: 80})
    figures = read_figures(PAGE).since(begin)
    assert figures == TrafficFigures(40, 0, 500, 100, {0.1: 0, 0.5: 20, inf: 20})
    assert figures.ttft_p90_s == pytest.approx(0.1 + 0.4 * 18 / 20)


def test_nothing_happened() -> None:
    nothing = read_figures(PAGE).since(read_figures(PAGE))
    assert (nothing.failed_share, nothing.hit_share, nothing.ttft_p90_s) == (None, None, None)
    assert TrafficFigures(ttft_buckets={0.5: 0, inf: 10}).ttft_p90_s == 0.5  # at least; more is not known


@pytest.mark.parametrize("page", ["", "<html>no { page</html>", "vllm:num_requests_running 0.0\n"])
def test_what_is_no_metrics_page(page: str) -> None:
    with pytest.raises(ValueError, match="no metrics page of warmroute"):
        read_figures(page)
