"""What a request leaves in the metrics of its engines."""

from __future__ import annotations

from router.scheduling.policy.record import PrefillRecord
from router.telemetry.metrics.engine_tables import MAX_ENGINES
from router.telemetry.metrics.prometheus import Metrics
from scorers.contract import Overlap
from tests.router.telemetry.metrics.ended_requests import CHAT, attempt, ended, record, samples

ATTEMPTS = "warmroute_engine_attempts_total"


def test_each_attempt_by_engine_and_end() -> None:
    of = ended(
        record(attempt("died", engine="a1"), attempt("ok", engine="a2")),
        record(attempt("continued", engine="a1"), attempt("ok", engine="a2")),
        record(attempt("ok", engine="a1"), status=400),
        record(attempt("ok", engine="a1"), status=503),
        record(status=503),
    )
    assert samples(of, ATTEMPTS) == {
        ("died", "a1"): 1, ("continued", "a1"): 1, ("engine_4xx", "a1"): 1, ("engine_5xx", "a1"): 1, ("ok", "a2"): 2,
    }  # fmt: skip


def test_a_prefill_half_is_an_attempt_at_its_own_engine() -> None:
    half = PrefillRecord(attempt("ok", engine="a-prefill").decision, None, None, end="failed")
    of = ended(record(attempt("prefill", engine="a1", prefill=half)))
    assert samples(of, ATTEMPTS) == {("prefill", "a1"): 1, ("failed", "a-prefill"): 1}


def test_the_first_byte_counts_from_the_choice_of_the_engine_that_sent_it() -> None:
    of = ended(
        # 300 ms went by in admission; the first engine died, and the second was chosen 800 ms after the arrival
        record(attempt("died", engine="a1", start_ms=300.0), attempt("ok", engine="a2", start_ms=800.0), ttft_ms=950.0),
        # the first engine began the answer, and the second continued it
        record(
            attempt("continued", engine="a1", start_ms=0.0), attempt("ok", engine="a2", start_ms=5e3), ttft_ms=250.0
        ),
        record(attempt("died", engine="a3", start_ms=0.0)),
    )
    assert samples(of, "warmroute_engine_ttft_seconds_sum") == {("a1",): 0.25, ("a2",): 0.15}
    assert samples(of, "warmroute_engine_ttft_seconds_count") == {("a1",): 1, ("a2",): 1}


def test_predicted_and_delivered_add_up_to_those_of_all_engines() -> None:
    # by tiers 160, 240 and 304 tokens, and 32 more in the pool
    overlap = Overlap(160, 240, 304, 320, "events", 0.1)
    of = ended(
        record(attempt("ok", overlap, engine="a1", pool_tokens=32), cached_tokens=288),
        record(attempt("ok", overlap, engine="a2"), cached_tokens=0),
        record(attempt("ok", overlap, engine="a2"), cached_tokens=None),
    )
    for kind, by_engine in (("predicted", {("a1",): 336, ("a2",): 304}), ("delivered", {("a1",): 288, ("a2",): 0})):
        assert samples(of, f"warmroute_engine_{kind}_tokens_total") == by_engine
        assert sum(samples(of, f"warmroute_{kind}_tokens_total").values()) == sum(by_engine.values())


def test_engines_beyond_the_limit_are_other() -> None:
    of = ended(*(record(attempt("ok", engine=f"a{n}")) for n in range(MAX_ENGINES + 9)))
    found = samples(of, ATTEMPTS)
    assert len(found) == MAX_ENGINES + 1
    assert found["ok", "other"] == 9
    assert sum(found.values()) == sum(samples(of, "warmroute_requests_total").values())


def test_an_engine_that_left_has_no_series_and_makes_room() -> None:
    hits = {"overlap": Overlap(16, 16, 16, 16, "events", 0.1), "start_ms": 0.0}
    whole = {"cached_tokens": 16, "ttft_ms": 10.0}
    of = ended(*(record(attempt("ok", engine=f"a{n}", **hits), **whole) for n in range(MAX_ENGINES)))
    of.on_engine_left("a7")
    assert engines(of) == {f"a{n}" for n in range(MAX_ENGINES) if n != 7}
    end(of, "a-new")
    assert samples(of, ATTEMPTS)["ok", "a-new"] == 1


def test_an_engine_that_is_not_in_the_fleet_any_more_is_other() -> None:
    of = ended(record(attempt("ok", engine="gone")))
    assert samples(of, ATTEMPTS) == {("ok", "other"): 1}


def test_an_engine_that_a_gateway_chose_against_the_picker_is_other() -> None:
    of = ended(record(attempt("ok", engine="a1", served="10.0.0.9:8000")))
    assert samples(of, ATTEMPTS) == {("ok", "other"): 1}


def end(of: Metrics, engine: str) -> None:
    of.on_request_start()
    of.on_request_end(record(attempt("ok", engine=engine), endpoint=CHAT))


def engines(of: Metrics) -> set[str]:
    """Engines with series of any kind."""
    kinds = ("attempts_total", "ttft_seconds_count", "predicted_tokens_total", "delivered_tokens_total")
    found = [{labels[-1] for labels in samples(of, f"warmroute_engine_{kind}")} for kind in kinds]
    assert all(one == found[0] for one in found)
    return found[0]
