"""What would happen now is what then happens, and asking leaves no trace: over the real rooms, with an engine's answers
and the time made up.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec
import pytest

from router.backends.fetch import HttpAnswer
from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import ManualClock
from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.pool import PoolConfig
from router.control.explain import Explain, ExplainRequest
from router.errors import BadRequest, NoTarget, NotFound
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.kvcache.events import TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.lineage import make_lineage
from router.prompt.api.parse import ReadOptions, RequestHeaders, read_prompt
from router.prompt.tokenization.tokenization import Tokenization
from router.request.experiment_unit import derive_unit
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.policy.record_view import describe_decision
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.selector import Selector
from router.telemetry.recent_records import RecentRecords
from scorers.best import Best
from scorers.contract import Row, Scorer, Unit, View
from tests.fakes.caches import RING, Cache

COMPLETIONS = "/v1/completions"
IDS = list(range(100, 140))
MODEL = ModelCard("m", "/models/m", None, 8192)


def built(name: str, *scorers: str, **spec: Any) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": s} for s in scorers], **spec}))


class Learner(Scorer):
    """Would notice being told of choices."""

    unit = Unit.POINTS

    def __init__(self) -> None:
        self.heard: list[str] = []

    def score(self, view: View) -> list[float]:
        return [0.0] * len(view.rows)

    def picked(self, view: View, row: Row) -> None:
        self.heard.append(row.target)


POLICIES = {
    "warm": built("warm", "prefix_overlap", "queue_depth"),
    "turns": built("turns", "round_robin"),
    "chance": built("chance", "random"),
    "sticky": built("sticky", "session_affinity", "queue_depth"),
    "pooled": built("pooled", "expected_ttft"),
}


class House:
    """`names` serve `m` and publish events; `b` has a prompt of `IDS` cached. No tokenizer here: engines tell."""

    def __init__(
        self,
        experiment: dict[str, Any] | None = None,
        active: str = "warm",
        names: Sequence[str] = "abc",
        **config: Any,
    ) -> None:
        self.clock = ManualClock(1000.0, wall=5000.0)
        self.config = schema.Config(seed=1, **config)
        self.learner = Learner()
        learning = Policy("learning", [], [WeightedScorer("learner", 1.0, self.learner)], NamedPicker("best", Best()))
        self.policies = POLICIES | {"learning": learning}
        index = BlockIndex(RING, 1000)
        self.core = Scheduler(
            Fleet(self.config.fleet),
            KvIndexer(index, SpeculativeBlocks(5.0), ApproximateBlocks(10_000, 60.0), self.clock),
            Selector(
                PolicySet(self.policies, active, experiment and ExperimentConfig.model_validate(experiment)), seed=1
            ),
            self.clock,
            10,
        )
        self.asked: list[tuple[str, str]] = []
        self.tokens = Tokenization(self.config.tokens, {}, RING, EngineTokenizer(self.fetch), self.clock)
        self.ring = RecentRecords(10)
        reading = ReadOptions()
        self.explain = Explain(self.config, self.clock, self.core, self.tokens, EngineTokenizer(self.fetch), reading)
        for name in names:
            self.core.fleet.join(schema.InstanceConfig(name=name, url=f"http://{name}:8000"))
            self.core.add_instance(name, [MODEL], [EventEndpoint(0, f"tcp://{name}:1", None, "")])
            cache = Cache()
            stored = [cache.stored(IDS)] if name == "b" else []
            self.core.indexer.on_batch(TargetId(f"{name}/0"), cache.batch(*stored))
            self.core.apply_metrics(name, {0: Gauges(0, 0, 0.1, 4, 400, None, None)}, self.clock.now())

    async def fetch(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        self.asked.append((instance, path))
        return HttpAnswer(200, json.dumps({"count": len(IDS), "max_model_len": 99, "tokens": IDS}).encode())

    def request(self, asked: ExplainRequest) -> Record:
        """The same for real, as the route does it."""
        number = self.core.selector.next_number()
        lineage = None if asked.session is None else make_lineage(asked.session, asked.parent)
        prompt = read_prompt(asked.path, None, asked.body, ReadOptions(), RequestHeaders(lineage))
        record = Record(f"r-{number}", number, 1000.0, 5000.0, asked.path, "m", True, "given", None, Stages())
        experiment = self.core.selector.policy_set.experiment
        unit = experiment and derive_unit(
            experiment, prompt, self.core.conversations, asked.client, record.id, record.at_wall_s
        )
        self.core.assign_policy(record, unit)
        if asked.policy is not None:
            record.policy = self.policies[asked.policy]
        keys = {4: RING.chain(RING.root("m", None, None), array("I", IDS), 4)}
        known = TokenizedPrompt(array("I", IDS), True, "given", keys, 0.0, 0.0)
        assert self.core.admit(SchedulingRequest(record, prompt, self.core.fleet.resolve("m"), known)) is not None
        self.ring.add(record)
        return record


def about(prompt: Any = None, path: str = COMPLETIONS, **asked: Any) -> ExplainRequest:
    body = {"model": "m", "prompt": IDS if prompt is None else prompt}
    return ExplainRequest(path, json.dumps(body | asked.pop("body", {})).encode(), "application/json", **asked)


def but_sampled(decision: dict[str, Any]) -> dict[str, Any]:
    """How much of the fleet is in use is looked at when a request arrives; until then the last look counts."""
    sampled = ("busy", "live_share")
    return decision | {"view": {name: value for name, value in decision["view"].items() if name not in sampled}}


# it tells the truth


@pytest.mark.parametrize("policy", list(POLICIES))
async def test_what_would_happen_is_what_then_happens(policy: str) -> None:
    """For ten requests in a row, each of which changes the load, the turn, the number and the session's last target."""
    house = House(active=policy)
    for n in range(10):
        asked = about(session=f"s{n % 2}")
        told = await house.explain.explain(asked)
        record = house.request(asked)
        (attempt,) = record.attempts
        assert but_sampled(told["decision"]) == but_sampled(describe_decision(attempt.decision, record.policy))
        assert (told["target"], told["why"]) == (attempt.decision.target, told["decision"]["why"])
        house.clock.advance(1.0)


