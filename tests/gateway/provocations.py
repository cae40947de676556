"""The faults that raise alerts, in rounds: the rows of a round are played side by side.

A fault is a context in which it lasts. A row names the alerts that it raises.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import yaml

from router.clock import SystemClock
from router.config.sections.gameday import FaultKind, GamedayFault
from router.lab.emulator.options import EngineFaults
from router.lab.gameday.clients import GamedayClients
from router.lab.gameday.faults import begin_fault, end_fault
from tests.fakes.engines import engine
from tests.gateway.deployments import NUMBERS, Begin, North, again

NEVER = {  # alerts that nothing here can raise, with reasons
    "WarmroutePickerMoved": "there is no gateway",
    "WarmrouteUnpaired": "there are no prefill engines",
    "WarmrouteHitShareFell": "it compares with the day before",
    "WarmroutePoolNamesRefuted": "an engine that names blocks otherwise stays so: nothing resolves it but a restart",
    "WarmroutePolicyFaults": "no plug-in that ships fails",
    "WarmrouteShadowOut": "the same",
    "WarmrouteArmRolledBack": "both arms of an experiment would fail alike, which ends it",
    "WarmrouteReplicaPolicies": "routers that reach each other put the same policies in force",
}


class Row(NamedTuple):
    """A fault, and the alerts that it raises: `fires` always, `may` if it happens to last."""

    begin: Begin
    fires: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


def row(begin: Begin, *fires: str, may: Sequence[str] = ()) -> Row:
    return Row(begin, *(frozenset(f"Warmroute{name}" for name in names) for names in (fires, may)))


def play(kind: FaultKind, **fields: Any) -> Begin:
    """A fault of the game days."""
    lasts = {} if kind in ("kill", "kill_worker") else {"until_s": 2.0}
    fault = GamedayFault(fault=kind, at_s=1.0, **lasts, **fields)

    @asynccontextmanager
    async def begin(north: North) -> AsyncIterator[None]:
        await begin_fault(north.stage, fault)
        try:
            yield
        finally:
            await end_fault(north.stage, fault)

    return begin


def on_engines(*numbers: int, **faults: Any) -> Begin:
    """Faults of these engines of the fleet; without `numbers` of all engines, also those in this process."""

    @asynccontextmanager
    async def begin(north: North) -> AsyncIterator[None]:
        usual = {name: getattr(EngineFaults(), name) for name in faults}
        for settings in (faults, usual):
            for number in numbers or range(len(north.stage.engines)):
                await north.stage.set_engine_faults(number, **settings)
            if not numbers:
                for fake in north.own.values():
                    fake.faults(**settings)
            if settings is faults:
                yield

    return begin


@asynccontextmanager
async def crash_loop(north: North) -> AsyncIterator[None]:
    """An engine is killed three times."""
    name = north.stage.engine(0).name
    for times in (1, 2, 3):
        north.stage.kill_engine(0)
        await north.reach("warmroute_engine_restarts_total", times, f'engine="{name}"')
    yield


@asynccontextmanager
async def other_template(north: North) -> AsyncIterator[None]:
    """An engine renders chats otherwise than its own /tokenize."""
    north.own["odd"].faults(renders="other_count")
    async with again(lambda n: n.chat("odd", f"Once upon a time {next(NUMBERS)}"))(north):
        yield
    north.own["odd"].faults(renders="as_tokenized")


@asynccontextmanager
async def poison(north: North) -> AsyncIterator[None]:
    for name in ("frail-0", "frail-1"):
        north.own[name].faults(die_before_first_byte=1.0)
    assert await north.ask("frail") == 502
    for name in ("frail-0", "frail-1"):
        north.own[name].faults(die_before_first_byte=0.0)
    yield


@asynccontextmanager
async def slip_in_list(north: North) -> AsyncIterator[None]:
    """An operator writes a key that does not exist into the list of engines."""
    before = north.list_file.read_text()
    north.list_file.write_text(before.replace("url:", "urll:", 1))
    yield
    north.list_file.write_text(before)


@asynccontextmanager
async def stranger_in_list(north: North) -> AsyncIterator[None]:
    """An engine whose key the routers do not have never becomes ready."""
    before = north.list_file.read_text()
    async with engine(name="closed", api_key="secret") as closed:
        north.list_file.write_text(before + yaml.safe_dump([{"name": "closed", "url": closed.url}]))
        yield
        north.list_file.write_text(before)


@asynccontextmanager
async def refused_policy(north: North) -> AsyncIterator[None]:
    admin = north.stage.routers[0].admin_url
    answer = await north.http.put(f"{admin}/admin/policies/wrong", content="scorers: [{name: nobody}]")
    assert answer.is_client_error
    yield


@asynccontextmanager
async def few_descriptors(north: North) -> AsyncIterator[None]:
    """The second router may open hardly more files than it has open."""
    pid = north.stage.routers[1].measure(0.0)[0].pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = int(await north.metric("process_open_fds", router=1))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened * 10 // 9, usual[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


@asynccontextmanager
async def crowd_of_connections(north: North) -> AsyncIterator[None]:
    """One client opens as many connections as it can, and more."""
    port = int(north.urls[0].rpartition(":")[2])
    opened: list[asyncio.StreamWriter] = []

    async def connect(_: North) -> None:
        for _ in range(100):
            with suppress(OSError):
                opened.append((await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))[1])

    async with again(connect)(north):
        yield
    for writer in opened:
        writer.close()


@asynccontextmanager
async def slow_master(north: North) -> AsyncIterator[None]:
    config = json.loads((north.stage.routers[0].folder / "router.yaml").read_text())
    (url,) = config["pool"]["masters"]
    await north.http.post(f"{url}/emulate/faults", json={"slow_ms": 400.0})
    yield
    await north.http.post(f"{url}/emulate/faults", json={"slow_ms": 0.0})


@asynccontextmanager
async def switches_without_disk(north: North) -> AsyncIterator[None]:
    """A full disk while an operator switches policies."""
    async with play("full_disk")(north):
        await north.stage.activate("same")
        yield
    await north.stage.activate("spread")


@asynccontextmanager
async def narrow_admission(north: North) -> AsyncIterator[None]:
    """Sessions wait for room, and longer than they may."""
    rule = "enabled: {}\nmax_wait_s: 0.5\n"
    for router in north.stage.routers:
        (await north.http.put(f"{router.admin_url}/admin/admission", content=rule.format("true"))).raise_for_status()
    text = "It was the best of times, it was the worst of times. " * 20
    numbers = itertools.count()
    talk = again(
        lambda n: n.ask("narrow", prompt=f"{next(numbers)} {text}", max_tokens=60, ignore_eos=True, stream=True),
        at_once=8,
    )
    async with talk(north):
        yield
    for router in north.stage.routers:
        (await north.http.put(f"{router.admin_url}/admin/admission", content=rule.format("false"))).raise_for_status()


async def say_strange_things(north: North) -> None:
    """First messages that are none, then one with more events than any engine sends."""
    distrusted = await north.metric("warmroute_engine_distrusted", 'engine="strange"')
    errors = await north.metric("warmroute_stream_decode_errors_total", 'engine="strange"')
    events: list[list[str]] = [] if errors < 3 else [["AllBlocksCleared"]] * 140_000
    if not distrusted:
        payload = b"nonsense" if errors < 3 else msgspec.msgpack.encode([time.time(), events, 0])
        await north.publish(payload)


@asynccontextmanager
async def strange_engine(north: North) -> AsyncIterator[None]:
    async with again(say_strange_things)(north):
        yield
    north.own["strange"].faults(unhealthy=True)  # it joins again
    await north.reach("warmroute_instance_state", 1, 'engine="strange"', 'state="down"')
    north.own["strange"].faults(unhealthy=False)
    await north.reach("warmroute_instance_state", 1, 'engine="strange"', 'state="ready"')


@asynccontextmanager
async def liar(north: North) -> AsyncIterator[None]:
    async with again(lie)(north):
        yield
    north.own["liar"].faults(hide_removals=False)
    async with again(lambda n: n.ask("liar", prompt="What was true last time is true again. " * 12))(north):
        await north.reach("warmroute_stream_trusted", 1, 'engine="liar"')


async def lie(north: North) -> None:
    """The engine drops its cache and announces nothing, between two turns of a conversation."""
    fake, text = north.own["liar"], "It was the best of times, it was the worst of times. " * 12
    fake.faults(hide_removals=False)
    await north.ask("liar", prompt=text)
    fake.faults(hide_removals=True)
    await north.http.post(f"{fake.url}/reset_prefix_cache")
    await north.ask("liar", prompt=text)


def by_clients(work: Callable[[GamedayClients, float], Any]) -> Begin:
    """Clients that are the fault themselves, for a few seconds."""

    @asynccontextmanager
    async def begin(north: North) -> AsyncIterator[None]:
        clock = SystemClock()
        clients = GamedayClients(north.stage.script, north.stage.endpoint, clock, clock.now())
        await work(clients, 8.0)
        yield

    return begin


hang_ups = by_clients(lambda clients, until_s: clients.run_hang_ups(8, until_s))
flood = by_clients(lambda clients, until_s: clients.run_flood(8, 2000, until_s))


@asynccontextmanager
async def restarting_router(north: North) -> AsyncIterator[None]:
    """The second router is killed three times, and then comes back with another list of engines."""
    router = north.stage.routers[1]
    file = router.folder / "router.yaml"
    usual = file.read_text()
    other = json.loads(usual)
    del other["fleet"]["instances"][-1]
    file.write_text(json.dumps(other))
    for _ in range(3):
        await router.kill()
        await router.start()
        await asyncio.sleep(1.2)  # Prometheus must see each one
    yield
    await router.kill()
    file.write_text(usual)
    await router.start()


ROUNDS: Sequence[Mapping[str, Row]] = (
    {
        "crash loop": row(crash_loop, "EngineRestarting"),
        "no progress": row(play("wedge", engine=1), "EngineStuck"),
        "only 500": row(on_engines(2, error_rate=1.0), "BreakerOpen"),
        "events lost": row(on_engines(3, drop_events=1.0), "StreamSilent", "StreamUntrusted"),
        "slow engine": row(play("slow", engine=4, factor=4.0), "EngineSlow"),
        "wrong clock": row(on_engines(5, clock_offset_s=-90.0), "StreamLag"),
        "poison": row(poison, "PoisonRequests"),
        "tokenizer": row(other_template, "TokenizerMismatch"),
        "long queue": row(
            again(lambda n: n.ask("late", max_tokens=40, ignore_eos=True), at_once=20), "FleetFull", "SlowFirstToken"
        ),
        "slip in the list": row(slip_in_list, "DiscoveryStale"),
        "refused policy": row(refused_policy, "PolicyRefused"),
    },
    {
        "pool without master": row(play("dead_pool"), "PoolLeaderless", "PoolUnknown"),
        "full disk": row(switches_without_disk, "DecisionLogDropping", "AuditFailing"),
        "wrong events": row(liar, "PredictionsBroken", "StreamContradicted", may=["StreamUntrusted"]),
        "engine full": row(on_engines(2, refuse=True), "Retries"),
        "engine not reached": row(play("partition", engine=5, how="refuse"), "InstanceDown"),
        "stranger in the list": row(stranger_in_list, "InstanceJoining"),
        "strange messages": row(strange_engine, "StreamDecodeErrors", "EngineDistrusted"),
        "no room": row(narrow_admission, "AdmissionRefusing", "Shedding", may=["SlowFirstToken"]),
        "few descriptors": row(few_descriptors, "OpenFiles"),
        "many connections": row(crowd_of_connections, "ConnectionsRefused"),
    },
    {
        "slow master": row(slow_master, "RouterSlow"),
        "no answers": row(on_engines(error_rate=1.0), "Errors", "BreakerOpen", "Panic", "Retries"),
        "events with gaps": row(play("lossy_events", share=0.3)),
        "clock of the routers": row(play("clock_jump", of="router", jump_s=3600.0), "StreamLag"),
    },
    {
        "no health": row(on_engines(unhealthy=True), "NoReadyInstance", "MostInstancesDown", "InstanceDown", "Errors"),
        "router restarts": row(restarting_router, "RouterRestarting", "ReplicaEngines", may=["ReplicaUnheard"]),
    },
    {
        "dead router": row(play("kill_router", router=1), "RouterGone", "ReplicaUnheard"),
        "frozen engine": row(
            play("freeze", engine=0), "InstanceDown", "EngineStuck", may=["StreamLag", "StreamUntrusted"]
        ),  # its last events are as old as it was stopped
        "flood": row(flood),
        "hang-ups": row(hang_ups),
        "bad policy": row(play("bad_policy", policy="consistent_hash")),
    },
)
GAMEDAY: dict[FaultKind, str | None] = {
    "kill": "crash loop",
    "freeze": "frozen engine",
    "wedge": "no progress",
    "slow": "slow engine",
    "lossy_events": "events with gaps",
    "wrong_events": "wrong events",
    "full_disk": "full disk",
    "dead_pool": "pool without master",
    "partition": "engine not reached",
    "bad_policy": "bad policy",
    "clock_jump": "clock of the routers",
    "kill_worker": None,  # these routers have no workers; the supervisor starts another one within a second
    "kill_router": "dead router",
    "flood": "flood",
    "hang_ups": "hang-ups",
}
