"""What is counted has a row, and what was published has the same name as what is counted."""

from __future__ import annotations

import pytest

from router.cli.workload.table import as_json, hits, lengths, statistics_of
from router.lab.workloads.presets import PRESETS, PUBLISHED
from router.lab.workloads.source import load_workload


@pytest.mark.parametrize("name", PRESETS)
def test_everything_published_stands_in_the_table(name: str) -> None:
    small = load_workload(name, tokens=0.01, **({"sessions": 2} if load_workload(name).is_closed else {"requests": 20}))
    real, blocks = statistics_of(small, 16)
    names = {label for label, _ in [*lengths(small, real), *hits(real, blocks)]}
    assert PUBLISHED[name].keys() <= names


def test_a_prompt_without_a_full_block_has_no_reuse() -> None:
    small = load_workload("groups", tokens=0.001, requests=3)
    real, blocks = statistics_of(small, 16)
    assert blocks is None
    assert [name for name, _ in hits(real, blocks)] == ["ideal hits", "shared by sessions"]
    assert as_json("groups", 1, 16, real, blocks)["blocks"] is None
