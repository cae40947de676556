"""Asking a real Mooncake master: its answers are read, nothing it evicts is changed by that, its death is survived."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.clock import SystemClock
from router.config.sections.pool import PoolConfig, PoolModelConfig
from router.features.pool.client import MooncakeStore
from router.features.pool.keys import KeyForm
from router.kvcache.block_keys import Keyring
from router.kvcache.engine_hashes import EngineChain
from router.kvcache.events import BlocksStored, Tier
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.lab.local_stack.install import stack_venv
from router.lab.local_stack.preflight import free_ports
from router.proxy.upstreams import Upstreams
from router.tasks import Tasks

pytestmark = pytest.mark.stack

BLOCK = 16
LEASE_MS = 1000
CHAIN = EngineChain("sha256_cbor")
FORM = KeyForm(PoolModelConfig(), "tiny")
ORIGIN = HashInputs("tiny", "/models/tiny", None, None)
CLIENT = Path(__file__).with_name("pool_client.py")


class RealMaster:
    """A `mooncake_master` process: ended with SIGKILL, started again on the same ports."""

    def __init__(self, log: Path) -> None:
        self._binary = stack_venv() / "bin" / "mooncake_master"
        self.rpc, self.admin = free_ports(2)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = {
            "rpc_address": "127.0.0.1",
            "rpc_port": self.rpc,
            "metrics_host": "127.0.0.1",
            "metrics_port": self.admin,
            "rpc_thread_num": 2,
            "default_kv_lease_ttl": LEASE_MS,
            "logtostderr": "true",
        }
        with self._log.open("ab") as out:
            command = [str(self._binary), *(f"-{name}={value}" for name, value in flags.items())]
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Client:
    """`pool_client.py`, spoken to."""

    def __init__(self, master: RealMaster, memory_bytes: int) -> None:
        self._process = subprocess.Popen(
            [str(stack_venv() / "bin" / "python"), str(CLIENT), f"127.0.0.1:{master.rpc}", str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == [0]

    def tell(self, do: str, keys: list[str]) -> list[int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "keys": keys}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> list[int]:
        assert self._process.stdout is not None
        return list(json.loads(self._process.stdout.readline()))


class Scene:
    def __init__(self, master: RealMaster, stack: ExitStack, upstreams: Upstreams) -> None:
        self.master = master
        self._stack = stack
        self.upstreams = upstreams
        settings = {
            "masters": [f"http://127.0.0.1:{master.admin}"],
            "deadline_ms": 2000,
            "ttl_ms": 1,
            "health_interval_s": 0.1,
        }
        pool = PoolConfig.model_validate(settings)
        self.pool = MooncakeStore(pool, ["master"], upstreams.fetch, Tasks("pool"), SystemClock())

    def client(self, memory_bytes: int) -> Client:
        client = Client(self.master, memory_bytes)
        self._stack.callback(client.end)
        return client

    async def tokens(self, known: TokenizedPrompt) -> int | None:
        hit = await self.pool.lookup(known, ORIGIN)
        return None if hit is None else hit.tokens

    async def there(self, known: TokenizedPrompt) -> int:
        """Return the number of its blocks in any tier, queried without a lease."""
        keys = keys_of(known)
        answer = await self.upstreams.fetch("master", f"/batch_query_keys?keys={','.join(keys)}", timeout_s=5)
        assert answer is not None
        return sum(said["ok"] for said in json.loads(answer.body)["data"].values())


def prompt(blocks: int, begins: int) -> TokenizedPrompt:
    ids = array("I", [begins, *range(1, blocks * BLOCK + 1)])
    keyring = Keyring(1)
    return TokenizedPrompt(
        ids, True, "given", {BLOCK: keyring.chain(keyring.root("tiny", None, None), ids, BLOCK)}, 0.0, 0.0
    )


def keys_of(known: TokenizedPrompt) -> list[str]:
    return [FORM.keys(digest)[0] for digest in CHAIN.chain(None, known.ids, BLOCK)]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with ExitStack() as stack:
        master = RealMaster(tmp_path / "master.log")
        stack.callback(master.kill)
        master.start()
        upstreams = Upstreams(connect_timeout_s=1.0, keepalive_s=4.0)
        stack.callback(upstreams.close)
        upstreams.add("master", f"http://127.0.0.1:{master.admin}")
        made = Scene(master, stack, upstreams)
        made.pool.start()
        await until("the master leads", lambda: made.pool.report().leader is not None)
        first = prompt(1, begins=999).ids[:BLOCK]
        hashes = [CHAIN.event_hash(digest) for digest in CHAIN.chain(None, first, BLOCK)]
        made.pool.on_stored("tiny", BlocksStored(hashes, None, first, BLOCK, Tier.GPU, 0, None, None, None))
        yield made
        await made.pool.close()


async def until(what: str, condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.01)


async def test_a_real_masters_answers_are_read(scene: Scene) -> None:
    known = prompt(6, begins=0)
    assert await scene.tokens(known) == 0
    owner = scene.client(64 << 20)
    keys = keys_of(known)
    assert owner.tell("put", [*keys[:3], keys[4]]) == [0] * 4
    hit = await scene.pool.lookup(known, ORIGIN)
    assert hit is not None
    assert (hit.tokens, hit.memory_tokens) == (3 * BLOCK, 3 * BLOCK)
    assert scene.pool.report().unknown == {}


async def test_asking_keeps_nothing_alive(scene: Scene) -> None:
    """64 MiB of memory, 30 blocks of 1 MiB in it, then 60 more: the old ones must go, whoever asks for them."""
    asked, left_alone = prompt(15, begins=0), prompt(15, begins=1)
    await overfill(scene, asked, left_alone, lambda: scene.tokens(asked))
    assert (await scene.there(asked), await scene.there(left_alone)) == (0, 0)


async def test_the_other_way_to_ask_does_keep_alive(scene: Scene) -> None:
    """Repeat the test above with `batch_is_exist`: its result if our queries renewed leases."""
    asked, left_alone = prompt(15, begins=0), prompt(15, begins=1)
    other = scene.client(0)

    async def ask() -> int:
        return sum(await asyncio.to_thread(other.tell, "exist", keys_of(asked)))

    await overfill(scene, asked, left_alone, ask)
    assert (await scene.there(asked), await scene.there(left_alone)) == (15, 0)


async def overfill(
    scene: Scene, asked: TokenizedPrompt, left_alone: TokenizedPrompt, ask: Callable[[], Awaitable[int | None]]
) -> None:
    """Puts both prompts, then more than there is room for, while `ask` is called again and again."""
    owner = scene.client(64 << 20)
    assert set(
        owner.tell("put", [key for pair in zip(keys_of(asked), keys_of(left_alone), strict=True) for key in pair])
    ) == {0}
    assert (await scene.there(asked), await scene.there(left_alone)) == (15, 15)
    await asyncio.sleep(1.5 * LEASE_MS / 1e3)  # until no lease of the puts is left: nothing tells
    answers = [await ask()]
    for number in range(60):
        await asyncio.to_thread(owner.tell, "put", [f"new {number}"])
        answers.append(await ask())
        await asyncio.sleep(0.05)  # the eviction goes by age, and looks now and then
    assert answers[0]  # they were found as long as they were there


async def test_a_dead_master_is_unknown_at_once_and_noticed_when_it_is_back(scene: Scene) -> None:
    known = prompt(6, begins=0)
    owner = scene.client(64 << 20)
    owner.tell("put", keys_of(known))
    assert await scene.tokens(known) == 6 * BLOCK
    scene.master.kill()
    started = time.monotonic()
    assert [await scene.tokens(known) for _ in range(5)] == [None] * 5
    assert time.monotonic() - started < 0.5
    assert set(scene.pool.report().unknown) <= {"silent", "no_leader"}
    scene.master.start()
    await until("it leads again", lambda: scene.pool.report().leader is not None)
    assert await scene.tokens(known) == 0  # it has started with nothing
