"""CPU per request of the policy `warm`:

    1,000 tokens that each of 64 targets holds    beside our own round robin
    46 tokens, 8 targets                          beside vllm-router's `cache_aware`, which chooses by what was sent,
                                                  and its round robin, which chooses by nothing
    46 tokens, 500 targets                        beside 8 targets

Both routers are in front of the same engines and get the same bytes. The engines have announced the long prompt's
blocks, so the precise one tokenises, looks every block up and prices targets that hold it, at each request; the small
prompt is tokenised and looked up, too, and no engine holds it. Round robin reads none of it.
"""

from __future__ import annotations

import time
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from tokenizers import Tokenizer

from router.kvcache.events import BlocksStored, EngineHash, Tier
from router.lab.emulator.kv_publisher import encode_batch
from router.lab.emulator.vocabulary import DATA
from router.lab.local_stack.install import InstallFailed
from tests.bench import routers
from tests.bench.agent_turns import cache_aware_settings, check_local
from tests.bench.data_path import spent_us
from tests.bench.figures import Bar, Line, beside
from tests.bench.load import Shape
from tests.bench.prompts import Chat, Words
from tests.bench.routers import EVEN, Running
from tests.bench.row import BenchRun, NotMeasured, Row

TARGETS, BLOCK_TOKENS, PROMPT_TOKENS = 64, 16, 1000
SMALL_TARGETS, WIDE_TARGETS, SMALL_TOKENS = 8, 500, 46
PEERS = {"cache_aware": Bar(2.0, "ratio"), "round_robin": None}  # policies of vllm-router
HEARD_S = 20.0
RECORDS = 400  # of which the parts are medians
PARTS = {
    "reading the body": ("parse_ms",),
    "template, tokens and keys": ("tokens_ms", "keys_ms"),
    "looking up what is held": ("match_ms",),
    "choosing and booking": ("decide_ms",),
}
SHAPE = Shape("CPU per 1,000-token request at 64 targets", "us", requests=4000, connections=16, body_bytes=0)
SMALL = Shape("CPU per 200-byte request, policy warm, 8 targets", "us", requests=8000, connections=16, body_bytes=0)
WIDE = replace(SMALL, name="CPU per 200-byte request, policy warm, 500 targets")


def measure(run: BenchRun) -> list[Line]:
    shape = SHAPE.shrunk(run.effort.of(1, 2))
    chat = Chat(Words(DATA), PROMPT_TOKENS, seed=3, message_tokens=300)
    body = chat.body()
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(TARGETS, events=True))
        precise = stack.enter_context(routers.warmroute(backends, run.folder, cache_aware_settings(DATA), "precise"))
        even = stack.enter_context(routers.warmroute(backends, run.folder, EVEN, "even"))
        announce(precise, backends[0], chat)
        seen = send_in_turns(run, [precise, even], shape, body)
        check_local(precise)
        check_hits(precise, chat.tokens)
        parts = split(precise, shape.name, seen["precise"])
    bar = Bar(2.0, "ratio")
    return [beside(f"{shape.name}, policy warm", "us", seen["precise"], seen["even"], "our round_robin", bar), *parts]


def send_in_turns(run: BenchRun, running: list[Running], shape: Shape, body: bytes) -> dict[str, list[float]]:
    """Return the CPU us per request by router, a value per repetition. The first round only warms up."""
    seen: dict[str, list[float]] = {router.name: [] for router in running}
    for repetition in range(run.effort.repetitions + 1):
        for router in running if repetition % 2 else running[::-1]:
            run.report(f"{router.name}, {repetition} of {run.effort.repetitions}")
            us = spent_us(router, shape, body)
            if repetition:
                seen[router.name].append(us)
    return seen


def split(router: Running, what: str, whole_us: list[float]) -> list[Line]:
    """Return the parts of a request, us: those that records have the time of, and what remains of `whole_us`. Short
    prompts pass these stages without a wait, so their times are CPU time.
    """
    records = router.get_admin(f"/admin/records?limit={RECORDS}")["records"]
    stages = [record["stages"] for record in records]
    lines, rest_us = [], median(whole_us)
    for part, names in PARTS.items():
        us = median([1e3 * sum(stage[name] or 0.0 for name in names) for stage in stages])
        rest_us -= us
        lines.append(Line(f"{what}: {part}", "us", [us]))
    return [*lines, Line(f"{what}: the rest (HTTP on both sides, record, metrics)", "us", [rest_us])]


