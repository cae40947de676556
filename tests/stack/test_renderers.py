"""Chats of models that vLLM renders by code: the router's ids and refusals are those of the installed vLLM."""

from __future__ import annotations

import pytest

from tests.stack.renderer_comparison import MODES, RANDOM_CHATS, compare_mode

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("mode", MODES)
def test_every_chat_has_the_engine_s_ids_or_its_refusal(mode: str) -> None:
    found = compare_mode(mode, RANDOM_CHATS)
    assert [*found.unequal, *found.only_ours, *found.only_theirs] == []
    assert found.equal > RANDOM_CHATS / 4
    assert found.equal + found.refused > RANDOM_CHATS
