"""CPU time of the next turn's token ids and keys, for each way to render chats, over a model with a chat template.

A chat of 25,000 tokens that calls a tool in every turn, which adds about 450 tokens. In one process, all modes in turn.
The template is an ordinary one, with the tokenizer of DeepSeek V4.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokenizerSource, TokensConfig
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from router.prompt.tokenization.tokenization import Tokenization
from tests.bench.figures import Bar, Line, beside
from tests.bench.row import BenchRun, NotMeasured, Row
from tests.fakes.kimi import write_kimi
from tests.fakes.tekken import tekken
from tests.router.prompt.tokenization.families import CHATML, published_folder

TOKENS, TURN_TOKENS = 25_000, 200  # of a question, and of a tool's result
TURNS, QUICK_TURNS = 20, 6
CHARS_PER_TOKEN = 4
ENGLISH = "\n".join(topics.values())
LIMIT = 1.5
TOOL = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{}"}}

Make = Callable[[Path], TokenizerSource]


def _template(folder: Path) -> TokenizerSource:
    shutil.copy(published_folder() / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(CHATML.replace("<|im_end|>", "<｜end▁of▁sentence｜>"))
    return TokenizerSource(path=str(folder))


def _deepseek(renderer: str) -> Make:
    def make(folder: Path) -> TokenizerSource:
        shutil.copy(published_folder() / "tokenizer.json", folder)
        return TokenizerSource.model_validate({"path": str(folder), "renderer": renderer})

    return make


def _harmony(folder: Path) -> TokenizerSource:
    shutil.copy(published_folder() / "tokenizer.json", folder)
    return TokenizerSource(path=str(folder), renderer="harmony")


def _mistral(folder: Path) -> TokenizerSource:
    (folder / "tekken.json").write_text(json.dumps(tekken("v13")))
    return TokenizerSource(path=str(folder))


def _kimi(folder: Path) -> TokenizerSource:
    write_kimi(folder)
    return TokenizerSource(path=str(folder))


BASELINE = "template"
MODES: dict[str, Make] = {
    BASELINE: _template,
    "harmony": _harmony,
    "mistral v13": _mistral,
    **{name: _deepseek(name) for name in ("deepseek_v32", "deepseek_v4", "deepseek_v41")},
    "kimi_k2": _kimi,
}


def measure(run: BenchRun) -> list[Line]:
    turns = run.effort.of(TURNS, QUICK_TURNS)
    models = {}
    for name, make in MODES.items():
        folder = run.folder / name
        folder.mkdir()
        models[name] = load(make(folder), name, time.time)
    found: dict[str, list[float]] = {name: [] for name in models}
    for repetition in range(run.effort.repetitions):
        for name, local in models.items():
            run.report(f"{name}, repetition {repetition + 1}")
            found[name].append(asyncio.run(_next_turns(local, turns, repetition)))
    baseline = found.pop(BASELINE)
    what = f"next turn of a {TOKENS:,}-token chat"
    bar = Bar(LIMIT, of="ratio")
    return [beside(f"{what}: {name}", "ms", ours, baseline, "a template", bar) for name, ours in found.items()]


async def _next_turns(local: LocalTokenizer, turns: int, seed: int) -> float:
    """Return the CPU milliseconds of one turn after a first one."""
    tokenization = Tokenization(TokensConfig(), {"m": local}, Keyring(1), EngineTokenizer(_silent), SystemClock())
    dice, spent_s = random.Random(seed), 0.0
    messages: list[Any] = [{"role": "system", "content": _text(dice, TOKENS)}]
    gc.collect()
    try:
        for turn in range(turns + 1):
            messages += [
                {"role": "user", "content": _text(dice, TURN_TOKENS)},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": CALL["id"], "content": _text(dice, TURN_TOKENS)},
            ]
            body = json.dumps({"model": "m", "messages": messages, "tools": [TOOL]}).encode()
            began_s = time.process_time()
            prompt = read_prompt("/v1/chat/completions", None, body, ReadOptions())
            known = await tokenization.tokenize(prompt, "m", None, {16}, [])
            if turn:
                spent_s += time.process_time() - began_s
            if not isinstance(known, TokenizedPrompt) or known.source != "local":
                raise NotMeasured(f"the chat has no ids: {known}")
            messages.append({"role": "assistant", "content": "It is noon."})
    finally:
        tokenization.close()
    return 1e3 * spent_s / turns


def _text(dice: random.Random, tokens: int) -> str:
    """Return about `tokens` tokens of English."""
    start = dice.randrange(len(ENGLISH) - CHARS_PER_TOKEN * tokens)
    return ENGLISH[start : start + CHARS_PER_TOKEN * tokens]


async def _silent(*args: object, **options: object) -> None:
    """Answer nothing."""


ROWS = (Row("renderers", "next turn of models without a template", measure, 25, 10),)