def announce(router: Running, backend: int, chat: Chat) -> None:
    """Announce the whole prompt at all engines. Raises NotMeasured when the router has not applied the events."""
    ids = Tokenizer.from_file(str(DATA / "tokenizer.json")).encode(chat.rendered(), add_special_tokens=False).ids
    blocks = len(ids) // BLOCK_TOKENS
    hashes = [EngineHash(0x5EED_0000 + i) for i in range(blocks)]
    stored = BlocksStored(hashes, None, ids[: blocks * BLOCK_TOKENS], BLOCK_TOKENS, Tier.GPU, 0, None, None, None)
    told = encode_batch([stored], time.time(), 0, form="map", adapter_ids={})
    until = time.monotonic() + HEARD_S
    while time.monotonic() < until:  # a subscription takes effect in its own time: say it again
        with urllib.request.urlopen(f"http://127.0.0.1:{backend}/publish", told, timeout=5):
            time.sleep(0.2)
        instances = router.get_admin("/admin/instances")["instances"]
        streams = [target["stream"] for one in instances for target in one["targets"]]
        if len(streams) == TARGETS and all(s is not None and s["blocks"]["gpu"] == blocks for s in streams):
            return
    raise NotMeasured(f"not all {TARGETS} engines were heard within {HEARD_S:g} s")


def check_hits(router: Running, tokens: int) -> None:
    """Check that the last decision knew of the cached prompt. Raises NotMeasured otherwise."""
    (record,) = router.get_admin("/admin/records?limit=1")["records"]
    predicted = record["attempts"][-1]["predicted_tokens"]
    if predicted is None or predicted < tokens - 2 * BLOCK_TOKENS:
        raise NotMeasured(f"the router promised {predicted} of {tokens} tokens")


def small_body() -> bytes:
    """Return the body of the small request."""
    return Chat(Words(DATA), SMALL_TOKENS, seed=3, message_tokens=SMALL_TOKENS).body()


def measure_small(run: BenchRun) -> list[Line]:
    """Return the CPU per small request with `warm` beside each of `PEERS`."""
    shape = SMALL.shrunk(run.effort.of(1, 2))
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(SMALL_TARGETS, events=True))
        settings = cache_aware_settings(DATA)
        precise = stack.enter_context(routers.warmroute(backends, run.folder, settings, "precise"))
        running = [precise]
        for policy in PEERS:
            try:
                peer = stack.enter_context(routers.rust(backends, run.folder, policy))
            except InstallFailed as why:
                run.notes.append(f"vllm-router is left out: {why}")
                break
            running.append(replace(peer, name=policy))
        seen = send_in_turns(run, running, shape, small_body())
        check_local(precise)
        parts = split(precise, shape.name, seen["precise"])
    ours = seen.pop("precise")
    lines = [beside(shape.name, "us", ours, us, f"vllm-router's {peer}", PEERS[peer]) for peer, us in seen.items()]
    return [*(lines or [Line(shape.name, "us", ours)]), *parts]


def measure_wide(run: BenchRun) -> list[Line]:
    """Return the CPU per small request before many engines beside that before few."""
    shape = WIDE.shrunk(run.effort.of(1, 2))
    with ExitStack() as stack:
        running = []
        for targets in (WIDE_TARGETS, SMALL_TARGETS):
            backends = stack.enter_context(routers.engines(targets, events=True))
            settings = cache_aware_settings(DATA)
            running.append(stack.enter_context(routers.warmroute(backends, run.folder, settings, f"of {targets}")))
        seen = send_in_turns(run, running, shape, small_body())
        check_local(running[1])
    wide, few = (seen[router.name] for router in running)
    return [beside(shape.name, "us", wide, few, f"{SMALL_TARGETS} targets", Bar(1.3, "ratio"))]


ROWS = (
    Row("precise", "precise policy, 64 targets", measure, 60, 12),
    Row("precise-wide", "precise policy, small request, 500 targets", measure_wide, 70, 20),
    Row("precise-small", "precise policy, small request, 8 targets", measure_small, 85, 10),
)
