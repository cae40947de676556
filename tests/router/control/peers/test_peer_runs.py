"""Which peers are followed: gaps, silence, ends and a new run."""

from __future__ import annotations

import pytest

from router.control.peers.frames import PROTOCOL, FrameKind, PeerFrame
from router.control.peers.peer_runs import ENDED_KEPT, SILENT_S, PeerRun, PeerRuns


def frame(kind: FrameKind, number: int, run: str = "b", host: str = "host", stamp_s: float = 0.0) -> PeerFrame:
    return PeerFrame(PROTOCOL, kind, host, run, number, stamp_s)


def receive(runs: PeerRuns, kind: FrameKind, number: int, run: str = "b", now: float = 0.0) -> PeerRun:
    peer = runs.on_frame(frame(kind, number, run), 100, now)
    assert peer is not None
    return peer


def following(number: int = 5) -> tuple[PeerRuns, PeerRun]:
    """A peer whose news up to `number` are known."""
    runs = PeerRuns("host", "a")
    peer = receive(runs, "beat", number)
    assert peer.number is None
    runs.on_state(peer, number)
    return runs, peer


def test_news_in_order_leave_no_gap() -> None:
    runs, peer = following()
    frames: tuple[tuple[FrameKind, int], ...] = (("news", 6), ("beat", 6), ("news", 7), ("direct", 7), ("beat", 7))
    for kind, number in frames:
        receive(runs, kind, number)
        assert peer.number == number
    assert (runs.gaps, peer.bytes) == (0, 600)


@pytest.mark.parametrize(("kind", "number"), [("news", 7), ("beat", 6), ("direct", 6), ("news", 5), ("beat", 4)])
def test_lost_news_are_noticed_by_the_next_frame_of_any_kind(kind: FrameKind, number: int) -> None:
    runs, peer = following(5)
    receive(runs, kind, number)
    assert (peer.number, runs.gaps) == (None, 1)
    receive(runs, "news", 9)  # until the state is known there is no further gap to count
    assert (peer.number, runs.gaps) == (None, 1)
    runs.on_state(peer, 9)
    assert receive(runs, "beat", 9).number == 9


def test_its_own_frames_are_not_those_of_a_peer() -> None:
    runs = PeerRuns("host", "a")
    assert runs.on_frame(frame("beat", 1, "a"), 10, 0.0) is None
    assert len(runs) == 0


def test_a_silent_peer_is_forgotten_and_a_new_one_when_it_is_back() -> None:
    runs, _ = following()
    receive(runs, "beat", 5, "c", now=1.5)
    assert runs.forget_silent(SILENT_S - 0.01) == []
    assert runs.forget_silent(SILENT_S) == ["b"]
    assert [peer.run for peer in runs] == ["c"]
    assert receive(runs, "news", 6, now=9.0).number is None


def test_late_frames_of_a_peer_that_has_ended_are_ignored() -> None:
    runs, _ = following()
    assert runs.end("b")
    assert not runs.end("c"), "never received from"
    for run in "bc":
        assert runs.on_frame(frame("news", 6, run), 100, 1.0) is None
    assert runs.find("b") is None
    for number in range(ENDED_KEPT):
        runs.end(f"later {number}")
    assert receive(runs, "news", 7).number is None, "only so many are remembered"


def test_the_clock_of_another_host_is_as_its_fastest_frames_show_and_follows_its_drift() -> None:
    runs = PeerRuns("host", "a")
    now, there, drift = 5000.0, 100.0, 50e-6
    for n in range(4 * 3600):  # hours, in which its clock loses 0.7 s
        lag_s = 0.001 if n % 10 == 0 else 0.05
        peer = runs.on_frame(frame("beat", 0, "far", "another", there), 100, now + lag_s)
        assert peer is not None
        assert 0.0 < peer.offset_s - (now - there) < 0.06
        now, there = now + 1.0, there + 1.0 - drift
    near = runs.on_frame(frame("beat", 0, "b", stamp_s=now - 0.5), 100, now)
    assert near is not None
    assert near.offset_s == 0.0, "workers of a host have one clock"
