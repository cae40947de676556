"""Our conversion of a request's body to token ids, compared with a real engine's.

The engine's render endpoints show how it reads each body. Our own reading (`router/prompt`), rendering and tokenising
(`router/prompt/tokenization`) must give the same ids; so must the engine's `/tokenize` when it gets the
fields that our fallback sends. Here a wrong conversion shows with its body's name; in `test_predictions.py` it
would only be a missing hit.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from router.config.schema import TokenizerSource
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Ids, Prompt, Text
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from tests.stack.bodies import ALL, Body
from tests.stack.engines import Engine

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def local(model: Path) -> LocalTokenizer:
    return load(TokenizerSource(path=str(model)), "tokenizers.tiny", time.time)


@pytest.mark.parametrize("case", ALL, ids=lambda body: body.name)
def test_our_ids_are_the_engines(engines: list[Engine], local: LocalTokenizer, case: Body) -> None:
    prompt = read_prompt(case.path, "application/json", json.dumps(case.body).encode(), ReadOptions())
    assert _ours(local, prompt) == engines[0].render(case.path, case.body)


@pytest.mark.parametrize("case", ALL, ids=lambda body: body.name)
def test_the_fallback_asks_for_the_same_ids(engines: list[Engine], case: Body) -> None:
    prompt = read_prompt(case.path, "application/json", json.dumps(case.body).encode(), ReadOptions())
    if not isinstance(prompt.source, Ids):
        answer = engines[0].post("/tokenize", {"model": prompt.model, **prompt.remote_fields})
        assert answer["tokens"] == engines[0].render(case.path, case.body)


def _ours(local: LocalTokenizer, prompt: Prompt) -> list[int]:
    source = prompt.source
    if isinstance(source, Ids):
        return list(source.ids)
    assert isinstance(source, Chat | Text), source
    return list(local.tokenize(source))
