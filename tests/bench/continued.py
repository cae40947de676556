"""What a chunk of a stream costs more because another engine could carry the stream on.

Its token ids are read, kept and hidden from the client. That is a fraction of a microsecond, which cannot be told from
the noise of a whole process, so it is measured alone, in this process, best of several repetitions: against hiding the
usage chunk (the client did not ask for usage) and against nothing (it did). The whole router is measured as well, with
and without `limits.continuation_bytes`, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from router.prompt.answer_ids import ContinuationBudget
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.usage import HideUsage
from tests.bench import answers, routers
from tests.bench.data_path import CHUNK, in_turns
from tests.bench.figures import Bar, Line, beside
from tests.bench.row import BenchRun, NotMeasured, Row

ROUNDS, BEST_OF = 20_000, 5
ADDED_BAR_US = 1.0
OFF = {**routers.EVEN, "limits": {"continuation_bytes": 0}}


def best_us(feed: Callable[[bytes], bytes], chunk: bytes) -> float:
    """Return the CPU time of one call."""
    spent_s = []
    for _ in range(BEST_OF):
        began_s = time.process_time()
        for _ in range(ROUNDS):
            feed(chunk)
        spent_s.append(time.process_time() - began_s)
    return min(spent_s) / ROUNDS * 1e6


def continuable_us(*, hide_usage: bool) -> float:
    """Return the CPU time of a chunk with token ids, which the client did not ask for."""
    stream = ContinuableStream(ContinuationBudget(1 << 30), chat=True, hide_usage=hide_usage)
    stream.feed(answers.opening(answers.PROMPT_TOKENS))
    us = best_us(stream.feed, answers.chunk(0, with_ids=True))
    if stream.find_refusal() is not None:
        raise NotMeasured("the stream cannot be carried on")
    return us


def kept_text_us() -> float:
    """Return the CPU time of a chunk of an answer without token ids, whose text is kept."""
    stream = ContinuableStream(ContinuationBudget(1 << 30), chat=True)
    stream.feed(answers.opening(1).replace(b"[17]", b"null"))
    us = best_us(stream.feed, answers.chunk(0))
    if (stream.find_refusal(), stream.by) != (None, "text"):
        raise NotMeasured("the text is not kept")
    return us


def measure(run: BenchRun) -> list[Line]:
    plain = answers.chunk(0)
    turns = range(run.effort.repetitions)
    hidden = [continuable_us(hide_usage=True) - best_us(HideUsage().feed, plain) for _ in turns]
    asked = [continuable_us(hide_usage=False) - best_us(lambda chunk: chunk, plain) for _ in turns]
    text = [kept_text_us() - best_us(lambda chunk: chunk, plain) for _ in turns]
    shape = CHUNK.shrunk(run.effort.of(1, 2))
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2))
        on = stack.enter_context(routers.warmroute(backends, run.folder))
        off = stack.enter_context(routers.warmroute(backends, run.folder, OFF, "without"))
        seen = in_turns(run, [on, off], shape)
    bar = Bar(ADDED_BAR_US)
    return [
        Line("added to a chunk that can be carried on, alone", "us", hidden, bar=bar),
        Line("the same where the client asks for usage", "us", asked, bar=bar),
        Line("added to a chunk without ids, whose text is kept, alone", "us", text),
        beside("CPU per chunk that can be carried on", "us", seen["warmroute"], seen["without"], "without"),
    ]


ROWS = (Row("continued", "streams that can be carried on", measure, 60, 8),)
