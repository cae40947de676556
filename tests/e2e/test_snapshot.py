"""The router dies and comes back in front of engines that go on: what it knew of their caches is there again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from router.kvcache.snapshot_format import SavedIndex
from router.kvcache.snapshots import load
from tests.e2e.chats import Chat, ask
from tests.e2e.conftest import Json, RouterClient
from tests.fakes.engines import engine, eventually

pytestmark = pytest.mark.rollout


def saved(file: Path) -> SavedIndex:
    found = load(file)
    assert found is not None
    return found


def blocks(file: Path) -> int:
    """Blocks in the file, of all targets."""
    return sum(len(table.keys) // 8 for target in saved(file).targets for table in target.blocks.tables)


async def stream_of(client: RouterClient, instance: str) -> Json:
    return (await client.instances())[instance]["targets"][0]["stream"]


def configuration(fleet_config, fakes, file: Path, every_s: float = 0.05) -> Json:
    named = [{"name": f"e{number}", "url": fake.url} for number, fake in enumerate(fakes)]
    return fleet_config(named, index={"snapshot_file": str(file), "snapshot_every_s": every_s})


async def caught_up(client: RouterClient, instances: list[str]) -> None:
    async def done() -> bool:
        return all([(await stream_of(client, instance))["state"] == "live" for instance in instances])

    for _ in range(500):
        if await done():
            return
        await client.http.get("/health")
    raise AssertionError("the streams did not catch up")


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
async def test_a_router_that_died_knows_the_caches_again(router_process, fleet_config, tmp_path, death) -> None:
    file = tmp_path / "index.snapshot"
    async with engine() as one, engine() as two:
        every_s = 0.05 if death is signal.SIGKILL else 60.0
        config = configuration(fleet_config, [one, two], file, every_s)
        async with router_process(config) as r:
            chats = [Chat(r, f"chat {number}") for number in range(4)]
            first = [await chat.turn() for chat in chats]
            held = sum([(await stream_of(r, name))["blocks"]["gpu"] for name in ("e0", "e1")])
            assert held > 8
            if death is signal.SIGKILL:
                await eventually(lambda: file.exists() and blocks(file) == held)
            r.process.send_signal(death)
            await r.process.wait()
        assert blocks(file) == held
        assert file.stat().st_mode & 0o777 == 0o600
        async with router_process(config) as r:
            assert [(await stream_of(r, name))["events"] for name in ("e0", "e1")] == [0, 0]
            for chat, before in zip(chats, first, strict=True):
                chat.client = r
                said = await chat.turn()
                assert said.instance == before.instance
                record = await r.record(said.record)
                assert record["cached_tokens"] > 0
                assert record["attempts"][0]["predicted_tokens"] == record["cached_tokens"]
            await caught_up(r, ["e0", "e1"])
            for name in ("e0", "e1"):
                stream = await stream_of(r, name)
                assert (stream["restarts"], stream["joined_late"], stream["gaps"]) == (0, False, 0)


async def test_an_engine_that_restarted_meanwhile_holds_nothing(router_process, fleet_config, tmp_path) -> None:
    file = tmp_path / "index.snapshot"
    async with engine() as one, engine() as two:
        config = configuration(fleet_config, [one, two], file)
        async with router_process(config) as r:
            said = [await Chat(r, f"chat {number}").turn() for number in range(4)]
            assert {s.instance for s in said} == {"e0", "e1"}
            held = {name: (await stream_of(r, name))["blocks"]["gpu"] for name in ("e0", "e1")}
            await eventually(lambda: file.exists() and blocks(file) == sum(held.values()))
            r.process.kill()
            await r.process.wait()
        one.restart()
        async with router_process(config) as r:
            await caught_up(r, ["e0", "e1"])
            streams = {name: await stream_of(r, name) for name in ("e0", "e1")}
            assert streams["e1"]["events"] == 0, "it came from the file, not from a replay"
            assert [streams["e0"]["restarts"], streams["e1"]["restarts"]] == [1, 0]
            assert [streams["e0"]["blocks"]["gpu"], streams["e1"]["blocks"]["gpu"]] == [0, held["e1"]]


async def test_another_secret_makes_the_snapshot_useless(router_process, fleet_config, tmp_path, monkeypatch) -> None:
    file = tmp_path / "index.snapshot"
    async with engine() as fake:
        config = configuration(fleet_config, [fake], file)
        config["index"]["key_secret_env"] = "TEST_KEY_SECRET"
        monkeypatch.setenv("TEST_KEY_SECRET", "one")
        async with router_process(config) as r:
            assert (await ask(r, [{"role": "user", "content": "a " * 60}])).ok
            await eventually(lambda: file.exists() and blocks(file) > 0)
            r.process.kill()
            await r.process.wait()
        monkeypatch.setenv("TEST_KEY_SECRET", "two")
        async with router_process(config) as r:
            assert b"not restored, its keys were made with another secret" in r.log
            await caught_up(r, ["e0"])
            stream = await stream_of(r, "e0")
            assert stream["events"] > 0, "learned from a replay of all that the engine still has"
