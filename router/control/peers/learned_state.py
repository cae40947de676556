"""Learned state of a process as bytes, for a starting peer that takes it over.

    outline    which targets have an index here, with their blocks
    target     the index of one target with the position in its event stream, as in a snapshot file
    instances  speeds and accuracy of all instances

Block keys are meaningful only to processes with the same secret. The secret is not sent; a hash of it is compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b

import msgspec

from router.clock import Clock
from router.control.peers.frames import UNREADABLE
from router.control.peers.history import list_history
from router.control.peers.parts import Message
from router.control.peers.scheduler import PeerScheduler
from router.fleet.saved_instance import SavedInstance, save_instance
from router.kvcache.events import TargetId
from router.kvcache.snapshot_format import SavedIndex, from_bytes, to_bytes
from router.kvcache.snapshots import JOIN_WITHIN_S

log = logging.getLogger("warmroute.peers")


class StateOutline(msgspec.Struct, frozen=True, array_like=True):
    """Lists what a process can hand over to a starting peer."""

    ready: bool  # False: the process is itself starting
    key_check: int  # equal if block keys mean the same
    blocks: dict[TargetId, int]  # by target


_encode = msgspec.msgpack.Encoder().encode
_decode_outline = msgspec.msgpack.Decoder(StateOutline).decode
_decode_instances = msgspec.msgpack.Decoder(list[SavedInstance]).decode


class LearnedState:
    """Learned state of this process's scheduler. `secret` is that of the block keys."""

    def __init__(self, scheduler: PeerScheduler, secret: int, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        digest = blake2b(secret.to_bytes(8, "little"), digest_size=8, person=b"warmroute check").digest()
        self.key_check = int.from_bytes(digest, "little")

    # handed over

    def encode_outline(self, ready: bool) -> bytes:
        indexer = self._scheduler.indexer
        streams = {target: indexer.describe_stream(target) for target in indexer.snapshot_targets()}
        blocks = {target: sum(stream.stats.blocks) for target, stream in streams.items() if stream is not None}
        return _encode(StateOutline(ready, self.key_check, blocks))

    async def encode_target(self, target: TargetId) -> bytes:
        """Return the index entries of `target`; empty if it has none. The entries are taken in one step of the
        event loop, 30 ns per block; a thread encodes them.
        """
        saved = self._scheduler.indexer.snapshot(target)
        return b"" if saved is None else await asyncio.to_thread(lambda: b"".join(to_bytes(self.key_check, [saved])))

    def encode_instances(self) -> bytes:
        now = self._clock.now()
        return _encode([save_instance(instance, now) for instance in self._scheduler.fleet])

    def history(self) -> AsyncIterator[Message]:
        """Yield sessions and stored responses, with pauses."""
        return list_history(self._scheduler)

    # taken over

    async def restore_target(self, payload: bytes) -> bool:
        """Take over what `encode_target` returned, to take effect once the target joins. Return whether it could be
        used.
        """
        saved = await asyncio.to_thread(from_bytes, payload)
        if not isinstance(saved, SavedIndex):
            log.warning("the index of a target was not taken over: %s", saved.reason)
            return False
        if saved.secret != self.key_check:
            return False
        for target in saved.targets:
            self._scheduler.indexer.restore(target)
        return True

    def restore_instances(self, payload: bytes) -> None:
        """Take over what `encode_instances` returned; each entry takes effect once its instance joins. Log an
        unreadable one, as of a build in which instances have other fields.
        """
        try:
            saved: Sequence[SavedInstance] = _decode_instances(payload)
        except UNREADABLE as error:
            log.warning("speeds and accuracy of instances were not taken over: %s", error)
            return
        self._scheduler.expect_learned(saved, self._clock.now())

    async def discard_absent(self) -> None:
        """After a while, drop the state taken over of targets and instances that have not joined."""
        await asyncio.sleep(JOIN_WITHIN_S)
        self._scheduler.indexer.discard_restored()
        self._scheduler.expect_learned((), self._clock.now())


def decode_outline(payload: bytes) -> StateOutline | None:
    """Return the outline; None when it is not one."""
    try:
        return _decode_outline(payload)
    except UNREADABLE:
        return None
