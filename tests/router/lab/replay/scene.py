"""A router's decisions without a router: views through a desk into records, and records through the decision log's
lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from router.config import schema
from router.config.reader import read_policy_file
from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.format import LoggedPolicy, LoggedRecord, LogLine, decode
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from router.scheduling.selector import Selector
from scorers.best import Best
from scorers.contract import View
from tests.paths import CONFIGS
from tests.router.scheduling.test_scheduler import IDS
from tests.router.scheduling.test_shortlist import large
from tests.suites.plugins import Fixed

FOLDER = CONFIGS / "policies"
SHIPPED = sorted(file.stem for file in FOLDER.glob("*.yaml"))


def to(target: str, *, name: str | None = None, spec: schema.PolicyConfig | None = None) -> Policy:
    """A policy that always goes there."""
    scorers = [WeightedScorer("fixed", 1.0, Fixed(target))]
    return Policy(name or target, [], scorers, NamedPicker("best", Best()), spec=spec)


def shipped(name: str) -> Policy:
    return build_policy(name, read_policy_file(FOLDER / f"{name}.yaml"))


def named(name: str, scorer: str | None = None) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": scorer or name}]}))


def desk_of(policy: Policy) -> Selector:
    return Selector(PolicySet({policy.name: policy}, policy.name), seed=7)


def a_record(policy: Policy | None, number: int = 0, **known: Any) -> Record:
    record = Record(
        f"run-{number}", number, 1.0, 1_700_000_000.0 + number, "/v1/completions", "m", True, "local", 9, Stages()
    )
    record.policy = policy
    for name, value in known.items():
        setattr(record, name, value)
    return record


def of_a_large_fleet(deciding: str, requests: int, targets: int = 100) -> Iterator[Record]:
    """Requests that a real core placed: every third target holds a part of the prompt, and all go on for ever."""
    house = large(deciding, targets)
    for number in range(0, targets, 3):
        house.stored(f"e{number:02}/0", IDS[: 4 * (1 + number % 8)])
    for _ in range(requests):
        record = house.record()
        house.core.assign_policy(record, None)
        house.admit(record=record)
        yield record


def decided(policy: Policy, views: Iterable[View], desk: Selector | None = None) -> Iterator[Record]:
    """Each view as a request that was answered at once."""
    desk = desk or desk_of(policy)
    for view in views:
        number = desk.next_number()
        record = a_record(policy, number)
        decision = desk.decide(view._replace(number=number), policy)
        desk.picked(decision)
        record.attempts = [Attempt(decision, None, None, end="ok")]
        yield record


def lines(records: Iterable[Record]) -> list[bytes]:
    encoder = RecordEncoder(salt=5)
    opening = encoder.start_file("run", "0.1.0", 1_700_000_000.0)
    return [line + b"\n" for line in (opening + b"".join(map(encoder.encode_record, records))).splitlines()]


def read(written: Iterable[bytes]) -> Iterator[LoggedPolicy | LoggedRecord]:
    for line in map(decode, written):
        assert isinstance(line, LogLine)
        if (entry := line.policy or line.record) is not None:
            yield entry
