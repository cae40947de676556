"""Who hears of it when instances come, tell of themselves and go; no network is needed for that."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.merge import MergedSources
from router.clock import ManualClock
from router.config import schema
from router.control.core import Core
from router.control.membership import CHANGES_PER_TURN
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.engine_limits import OverLimit
from router.fleet.instance import InstanceState
from router.kvcache.events import TargetId
from router.proxy.headers import NO_HEADERS
from router.proxy.listening_sockets import ListeningSockets
from router.proxy.upstreams import UpstreamRequest, UpstreamUnanswered
from router.scheduling.ticket import judge_end
from tests.fakes.caches import Cache
from tests.fakes.engines import eventually
from tests.paths import TOKENIZER
from tests.patience import PATIENCE_S

RANDOM = {"warm": schema.PolicyConfig.model_validate({"scorers": [{"name": "random"}]})}
CARD = ModelCard("warm-tiny", "/models/warm-tiny", None, 8192)
NOWHERE = "tcp://127.0.0.1:1"  # nobody listens there, and nobody must


def config(**changes: object) -> schema.Config:
    return schema.Config.model_validate({"policies": RANDOM, "seed": 1} | changes)


def instance(name: str, port: int | None = None, **known: object) -> schema.InstanceConfig:
    """An instance at `port`, else at one that depends on its name: instances at one address would be one."""
    port = port or 1 + zlib.crc32(name.encode()) % 60_000
    return schema.InstanceConfig.model_validate({"name": name, "url": f"http://127.0.0.1:{port}"} | known)


def listed(
    *instances: schema.InstanceConfig, uid: str | None = None, accepting: bool = True
) -> list[DiscoveredInstance]:
    return [DiscoveredInstance(config, "a test", uid, accepting) for config in instances]


class House:
    """The rooms that instances are known in. Nothing is started: what is watched is not asked."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        settings = config(tokenizers={"warm-tiny": {"path": TOKENIZER}})
        self.parts = parts = Core(settings, self.clock, None, None, ListeningSockets())
        self.core, self.members, self.upstreams = parts.scheduler, parts.membership, parts.upstreams
        self.health, self.polls, self.events = parts.health, parts.polls, parts.events

    async def close(self) -> None:
        await self.events.close()
        await self.parts.close()

    @property
    def ids(self) -> list[str]:
        return [member.id for member in self.core.fleet]

    def followed(self) -> list[str]:
        return sorted(self.events._streams)

    async def why_unanswered(self, name: str) -> str:
        answer = await self.upstreams.send(
            name, UpstreamRequest("GET", b"/", NO_HEADERS, b""), first_byte_s=1, idle_s=1
        )
        assert isinstance(answer, UpstreamUnanswered)
        return answer.detail


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    await made.close()


def sources(*ranks: int) -> Sequence[EventEndpoint]:
    return [EventEndpoint(rank, NOWHERE, None, "") for rank in ranks]


# lists


async def test_who_is_new_joins_every_room(house: House) -> None:
    await house.members.update_source("config", listed(instance("a"), instance("b")))
    assert house.ids == ["a", "b"]
    assert sorted(house.health._states) == sorted(house.polls._schedules) == ["a", "b"]
    assert await house.why_unanswered("a") != "the instance was removed"


async def test_a_long_list_is_applied_in_portions(house: House) -> None:
    first = [instance("changed"), instance("stays"), *[instance(f"gone{n}") for n in range(2 * CHANGES_PER_TURN)]]
    await house.members.update_source("config", listed(*first))
    second = [instance("changed", 2), first[1], *[instance(f"new{n}", n + 1) for n in range(2 * CHANGES_PER_TURN)]]
    applying = asyncio.ensure_future(house.members.update_source("config", listed(*second)))
    also = asyncio.ensure_future(house.members.update_source("file", listed(instance("other"))))
    seen = []
    while not applying.done():
        seen.append(house.ids)
        await asyncio.sleep(0)
    differences = [len(set(before) ^ set(after)) for before, after in pairwise(seen)]
    assert len(seen) > 4
    assert max(differences) <= CHANGES_PER_TURN
    assert all("changed" in ids and "stays" in ids for ids in seen)
    await also
    assert sorted(house.ids) == sorted([*(one.id for one in second), "other"])


