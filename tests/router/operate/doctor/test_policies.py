"""Which policies the doctor takes for blind."""

from __future__ import annotations

import pytest

from router.config.lookup import list_shipped_policies
from router.config.reader import ReadConfig, parse_policy, read_policy_file
from router.config.schema import Config
from router.operate.doctor.policies import check_tell_apart
from router.operate.doctor.subject import Subject

BLIND = """
scorers:
  - {name: prefix_overlap, weight: 0.0}
  - {name: queue_depth, weight: 1.0}
"""


@pytest.mark.parametrize("name", list_shipped_policies())
def test_no_shipped_policy_is_blind_to_what_it_reads(name: str) -> None:
    policy = read_policy_file(list_shipped_policies()[name])
    subject = Subject(ReadConfig(Config(active=name), {name: policy}))
    assert [*check_tell_apart(subject)] == []


def test_a_scorer_without_weight_decides_nothing() -> None:
    subject = Subject(ReadConfig(Config(active="mine"), {"mine": parse_policy(BLIND, "mine")}))
    (found,) = check_tell_apart(subject)
    assert found.what == "policy mine cannot tell targets apart by their cache"
