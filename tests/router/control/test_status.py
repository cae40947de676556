"""What people and metrics are told, over real rooms."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from router.backends.discovery.discovery import StaticDiscovery
from router.backends.discovery.file import FileDiscovery
from router.backends.feeds.health import HealthProbe
from router.backends.fetch import HttpAnswer, NoAnswer
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.support import InstanceSupport, TokenIdSupport
from router.clock import ManualClock
from router.config import schema
from router.config.schema import PolicyConfig as PolicySpec
from router.control.control import Control
from router.control.core import build_scheduler
from router.control.duty import Duty
from router.control.fault_watch import FaultWatch
from router.control.status import Status
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.kvcache.events import BlocksStored, EngineHash, EventBatch, TargetId, Tier
from router.prompt.prompt import Endpoint, Prompt, Text
from router.prompt.tokenization.tokenization import Tokenization
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduling_request import SchedulingRequest
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.state import families
from router.telemetry.recent_records import RecentRecords
from router.telemetry.record_query import RecordQuery
from tests.fakes.caches import RING, Cache, prompt_of

IDS = list(range(20))
WARM = build_policy(
    "warm", PolicySpec.model_validate({"scorers": [{"name": "prefix_overlap"}, {"name": "queue_depth"}]})
)
RANDOM = build_policy("random", PolicySpec.model_validate({"scorers": [{"name": "random"}]}))
CARD = ModelCard("m", "/models/m", None, 8192)


class RouterParts:
    """`a` publishes events, `b` does not, `c` has not yet told what it is."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0, wall=5000.0)
        config = schema.Config(seed=1)
        self.core = build_scheduler(config, PolicySet({"warm": WARM, "random": RANDOM}, "warm"), RING, self.clock)
        self.tokens = Tokenization(config.tokens, {}, RING, EngineTokenizer(self.silent), self.clock)
        members: dict[str, list[EventEndpoint]] = {"a": [EventEndpoint(0, "tcp://a:1", None, "")], "b": []}
        for name in "abc":
            self.core.fleet.join(schema.InstanceConfig(name=name, url=f"http://{name}:8000"))
        for name, sources in members.items():
            self.core.add_instance(name, [CARD], sources)
            self.core.apply_metrics(name, {0: Gauges(3, 2, 0.25, 4, 400, None, None)}, self.clock.now())
        self.cache = Cache()
        self.cache.wall_s = 4998.0
        self.core.indexer.on_batch(TargetId("a/0"), self.cache.batch(self.cache.stored(IDS), skipped={"group": 1}))
        self.ring = RecentRecords(10)
        health = HealthProbe(None, self.unanswered, Tasks("test"), self.clock, config.fleet.health)  # type: ignore[arg-type]
        self.sources = {"config": StaticDiscovery([]), "file": FileDiscovery("fleet.yaml", 1.0, self.clock)}
        takers = TokenIdSupport(self.tokens.local_tokenizer, self.silent, Tasks("test"))
        self.takers = takers._results
        self.handing = TokenIdPassthrough(takers, lambda model: True, on=True)
        self.control = Control(self.core, self.ring, AuditLog(), self.clock)
        self.faults = FaultWatch(self.core, health, config, self.clock, Duty("r", held=True))
        self.status = Status(
            self.core,
            self.tokens,
            self.handing,
            health,
            self.sources,
            lambda instance: [{"source": "config", "origin": instance, "uid": None, "accepting": True}],
            self.ring,
            self.control,
            self.faults,
            self.clock,
            "r",
            config,
            self.clock.wall(),
            {},
        )

    async def silent(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        return None

    async def unanswered(self, instance: str, path: str, *, timeout_s: float) -> HttpAnswer | NoAnswer:
        return "failed"

    def request(self, session: str | None = None) -> Record:
        number = self.core.selector.next_number()
        record = Record(f"r-{number}", number, 1000.0, 5000.0, "/v1/completions", "m", True, "local", 20, Stages())
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, session=session)
        request = SchedulingRequest(record, prompt, self.core.fleet.resolve("m"), prompt_of(IDS))
        assert self.core.admit(request) is not None
        self.ring.add(record)
        return record


@pytest.fixture
def router() -> RouterParts:
    return RouterParts()


def test_instances_are_plain_json_types(router: RouterParts) -> None:
    assert json.loads(msgspec.json.encode(router.status.describe_instances()))


