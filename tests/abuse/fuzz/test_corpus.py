"""Every stored input of every fuzz target, whole, cut short and mutated: without the fuzzer, in a second or two."""

from __future__ import annotations

import random
import time

import pytest

from tests.abuse.fuzz.targets import TARGETS, read_corpus

MUTANTS = 20  # per input
CPU_S = 2.0  # for one input of some kilobytes: far above what any takes


def mutate(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return `data` with bytes changed, cut out, repeated, or replaced by a part of `other`."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, size = draw.randrange(len(changed) + 1), draw.choice((1, 1, 2, 4, 16, 100))
        match draw.randrange(4):
            case 0:
                changed[at : at + size] = draw.randbytes(min(size, 4))
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size] * draw.choice((1, 2, 20))
            case 3:
                start = draw.randrange(len(other) + 1)
                changed[at : at + size] = other[start : start + size]
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_no_stored_input_is_a_finding(name: str) -> None:
    corpus, draw = read_corpus(name), random.Random(name)
    assert corpus
    others = list(corpus.values())
    with TARGETS[name]() as target:
        for file, data in corpus.items():
            mutants = (mutate(data, draw.choice(others), draw) for _ in range(MUTANTS))
            for one in (data, data[: len(data) // 2], *mutants):
                began = time.process_time()
                try:
                    target(one)
                except BaseException as finding:
                    finding.add_note(f"{name}: {file}, as {one!r}")
                    raise
                assert time.process_time() - began < CPU_S, f"{name}: {file}, as {one!r}"
