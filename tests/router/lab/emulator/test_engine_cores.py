"""Answers and cores without HTTP: what a restart does to both."""

from __future__ import annotations

import pytest

from router.lab.emulator.engine_cores import RequestGone, TokenStream
from router.lab.simulator.engine_types import SequenceRequest
from tests.fakes.engines import engine, eventually


async def test_a_request_is_queued_whole_or_not_at_all() -> None:
    async with engine(max_num_seqs=1, max_queued=2) as fake:
        core = fake.server.cores.all[0]
        assert core.submit([SequenceRequest([1, 2], 1)] * 3) == "queue full"
        assert (fake.gauges().waiting, fake.gauges().running) == (0, 0)


async def test_closing_an_answer_of_a_crashed_core_leaves_the_new_ones_requests_alone() -> None:
    async with engine(decode_ms_per_token=1000) as fake:
        core = fake.server.cores.all[0]
        old = core.submit([SequenceRequest([1, 2], 9)])
        assert isinstance(old, TokenStream)
        fake.restart()
        new = core.submit([SequenceRequest([1, 2], 9)])  # gets the id that the old one had
        assert isinstance(new, TokenStream)
        with pytest.raises(RequestGone):
            await old.tokens()
        old.close()
        assert len(await new.tokens()) == 1
        await eventually(lambda: fake.gauges().running == 1)
        new.close()
        assert fake.gauges().running == 0


async def test_tokens_come_tagged_with_their_sequence_until_all_have_ended() -> None:
    async with engine() as fake:
        answer = fake.server.cores.all[0].submit([SequenceRequest([1, 2], 2), SequenceRequest([3, 4, 5], 1)])
        assert isinstance(answer, TokenStream)
        sequences: list[int] = []
        while tokens := await answer.tokens():
            sequences += [sequence for sequence, _ in tokens]
        assert sorted(sequences) == [0, 0, 1]