LARGE = [*"abc", *(f"e{number:02}" for number in range(97))]


async def test_of_a_large_fleet_all_are_priced_and_the_choice_is_the_requests() -> None:
    house = House(active="pooled", names=LARGE)
    told = await house.explain.explain(about())
    (attempt,) = house.request(about()).attempts
    assert told["target"] == attempt.decision.target == "b/0"  # its whole prompt is there
    assert (len(told["decision"]["candidates"]), told["decision"]["left_out"], told["notes"]) == (100, None, [])
    assert (len(attempt.decision.rows), attempt.decision.view.others) == (5, 95)  # b, and four of 99 equals


async def test_which_of_a_large_fleets_equals_is_drawn_is_no_promise() -> None:
    house = House(active="pooled", names=LARGE)
    cold = about([1, 2, 3] * 20)
    assert (await house.explain.explain(cold))["notes"] == ["one of 100 equals, by chance; a request may draw another"]
    assert (await House(active="pooled").explain.explain(cold))["notes"] == []  # three: a request draws the same
    all_shown = House(active="turns", names=LARGE)
    assert (await all_shown.explain.explain(cold))["notes"] == []
    assert (await all_shown.explain.explain(cold))["target"] == all_shown.request(cold).target


async def test_the_answer_says_who_decides_what_is_held_and_where_the_ids_came_from() -> None:
    told = await House().explain.explain(about())
    assert (told["target"], told["policy"], told["policy_digest"], told["arm"]) == (
        "b/0", "warm", POLICIES["warm"].digest, None
    )  # fmt: skip
    assert told["why"].startswith("b/0: prefix_overlap costs 0.90 points less than at ")  # 36 of 40 tokens are held
    assert told["overlap"]["gpu_tokens"] == 36
    assert {name: told["tokens"][name] for name in ("from", "prompt_tokens", "leading_tokens")} == {
        "from": "given", "prompt_tokens": 40, "leading_tokens": 40
    }  # fmt: skip
    assert (told["pool"], told["notes"]) == ("none", [])
    assert json.loads(msgspec.json.encode(told)) == told  # plain JSON types throughout


async def test_another_policy_may_be_asked_whatever_is_in_force() -> None:
    house = House()
    told = await house.explain.explain(about(policy="turns"))
    assert (told["policy"], told["decision"]["policy"]) == ("turns", "turns")
    with pytest.raises(
        BadRequest, match="there is no policy `best`; policies here: chance, learning, pooled"
    ) as refused:
        await house.explain.explain(about(policy="best"))
    assert (refused.value.code, refused.value.param) == ("unknown_policy", "policy")


async def test_the_overlap_is_told_even_where_the_policy_does_not_look_at_it() -> None:
    told = await House(active="turns").explain.explain(about())
    held = {row["target"]: row["overlap"]["gpu_tokens"] for row in told["decision"]["candidates"]}
    assert held == {"a/0": 0, "b/0": 36, "c/0": 0}


async def test_what_the_request_asks_for_is_in_the_view() -> None:
    asked = about(client="team", ttft_ms="500", tpot_ms="20", body={"max_tokens": 7, "priority": 2})
    told = await House().explain.explain(asked)
    ask = told["decision"]["view"]["ask"]
    assert ask.pop("tenant") not in (None, "team"), "a pseudonym"
    assert ask == {"priority": 2, "ttft_ms": 500.0, "tpot_ms": 20.0, "output_tokens": 7}


