"""Metrics that are read from a snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from router.backends.token_ids.passthrough import PassthroughReport
from router.backends.token_ids.support import InstanceSupport
from router.fleet.load import NO_GAUGES
from router.kvcache.index import IndexStats
from router.prompt.tokenization.tokenization import TokenizationReport
from router.telemetry.metrics.family import build_family
from router.telemetry.metrics.snapshot import (
    INSTANCE_STATES,
    ConnectionState,
    PrefixCacheState,
    RouterSnapshot,
    TargetState,
)
from router.telemetry.metrics.state import HELP, families
from scorers.contract import Speed, Transfer

READY = TargetState(
    target="a/0", instance="a", state="ready", breaker="half_open", requests=3, prefilling=1, live_tokens=900,
    gauges=NO_GAUGES._replace(running=5, waiting=2, kv_usage=0.25),
    speed=Speed(0.0, 90.5, 0.0, 12, None, None, None, Transfer(5.5, 10.25, 3, None)), slowdown=4.8,
    index_stats=IndexStats((10, 20, 30), 4, 6000, True), recalled_blocks=9, stream_state="live",
    trusted=True, lag_s=0.5, batches=7, events=8, gaps=1, replays=2, replay_silent=True, silent=True,
    overfull=2, contradictions=1, predictions=(6, 5, 4), malformed=4, skipped={"group": 5},
)  # fmt: skip
SILENT = READY._replace(
    target="b/0", instance="b", state="down", gauges=NO_GAUGES, lag_s=None, skipped={},
    trusted=False, stream_state="new", breaker="open", slowdown=1.0,
)  # fmt: skip


def a_report(source: str = "local", **fields: int | bool) -> TokenizationReport:
    counts = {"proofs": 0, "mismatches": 0, "incremental": True, "remembered_tokens": 0, "tokenised_tokens": 0} | fields
    return TokenizationReport(  # type: ignore[call-arg]
        source=source,
        renderer="jinja",
        trouble=None,
        proved={},
        refuted={},
        dates={},
        whole_because=None,  # type: ignore[arg-type]
        **counts,  # type: ignore[arg-type]
    )


def samples(now: RouterSnapshot, prefix: str) -> dict[tuple[str, ...], float]:
    """Samples of the metrics that begin with `prefix`, by name and label values."""
    found = [s for family in families(now) for s in family.samples if s.name.startswith(f"warmroute_{prefix}")]
    return {(s.name, *s.labels.values()): s.value for s in found}


def values(now: RouterSnapshot, **labels: str) -> dict[str, float]:
    """Samples with exactly these labels."""
    return {s.name: s.value for family in families(now) for s in family.samples if s.labels == labels}


def states(now: RouterSnapshot, name: str, **labels: str) -> Mapping[str, float]:
    found = [s for family in families(now) for s in family.samples if s.name == name]
    return {s.labels["state"]: s.value for s in found if labels.items() <= s.labels.items()}


def test_every_reading_of_a_target() -> None:
    assert values(RouterSnapshot([READY]), target="a/0", engine="a") == {
        "warmroute_target_requests": 3,
        "warmroute_target_prefilling_requests": 1,
        "warmroute_target_live_tokens": 900,
        "warmroute_engine_running_requests": 5,
        "warmroute_engine_waiting_requests": 2,
        "warmroute_engine_kv_usage_ratio": 0.25,
        "warmroute_index_bytes": 6000,
        "warmroute_index_orphan_blocks": 4,
        "warmroute_index_recalled_blocks_total": 9,
        "warmroute_stream_trusted": 1,
        "warmroute_stream_lag_seconds": 0.5,
        "warmroute_stream_batches_total": 7,
        "warmroute_stream_events_total": 8,
        "warmroute_stream_gaps_total": 1,
        "warmroute_stream_replays_total": 2,
        "warmroute_stream_replay_silent": 1,
        "warmroute_stream_silent": 1,
        "warmroute_stream_overfull_total": 2,
        "warmroute_stream_contradictions_total": 1,
        "warmroute_stream_decode_errors_total": 4,
        "warmroute_prefill_seconds_per_token": 90.5e-6,
        "warmroute_prefill_samples": 12,
    }


def test_what_is_not_known_has_no_sample() -> None:
    known = values(RouterSnapshot([SILENT]), target="b/0", engine="b")
    assert "warmroute_engine_running_requests" not in known
    assert "warmroute_engine_waiting_requests" not in known
    assert "warmroute_engine_kv_usage_ratio" not in known
    assert "warmroute_stream_lag_seconds" not in known
    assert known["warmroute_stream_trusted"] == 0


def test_a_slowdown_is_the_instances() -> None:
    now = RouterSnapshot([READY, READY._replace(target="a/1"), SILENT])
    assert values(now, engine="a")["warmroute_engine_slowdown_ratio"] == 4.8


def test_restarts_are_the_instances() -> None:
    assert samples(RouterSnapshot(restarts={"a": 3}), "engine_restarts") == {
        ("warmroute_engine_restarts_total", "a"): 3
    }


def test_predictions_by_their_outcome() -> None:
    found = samples(RouterSnapshot([READY]), "overlap_predictions")
    assert {labels[-1]: value for labels, value in found.items()} == {"kept": 6, "broken": 5, "missed": 4}


def test_states_are_one_of_all() -> None:
    now = RouterSnapshot([READY, SILENT])
    assert states(now, "warmroute_instance_state", engine="a") == {
        "joining": 0,
        "ready": 1,
        "draining": 0,
        "drained": 0,
        "down": 0,
    }
    assert states(now, "warmroute_instance_state", engine="b") == {
        "joining": 0,
        "ready": 0,
        "draining": 0,
        "drained": 0,
        "down": 1,
    }
    assert states(now, "warmroute_breaker_state", target="a/0") == {"closed": 0, "open": 0, "half_open": 1, "stuck": 0}
    stream = states(now, "warmroute_stream_state", target="b/0")
    assert stream == {"off": 0, "new": 1, "replaying": 0, "live": 0, "lost": 0}


def test_an_instance_with_two_ranks_has_one_state() -> None:
    now = RouterSnapshot([READY, READY._replace(target="a/1")])
    family = next(f for f in families(now) if f.name == "warmroute_instance_state")
    assert len(family.samples) == len(INSTANCE_STATES)


def test_tiers_reasons_and_faults() -> None:
    now = RouterSnapshot([READY], policy_faults={("default", "prefix_overlap"): 2})
    for tier, blocks in (("gpu", 10), ("cpu", 20), ("disk", 30)):
        assert values(now, target="a/0", engine="a", tier=tier) == {"warmroute_index_blocks": blocks}
    assert values(now, target="a/0", engine="a", reason="group") == {"warmroute_stream_skipped_events_total": 5}
    assert values(now, policy="default", plugin="prefix_overlap") == {"warmroute_policy_faults_total": 2}


def test_tokenizers() -> None:
    now = RouterSnapshot(tokenizers={"m": a_report("remote", proofs=5, mismatches=1)})
    assert values(now, model="m") == {
        "warmroute_tokenizer_proofs_total": 5,
        "warmroute_tokenizer_mismatches_total": 1,
    }
    assert values(now, model="m", source="remote") == {"warmroute_tokenizer_source": 1}
    assert values(now, model="m", source="local") == {"warmroute_tokenizer_source": 0}
    assert values(now, model="m", source="unknown") == {"warmroute_tokenizer_source": 0}


def test_sources_of_instances() -> None:
    now = RouterSnapshot(discovery_trouble={"config": False, "file": True})
    assert values(now, source="config") == {"warmroute_discovery_trouble": 0}
    assert values(now, source="file") == {"warmroute_discovery_trouble": 1}


def test_an_instance_that_left_has_no_samples() -> None:
    assert [s for family in families(RouterSnapshot()) for s in family.samples] == []


def test_loading_per_link_that_was_used() -> None:
    now = RouterSnapshot([READY._replace(speed=READY.speed._replace(cpu=Transfer(5.0, 1.0, 0, None)))])
    assert {name[-1] for name in samples(now, "load_")} == {"pool"}
    assert values(now, target="a/0", engine="a", link="pool") == {
        "warmroute_load_seconds_per_token": 10.25e-6,
        "warmroute_load_base_seconds": 0.0055,
        "warmroute_load_samples": 3,
    }


def test_prefill_halves_that_could_not_be() -> None:
    now = RouterSnapshot(unpaired={"engine_id": 2})
    assert values(now, reason="engine_id") == {"warmroute_unpaired_requests_total": 2}


def test_every_help_text_belongs_to_one_metric_in_every_state() -> None:
    names = [f.name + ("_total" if f.type == "counter" else "") for f in families(RouterSnapshot())]
    assert sorted(names) == sorted(f"warmroute_{name}" for name in HELP)


def test_token_id_passthrough_by_instance_model_and_reason() -> None:
    takers = {"a": InstanceSupport(True, ""), "b": InstanceSupport(False, "")}
    now = RouterSnapshot(passthrough=PassthroughReport(takers, {"m": 7}, {"check": 2}))
    assert samples(now, "token_id_passthrough") == {
        ("warmroute_token_id_passthrough_supported", "a"): 1,
        ("warmroute_token_id_passthrough_supported", "b"): 0,
        ("warmroute_token_id_passthrough_prompts_total", "m"): 7,
        ("warmroute_token_id_passthrough_skipped_total", "check"): 2,
    }


def test_the_connections_of_clients() -> None:
    now = RouterSnapshot(connections=ConnectionState(7, {"share": 2}))
    assert samples(now, "client_") == {
        ("warmroute_client_connections",): 7,
        ("warmroute_client_connections_refused_total", "share"): 2,
    }
    assert samples(RouterSnapshot(), "client_") == {}


def test_the_prefix_cache_and_the_tokens_of_each_model() -> None:
    reports = {
        "m": a_report(remembered_tokens=90, tokenised_tokens=10),
        "n": a_report(tokenised_tokens=5, incremental=False),
    }
    now = RouterSnapshot(tokenizers=reports, prefix_cache=PrefixCacheState(700, 1000, 3))
    assert samples(now, "memory") == {
        ("warmroute_memory_bytes",): 700,
        ("warmroute_memory_limit_bytes",): 1000,
        ("warmroute_memory_evictions_total",): 3,
    }
    assert samples(now, "remembered") == {
        ("warmroute_remembered_tokens_total", "m"): 90,
        ("warmroute_remembered_tokens_total", "n"): 0,
    }
    assert samples(now, "tokenised") == {
        ("warmroute_tokenised_tokens_total", "m"): 10,
        ("warmroute_tokenised_tokens_total", "n"): 5,
    }
    assert samples(now, "tokenizer_incremental") == {
        ("warmroute_tokenizer_incremental", "m"): 1,
        ("warmroute_tokenizer_incremental", "n"): 0,
    }


def test_the_metrics_of_features_come_last() -> None:
    """As of the moment of the scrape, whatever they count afterwards."""
    of_feature = build_family("traces_total", "requests", ("end",), [(("exported",), 5)])
    assert samples(RouterSnapshot(features=[of_feature]), "traces") == {("warmroute_traces_total", "exported"): 5}
    assert samples(RouterSnapshot(), "traces") == {}
