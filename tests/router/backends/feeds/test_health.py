"""How engines are asked, with the clock held in hand and the real fleet as registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from router.backends.feeds.health import PROBES_PER_TURN, HealthProbe
from router.backends.fetch import HttpAnswer, NoAnswer
from router.clock import ManualClock
from router.config import schema
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import InstanceState
from router.tasks import Tasks
from tests.patience import PATIENCE_S


def models(*names: str) -> HttpAnswer:
    return HttpAnswer(200, msgspec.json.encode({"data": [{"id": name, "root": f"/{name}"} for name in names]}))


def sources(**endpoints: str) -> HttpAnswer:
    ranks = {key.removeprefix("r"): {"endpoint": value, "publisher": "zmq"} for key, value in endpoints.items()}
    return HttpAnswer(200, msgspec.json.encode(ranks))


OK = HttpAnswer(200, b"")
WELL: dict[str, HttpAnswer | NoAnswer] = {
    "/health": OK,
    "/v1/models": models("m"),
    "/kv_event_sources": sources(r0="tcp://*:5557"),
}
FAILED = NoAnswer("connection refused")
LATE = NoAnswer("no answer within 2 s", late=True)
ENDPOINT = EventEndpoint(0, "tcp://a:5557", None, "")


class Scene:
    """One fleet, scripted engines: `engines[name][path]` is the answer, else why there is none."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.tasks = Tasks("test")
        self.fleet = Fleet(schema.FleetConfig())
        self.engines: dict[str, dict[str, HttpAnswer | NoAnswer]] = {}
        self.asked: list[tuple[float, str, str]] = []
        self.joins: list[tuple[str, list[str], list[EventEndpoint]]] = []
        self.changes: list[tuple[str, list[str]]] = []
        self.heard = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.health = HealthProbe(self, self.fetch, self.tasks, self.clock, schema.HealthConfig())

    def watch(self, name: str, kv_events: object = "auto", **answers: HttpAnswer | NoAnswer) -> None:
        self.engines[name] = WELL | {"/" + path: answer for path, answer in answers.items()}
        config = schema.InstanceConfig(url=f"http://{name}:8000", name=name, kv_events=kv_events)  # type: ignore[arg-type]
        self.fleet.join(config)
        self.health.watch(config)

    # what the core does

    def joined(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> None:
        self.joins.append((instance, [card.id for card in cards], list(sources)))
        self.fleet.mark_ready(instance, cards, [source.rank for source in sources])
        self.heard.set()

    def serves(self, instance: str, cards: Sequence[ModelCard]) -> None:
        self.changes.append((instance, [card.id for card in cards]))
        self.fleet.set_models(instance, cards)

    def probe_ok(self, instance: str, now: float) -> bool:
        return self.fleet.record_probe_success(instance, now)

    def probing(self, instance: str) -> None:
        self.fleet.begin_probe(instance)

    def probe_failed(self, instance: str, now: float, *, late: bool) -> None:
        self.fleet.record_probe_failure(instance, now, late=late)

    async def fetch(self, instance: str, path: str, *, timeout_s: float) -> HttpAnswer | NoAnswer:
        assert timeout_s == 2.0
        self.asked.append((self.clock.now(), instance, path))
        await self.gate.wait()
        return self.engines[instance][path]

    # time

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def run_for(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            await self.health.poll()
            await self.settle()
            self.clock.advance(0.05)

    def state(self, name: str) -> InstanceState:
        instance = self.fleet.get(name)
        assert instance is not None
        return instance.state

    def probed(self) -> list[str]:
        return [asked for _, asked, path in self.asked if path == "/health"]

    def probes(self, name: str) -> list[float]:
        return [at for at, asked, path in self.asked if (asked, path) == (name, "/health")]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.tasks.close()


async def test_a_newcomer_is_asked_who_it_is_at_once(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(0.05)
    assert [path for _, _, path in scene.asked] == ["/health", "/v1/models", "/kv_event_sources"]
    assert scene.joins == [("a", ["m"], [ENDPOINT])]
    assert scene.state("a") is InstanceState.READY
    assert scene.health.trouble("a") is None


async def test_many_probes_begin_over_several_turns_of_the_loop(scene: Scene) -> None:
    for number in range(4 * PROBES_PER_TURN):
        scene.watch(f"i{number}")
    polling, begun = asyncio.ensure_future(scene.health.poll()), [0]
    while not polling.done():
        before = len(scene.probed())
        await asyncio.sleep(0)
        begun.append(len(scene.probed()) - before)
    assert max(begun) == PROBES_PER_TURN
    await scene.settle()
    assert len(scene.probed()) == 4 * PROBES_PER_TURN


async def test_a_ready_one_is_asked_every_two_seconds_whether_it_is_well(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(21.0)
    gaps = [b - a for a, b in zip(scene.probes("a"), scene.probes("a")[1:], strict=False)]
    assert len(gaps) >= 9
    assert all(1.75 < gap < 2.3 for gap in gaps)
    assert len(scene.joins) == 1


@pytest.mark.parametrize("answer", [LATE, FAILED, HttpAnswer(503, b""), HttpAnswer(500, b"")])
async def test_it_goes_down_within_a_second_of_the_first_failed_probe(
    scene: Scene, answer: HttpAnswer | NoAnswer
) -> None:
    scene.watch("a")
    await scene.run_for(0.05)
    scene.engines["a"]["/health"] = answer
    failing_from = scene.clock.now()
    while scene.state("a") is InstanceState.READY:
        assert scene.clock.now() < failing_from + 3.0
        await scene.run_for(0.05)
    assert scene.state("a") is InstanceState.DOWN
    assert scene.clock.now() - scene.probes("a")[-2] < 0.4
    assert "/health" in (scene.health.trouble("a") or "")


async def test_a_down_one_is_asked_ever_less_often_and_joins_anew_when_it_is_back(scene: Scene) -> None:
    scene.watch("a", health=FAILED)
    await scene.run_for(15.0)
    assert scene.state("a") is InstanceState.DOWN
    gaps = [b - a for a, b in zip(scene.probes("a"), scene.probes("a")[1:], strict=False)]
    assert gaps[:3] == pytest.approx([0.25, 0.5, 1.0], abs=0.06)
    assert all(1.75 < gap < 2.3 for gap in gaps[3:])
    scene.engines["a"]["/health"] = OK
    await scene.run_for(2.3)
    assert scene.state("a") is InstanceState.READY
    assert scene.joins == [("a", ["m"], [ENDPOINT])]
    assert scene.health.trouble("a") is None


async def test_suspicion_brings_the_next_probe_forward(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(0.1)
    scene.engines["a"]["/health"] = FAILED
    scene.health.suspect("a")
    scene.health.suspect("nobody")
    await scene.run_for(0.4)
    assert scene.state("a") is InstanceState.DOWN


async def test_suspicion_during_a_probe_asks_once_more_after_it(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(0.1)
    scene.gate.clear()
    scene.clock.advance(2.5)
    await scene.run_for(0.1)
    before = len(scene.probes("a"))
    scene.health.suspect("a")
    await scene.run_for(0.1)
    assert len(scene.probes("a")) == before, "never two at once"
    scene.gate.set()
    await scene.settle()
    await scene.run_for(0.05)
    assert len(scene.probes("a")) == before + 1


@pytest.mark.parametrize(
    ("kv_events", "answer", "expected", "says"),
    [
        ("auto", HttpAnswer(404, b'{"detail":"Not Found"}'), [], False),
        ("auto", HttpAnswer(200, b"{}"), [], True),
        ("auto", HttpAnswer(200, b"<html>"), [], None),
        ("auto", HttpAnswer(503, b""), [], None),
        ("auto", LATE, [], None),
        (
            "auto",
            sources(r1="tcp://*:5558", r0="tcp://*:5557"),
            [ENDPOINT, EventEndpoint(1, "tcp://a:5558", None, "")],
            True,
        ),
        ("off", None, [], None),
        (
            [schema.EventSource(rank=2, endpoint="tcp://x:1", replay_endpoint="tcp://x:2", topic="t")],
            None,
            [EventEndpoint(2, "tcp://x:1", "tcp://x:2", "t")],
            None,
        ),
    ],
)
async def test_where_events_come_from(
    scene: Scene, kv_events: object, answer: HttpAnswer | NoAnswer, expected: list[EventEndpoint], says: bool | None
) -> None:
    scene.watch("a", kv_events, kv_event_sources=answer)
    await scene.run_for(0.05)
    assert scene.joins == [("a", ["m"], expected)]
    asked = [path for _, _, path in scene.asked if path == "/kv_event_sources"]
    assert asked == (["/kv_event_sources"] if kv_events == "auto" else [])
    assert scene.health.reports_sources("a") is says


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (FAILED, "GET /v1/models: connection refused: nothing listens at its url"),
        (LATE, "GET /v1/models: no answer within 2 s"),
        (
            NoAnswer("the engine closed the connection"),
            "the engine closed the connection: if it has TLS, write https://",
        ),
        (HttpAnswer(401, b"{}"), "api_key_env"),
        (HttpAnswer(200, b"?"), "no list"),
        (models(), "no list"),
    ],
)
async def test_one_that_does_not_say_what_it_serves_stays_joining_and_says_why(
    scene: Scene, answer: HttpAnswer | NoAnswer, says: str
) -> None:
    scene.watch("a")
    scene.engines["a"]["/v1/models"] = answer
    await scene.run_for(5.0)
    assert scene.state("a") is InstanceState.JOINING
    assert says in (scene.health.trouble("a") or "")
    assert len(scene.probes("a")) <= 5, "backs off"
    scene.engines["a"]["/v1/models"] = models("m")
    await scene.run_for(2.3)
    assert scene.state("a") is InstanceState.READY


async def test_an_adapter_loaded_while_it_runs_is_noticed(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(5.0)
    scene.engines["a"]["/v1/models"] = models("m", "other")
    await scene.run_for(35.0)
    assert scene.changes == [("a", ["m", "other"])]
    assert len(scene.joins) == 1


async def test_events_that_moved_mean_a_new_process(scene: Scene) -> None:
    scene.watch("a")
    await scene.run_for(5.0)
    scene.engines["a"]["/kv_event_sources"] = sources(r0="tcp://*:6000")
    await scene.run_for(35.0)
    assert scene.joins[1:] == [("a", ["m"], [EventEndpoint(0, "tcp://a:6000", None, "")])]


@pytest.mark.parametrize("answer", [LATE, FAILED, HttpAnswer(500, b""), HttpAnswer(200, b"?")])
async def test_a_question_that_went_unanswered_changes_nothing(scene: Scene, answer: HttpAnswer | NoAnswer) -> None:
    scene.watch("a")
    await scene.run_for(5.0)
    scene.engines["a"]["/kv_event_sources"] = answer
    await scene.run_for(70.0)
    assert len(scene.joins) == 1
    assert scene.state("a") is InstanceState.READY


async def test_one_that_left_while_we_waited_is_not_told_of(scene: Scene) -> None:
    scene.watch("a")
    scene.gate.clear()
    await scene.run_for(0.1)
    scene.health.unwatch("a")
    scene.fleet.leave("a")
    scene.gate.set()
    await scene.run_for(5.0)
    assert scene.joins == []
    assert len(scene.asked) == 1
    assert scene.health.trouble("a") is None


async def test_many_instances_share_a_budget_of_probes(scene: Scene) -> None:
    for i in range(200):
        scene.watch(f"i{i}", "off")
    await scene.run_for(5.0)
    scene.asked.clear()
    await scene.run_for(20.0)
    probes = [at for at, _, path in scene.asked if path == "/health"]
    assert 900 <= len(probes) <= 1100, "50 a second, not 100"
    assert {name for _, name, _ in scene.asked} == {f"i{i}" for i in range(200)}


async def test_started_it_runs_by_itself(scene: Scene) -> None:
    scene.health.start()
    scene.watch("a")
    async with asyncio.timeout(PATIENCE_S):
        await scene.heard.wait()
    assert scene.state("a") is InstanceState.READY
