"""The contract of what peers share: messages, the parts that send and apply them, and the way to the other
processes.

A peer is a process of this router or of another one in front of the same fleet: the workers of a host and the
routers of other hosts exchange the same messages. A feature with shared state is one `SharedPart`, whichever of
both there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import msgspec

from router.kvcache.events import TargetId
from router.tasks import Tasks


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Something that a peer publishes. Fields are encoded in this order, without their names: new ones come at the
    end, with defaults, and an older peer leaves them out.
    """


class SharedPart(Protocol):
    """One of the things that peers agree on."""

    messages: ClassVar[Sequence[type[Message]]]
    """The kinds that `apply` gets."""

    def start(self, tasks: Tasks) -> None:
        """Start its tasks."""

    def state(self) -> Iterable[Message]:
        """Return the state for a peer that has just started, or has missed messages."""

    def apply(self, message: Any, run: str) -> None:
        """Apply a message of the peer with this run id."""

    def forget(self, run: str) -> None:
        """Handle that the peer with this run id has ended, or is silent."""


class Peers(Protocol):
    """The other processes, as a part sees them."""

    @property
    def run(self) -> str:
        """Id of the run of this process."""

    def share(self, message: Message) -> None:
        """Send a message to all peers."""

    def share_near(self, message: Message) -> None:
        """Send a message to the other workers of this host."""

    def send_to(self, run: str, message: Message) -> None:
        """Send a message to one peer; it is dropped when that cannot be reached."""

    def runs(self) -> Sequence[str]:
        """Return the runs of the peers that are received from and acknowledge what they get, sorted."""

    def near_runs(self) -> Sequence[str]:
        """Return those of this host."""


class Broadcast(Protocol):
    """The way to the other processes, as the scheduler sees it."""

    @property
    def run(self) -> str: ...

    def report_load(self, target: TargetId) -> None:
        """Send this process's bookings of `target`, which have changed."""

    def share(self, message: Message) -> None: ...

    def share_near(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Send the gathered messages now: another process may need them in a moment."""


def choose_owner(name: bytes, runs: Iterable[str], person: bytes) -> str:
    """Return the one of `runs` that does something for `name` at all processes (rendezvous hashing): when a run
    comes or goes, only names of its own change hands. `person` tells uses apart, 16 bytes at most.
    """
    return max(runs, key=lambda run: blake2b(name, digest_size=8, key=run.encode()[:64], person=person).digest())