async def test_who_is_gone_leaves_every_room(house: House) -> None:
    await house.members.update_source("config", listed(instance("a"), instance("b")))
    house.members.joined("a", [CARD], sources(0, 1))
    assert house.followed() == ["a/0", "a/1"]
    await house.members.update_source("config", listed(instance("b")))
    assert house.ids == ["b"]
    assert sorted(house.health._states) == sorted(house.polls._schedules) == ["b"]
    assert house.followed() == []
    assert house.core.indexer.describe_stream(TargetId("a/0")) is None
    assert await house.why_unanswered("a") == "the instance was removed"


async def test_what_it_said_against_our_tokenizer_goes_with_it(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.parts.tokenization._trust["warm-tiny"].local_chats.record_mismatch("a", "a probe")
    assert house.parts.tokenization.report()["warm-tiny"].source == "remote"
    await house.members.update_source("config", listed())
    assert house.parts.tokenization.report()["warm-tiny"].source == "local"


async def test_whether_it_takes_ids_is_asked_when_it_tells_of_itself_and_forgotten_when_it_goes(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    assert house.parts.passthrough.report().instances == {}
    house.members.joined("a", [CARD], [])
    assert house.parts.passthrough.report().instances["a"] == (False, "it was not tried yet")
    await house.members.update_source("config", listed())
    assert house.parts.passthrough.report().instances == {}


async def test_who_stays_is_left_alone(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], [])
    await house.members.update_source("config", listed(instance("b"), instance("a")))
    states = {member.id: member.state for member in house.core.fleet}
    assert states == {"a": InstanceState.READY, "b": InstanceState.JOINING}


async def test_who_changed_leaves_and_joins_anew(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], sources(0))
    await house.members.update_source("config", listed(instance("a", port=2)))
    (member,) = house.core.fleet
    assert (member.config.url, member.state) == ("http://127.0.0.1:2", InstanceState.JOINING)
    assert house.followed() == []


