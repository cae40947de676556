"""Each error as an SDK shows it: the class of its exception and the status, the same as for an engine that answers with
that code itself, and a message that says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.errors import (
    BadGateway,
    DeadlineExceeded,
    NoTarget,
    NotFound,
    RequestRefused,
    TooBusy,
    TooLarge,
    Unauthorized,
)
from tests.clients.clients import SDKS, Sdk, SdkScripts
from tests.clients.refusals import CASES, StrictRouter
from tests.clients.scripted import say
from tests.fakes.engines import engine

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

KINDS = (Unauthorized, NotFound, TooLarge, TooBusy, BadGateway, NoTarget, DeadlineExceeded)
REFUSALS: dict[int, type[RequestRefused]] = {kind.status: kind for kind in KINDS}
EACH = pytest.mark.parametrize("sdk", SDKS, ids=str)
EACH_CASE = pytest.mark.parametrize("name", CASES)
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing() -> AsyncIterator[Any]:
    """An engine that no router knows. It answers "give me 413" with that status, in vLLM's form."""

    def script(path: str, body: dict[str, Any]) -> None:
        if (asked := re.search(r"give me (\d{3})", json.dumps(body))) is not None:
            raise REFUSALS[int(asked[1])]("as you wish")

    async with engine() as alone:
        say(alone, script)
        yield alone


@EACH
@EACH_CASE
@STREAM
async def test_an_error(
    sdk: Sdk, name: str, stream: bool, sdks: SdkScripts, refusing: Any, strict: StrictRouter
) -> None:
    case = CASES[name]
    if (name, stream, sdk.api) == ("engine_slow", True, "responses"):
        pytest.skip("a stream of responses begins before its first token")
    if case.says is None:
        (direct,) = await sdks.talk(sdk, strict.engines[case.model].url, case.text, model=case.model, stream=stream)
    else:
        (direct,) = await sdks.talk(sdk, refusing.url, f"give me {case.status}", stream=stream)
    (turn,) = await sdks.talk(sdk, strict.url, case.text, model=case.model, key=case.key, stream=stream)
    shown, right = turn["error"], direct["error"]
    assert (shown["type"], shown["status"]) == (right["type"], case.status)
    assert shown["message"] == right["message"] if case.says is None else case.says in shown["message"]
    assert (turn["text"], turn["output"]) == ("", None)
    assert (shown["retry_after"] is not None) == case.retry_after
