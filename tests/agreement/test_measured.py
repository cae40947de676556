"""What a grid keeps: results come back as they were, broken lines do not, a digest tells which count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agreement.measured import Key, Measured, code_digest, keep, policy_digest, read
from tests.agreement.served import policy

KEY = Key("codex/8/n4/nopool", "warm", "abc", 1, "reduced")


def test_results_come_back_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "grid.jsonl"
    first, second = (Measured(KEY, "code", 1.5, failed=reason) for reason in ("one", "two"))
    keep(first, file)
    keep(second, file)
    assert list(read(file)) == [first, second]


def test_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "grid.jsonl"
    keep(Measured(KEY, "code", 1.0, failed="x"), file)
    with file.open("ab") as out:
        out.write(b'{"key":{"cell":"co')
    assert len(list(read(file))) == 1
    assert list(read(tmp_path / "none.jsonl")) == []


def test_a_failure_has_no_score() -> None:
    assert Measured(KEY, "code", 1.0, failed="x").score is None


def test_a_policy_is_told_from_another_by_its_parameters() -> None:
    warm = policy("warm")
    other = warm.model_copy(update={"scorers": policy("random").scorers})
    assert policy_digest(warm) == policy_digest(policy("warm"))
    assert policy_digest(warm) != policy_digest(other)


def test_the_code_has_one_digest() -> None:
    assert code_digest() == code_digest() != ""


@pytest.mark.parametrize("name", ["router/lab/simulator", "router/scheduling", "scorers/contract.py"])
def test_what_decides_is_there_to_be_digested(name: str) -> None:
    from tests.agreement.measured import DECIDING, ROOT

    assert name in DECIDING
    assert (ROOT / name).exists()