async def test_lists_of_two_discoveries_add_up(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    await house.members.update_source("file", listed(instance("b"), instance("c")))
    await house.members.update_source("file", listed(instance("c")))
    assert house.ids == ["a", "c"]
    await house.members.update_source("config", listed())
    assert house.ids == ["c"]


async def test_whom_two_discoveries_name_is_the_first_ones(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.members.update_source("config", listed(instance("a", port=2)))
    for _ in range(2):
        await house.members.update_source("file", listed(instance("a", port=3), instance("b")))
        await house.members.update_source("config", listed(instance("a", port=2)))
    assert {member.id: member.config.url for member in house.core.fleet} == {
        "a": "http://127.0.0.1:2",
        "b": instance("b").url,
    }
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["instance a is listed by both config and file: using the one of config"]
    await house.members.update_source("config", listed())
    assert house.members._joined["a"].config.url == "http://127.0.0.1:3"


async def test_one_address_in_two_sources_is_one_instance_with_both_named(house: House) -> None:
    await house.members.update_source("config", listed(instance("a", 1)))
    await house.members.update_source("dns", listed(instance("b", 1), accepting=False))
    assert house.ids == ["a"]
    sources = [(entry["source"], entry["accepting"]) for entry in house.members.describe_sources("a")]
    assert sources == [("config", True), ("dns", False)]
    await house.members.update_source("config", [])
    assert house.ids == ["b"]
    assert house.members.describe_sources("a") == []


async def test_the_order_of_precedence_counts_and_not_who_is_first(house: House) -> None:
    house.members._sources = MergedSources(["kubernetes", "dns"])
    await house.members.update_source("dns", listed(instance("by-address", 1)))
    await house.members.update_source("kubernetes", listed(instance("pod", 1), uid="u1"))
    assert house.ids == ["pod"]


async def test_who_gets_no_new_requests_stays_known_and_comes_back_as_it_was(house: House) -> None:
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1"))
    house.members.joined("a", [CARD], sources(0))
    (before,) = house.core.fleet
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1", accepting=False))
    assert before.state is InstanceState.DRAINED
    assert house.core.fleet.candidates("warm-tiny", (), 0.0) == ()
    assert house.followed() == ["a/0"]
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1"))
    assert list(house.core.fleet) == [before]
    assert before.state is InstanceState.READY


async def test_what_its_source_says_and_what_the_operator_says_are_two_things(house: House) -> None:
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1"))
    house.members.joined("a", [CARD], sources(0))
    (member,) = house.core.fleet
    house.core.drain("a", True)
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1", accepting=False))
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1", accepting=True))
    assert member.state is InstanceState.DRAINED
    house.core.drain("a", False)
    assert member.state is InstanceState.READY


async def test_the_same_name_and_address_with_another_uid_is_another_engine(house: House) -> None:
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u1"))
    house.members.joined("a", [CARD], sources(0))
    cache = Cache(16)
    house.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(list(range(32)))))
    (before,) = house.core.fleet
    target = before.targets[0]
    for _ in range(3):
        target.breaker.on_request_end(judge_end("connect", None), house.clock.now(), None)
    assert target.breaker.state(house.clock.now()) == "open"
    await house.members.update_source("kubernetes", listed(instance("a"), uid="u2"))
    (after,) = house.core.fleet
    assert after is not before
    assert after.latency_model is not before.latency_model
    assert (after.state, after.targets[0].breaker.state(house.clock.now())) == (InstanceState.JOINING, "closed")
    assert house.core.indexer.describe_stream(TargetId("a/0")) is None
    assert house.followed() == []


async def test_who_is_not_listed_any_more_gets_nothing_while_a_long_list_is_applied(house: House) -> None:
    many = [instance(f"i{n}", n + 1) for n in range(3 * CHANGES_PER_TURN)]
    await house.members.update_source("config", listed(*many))
    house.members.joined(many[-1].id, [CARD], [])
    last = house.core.fleet.get(many[-1].id)
    assert last is not None
    applying = asyncio.ensure_future(house.members.update_source("config", []))
    await asyncio.sleep(0)
    assert len(house.ids) > CHANGES_PER_TURN
    assert last.state is InstanceState.DRAINED
    await applying
    assert house.ids == []


