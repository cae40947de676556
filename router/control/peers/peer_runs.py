"""The peers that send, by the ids of their runs: which were followed without a gap, and which are silent.

The module does no I/O: it takes frames and times, and returns what follows from them. A run that is silent for
`SILENT_S` is forgotten with all its bookings; its next frame makes it a new run, whose state is requested. So
recovery from a partition, a lost frame and a restart is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from router.control.peers.frames import PeerFrame

BEAT_S = 0.25
SILENT_S = 2.0
MOST_DRIFT = 1e-3  # of two machines' clocks: an upper bound
ENDED_KEPT = 100  # runs that have ended, whose last frames may still come


@dataclass
class PeerRun:
    """One run of another process, on the host with this id."""

    run: str
    host: str
    received_at: float  # monotonic, here
    offset_s: float  # of this machine's clock from the peer's, by the fastest frame; 0 on this host
    number: int | None = None  # of its last news received without a gap; None: its state is unknown
    bytes: int = 0
    skipped: int = 0  # messages that this build does not know


class PeerRuns:
    """`host` and `run` are the ids of this process."""

    def __init__(self, host: str, run: str) -> None:
        self._host = host
        self._run = run
        self._runs: dict[str, PeerRun] = {}
        self._ended: deque[str] = deque(maxlen=ENDED_KEPT)
        self.gaps = 0  # times that news did not arrive and state was requested again

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run: str | None) -> PeerRun | None:
        return None if run is None else self._runs.get(run)

    def __iter__(self) -> Iterator[PeerRun]:
        return iter(self._runs.values())

    def on_frame(self, frame: PeerFrame, size: int, now: float) -> PeerRun | None:
        """Note a frame of `size` bytes. Return its sender; None for a frame of this process itself, and for a late
        frame of a run that has ended.
        """
        if frame.run == self._run or frame.run in self._ended:
            return None
        peer = self._runs.get(frame.run)
        offset_s = 0.0 if frame.host == self._host else now - frame.stamp_s
        if peer is None:
            peer = self._runs[frame.run] = PeerRun(frame.run, frame.host, now, offset_s)
        peer.offset_s = min(peer.offset_s + (now - peer.received_at) * MOST_DRIFT, offset_s)
        peer.received_at = now
        peer.bytes += size
        if peer.number is not None:
            expected = peer.number + 1 if frame.kind == "news" else peer.number
            peer.number = frame.number if frame.number == expected else None
            self.gaps += peer.number is None
        return peer

    def on_state(self, peer: PeerRun, number: int) -> None:
        """Note that all bookings of a peer are known as of its news of this number."""
        peer.number = number

    def doubt(self, run: str) -> None:
        """Note that the state of a peer has to be requested again."""
        if (peer := self._runs.get(run)) is not None:
            peer.number = None

    def end(self, run: str) -> bool:
        """Forget a peer that has ended, for good. Return whether it was known."""
        self._ended.append(run)
        return self._runs.pop(run, None) is not None

    def forget_silent(self, now: float) -> list[str]:
        """Forget the peers that have been silent for too long, and return their runs."""
        silent = [peer.run for peer in self._runs.values() if now - peer.received_at >= SILENT_S]
        for run in silent:
            del self._runs[run]
        return silent
