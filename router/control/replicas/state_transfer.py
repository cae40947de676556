"""A starting router takes over what another one has learned: speeds and accuracy, its index, sessions and responses.

It asks over its own links, so the others need not know its address yet, and it asks for one part at a time, so that
nothing but what it asked for is under way. It is not ready meanwhile. Without another router that is ready it goes on
after `FIRST_ANSWER_S`; where the other one stops answering, after `STALLED_S`, with what it has by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from router.clock import Clock
from router.control.replicas import frames
from router.control.replicas.frames import ReplicaFrame, StateAnswer, StateAsk, StatePart
from router.control.replicas.learned_state import LearnedState, StateOutline, decode_outline
from router.control.replicas.links import Link, Links
from router.kvcache.events import TargetId

log = logging.getLogger("warmroute.replicas")

FIRST_ANSWER_S = 1.0
STALLED_S = 5.0
POLL_S = 0.01
PART_BYTES = 1024 * 1024  # of one message part: each keeps the connection alive that a larger one would block
HISTORY_PAGE = 2_000  # messages


class StateReply(NamedTuple):
    """One message of an answer."""

    head: StateAnswer
    payload: bytes


class _Donor(NamedTuple):
    """Another router that is ready, and what it can hand over."""

    link: Link
    outline: StateOutline


class StateTransfer:
    """`encode` makes a frame of this router with a question in it; `apply` takes a page of sessions and responses."""

    def __init__(
        self,
        run: str,
        learned: LearnedState,
        encode: Callable[[StateAsk], bytes],
        apply: Callable[[ReplicaFrame], None],
        clock: Clock,
    ) -> None:
        self._run = run
        self._learned = learned
        self._encode = encode
        self._apply = apply
        self._clock = clock
        self._numbers = count(1)
        self._replies: dict[int, asyncio.Queue[StateReply]] = {}  # by the number of the question

    def on_reply(self, head: StateAnswer, payload: bytes) -> None:
        """Take a message of an answer; one to an older question is dropped."""
        if (replies := self._replies.get(head.ask)) is not None:
            replies.put_nowait(StateReply(head, payload))

    async def run(self, links: Links) -> None:
        """Take over what one of the others has learned."""
        donor = await self._find_donor(links)
        if donor is None:
            log.info("no other router is there to learn from")
            return
        began_at, blocks = self._clock.now(), 0
        try:
            async for reply in self._ask(donor.link, "instances"):
                self._learned.restore_instances(reply.payload)
            if donor.outline.key_check == self._learned.key_check:
                blocks = await self._take_index(donor)
            else:
                log.warning("replica %s has another index.key_secret_env: its index means nothing here", donor.link.run)
            async for reply in self._ask(donor.link, "history"):
                if (page := frames.decode_replica_frame(reply.payload)) is not None:
                    self._apply(page)
        except TimeoutError:
            log.warning("the router at %s stopped answering: going on with what it sent", donor.link.address)
        took_s = self._clock.now() - began_at
        log.info("learned from the router at %s: %d blocks, in %.2f s", donor.link.address, blocks, took_s)

    async def _find_donor(self, links: Links) -> _Donor | None:
        """Ask all others at once. Return the first that is ready; None when none is, or none answers in time."""
        asked: dict[Link, int] = {}
        answered: set[Link] = set()
        give_up_at = self._clock.now() + FIRST_ANSWER_S
        try:
            while self._clock.now() < give_up_at:
                for link in links:
                    if link not in asked and (number := self._send(link, "outline")) is not None:
                        asked[link] = number
                await asyncio.sleep(POLL_S)
                for link, number in asked.items():
                    with suppress(asyncio.QueueEmpty):
                        head, payload = self._replies[number].get_nowait()
                        answered.add(link)
                        outline = decode_outline(payload)
                        if head.run != self._run and outline is not None and outline.ready:
                            return _Donor(link, outline)
                if len(links) and answered.issuperset(links):
                    return None
            return None
        finally:
            for number in asked.values():
                del self._replies[number]

    async def _take_index(self, donor: _Donor) -> int:
        """Take over the index, target by target. Return the number of blocks."""
        taken = 0
        for target, blocks in donor.outline.blocks.items():
            async for reply in self._ask(donor.link, "target", target):
                if reply.payload and await self._learned.restore_target(reply.payload):
                    taken += blocks
        return taken

    def _send(self, link: Link, part: StatePart, argument: str = "") -> int | None:
        """Send a question. Return its number; None when it cannot be sent now."""
        number = next(self._numbers)
        if not link.try_send(self._encode(StateAsk(number, part, argument))):
            return None
        self._replies[number] = asyncio.Queue()
        return number

    async def _ask(self, link: Link, part: StatePart, argument: str = "") -> AsyncIterator[StateReply]:
        """Yield the messages of an answer. Raises TimeoutError when the next one does not come."""
        if (number := self._send(link, part, argument)) is None:
            raise TimeoutError
        try:
            while True:
                async with asyncio.timeout(STALLED_S):
                    reply = await self._replies[number].get()
                yield reply
                if reply.head.last:
                    return
        finally:
            del self._replies[number]


class StateDonor:
    """Answers the questions of routers that start. `history` yields sessions and responses in frames of so many."""

    def __init__(self, run: str, learned: LearnedState, history: Callable[[int], AsyncIterator[bytes]]) -> None:
        self._run = run
        self._learned = learned
        self._history = history
        self.ready = False  # True once this router is not starting itself

    async def answer(self, ask: StateAsk, send: Callable[[Sequence[bytes]], object]) -> None:
        """Send what `ask` asks for, as the parts of messages. A question of a newer version gets an empty answer."""
        if ask.part == "history":
            async for page in self._history(HISTORY_PAGE):
                send(self._parts(ask, page, last=False))
            payload = b""
        elif ask.part == "outline":
            payload = self._learned.encode_outline(self.ready)
        elif ask.part == "instances":
            payload = self._learned.encode_instances()
        elif ask.part == "target":
            payload = await self._learned.encode_target(TargetId(ask.argument))
        else:
            payload = b""
        send(self._parts(ask, payload, last=True))

    def _parts(self, ask: StateAsk, payload: bytes, *, last: bool) -> list[bytes]:
        head = frames.encode_answer(StateAnswer(self._run, ask.number, last))
        pieces = [payload[start : start + PART_BYTES] for start in range(0, len(payload), PART_BYTES)]
        return [head, *(pieces or [b""])]