# token ids


async def test_an_engine_is_asked_for_ids_past_the_room_that_keeps_count() -> None:
    house = House()
    told = await house.explain.explain(about("some text"))
    assert house.asked == [("b", "/tokenize")]
    assert (told["tokens"]["from"], told["tokens"]["prompt_tokens"], told["target"]) == ("remote", 40, "b/0")


async def test_media_and_refusals_are_reasons() -> None:
    house = House()
    sound = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hear"}, sound]}]}
    told = await house.explain.explain(about(path="/v1/chat/completions", body=chat))
    assert told["tokens"] == {"from": "media", "prompt_tokens": None, "leading_tokens": None}
    assert (house.asked, told["overlap"]) == ([], None)
    told = await house.explain.explain(about(path="/v1/embeddings", body={"input": "x"}))
    assert told["tokens"]["from"] == "endpoint"


# what it cannot know


async def test_the_pool_is_not_asked_and_the_answer_says_so() -> None:
    pool = PoolConfig(masters=["http://master:9003"])
    told = await House(active="pooled", pool=pool).explain.explain(about())
    assert (told["pool"], told["decision"]["view"]["pool"]) == ("not asked", None)
    assert told["notes"] == [
        "the shared pool was not queried, so its content is unknown here; a request would query it"
    ]
    assert (await House(active="turns", pool=pool).explain.explain(about()))["notes"] == []


async def test_a_request_that_may_be_split_is_explained_as_a_whole() -> None:
    house = House()
    config = schema.InstanceConfig.model_validate(
        {"name": "p", "url": "http://p:8000", "role": "prefill", "transfer": {"protocol": "nixl"}}
    )
    house.core.fleet.join(config)
    house.core.add_instance("p", [MODEL], [])
    told = await house.explain.explain(about())
    assert told["notes"] == [
        "a request like this may be split over a prefill and a decode instance; this is for the whole of it"
    ]
    assert "p/0" not in [row["target"] for row in told["decision"]["candidates"]]


# refusals


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "m"}', b'{"model": 3, "prompt": "x"}'])
async def test_a_body_that_the_route_refuses(body: bytes) -> None:
    with pytest.raises(BadRequest):
        await House().explain.explain(ExplainRequest(COMPLETIONS, body))


async def test_a_body_without_a_model_is_for_the_only_one() -> None:
    house = House()
    told = await house.explain.explain(ExplainRequest(COMPLETIONS, b'{"prompt": "x"}'))
    assert told["model"] == "m"


async def test_an_unknown_model_and_a_fleet_that_cannot() -> None:
    house = House()
    with pytest.raises(NotFound, match="the model `x` does not exist; models here: m"):
        await house.explain.explain(about(body={"model": "x"}))
    for name in "abc":
        house.core.fleet.drain(name)
    with pytest.raises(NoTarget, match="no engine can serve this model now"):
        await house.explain.explain(about())


async def test_what_goes_on_from_a_response_goes_to_who_made_it() -> None:
    house = House()
    record = house.request(about())
    made_by = record.attempts[0].decision.target
    house.core.remember_response("resp_1", TargetId(made_by))
    asked = about(path="/v1/responses", body={"input": "more", "previous_response_id": "resp_1"})
    told = await house.explain.explain(asked)
    assert (told["target"], told["why"]) == (made_by, f"{made_by}: the only candidate")
    assert told["notes"] == [f"only {made_by} has the response that it continues"]
    house.core.fleet.drain(made_by[0])
    with pytest.raises(NoTarget):
        await house.explain.explain(asked)


# during an experiment


ARMS: dict[str, Any] = {"arms": {"warm": 60, "turns": 40}, "seed": 3}


async def test_the_arm_of_a_session_is_the_one_it_would_be_on() -> None:
    house = House(ARMS)
    arms = set()
    for n in range(20):
        asked = about(session=f"session {n}")
        told = await house.explain.explain(asked)
        record = house.request(asked)
        assert record.policy is not None
        assert (told["arm"], told["policy"]) == (record.arm, record.policy.name)
        assert but_sampled(told["decision"]) == but_sampled(
            describe_decision(record.attempts[0].decision, record.policy)
        )
        assert told["notes"] == []
        arms.add(told["arm"])
    assert arms == {"warm", "turns"}


async def test_an_arm_that_was_rolled_back_decides_no_more() -> None:
    house = House(ARMS | {"arms": {"warm": 1, "turns": 99}})
    house.core.swap(house.core.selector.policy_set.with_rollback("turns"))
    sessions = [await house.explain.explain(about(session=str(n))) for n in range(10)]
    assert "turns" in {told["arm"] for told in sessions}
    assert {told["policy"] for told in sessions} == {"warm"}


