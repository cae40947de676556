"""One question and the shapes of its answer, as real masters of two versions gave them."""

from __future__ import annotations

import msgspec
import pytest

from router.backends.fetch import HttpAnswer
from router.clock import ManualClock
from router.config.sections.pool import PoolModelConfig
from router.features.pool.answer_cache import BlockPresence
from router.features.pool.keys import KeyForm
from router.features.pool.leader import MasterLeader
from router.features.pool.query import StoreClient
from router.tasks import Tasks

FORM = KeyForm(PoolModelConfig(), "m")
DIGESTS = [bytes([number]) * 32 for number in range(3)]
REPLICA = b'{"size_":10000,"buffer_address_":139852020449280,"protocol_":"tcp","transport_endpoint_":"127.0.0.1:12396"}'
FOUND = (
    b'{"ok":true,"error":null,"values":[%b],"disk_values":null,"local_disk_values":null,"nof_values":null}' % REPLICA
)
NOT_FOUND = (
    b'{"ok":false,"error":"OBJECT_NOT_FOUND","values":null,"disk_values":null,"local_disk_values":null,'
    b'"nof_values":null}'
)
ON_DISK = b'{"ok":true,"error":null,"values":null,"disk_values":null,"local_disk_values":[{}],"nof_values":null}'
ON_DISK_OLDER = b'{"ok":true,"error":null,"values":[]}'
BEING_WRITTEN = NOT_FOUND.replace(b"OBJECT_NOT_FOUND", b"REPLICA_IS_NOT_READY")
NO_WORD = NOT_FOUND.replace(b"OBJECT_NOT_FOUND", b"INTERNAL_ERROR")


class OneMaster:
    """Answers every path from a table; None: silence."""

    def __init__(self, **answers: HttpAnswer | None) -> None:
        self.answers = {f"/{path}": answer for path, answer in answers.items()}
        self.paths: list[str] = []

    async def __call__(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        self.paths.append(path)
        return self.answers[path.split("?")[0]]


async def asking(master: OneMaster) -> tuple[StoreClient, MasterLeader]:
    master.answers["/health"] = HttpAnswer(200, b"OK")
    leader = MasterLeader(["a"], 1.0, master, Tasks("test"), ManualClock(), lambda: None)
    await leader.poll()
    return StoreClient(leader, master, ManualClock()), leader


def said(*answers: bytes) -> HttpAnswer:
    keys = [FORM.keys(digest)[0] for digest in DIGESTS]
    data = dict(zip(keys, map(msgspec.Raw, answers), strict=False))
    return HttpAnswer(200, msgspec.json.encode({"success": True, "data": data}))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (FOUND, BlockPresence.MEMORY),
        (NOT_FOUND, BlockPresence.ABSENT),
        (BEING_WRITTEN, BlockPresence.ABSENT),
        (ON_DISK, BlockPresence.DISK),
        (ON_DISK_OLDER, BlockPresence.DISK),
    ],
)
async def test_what_is_said_of_a_key(answer: bytes, word: BlockPresence) -> None:
    asks, _ = await asking(OneMaster(batch_query_keys=said(FOUND, answer, NOT_FOUND)))
    assert await asks.query_blocks(FORM, DIGESTS) == [BlockPresence.MEMORY, word, BlockPresence.ABSENT]
    assert asks.totals[:3] == (1, 3, 1)


@pytest.mark.parametrize(
    ("answer", "trouble", "leads"),
    [
        (None, "silent", False),
        (HttpAnswer(503, b'{"success":false,"error":"service plane is not active"}'), "standby", False),
        (HttpAnswer(500, b""), "error", True),
        (HttpAnswer(200, b"{}"), "error", True),
        (HttpAnswer(200, b"nonsense"), "error", True),
        (said(FOUND, FOUND), "error", True),  # nothing on the third
        (said(FOUND, NO_WORD, FOUND), "error", True),
    ],
)
async def test_no_answer_is_trouble_and_may_cost_the_lead(answer: HttpAnswer | None, trouble: str, leads: bool) -> None:
    asks, leader = await asking(OneMaster(batch_query_keys=answer))
    assert await asks.query_blocks(FORM, DIGESTS) == trouble
    assert (leader.current is not None) == leads


async def test_a_small_pool_is_listed_and_a_big_one_is_not() -> None:
    pages = {
        "metrics": HttpAnswer(200, b"# TYPE x gauge\nmaster_key_count 2\n"),
        "get_all_keys": HttpAnswer(200, b"a\nb c\n"),
    }
    asks, _ = await asking(OneMaster(**pages))
    assert await asks.list_keys() == ["a", "b c", ""]
    master = OneMaster(**pages | {"metrics": HttpAnswer(200, b"master_key_count 50001\n")})
    asks, _ = await asking(master)
    assert await asks.list_keys() is None
    assert "/get_all_keys" not in master.paths
