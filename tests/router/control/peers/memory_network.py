"""Processes that exchange messages in memory, for tests of a `SharedPart`. Messages arrive encoded and decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec

from router.control.peers.parts import Message, SharedPart
from router.kvcache.events import TargetId

Kind = TypeVar("Kind", bound=Message)


class Sent(NamedTuple):
    sender: str
    receiver: str
    message: Message


class MemoryPeers:
    """The other processes, as the `parts` of one see them, and its scheduler. `cut_off`: runs that it does not reach,
    nor they it; `booked`: targets whose load was reported.
    """

    def __init__(self, run: str, host: str, network: MemoryNetwork) -> None:
        self.run = run
        self.host = host
        self.parts: list[SharedPart] = []
        self.cut_off: set[str] = set()
        self.booked: set[TargetId] = set()
        self._network = network

    def share(self, message: Message) -> None:
        for run in self.runs():
            self.send_to(run, message)

    def share_near(self, message: Message) -> None:
        for run in self.near_runs():
            self.send_to(run, message)

    def send_to(self, run: str, message: Message) -> None:
        self._network.send(Sent(self.run, run, message))

    def report_load(self, target: TargetId) -> None:
        self.booked.add(target)

    def flush(self) -> None:
        """All has been sent."""

    def runs(self) -> Sequence[str]:
        return sorted(run for run, other in self._network.members.items() if run != self.run and self.reaches(other))

    def near_runs(self) -> Sequence[str]:
        return [run for run in self.runs() if self._network.members[run].host == self.host]

    def reaches(self, other: MemoryPeers) -> bool:
        return other.run not in self.cut_off and self.run not in other.cut_off

    def apply(self, message: Message, run: str) -> None:
        for part in self.parts:
            if type(message) in part.messages:
                part.apply(message, run)


class MemoryNetwork:
    """Processes by their runs. Messages arrive at once, in the order in which they were sent, and `held` ones when that
    ends; a member in `mute` receives none, which nobody notices. `sent`: all, also those that did not arrive.
    """

    def __init__(self) -> None:
        self.members: dict[str, MemoryPeers] = {}
        self.sent: list[Sent] = []
        self.mute: set[str] = set()
        self._on_way: deque[Sent] = deque()
        self._held = self._delivering = False

    def join(self, run: str, host: str = "host") -> MemoryPeers:
        """Add a process; the caller adds its parts."""
        peers = self.members[run] = MemoryPeers(run, host, self)
        return peers

    def meet(self, run: str) -> None:
        """Let a process and each that it reaches apply the state of the other one, as after a start or a partition."""
        for other in self.members[run].runs():
            self.send_state(run, other)
            self.send_state(other, run)

    def send_state(self, sender: str, receiver: str) -> None:
        """Send what the receiver needs that has just started, or has missed something."""
        for part in self.members[sender].parts:
            for message in part.state():
                self.send(Sent(sender, receiver, message))

    def end(self, run: str) -> None:
        """End a process, without its doing; the others notice."""
        del self.members[run]
        for member in list(self.members.values()):
            for part in member.parts:
                part.forget(run)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let what is sent meanwhile arrive afterwards."""
        self._held = True
        yield
        self._held = False
        self._deliver()

    def send(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._on_way.append(sent)
        self._deliver()

    def drop(self, kind: type[Message]) -> None:
        """Lose the messages of a kind that are held."""
        self._on_way = deque(one for one in self._on_way if not isinstance(one.message, kind))

    def messages(self, kind: type[Kind], sender: str | None = None) -> list[Kind]:
        """Return what was sent of a kind, once for each receiver; None: by anybody."""
        sent = (one.message for one in self.sent if sender in (None, one.sender))
        return [message for message in sent if isinstance(message, kind)]

    def _deliver(self) -> None:
        if self._delivering or self._held:
            return
        self._delivering = True
        while self._on_way:
            sender, receiver, message = self._on_way.popleft()
            one, other = self.members.get(sender), self.members.get(receiver)
            if one is not None and other is not None and one.reaches(other) and receiver not in self.mute:
                other.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)), sender)
        self._delivering = False