async def test_a_sub_agent_would_be_on_the_arm_of_its_program() -> None:
    explain = House(ARMS | {"unit": "program"}).explain.explain
    for n in range(6):
        root, child = f"session {n}", about("other text", session=f"sub-agent {n}", parent=f"session {n}")
        assert (await explain(about(session=root)))["arm"] == (await explain(child))["arm"]


async def test_an_empty_name_is_none() -> None:
    explain = House(ARMS).explain.explain
    assert await explain(about(session="", parent="")) == await explain(about())


async def test_who_stands_for_itself_alone_has_no_arm_yet() -> None:
    told = await House(ARMS | {"unit": "request"}).explain.explain(about())
    assert (told["arm"], told["policy"]) == (None, "warm")
    assert told["notes"] == [
        "nothing here names its request, so it would draw an arm of its own (warm 60 %, turns 40 %); this is what the "
        "first one would do, warm"
    ]


async def test_the_api_key_names_a_unit_where_that_counts() -> None:
    house = House(ARMS | {"unit": "api_key"})
    assert (await house.explain.explain(about()))["arm"] is None
    asked = about(client="team")
    assert (await house.explain.explain(asked))["arm"] == house.request(asked).arm is not None


async def test_isolated_arms_choose_among_their_own() -> None:
    house = House(ARMS | {"isolate": "instances"})
    seen = set()
    for n in range(12):
        asked = about(session=str(n))
        told = await house.explain.explain(asked)
        candidates = tuple(row["target"] for row in told["decision"]["candidates"])
        assert candidates == tuple(row.target for row in house.request(asked).attempts[0].decision.rows)
        seen.add(candidates)
    assert len(seen) == 2


# it leaves no trace


KEPT_FACTS = {"row_cache", "_observer", "_ready", "_all_columns", "_nominal", "_cache", "_cache_since"}
"""Readings of facts that are made anew when they are older than 0.1 s or so: by whoever looks next."""


def traces(thing: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Everything that hangs on `thing`, down to numbers and texts, each with the way to it."""
    seen = set() if seen is None else seen
    if thing is None or isinstance(thing, str | bytes | int | float | Enum | type | array) or callable(thing):
        yield path, thing
    elif id(thing) not in seen:
        seen.add(id(thing))
        yield path, type(thing).__name__
        if isinstance(thing, dict):
            parts = [(f"[{key!r}]" if isinstance(key, str | int | tuple) else "[.]", thing[key]) for key in thing]
        elif hasattr(thing, "__iter__") and not hasattr(thing, "__dict__") and not hasattr(thing, "__mypyc_attrs__"):
            parts = [(f"[{i}]", part) for i, part in enumerate(thing)]
        else:
            kinds = type(thing).__mro__
            slots = [name for kind in kinds for name in getattr(kind, "__slots__", ())]
            slots += [name for kind in kinds for name in getattr(kind, "__mypyc_attrs__", ())]
            names = dict.fromkeys([*getattr(thing, "__dict__", ()), *slots])
            parts = [(f".{name}", getattr(thing, name)) for name in names if hasattr(thing, name)]
        for name, part in parts:
            if name.removeprefix(".") not in KEPT_FACTS:
                yield from traces(part, path + name, seen)


async def test_asking_leaves_no_trace_in_any_room() -> None:
    """Core, fleet, books, breakers, knowledge, desk, sessions, trial, tokens and ring, to the last number; and what
    learns was told nothing.
    """
    house = House(ARMS | {"shadows": ["sticky"], "arms": {"warm": 50, "chance": 50}})
    for n in range(4):
        house.request(about(session=f"s{n}"))
    asked = [about(session="s1"), about("text"), about(policy="learning", session="new"), about([1, 2, 3] * 20)]
    rooms = (house.core, house.tokens, house.ring)
    before = dict(traces(rooms))
    for question in [*asked, *asked]:
        await house.explain.explain(question)
    await asyncio.gather(*(house.explain.explain(question) for question in asked))
    with pytest.raises(NotFound):
        await house.explain.explain(about(body={"model": "x"}))
    after = dict(traces(rooms))
    assert {path for path in before | after if before.get(path) != after.get(path)} == set()
    assert len(before) > 1000
    assert house.learner.heard == []
    house.request(about(policy="learning"))
    assert len(house.learner.heard) == 1, "it would have noticed"


async def test_the_traces_are_such_that_a_request_is_seen() -> None:
    """What the test above relies on: one admission, one number, one learned speed would be found."""
    house = House()
    before = dict(traces((house.core, house.tokens, house.ring)))
    house.request(about(session="s"))
    changed = {path for path, value in traces((house.core, house.tokens, house.ring)) if before.get(path) != value}
    for part in (".request_count", "._turns", ".sessions", ".load_book.requests", "._speculative", ".busy", "_order"):
        assert any(part in path for path in changed), part
