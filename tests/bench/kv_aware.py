"""The warm agent turn beside `vllm-router --policy kv_aware`, which has the engine render every prompt first.

A real vLLM CPU serves nothing but `/v1/chat/completions/render`, with a small model whose positions reach 131,072. The
request itself goes to the benchmark's backend, which reports when it had it, as for every other row: computing 80,000
tokens on a CPU would take a minute, which no router causes. Both routers get the same bytes, and both times are those
added to the same request sent directly.
"""

from __future__ import annotations

import json
import shutil
import statistics
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.install import stack_models, stack_venv
from router.lab.local_stack.supervisor import RunningStack
from tests.bench import routers
from tests.bench.agent_turns import NEW_TOKENS, TOKENS, cache_aware_settings, check_local
from tests.bench.answers import CONTEXT_TOKENS, MODEL
from tests.bench.asking import TimedClient
from tests.bench.figures import Bar, Line, beside
from tests.bench.prompts import Chat, Words
from tests.bench.row import BenchRun, NotMeasured, Row

# It renders chats with tools, too, which the router proves its tokenizer by.
ENGINE_ARGS = ["--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
KV_BYTES = 192 << 20  # 1 KiB per token of the longest prompt, and some
RENDERED_S = 30.0


def measure(run: BenchRun) -> list[Line]:
    run.report("installing and starting vLLM")
    venv = stack_venv(run.report)
    model = long_model(stack_models(venv, run.report).tiny, run.folder / MODEL)
    asked = LocalStackConfig(
        engines=1, first_port=0, model=str(model), served_name=MODEL, kv_cache_bytes=KV_BYTES, store=False,
        max_model_len=CONTEXT_TOKENS, engine_args=ENGINE_ARGS, logs_dir=str(run.folder),
    )  # fmt: skip
    with ExitStack() as stack:
        engine = stack.enter_context(RunningStack(asked, report_wait=run.report)).engines[0]
        port = int(engine.url.rpartition(":")[2])
        backends = stack.enter_context(routers.engines(2, events=True, render_at=port))
        ours = stack.enter_context(routers.warmroute(backends, run.folder, cache_aware_settings(model)))
        theirs = stack.enter_context(routers.rust(backends, run.folder, "kv_aware"))
        words = Words(model)
        check_rendering(port, Chat(words, 2000, seed=1))
        turns = partial(added_ms, ports=(ours.port, theirs.port, backends[0]), words=words)
        pairs = []
        for repetition in range(run.effort.repetitions):
            run.report(f"turns, repetition {repetition + 1}")
            pairs.append(turns(seed=repetition, turns=run.effort.of(10, 4)))
        check_local(ours)
    mine, rust = zip(*pairs, strict=True)
    bar = Bar(20.0, "ratio", ">=")
    return [beside("added before the engine sees it, p50", "ms", mine, rust, "vllm-router kv_aware", bar)]


def added_ms(ports: tuple[int, int, int], words: Words, seed: int, turns: int) -> tuple[float, float]:
    """Return medians over the turns of one session: what the first port adds, and the second, over the third."""
    chat = Chat(words, TOKENS - turns * NEW_TOKENS // 2, seed)
    ours: list[float] = []
    theirs: list[float] = []
    with ExitStack() as stack:
        first, second, straight = (stack.enter_context(TimedClient(port, f"agent-{seed}")) for port in ports)
        first.ask(chat.body())
        second.ask(chat.body())
        for _ in range(turns):
            chat.turn(NEW_TOKENS)
            body = chat.body()
            direct = straight.ask(body).seen_ms
            ours.append(first.ask(body).seen_ms - direct)
            theirs.append(second.ask(body).seen_ms - direct)
    return statistics.median(ours), statistics.median(theirs)


def long_model(tiny: Path, folder: Path) -> Path:
    """Make the stack's smallest model with a context that takes such prompts: its weights have no positions."""
    shutil.copytree(tiny, folder)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: CONTEXT_TOKENS}))
    return folder


def check_rendering(port: int, chat: Chat) -> None:
    """Check that the engine renders, and counts as we do. Raises NotMeasured otherwise."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions/render"
    request = urllib.request.Request(url, chat.body(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=RENDERED_S) as answer:
        rendered = json.load(answer)
    ids = (rendered[0] if isinstance(rendered, list) else rendered)["token_ids"]
    if len(ids) != chat.tokens:
        raise NotMeasured(f"the engine renders {len(ids)} tokens where we count {chat.tokens}")


ROWS = (Row("kv-aware", "warm agent turn beside a router that asks the engine to render", measure, 120, 48),)
