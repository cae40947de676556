"""The router's token ids are the engine's, whatever the chat template: those of two projects' source distributions.

`make test-stack` takes every fifth template, `make test-stack-long` all, three to five minutes on two cores.
`python -m tests.stack.template_comparison` does the same by hand, with more random chats or for one template, and shows
its progress.
"""

from __future__ import annotations

import pytest

from router.lab.local_stack.install import stack_venv
from tests.stack.sdists import chat_templates
from tests.stack.template_bodies import FIXED
from tests.stack.template_comparison import RANDOM_CHATS, compare

pytestmark = pytest.mark.stack

TEMPLATES = 125
SHARES_RENDERED = {1: 0.8, 5: 0.7}  # of all pairs, by step; templates refuse roles, tools or orders they do not know


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_every_template_gives_the_engines_token_ids(step: int) -> None:
    templates = chat_templates(stack_venv() / "bin" / "pip")
    assert len(templates) == TEMPLATES
    templates = templates[::step]
    assert len(FIXED) >= 120
    found = compare(templates, RANDOM_CHATS)
    assert not found.unequal, "\n".join(map(str, found.unequal[:10]))
    assert not found.only_theirs, "\n".join(map(str, found.only_theirs[:10]))
    # The engine refuses a prompt without tokens; the router has nothing to hand on for one.
    not_empty = [pair for pair in found.only_ours if pair.ours]
    assert not not_empty, "\n".join(map(str, not_empty[:10]))
    assert found.equal >= SHARES_RENDERED[step] * len(templates) * (len(FIXED) + RANDOM_CHATS)
