"""Which replicas are followed: gaps, silence and a new run."""

from __future__ import annotations

from router.control.replicas.frames import FrameKind, ReplicaFrame
from router.control.replicas.peers import SILENT_S, HeardReplica, HeardReplicas


def hear(heard: HeardReplicas, kind: FrameKind, number: int, run: str = "b", now: float = 0.0) -> HeardReplica:
    replica = heard.on_frame(ReplicaFrame(kind, run, number, 0.0), 100, now)
    assert replica is not None
    return replica


def following(number: int = 5) -> tuple[HeardReplicas, HeardReplica]:
    """Another replica whose news up to `number` are known."""
    heard = HeardReplicas("a")
    replica = hear(heard, "beat", number)
    assert heard.wants(replica) == "state"
    heard.on_state(replica, number)
    return heard, replica


def test_news_in_order_leave_nothing_to_ask_for() -> None:
    heard, replica = following()
    for kind, number in (("news", 6), ("beat", 6), ("news", 7), ("direct", 7), ("beat", 7)):
        hear(heard, kind, number)  # type: ignore[arg-type]
        assert heard.wants(replica) == "nothing"
    assert (heard.gaps, replica.bytes) == (0, 600)


def test_lost_news_are_noticed_by_the_next_news_and_by_the_next_beat() -> None:
    for kind, number in (("news", 7), ("beat", 6), ("news", 5), ("beat", 4)):
        heard, replica = following(5)
        hear(heard, kind, number)  # type: ignore[arg-type]
        assert heard.wants(replica) == "state"
        assert heard.gaps == 1
        hear(heard, "news", 9)  # until the state is known there is no further gap to count
        assert (heard.wants(replica), heard.gaps) == ("state", 1)
        heard.on_state(replica, 9)
        assert heard.wants(hear(heard, "beat", 9)) == "nothing"


def test_its_own_frames_are_not_those_of_another_replica() -> None:
    heard = HeardReplicas("a")
    assert heard.on_frame(ReplicaFrame("beat", "a", 1, 0.0), 10, 0.0) is None
    assert len(heard) == 0


def test_a_silent_replica_is_forgotten_and_asked_for_its_state_when_it_is_back() -> None:
    heard, _ = following()
    hear(heard, "beat", 5, "c", now=1.5)
    assert heard.forget_silent(SILENT_S - 0.01) == []
    assert heard.forget_silent(SILENT_S) == ["b"]
    assert [replica.run for replica in heard] == ["c"]
    assert heard.wants(hear(heard, "news", 6, now=9.0)) == "state"