async def test_one_that_cannot_join_does_not_keep_the_others_out(
    house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("not a certificate")
    broken = schema.InstanceConfig(name="a", url="https://127.0.0.1:1", ca_file=str(bad))
    await house.members.update_source("config", listed(broken, instance("b")))
    assert house.ids == ["b"]
    assert "instance a cannot join" in caplog.text
    await house.members.update_source("config", listed(instance("a"), instance("b")))
    assert sorted(house.ids) == ["a", "b"]


async def test_an_engines_key_comes_from_the_environment(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sesame")
    await house.members.update_source("config", listed(instance("a", api_key_env="ENGINE_KEY"), instance("b")))
    heads = []
    for name in ("a", "b"):
        async with asyncio.timeout(PATIENCE_S):
            heads.append(await first_head(house, name))
    assert [b"authorization: Bearer sesame" in head for head in heads] == [True, False]


async def first_head(house: House, name: str) -> bytes:
    """What `name` is sent, as the engine would see it."""
    heads: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        config = house.members._joined[name].config.model_copy(
            update={"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        )
        others = [other.config for other in house.members._joined.values() if other.config.id != name]
        await house.members.update_source("config", listed(config, *others))
        await house.why_unanswered(name)
        return await heads.get()


# what an instance tells


async def test_who_told_what_it_serves_is_ready_and_heard(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.members.update_source("config", listed(instance("a")))
    with caplog.at_level(logging.INFO, logger="warmroute.members"):
        house.members.joined("a", [CARD], sources(0, 1))
    assert house.core.fleet.resolve("warm-tiny") is not None
    assert house.followed() == ["a/0", "a/1"]
    assert "instance a is ready: warm-tiny" in caplog.text


async def test_joining_again_with_fewer_ranks_hangs_up_on_the_others(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], sources(0, 1))
    house.members.joined("a", [CARD], sources(1))
    assert house.followed() == ["a/1"]
    house.members.joined("a", [CARD], [])
    assert house.followed() == []


async def test_a_newcomers_tokenizer_is_proved(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], [])
    await eventually(lambda: "a did not answer a proof" in caplog.text)


async def test_adapters_come_and_go_while_it_runs(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], [])
    house.members.serves("a", [CARD, ModelCard("lora", "/loras/lora", "warm-tiny", None)])
    assert [card.id for card in house.core.fleet.models()] == ["warm-tiny", "lora"]


async def test_probes_bring_it_down_with_a_word_why(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.members.update_source("config", listed(instance("a")))
    assert house.members.probe_ok("a", 0.0), "it is joining: ask who it is"
    house.members.joined("a", [CARD], [])
    assert not house.members.probe_ok("a", 1.0)
    house.members.probe_failed("a", 2.0, late=False)
    assert "down" not in caplog.text
    house.members.probe_failed("a", 3.0, late=False)
    assert "instance a is down: probes fail" in caplog.text


async def test_its_metrics_reach_the_books(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], sources(0))
    target = house.core.fleet.target(TargetId("a/0"))
    assert target is not None
    booking = target.book(100, 100)
    assert (house.members.in_flight("a"), house.members.in_flight("nobody")) == (1, 0)
    house.members.polling("a")
    house.members.gauges("a", {0: Gauges(3, 1, 0.5, 16, 1600, None, None)}, 1000.0, 1000.1)
    assert (target.load_book.elsewhere, target.block_tokens, target.capacity_tokens) == (3, 16, 1600)
    booking.release()


async def test_who_goes_beyond_a_bound_is_not_followed_until_it_joins_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.members.update_source("config", listed(instance("a"), instance("b")))
    for name in ("a", "b"):
        house.members.joined(name, [CARD], sources(0, 1))
    over = OverLimit("message", "a KV event message of more than 8 frames")
    for _ in range(3):
        house.members.target_over_limit(TargetId("a/1"), over)
    house.members.target_over_limit(TargetId("nobody/0"), over)
    assert house.followed() == ["b/0", "b/1"]
    member = house.core.fleet.get("a")
    assert member is not None
    assert (member.limits.distrust, member.limits.counts["message"]) == (over, 3)
    stream = house.core.indexer.describe_stream(TargetId("a/0"))
    assert stream is not None
    assert stream.sequencer is None
    assert caplog.text.count("a KV event message of more than 8 frames: served without its KV events") == 1
    house.members.joined("a", [CARD], sources(0, 1))
    assert house.followed() == ["a/0", "a/1", "b/0", "b/1"]
    assert (member.limits.distrust, member.limits.counts["message"]) == (None, 3)


async def test_what_is_only_left_out_costs_no_trust(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], sources(0))
    for _ in range(2):
        house.members.over_limit("a", OverLimit("models", "more than 1,000 models"))
    member = house.core.fleet.get("a")
    assert member is not None
    assert member.limits.distrust is None
    assert house.followed() == ["a/0"]
    assert caplog.text.count("instance a: more than 1,000 models") == 1


async def test_events_go_straight_to_what_is_known(house: House) -> None:
    await house.members.update_source("config", listed(instance("a")))
    house.members.joined("a", [CARD], sources(0))
    cache = Cache(16)
    assert house.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(list(range(32))))) is None
    assert house.core.block_sizes("warm-tiny") == {16}
