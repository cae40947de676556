"""Pairs over real sockets: what either engine got, in which order, and who is let go when the other fails."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.proxy.relay import RelayDeadline, RelayFinished, RelayNotStarted, RelayRejected

BODY = b'{"model": "m", "prompt": "a \\u00e9 }", "stream": true, "max_tokens": 7}\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HANDED = b'{"do_remote_prefill": true, "remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1", "newer": 1.50}'
NOBODY = "http://127.0.0.1:9"
ANSWER = b"5\r\nwords\r\n0\r\n\r\n"


def request(path: bytes = b"/v1/completions", body: bytes = BODY) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body)


def answer(body: bytes, status: int = 200) -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Story:
    """Two engines that keep what they got. `prefills` and `decodes` are what each says; None: nothing, it waits."""

    def __init__(self, prefills: bytes | None, decodes: bytes | None, *, dies: str = "") -> None:
        self.prefills = prefills
        self.decodes = decodes
        self.dies = dies
        self.got: dict[str, tuple[bytes, bytes]] = {}
        self.arrived = {"p": asyncio.Event(), "e": asyncio.Event()}
        self.let_go: set[str] = set()

    async def prefill(self, peer):
        await self._engine("p", peer, self.prefills)

    async def decode(self, peer):
        await self._engine("e", peer, self.decodes)

    async def _engine(self, name, peer, says):
        self.got[name] = await peer.message()
        self.arrived[name].set()
        if says is not None:
            peer.send(says)
        if self.dies == name:
            return
        assert await peer.rest() == b""
        self.let_go.add(name)

    async def begin(self, house, protocol, **limits):
        engines = await house.engine(self.prefill), await house.engine(self.decode)
        return await self.send(house, await house.pair(protocol, *engines, **limits))

    async def send(self, house, front, path: bytes = b"/v1/completions"):
        client = await house.client(front.port)
        client.send(request(path))
        return front, client


async def test_mooncakes_halves_go_out_together_and_the_client_sees_only_one(house, eventually):
    story = Story(None, None)
    front, client = await story.begin(house, "mooncake")
    await eventually(lambda: len(story.got) == 2)  # neither has said a word
    head, body = story.got["p"]
    assert b"x-data-parallel-rank: 1\r\n" in head
    assert b"x-request-id: rec-1\r\n" in head
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-1"}
    sent = {"model": "m", "prompt": "a é }", "stream": False, "max_tokens": 1, "ignore_eos": True}
    assert json.loads(body) == {**sent, "kv_transfer_params": params}
    head, body = story.got["e"]
    assert b"x-data-parallel-rank" not in head
    assert b"x-request-id: rec-1\r\n" in head
    assert body.startswith(BODY.rstrip()[:-1] + b",")
    assert json.loads(body)["kv_transfer_params"] == {
        "do_remote_decode": False, "do_remote_prefill": True, "remote_bootstrap_addr": "http://p:8998",
        "remote_engine_id": "engine-1", "transfer_id": "xfer-1",
    }  # fmt: skip
    client.reset()
    await eventually(lambda: story.let_go == {"p", "e"})
    assert await front.end() == "gone"


async def test_the_prefill_halfs_answer_is_not_relayed(house):
    story = Story(answer(b'{"choices": ["not for you"]}'), STREAM + ANSWER)
    front, client = await story.begin(house, "mooncake")
    head, body = await client.message()
    assert body == ANSWER
    assert b"x-warmroute-target: e/0" in head
    assert isinstance(await front.end(), RelayFinished)
    assert [half.end for half in front.watches[0].halves] in (["ok"], []), "whichever was there first"


@pytest.mark.parametrize(
    ("says", "end", "half"),
    [
        (b"", RelayNotStarted("died", "the engine closed the connection", prefill=True), "died"),
        (answer(b"{}")[:-1], RelayNotStarted("died", "the engine closed the connection", prefill=True), "died"),
        (answer(b"{}", 500), RelayNotStarted("failed", "the prefill engine answered 500", prefill=True), "failed"),
    ],
)
@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
async def test_a_failed_prefill_half_takes_the_other_back(house, eventually, protocol, says, end, half):
    story = Story(says, None, dies="p")
    front, _ = await story.begin(house, protocol)
    assert await front.end() == end
    assert [(half.end, half.status) for half in front.watches[0].halves] == [(half, end_status(says))]
    if protocol == "mooncake" and "e" in story.got:  # the failure may have been faster than the other's connection
        await eventually(lambda: story.let_go == {"e"})
    if protocol == "nixl":
        assert "e" not in story.got


def end_status(says: bytes) -> int | None:
    return int(says.split()[1]) if says else None


@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
async def test_a_prefill_engine_that_cannot_be_reached(house, protocol):
    story = Story(None, None)
    front, client = await story.send(house, await house.pair(protocol, NOBODY, await house.engine(story.decode)))
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert (end.reason, end.prefill) == ("connect", True)
    assert (await client.message())[0].startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
async def test_a_full_prefill_engine_and_a_fault_of_the_clients(house, protocol):
    story = Story(answer(b'{"error":"full"}', 503), None)
    front, _ = await story.begin(house, protocol)
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert (end.reason, end.prefill) == ("busy", True)
    assert end.refusal is not None
    assert (end.refusal.status, end.refusal.body) == (503, b'{"error":"full"}')

    story = Story(answer(b'{"error":"too long"}', 400), None)
    front, _ = await story.begin(house, protocol)
    end = await front.end()
    assert isinstance(end, RelayRejected)
    assert (end.refusal.status, end.refusal.body) == (400, b'{"error":"too long"}')
    assert (b"x-warmroute-target", b"p/1") in end.refusal.headers
    assert (b"content-type", b"application/json") in end.refusal.headers


@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
async def test_a_prefill_engine_that_stays_silent(house, protocol):
    story = Story(None, None)
    front, _ = await story.begin(house, protocol, first_byte_timeout_s=0.05)
    assert await front.end() == RelayDeadline()


async def test_an_early_stop_lost_the_kv(house, eventually):
    story = Story(answer(b'{"stop_reason": "end_turn"}'), None)
    engines = await house.engine(story.prefill), await house.engine(story.decode)
    front, _ = await story.send(house, await house.pair("mooncake", *engines), b"/v1/messages")
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert (end.reason, end.prefill) == ("failed", True)
    assert [half.end for half in front.watches[0].halves] == ["failed"]


@pytest.mark.parametrize("says", [b"", answer(b"{}", 503)])
async def test_a_decode_engine_that_fails_first_lets_the_prefill_engine_go(house, eventually, says):
    story = Story(None, None)

    async def fails(peer):
        await peer.message()
        await story.arrived["p"].wait()
        peer.send(says)

    front = await house.pair("mooncake", await house.engine(story.prefill), await house.engine(fails))
    await story.send(house, front)
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert (end.reason, end.prefill) == ("busy" if says else "died", False)
    await eventually(lambda: story.let_go == {"p"})
    assert front.watches[0].halves == [], "it was cut, it did not end"


async def test_after_the_first_byte_the_prefill_half_matters_no_more(house, eventually):
    proceed = asyncio.Event()

    async def prefill(peer):
        await peer.message()
        await proceed.wait()

    async def decode(peer):
        await peer.message()
        peer.send(STREAM + b"5\r\nwords\r\n")
        await peer.rest()

    engine = await house.engine(decode)
    front = await house.pair("mooncake", await house.engine(prefill), engine)
    client = await house.client(front.port)
    client.send(request())
    await client.until(b"5\r\nwords\r\n")
    proceed.set()
    await eventually(lambda: [half.end for half in front.watches[0].halves] == ["died"])
    engine.peers[0].send(b"0\r\n\r\n")
    assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"
    assert isinstance(await front.end(), RelayFinished)


async def test_nixls_halves_go_out_in_turn_and_what_one_says_goes_into_the_other(house):
    story = Story(answer(b'{"id": "c", "kv_transfer_params": ' + HANDED + b', "usage": {}}'), STREAM + ANSWER)
    front, client = await story.begin(house, "nixl")
    assert (await client.message())[1] == ANSWER
    assert json.loads(story.got["p"][1])["kv_transfer_params"]["do_remote_decode"] is True
    assert story.got["e"][1] == BODY.rstrip()[:-1] + b',"kv_transfer_params":' + HANDED + b"}"
    assert isinstance(await front.end(), RelayFinished)
    assert [half.end for half in front.watches[0].halves] == ["ok"]


async def test_where_nothing_is_handed_over_the_request_goes_on_as_it_came(house):
    story = Story(answer(b'{"kv_transfer_params": null}'), STREAM + ANSWER)
    _, client = await story.begin(house, "nixl")
    assert (await client.message())[1] == ANSWER
    assert story.got["e"][1] == BODY


async def test_a_client_that_leaves_during_the_first_half(house, eventually):
    story = Story(None, None)
    front, client = await story.begin(house, "nixl")
    await eventually(lambda: "p" in story.got)
    client.reset()
    assert await front.end() == "gone"
    await eventually(lambda: story.let_go == {"p"})
    assert set(story.got) == {"p"}
    assert front.watches[0].halves == []
