"""The contract of what peers share: messages, the parts that send and apply them, and access to the other
processes.

A peer is a process of this router or of another one in front of the same fleet: the workers of a host and the
routers of other hosts exchange the same messages. A feature with shared state has one `SharedPart`, for both kinds
of peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import msgspec

from router.kvcache.events import TargetId
from router.tasks import Tasks


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message that a peer publishes. Fields are encoded in this order, without their names: new fields come at
    the end, with defaults, and an older peer ignores them.
    """


class SharedPart(Protocol):
    """One kind of state that peers share."""

    messages: ClassVar[Sequence[type[Message]]]
    """The kinds of messages that `apply` gets."""

    def start(self, tasks: Tasks) -> None:
        """Start the tasks of this part."""

    def state(self) -> Iterable[Message]:
        """Return the state for a peer that has just started, or has missed messages."""

    def apply(self, message: Any, run: str) -> None:
        """Apply a message of the peer with this run id."""

    def forget(self, run: str) -> None:
        """Handle that the peer with this run id has ended, or is silent."""


class Peers(Protocol):
    """The interface of a part to the other processes."""

    @property
    def run(self) -> str:
        """Id of the run of this process."""

    def share(self, message: Message) -> None:
        """Send a message to all peers."""

    def share_near(self, message: Message) -> None:
        """Send a message to the other workers of this host."""

    def send_to(self, run: str, message: Message) -> None:
        """Send a message to one peer; the message is dropped if the peer cannot be reached."""

    def runs(self) -> Sequence[str]:
        """Return the runs of the peers that send to this process and acknowledge its beats, sorted."""

    def near_runs(self) -> Sequence[str]:
        """Return the `runs` of the peers on this host."""


class Broadcast(Protocol):
    """The interface of the scheduler to the other processes."""

    @property
    def run(self) -> str: ...

    def report_load(self, target: TargetId) -> None:
        """Send this process's bookings of `target`, which have changed."""

    def share(self, message: Message) -> None: ...

    def share_near(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Send the gathered messages now: another process may need them in a moment."""


def choose_owner(name: bytes, runs: Iterable[str], person: bytes) -> str:
    """Return the one of `runs` that is responsible for `name`, the same at all processes (rendezvous hashing): when
    a run comes or goes, only its own names change hands. `person` distinguishes uses, 16 bytes at most.
    """
    return max(runs, key=lambda run: blake2b(name, digest_size=8, key=run.encode()[:64], person=person).digest())
