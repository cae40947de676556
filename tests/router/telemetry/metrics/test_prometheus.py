"""What a request leaves in the metrics."""

from __future__ import annotations

from importlib.metadata import version

from router import errors
from router.scheduling.policy.record import Stages
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.prometheus import MAX_ENDPOINTS, MAX_MODELS
from router.telemetry.metrics.snapshot import RouterSnapshot
from scorers.build import is_compiled
from scorers.contract import Overlap
from tests.router.telemetry.metrics.ended_requests import CHAT, attempt, ended, metrics, record, samples


def test_in_flight_from_start_to_end() -> None:
    of = metrics()
    of.on_request_start()
    of.on_request_start()
    assert samples(of, "warmroute_in_flight_requests") == {(): 2}
    of.on_request_end(record(attempt("ok")))
    assert samples(of, "warmroute_in_flight_requests") == {(): 1}


def test_which_build_runs() -> None:
    compiled = "true" if is_compiled() else "false"
    assert samples(metrics(), "warmroute_build_info") == {(compiled, version("warmroute")): 1}


def test_a_good_request() -> None:
    of = ended(record(attempt("ok"), ttft_ms=150.0, duration_ms=2000.0, output_tokens=55, prompt_tokens=401))
    assert samples(of, "warmroute_requests_total") == {(CHAT, "known", "2xx"): 1}
    assert samples(of, "warmroute_errors_total") == {}
    assert samples(of, "warmroute_ttft_seconds_sum") == {(CHAT, "known"): 0.15}
    assert samples(of, "warmroute_ttft_seconds_bucket")[CHAT, "0.1", "known"] == 0
    assert samples(of, "warmroute_ttft_seconds_bucket")[CHAT, "0.2", "known"] == 1
    assert samples(of, "warmroute_request_duration_seconds_sum") == {(CHAT, "known"): 2.0}
    assert samples(of, "warmroute_prompt_tokens_total") == {("known",): 401}
    assert samples(of, "warmroute_output_tokens_total") == {("known",): 55}
    assert samples(of, "warmroute_token_ids_total") == {("local",): 1}


def test_requests_are_counted_by_how_they_ended() -> None:
    of = ended(
        *[record(attempt("ok"), duration_ms=1.0)] * 3,
        record(attempt("ok"), status=201),
        record(attempt("ok"), status=404),
        record(attempt("ok"), model="known-too", duration_ms=2.0),
        record(attempt("ok"), tokens_from="given"),
    )
    assert samples(of, "warmroute_requests_total") == {
        (CHAT, "known", "2xx"): 5, (CHAT, "known", "4xx"): 1, (CHAT, "known-too", "2xx"): 1,
    }  # fmt: skip
    assert samples(of, "warmroute_request_duration_seconds_count") == {(CHAT, "known"): 3, (CHAT, "known-too"): 1}
    assert samples(of, "warmroute_token_ids_total") == {("local",): 6, ("given",): 1}


def test_model_names_that_no_engine_serves_leave_nothing_behind() -> None:
    of = ended(*(record(attempt("ok"), model=f"invented-{i}") for i in range(100)))
    assert samples(of, "warmroute_requests_total") == {(CHAT, "other", "2xx"): 100}
    assert of._counters == {}


def test_each_stage_that_ran() -> None:
    of = ended(record(attempt("ok"), stages=Stages(parse_ms=1.0, match_ms=2.0, connect_ms=4.0)))
    assert samples(of, "warmroute_added_seconds_sum") == {("parse",): 0.001, ("match",): 0.002, ("connect",): 0.004}


def test_predicted_is_split_by_what_each_tier_adds() -> None:
    # 160 tokens on the GPU, 240 with host memory, 304 with disk: the tiers add 160, 80 and 64.
    overlap = Overlap(160, 240, 304, 320, "events", 0.1)
    of = ended(record(attempt("ok", overlap), cached_tokens=288))
    assert samples(of, "warmroute_predicted_tokens_total") == {
        ("known", "gpu"): 160,
        ("known", "cpu"): 80,
        ("known", "disk"): 64,
    }
    assert samples(of, "warmroute_delivered_tokens_total") == {("known",): 288}


def test_a_promise_without_an_answer_is_not_counted() -> None:
    of = ended(record(attempt("ok", Overlap(160, 160, 160, 160, "events", 0.1)), cached_tokens=None))
    assert samples(of, "warmroute_predicted_tokens_total") == {}
    assert samples(of, "warmroute_delivered_tokens_total") == {}


