"""What the doctor reads out of what a router says of its replicas and targets."""

from __future__ import annotations

from typing import Any

import pytest

from router.operate.doctor.routers import check_replicas, check_targets
from router.operate.doctor.subject import RouterAnswers, Subject

URL = "http://127.0.0.1:8001"
WELL = {
    "address": "10.0.0.2:9004",
    "run": "1f3a",
    "own": False,
    "up": True,
    "last_heard_s": 0.1,
    "same_policies": True,
    "same_instances": True,
    "instances": 4,
}


LIVE = {"state": "live", "silent": False, "joined_late": False, "replay_silent": False}


def whats(*replicas: dict[str, Any]) -> list[str]:
    found = [*check_replicas(Subject(routers=[RouterAnswers(URL, replicas=[*replicas])]))]
    assert all(finding.severity == "fault" and finding.at == (URL,) for finding in found)
    return [finding.what for finding in found]


def test_a_stream_joined_late_is_named_while_blocks_wait_for_a_parent() -> None:
    stream: dict[str, Any] = {"state": "live", "joined_late": True, "keyless_blocks": 12, "replay_silent": False}
    target = {"id": "a/0", "stream": stream, "promises": {}, "breaker": "closed"}
    router = RouterAnswers(URL, instances=[{"id": "a", "state": "ready", "targets": [target]}])
    (found,) = check_targets(Subject(routers=[router]))
    assert found.what == "caches 12 blocks after prompts that the router never saw announced"
    stream["keyless_blocks"] = 0
    assert list(check_targets(Subject(routers=[router]))) == []


@pytest.mark.parametrize(
    ("changes", "severity", "what"),
    [
        ({"slowdown": 1.4}, None, ""),
        ({"slowdown": 4.83}, "warning", "is 4.8 times slower than it was"),
        ({"stuck": "no progress for 4.0 s"}, "fault", "it is stuck: no progress for 4.0 s"),
        (
            {"stream": LIVE | {"silent": True}},
            "fault",
            "its event stream stopped: it announces no new blocks",
        ),
        ({"promises": {"trusted": False}}, "fault", "delivers less than its events promise, so they are not trusted"),
    ],
)
def test_what_a_router_found_out_about_a_target(changes: dict[str, Any], severity: str | None, what: str) -> None:
    target = {"id": "a/0", "stream": LIVE, "promises": {}, "breaker": "closed", "slowdown": 1.0} | changes
    router = RouterAnswers(URL, instances=[{"id": "a", "state": "ready", "targets": [target]}])
    found = [(one.severity, one.what, one.at) for one in check_targets(Subject(routers=[router]))]
    assert found == ([] if severity is None else [(severity, what, ("a/0",))])


def test_replicas_that_reach_each_other_and_agree_are_no_finding() -> None:
    itself = WELL | {"own": True, "up": False, "last_heard_s": None, "same_policies": None, "same_instances": None}
    assert whats(WELL, itself) == []
    assert whats() == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"up": False, "last_heard_s": None, "same_policies": None}, "receives nothing from 10.0.0.2:9004"),
        ({"up": False}, "receives from the router at 10.0.0.2:9004, and gets no acknowledgements"),
        ({"address": None}, "a router (run 1f3a) sends that is not in its list"),
        ({"address": None, "up": False, "last_heard_s": None}, "a router (run 1f3a) has another version"),
        ({"same_policies": False}, "has other policies in force than the router at 10.0.0.2:9004"),
        ({"same_instances": False}, "knows other engines than the router at 10.0.0.2:9004, which knows 4"),
    ],
)
def test_each_disagreement_is_named(changes: dict[str, Any], what: str) -> None:
    assert whats(WELL, WELL | changes) == [what]