def test_instances_in_the_order_they_joined(router: RouterParts) -> None:
    shown = router.status.describe_instances()
    assert [(one["id"], one["url"], one["state"], one["models"]) for one in shown] == [
        ("a", "http://a:8000", "ready", ["m"]),
        ("b", "http://b:8000", "ready", ["m"]),
        ("c", "http://c:8000", "joining", []),
    ]
    assert {one["trouble"] for one in shown} == {None}


def test_a_target_with_its_load_speed_promises_and_stream(router: RouterParts) -> None:
    router.request()
    router.clock.advance(0.5)
    (target,) = router.status.describe_instances()[0]["targets"]
    assert {name: target[name] for name in ("id", "rank", "breaker", "block_tokens", "capacity_tokens")} == {
        "id": "a/0", "rank": 0, "breaker": "closed", "block_tokens": 4, "capacity_tokens": 400,
    }  # fmt: skip
    load = target["load"]
    assert (load["requests"], load["running"], load["waiting"], load["metrics_age_s"]) == (1, 3, 2, 0.5)
    assert target["speed"]["samples"] == target["decode_alone"]["samples"] == 0
    assert {name: len(values) for name, values in target["speed_deviation"].items()} == {
        "prefill": 3,
        "decode_alone": 3,
    }
    assert target["slowdown"] == 1.0
    assert target["promises"] == {
        "trusted": True,
        "drafts": False,
        "kept": 0,
        "broken": 0,
        "missed": 0,
        "contradictions": 0,
        "alarm": None,
    }
    stream = target["stream"]
    assert stream.pop("bytes") > 0
    assert stream == {
        "state": "live", "silent": False, "joined_late": False, "turned_over": False, "last_seq": 0, "silent_s": 0.5,
        "lag_s": 1.0, "events": 1, "gaps": 0, "replays": 0, "replay_endpoint": None, "replay_silent": False,
        "restarts": 0, "duplicates": 0, "malformed": 0, "overfull": 0, "skipped": {"group": 1},
        "blocks": {"gpu": 5, "cpu": 0, "disk": 0}, "orphans": 0,
            "keyless_blocks": 0, "recalled_blocks": 0,
    }  # fmt: skip


def test_whether_an_instance_takes_token_ids_and_why_not(router: RouterParts) -> None:
    router.takers["a"] = InstanceSupport(False, "it refused the ids of a prompt")
    shown = {one["id"]: one["token_ids"] for one in router.status.describe_instances()}
    assert shown == {"a": {"takes": False, "why": "it refused the ids of a prompt"}, "b": None, "c": None}
    assert router.status.snapshot().passthrough == (router.takers, {}, {})


def test_no_stream_is_said_as_none(router: RouterParts) -> None:
    shown = {one["id"]: one["targets"][0] for one in router.status.describe_instances()}
    assert shown["b"]["stream"] is None
    assert shown["c"]["stream"] is None


def miss(router: RouterParts, times: int) -> None:
    target = router.core.fleet.target(TargetId("a/0"))
    assert target is not None
    for _ in range(times):
        target.overlap_accuracy.observe(0, 400, 4)


def test_hits_that_nobody_promised_become_an_alarm_while_the_stream_can_be_trusted(router: RouterParts) -> None:
    miss(router, 8)
    promises = router.status.describe_instances()[0]["targets"][0]["promises"]
    assert promises["missed"] == 8
    assert "unknown to the index" in promises["alarm"]
    router.cache.seq += 1
    router.core.indexer.on_batch(TargetId("a/0"), router.cache.batch())  # a gap: joined late from here on
    assert router.status.describe_instances()[0]["targets"][0]["promises"]["alarm"] is None


def test_a_list_that_cannot_be_read_shows(router: RouterParts, tmp_path: Path) -> None:
    assert router.status.describe_discovery() == {"config": None, "file": None}
    missing = router.sources["file"] = FileDiscovery(tmp_path / "fleet.yaml", 1.0, router.clock)
    missing.poll()
    told = router.status.describe_discovery()
    assert told["config"] is None
    assert "fleet.yaml" in (told["file"] or "")
    assert router.status.snapshot().discovery_trouble == {"config": False, "file": True}