def test_retries_by_how_the_first_ended() -> None:
    of = ended(record(attempt("connect"), attempt("busy"), attempt("ok")), record(attempt("who knows"), attempt("ok")))
    assert samples(of, "warmroute_retries_total") == {("connect",): 1, ("busy",): 1, ("other",): 1}
    assert samples(of, "warmroute_errors_total") == {}


def test_reasons_of_errors() -> None:
    of = ended(
        record(attempt("died"), attempt("died"), status=502, poison=True),
        record(attempt("broken")),
        record(attempt("client_gone"), status=None),
        record(status=None),
        record(attempt("ok"), status=400),
        record(attempt("ok"), status=500),
        record(status=503),
    )
    assert samples(of, "warmroute_errors_total") == {
        (CHAT, "poison"): 1,
        (CHAT, "broken"): 1,
        (CHAT, "client_gone"): 2,
        (CHAT, "engine_4xx"): 1,
        (CHAT, "engine_5xx"): 1,
        (CHAT, "no_target"): 1,
    }
    assert samples(of, "warmroute_poison_requests_total") == {(): 1}
    assert samples(ended(), "warmroute_poison_requests_total") == {(): 0}  # so that an alert sees the first one
    assert samples(of, "warmroute_requests_total")[CHAT, "known", "none"] == 2


def test_refused_and_gone_before_a_record() -> None:
    of = metrics()
    of.on_refusal(CHAT, errors.BadRequest("x"))
    of.on_refusal("other", errors.TooBusy("x"))
    of.on_refusal("other", errors.TenantOverLimit("x"))  # not `too_busy`: others are served
    of.on_refusal("other", errors.RequestRefused("x"))
    of.on_disconnect(CHAT)
    assert samples(of, "warmroute_errors_total") == {
        (CHAT, "bad_request"): 1,
        ("other", "too_busy"): 1,
        ("other", "tenant_limit"): 1,
        ("other", "other"): 1,
        (CHAT, "client_gone"): 1,
    }
    assert samples(of, "warmroute_requests_total") == {
        (CHAT, "other", "4xx"): 1,
        (CHAT, "other", "none"): 1,
        ("other", "other", "4xx"): 2,
        ("other", "other", "5xx"): 1,
    }
    assert samples(of, "warmroute_in_flight_requests") == {(): 0}


def test_every_refusal_has_a_reason_of_its_own() -> None:
    of = metrics()
    kinds = errors.RequestRefused.__subclasses__()
    for kind in kinds:
        if kind.__module__ == "router.errors":
            of.on_refusal(CHAT, kind("x"))
    found = samples(of, "warmroute_errors_total")
    assert (CHAT, "other") not in found
    assert set(found.values()) == {1.0}


def test_labels_are_closed() -> None:
    of = ended(*(record(model=f"known-{n}", endpoint=f"/x/{n}", tokens_from=f"why {n}") for n in range(MAX_MODELS + 9)))
    of.on_request_start()
    of.on_request_end(record(model="client's own words"))
    requests = samples(of, "warmroute_requests_total")
    assert len({model for _, model, _ in requests}) == MAX_MODELS + 1
    assert len({endpoint for endpoint, _, _ in requests}) == MAX_ENDPOINTS + 1
    assert sum(count for (_, model, _), count in requests.items() if model == "other") == 10
    assert len(samples(of, "warmroute_token_ids_total")) <= 33


def test_a_page_does_not_change_while_counting_goes_on() -> None:
    of = ended(record(attempt("ok")))
    page = MetricsPage(of, RouterSnapshot())
    of.on_request_start()
    of.on_request_end(record(attempt("ok")))
    assert f'warmroute_requests_total{{endpoint="{CHAT}",model="known",status="2xx"}} 1.0' in page.render().decode()


def test_a_page_does_not_follow_the_tables_of_other_parts() -> None:
    faults = {("default", "a"): 1}
    page = MetricsPage(metrics(), RouterSnapshot(policy_faults=faults))
    faults["default", "b"] = 1
    assert b'plugin="a"' in page.render()
    assert b'plugin="b"' not in page.render()


def test_names_are_unique_and_ours() -> None:
    names = [family.name for family in MetricsPage(metrics(), RouterSnapshot()).collect()]
    assert len(names) == len(set(names))
    assert {name for name in names if not name.startswith("warmroute_")} == {
        name for name in names if name.startswith("process_")
    }
