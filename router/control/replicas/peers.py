"""The replicas that are heard, by the id of their run: which of them were followed without a gap, and which are silent.

Pure: frames and times come in, and what follows from them goes out. A run that is silent for `SILENT_S` is forgotten
with everything it booked; its next frame makes it a new one, which is asked for its state. So a partition, a lost frame
and a restart all end in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from router.control.replicas.frames import ReplicaFrame, Wants

GATHER_S = 0.02  # at least, between two frames of news
BEAT_S = 0.25
SILENT_S = 2.0


@dataclass
class HeardReplica:
    """One run of another replica's leader."""

    run: str
    heard_at: float  # monotonic, here
    number: int | None = None  # of its last news, as far as they were followed; None: its state is not known
    bytes: int = 0
    skipped: int = 0  # messages of a newer version


class HeardReplicas:
    """`own_run` is the id of this router's run."""

    def __init__(self, own_run: str) -> None:
        self._own_run = own_run
        self._heard: dict[str, HeardReplica] = {}
        self.gaps = 0  # news that did not arrive, by how often state was asked for again

    def __len__(self) -> int:
        return len(self._heard)

    def find(self, run: str | None) -> HeardReplica | None:
        return None if run is None else self._heard.get(run)

    def __iter__(self) -> Iterator[HeardReplica]:
        return iter(self._heard.values())

    def on_frame(self, frame: ReplicaFrame, size: int, now: float) -> HeardReplica | None:
        """Note a frame of `size` bytes. Return its sender; None for a frame of this router itself."""
        if frame.run == self._own_run:
            return None
        replica = self._heard.get(frame.run)
        if replica is None:
            replica = self._heard[frame.run] = HeardReplica(frame.run, now)
        replica.heard_at = now
        replica.bytes += size
        if replica.number is not None:
            expected = replica.number + 1 if frame.kind == "news" else replica.number
            replica.number = frame.number if frame.number == expected else None
            self.gaps += replica.number is None
        return replica

    def on_state(self, replica: HeardReplica, number: int) -> None:
        """Note that all bookings of a replica are known as of its news of this number."""
        replica.number = number

    def wants(self, replica: HeardReplica) -> Wants:
        """Return what to ask a replica for, with the acknowledgement of its beat."""
        return "state" if replica.number is None else "nothing"

    def forget(self, run: str) -> bool:
        """Forget a replica that left. Return whether it was known."""
        return self._heard.pop(run, None) is not None

    def forget_silent(self, now: float) -> list[str]:
        """Forget the replicas that have been silent for too long, and return their runs."""
        silent = [replica.run for replica in self._heard.values() if now - replica.heard_at >= SILENT_S]
        for run in silent:
            del self._heard[run]
        return silent
