"""A load's figures: the simulator's names over live rows, and what only a live load can tell."""

from __future__ import annotations

import msgspec
import pytest

from router.lab.loadgen.report import (
    TargetReport,
    compute_hit_share,
    group_by_target,
    load_json,
    summarize_client,
    summarize_load,
)
from router.lab.simulator.outcome import SimulationFigures
from tests.router.lab.loadgen.reports import answered, failed, loaded


def test_figures_have_the_simulators_names_and_their_arithmetic() -> None:
    got = summarize_load(loaded(answered(), answered(sent_s=2.0, ttft_s=0.4, duration_s=4.0, target="b/0")))
    assert isinstance(got, SimulationFigures)
    # the last answer ends at 2 + 4 = 6 s: 2 requests, 220 tokens in, 20 out in 6 s
    assert (got.requests, got.shed, got.failed) == (2, 0, 0)
    assert got.requests_per_s == pytest.approx(2 / 6)
    assert got.input_tokens_per_s == pytest.approx(220 / 6)
    assert got.output_tokens_per_s == pytest.approx(20 / 6)
    assert got.ttft_mean_s == pytest.approx(0.3)
    assert got.tpot_mean_s == pytest.approx((1.8 / 9 + 3.6 / 9) / 2)
    assert got.imbalance == pytest.approx(1.0)  # both computed 66 tokens
    assert got.local_share is got.host_share is got.pool_share is None  # an endpoint does not say which tier


def test_refusals_are_shed_and_everything_else_has_failed() -> None:
    one = loaded(answered(), failed(429, "later"), failed(429, "later"), failed(None, "ConnectError: gone"))
    got = summarize_load(one)
    assert (got.requests, got.shed, got.failed) == (1, 2, 1)
    assert one.failures == {"429: later": 2, "no answer: ConnectError: gone": 1}
    assert got.imbalance is None  # of one target


def test_hits_are_of_those_answers_that_tell() -> None:
    silent = answered(cached_tokens=None, prompt_tokens=1000)
    assert compute_hit_share([answered(), answered(cached_tokens=11), silent]) == pytest.approx(55 / 220)
    assert compute_hit_share([silent]) is None
    assert compute_hit_share([]) is None


def test_how_well_the_client_did() -> None:
    client = summarize_client(loaded(answered(), answered(late_s=0.003, output_tokens=5), failed(500, "no")))
    assert (client.late_p50_s, client.late_max_s) == (0.003, 0.5)  # lateness is of all, nearest rank
    assert client.prompt_tokens_share == pytest.approx(220 / 200)  # sizes are of answers
    assert client.output_tokens_share == pytest.approx(15 / 20)


def test_targets_one_by_one() -> None:
    some = loaded(answered(), answered(ttft_s=0.6), answered(target="b/0", cached_tokens=None), answered(target=None))
    assert group_by_target(some) == {
        "?": TargetReport(1, pytest.approx(0.4), 0.2),
        "a/0": TargetReport(2, pytest.approx(0.4), 0.6),
        "b/0": TargetReport(1, None, 0.2),
    }


def test_an_empty_load_has_figures_too() -> None:
    got, client = summarize_load(loaded()), summarize_client(loaded())
    assert (got.requests, got.failed, got.ttft_p50_s, got.requests_per_s) == (0, 0, None, 0.0)
    assert set(client) == {None}


def test_the_json_holds_figures_by_their_names_and_every_request_in_order() -> None:
    late, early = answered(sent_s=3.0), answered(sent_s=0.5, session=2)
    report = msgspec.json.decode(msgspec.json.encode(load_json(loaded(late, early, failed(429, "later")), "v", "now")))
    assert set(SimulationFigures._fields) | {"hit_share"} == set(report["figures"])
    assert report["figures"]["hit_share"] == pytest.approx(0.4)
    assert [request["sent_s"] for request in report["requests"]] == [0.5, 2.0, 3.0]
    assert report["failures"] == {"429: later": 1}
    assert report["targets"]["a/0"]["requests"] == 2
    assert (report["loop"], report["when"], report["versions"]) == ("closed loop, 4 at once", "now", "v")
