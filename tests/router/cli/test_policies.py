from __future__ import annotations

import pytest

from router.cli.policies import explanation, first_sentence
from router.config.lookup import list_shipped_policies
from tests.paths import CONFIGS
from tests.router.cli.conftest import Shell


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# One line\n# and 1.5 more. The rest.\n#\n# More.\nscorers: []\n# not this\n", "One line and 1.5 more."),
        ("# All of it\nscorers: []\n", "All of it"),
        ("scorers: []\n", ""),
    ],
)
def test_the_first_sentence_of_the_leading_comment(text: str, sentence: str) -> None:
    assert first_sentence(explanation(text)) == sentence


def test_every_shipped_policy_is_listed_with_a_sentence(shell: Shell) -> None:
    said = shell("policies")
    assert (said.code, said.err) == (0, "")
    for name, file in list_shipped_policies().items():
        assert f"\n{name} " in said.out
        assert first_sentence(explanation(file.read_text())).endswith("."), name


def test_a_policy_is_printed_as_its_file_is(shell: Shell) -> None:
    assert shell("policies", "show", "warm") == (0, (CONFIGS / "policies" / "warm.yaml").read_text(), "")


def test_an_unknown_policy_is_refused_with_the_known_names(shell: Shell) -> None:
    assert shell("policies", "show", "wram") == (2, "", 'unknown policy "wram": did you mean "warm"?\n')
    assert "dynamo_cost, expected_ttft" in shell("policies", "show", "zzz").err
