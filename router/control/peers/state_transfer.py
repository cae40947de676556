"""A process that starts takes over what a peer has learned: speeds and accuracy, its index, sessions and responses.

The starting process queries over its own links, so the others need not know its address yet, and one part at a
time, so that only what it has requested is in flight. It is not ready meanwhile. If no peer is ready, it continues
after `FIRST_ANSWER_S`; if the peer stops replying, after `STALLED_S`, with what it has by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from router.clock import Clock
from router.control.peers import frames
from router.control.peers.frames import PeerFrame, StateAnswer, StateAsk, StatePart
from router.control.peers.learned_state import LearnedState, StateOutline, decode_outline
from router.control.peers.links import Link
from router.control.peers.network import PeerNetwork
from router.kvcache.events import TargetId

log = logging.getLogger("warmroute.peers")

FIRST_ANSWER_S = 1.0
STALLED_S = 5.0
POLL_S = 0.01
PART_BYTES = 1024 * 1024  # of one message part: small ones keep the connection alive, which a large one would block
HISTORY_PAGE = 2_000  # messages


class StateReply(NamedTuple):
    """One message of an answer."""

    head: StateAnswer
    payload: bytes


class _Donor(NamedTuple):
    """A peer that is ready, and what it can hand over."""

    run: str
    link: Link
    outline: StateOutline


class StateTransfer:
    """Takes over what a peer has learned. `apply` takes a page of sessions and responses."""

    def __init__(self, run: str, learned: LearnedState, apply: Callable[[PeerFrame], None], clock: Clock) -> None:
        self.done = False  # True once something was taken over
        self._run = run
        self._learned = learned
        self._apply = apply
        self._clock = clock
        self._numbers = count(1)
        self._replies: dict[int, asyncio.Queue[StateReply]] = {}  # by the number of the query

    def on_reply(self, head: StateAnswer, payload: bytes) -> None:
        """Accept a message of an answer; a message for an older query is dropped."""
        if (replies := self._replies.get(head.ask)) is not None:
            replies.put_nowait(StateReply(head, payload))

    async def run(self, network: PeerNetwork) -> str | None:
        """Take over what one of the peers in `network` has learned. Return its run; None if no peer was ready."""
        donor = await self._find_donor(network)
        if donor is None:
            log.info("no peer to learn from")
            return None
        self.done = True
        began_at, blocks = self._clock.now(), 0
        try:
            async for reply in self._ask(network, donor.link, "instances"):
                self._learned.restore_instances(reply.payload)
            if donor.outline.key_check == self._learned.key_check:
                blocks = await self._take_index(network, donor)
            else:
                log.warning("peer %s has another index.key_secret_env: its index cannot be used here", donor.run)
            async for reply in self._ask(network, donor.link, "history"):
                if isinstance(page := frames.decode_frame(reply.payload), PeerFrame):
                    self._apply(page)
        except TimeoutError:
            log.warning("the peer at %s stopped answering: continuing with what it sent", donor.link.address)
        took_s = self._clock.now() - began_at
        log.info("learned from the peer at %s: %d blocks, in %.2f s", donor.link.address, blocks, took_s)
        return donor.run

    async def _find_donor(self, network: PeerNetwork) -> _Donor | None:
        """Query all others at once. Return the first that is ready; None if none is, or none replies in time."""
        links, pending = network.links, dict[Link, int]()
        answered: set[Link] = set()
        give_up_at = self._clock.now() + FIRST_ANSWER_S
        try:
            while self._clock.now() < give_up_at:
                for link in links:
                    if link not in pending and (number := self._send(network, link, "outline")) is not None:
                        pending[link] = number
                await asyncio.sleep(POLL_S)
                for link, number in pending.items():
                    with suppress(asyncio.QueueEmpty):
                        head, payload = self._replies[number].get_nowait()
                        answered.add(link)
                        outline = decode_outline(payload)
                        if head.run != self._run and outline is not None and outline.ready:
                            return _Donor(head.run, link, outline)
                if len(links) and answered.issuperset(links):
                    return None
            return None
        finally:
            for number in pending.values():
                del self._replies[number]

    async def _take_index(self, network: PeerNetwork, donor: _Donor) -> int:
        """Take over the index, target by target. Return the number of blocks."""
        taken = 0
        for target, blocks in donor.outline.blocks.items():
            async for reply in self._ask(network, donor.link, "target", target):
                if reply.payload and await self._learned.restore_target(reply.payload):
                    taken += blocks
        return taken

    def _send(self, network: PeerNetwork, link: Link, part: StatePart, argument: str = "") -> int | None:
        """Send a query. Return its number; None if it cannot be sent now."""
        number = next(self._numbers)
        if not link.try_send(network.encode_ask(StateAsk(number, part, argument))):
            return None
        self._replies[number] = asyncio.Queue()
        return number

    async def _ask(
        self, network: PeerNetwork, link: Link, part: StatePart, argument: str = ""
    ) -> AsyncIterator[StateReply]:
        """Yield the messages of an answer. Raises TimeoutError when the next one does not come."""
        if (number := self._send(network, link, part, argument)) is None:
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
    """Answers the queries of peers that start. `history` yields sessions and responses in frames of a network, each
    with the given number of messages.
    """

    def __init__(
        self, run: str, learned: LearnedState, history: Callable[[PeerNetwork, int], AsyncIterator[bytes]]
    ) -> None:
        self._run = run
        self._learned = learned
        self._history = history
        self.ready = False  # False while this process is itself starting

    async def answer(self, ask: StateAsk, network: PeerNetwork, send: Callable[[Sequence[bytes]], object]) -> None:
        """Send the state that `ask` requests, in multipart messages. A query of an unknown kind, from a newer
        build, gets an empty answer.
        """
        if ask.part == "history":
            async for page in self._history(network, HISTORY_PAGE):
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
