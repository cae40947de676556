"""What was loaded ahead, over the workers of a host."""

from __future__ import annotations

from router.features.preload.book import PreloadBook
from router.features.preload.booking import book_preload, settle_preload
from router.features.preload.peers import PrefixPreloaded, PreloadSettled, SharedPreloads
from router.fleet.worker_share import NO_SHARE
from router.prompt.usage import Usage
from tests.fakes.caches import prompt_of
from tests.router.control.peers.test_scheduler import A, Group, Process


def test_a_preloaded_prefix_is_booked_for_all_and_its_first_request_counts_once() -> None:
    group = Group(2)
    one, other = group.all
    far = Process("far", group.network)
    far.peers.host = "another"
    books = [PreloadBook() for _ in range(3)]
    for process, book in zip((one, other, far), books, strict=True):
        process.peers.parts.append(SharedPreloads(book, process.peers))
    known = prompt_of(range(16))
    booked = book_preload(one.core, one.target(), known, "join", None, 100.0)
    share = one.core.own_share(A)
    assert (one.peers.booked, share.prefilling, share.prefill_tokens) == ({A}, 1, 16)
    one.peers.booked.clear()
    keys = tuple(known.keys[4][n - 1] for n in (1, 2, 4))
    books[0].note("join", settle_preload(one.core, booked, Usage(16, 0, 1), 101.0, 101.0), keys)
    assert (one.peers.booked, one.core.own_share(A)) == ({A}, NO_SHARE)
    assert len(group.network.messages(PrefixPreloaded)) == 1
    assert (bool(books[1]), bool(books[2])) == (True, False), "it counts at this host"
    assert books[1].on_answer(A, keys, 16) == 16
    assert len(group.network.messages(PreloadSettled)) == 1
    assert not books[0]
    assert books[0].prefixes[0].hit_tokens == 16
    assert books[1].on_answer(A, keys, 16) is None