def test_the_age_of_a_list_counts_from_the_last_answer_of_its_source(router: RouterParts, tmp_path: Path) -> None:
    file = router.sources["file"] = FileDiscovery(tmp_path / "fleet.yaml", 1.0, router.clock)
    assert router.status.snapshot().discovery_age_s == {"config": None, "file": None}
    (tmp_path / "fleet.yaml").write_text("[]")
    file.poll()
    router.clock.advance(3.0)
    assert router.status.snapshot().discovery_age_s == {"config": None, "file": 3.0}


def test_draining_and_undraining(router: RouterParts) -> None:
    assert router.status.drain("a", True)
    assert router.status.describe_instances()[0]["state"] == "draining"
    assert router.status.drain("a", False)
    assert router.status.describe_instances()[0]["state"] == "ready"
    assert not router.status.drain("nobody", True)


async def test_a_session_is_found_by_its_pseudonym_and_by_the_name_that_the_client_gave(router: RouterParts) -> None:
    ana, _ = router.request("ana"), router.request("bea")
    pseudonym = ana.attempts[0].decision.view.session
    assert pseudonym not in (None, "ana")
    for text in ("ana", pseudonym):
        assert [
            json.loads(found)["id"] for found in await router.status.find_records(RecordQuery(sessions=(text,)))
        ] == [ana.id]
    assert await router.status.find_records(RecordQuery(sessions=("cleo",))) == []
    sub_agent = router.request("run\x1fagent")
    (found,) = await router.status.find_records(RecordQuery(sessions=("run / agent",)))
    assert json.loads(found)["id"] == sub_agent.id


async def test_records_newest_first_and_one_by_its_id(router: RouterParts) -> None:
    first, second = router.request(), router.request()
    assert [json.loads(shown)["id"] for shown in await router.status.find_records(RecordQuery(5))] == [
        second.id,
        first.id,
    ]
    assert [json.loads(shown)["id"] for shown in await router.status.find_records(RecordQuery(1))] == [second.id]
    shown = await router.status.find_record(first.id)
    assert shown is not None
    assert (shown["id"], shown["target"]) == (first.id, "a/0")
    assert await router.status.find_record("never") is None


def test_a_router_alone_is_one_worker(router: RouterParts) -> None:
    (alone,) = router.status.describe_workers()
    assert (alone["number"], alone["pid"], alone["run"], alone["up"]) == (0, os.getpid(), "r", True)
    assert alone["policies"] == {"warm": WARM.digest}


def test_the_snapshot_behind_the_metrics(router: RouterParts) -> None:
    router.request()
    snapshot = router.status.snapshot()
    a, b, c = snapshot.targets
    assert (a.target, a.instance, a.state, a.breaker) == ("a/0", "a", "ready", "closed")
    assert (a.requests, a.prefilling, *a.gauges[:3]) == (1, 1, 3, 2, 0.25)
    assert (*a.index_stats[:2], a.batches, a.events, dict(a.skipped)) == ((5, 0, 0), 0, 1, 1, {"group": 1})
    assert (a.stream_state, a.trusted, a.lag_s) == ("live", True, 1.0)
    assert (b.stream_state, b.trusted, b.lag_s, b.index_stats.blocks) == ("off", False, None, (0, 0, 0))
    assert (c.state, c.gauges.running, c.batches, c.index_stats.bytes) == ("joining", None, 0, 0)
    assert list(families(snapshot))


def test_broken_promises_show_as_a_stream_that_is_not_trusted(router: RouterParts) -> None:
    target = router.core.fleet.target(TargetId("a/0"))
    assert target is not None
    for _ in range(3):
        target.overlap_accuracy.observe(400, 0, 4)
    assert not router.status.snapshot().targets[0].trusted
    assert router.status.describe_instances()[0]["targets"][0]["promises"]["trusted"] is False


def test_orphans_are_told(router: RouterParts) -> None:
    orphan = BlocksStored([EngineHash(7)], EngineHash(99), [1, 2, 3, 4], 4, Tier.GPU, 0, None, None, None)
    router.cache.seq += 1
    router.core.indexer.on_batch(TargetId("a/0"), EventBatch(1, 4999.5, 0, [orphan], {}))
    assert router.status.snapshot().targets[0].index_stats.orphans == 1
    assert router.status.describe_instances()[0]["targets"][0]["stream"]["orphans"] == 1
