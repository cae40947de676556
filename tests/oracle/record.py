"""Records what a real vLLM answers to the corpus: `python -m tests.oracle.record URL MODEL` (some minutes).

The emulated engine takes much that a real one refuses, so what the router refuses is judged by the recorded statuses:
`tests/data/vllm-0.32-statuses.json` has the names of the requests by path and status, but for those with status 200.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

from tests.oracle import corpus
from tests.oracle.corpus import Case
from tests.oracle.http1 import exchange
from tests.paths import DATA

FILE = DATA / "vllm-0.32-statuses.json"
AT_ONCE = 8
UNANSWERED = 0  # status of a request that was not answered in time
RECORDED = (corpus.clients, corpus.streams, corpus.malformed, corpus.wrong_types)
SERVED = (*corpus.BY_CACHE, "/v1/messages/count_tokens", "/tokenize", "/detokenize")  # by a model that generates


def read_statuses() -> dict[str, int]:
    """Return the status of each recorded request by its name."""
    others = {
        (path, name): int(status)
        for path, by_status in json.loads(FILE.read_text()).items()
        for status, names in by_status.items()
        for name in names
    }
    return {case.name: others.get((case.request.path, _short(case)), 200) for case in _cases()}


def _short(case: Case) -> str:
    return case.name.removeprefix(f"POST {case.request.path}: ")


def _cases() -> Iterator[Case]:
    return (case for group in RECORDED for case in group() if case.request.path in SERVED)


async def record(url: str, model: str) -> None:
    """Send the corpus to the engine at `url`, which serves `model`, and write the file."""
    found: dict[str, dict[str, list[str]]] = {path: {} for path in SERVED}
    cases = list(_cases())
    slots = asyncio.Semaphore(AT_ONCE)

    async def send(case: Case) -> None:
        own = case.request
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            own = own._replace(body=own.body.replace(corpus.MODEL.encode(encoding), model.encode(encoding)))
        try:
            async with slots:
                status = (await exchange(url, own._replace(path=own.path.replace(corpus.MODEL, model)))).status
        except TimeoutError:
            status = UNANSWERED
        if status != 200:
            found[case.request.path].setdefault(str(status), []).append(_short(case))

    for done, task in enumerate(asyncio.as_completed([send(case) for case in cases]), 1):
        await task
        if done % 100 == 0:
            print(f"{done} of {len(cases)}", file=sys.stderr)
    for names in (names for by_status in found.values() for names in by_status.values()):
        names.sort()
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:3]))
