"""Real sockets both ways: a scripted engine (an XPUB, which sees who subscribes, and a ROUTER) and the feed.

The listener is a stream book, so what is asserted is what an index would have been told. On asyncio and on uvloop.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from router.backends.feeds import stream_reader, zmtp
from router.backends.feeds.kv_events import KvEventSubscriber
from router.clock import SystemClock
from router.fleet.engine_facts import EventEndpoint
from router.fleet.engine_limits import OverLimit
from router.kvcache.event_sequencer import ApplyBatch, EventSequencer, ForgetTarget, RequestReplay, Step
from router.kvcache.events import BlocksRemoved, EventBatch, TargetId
from router.tasks import Tasks
from tests.patience import PATIENCE_S

T = TargetId("e/0")


async def until(condition: Callable[[], bool], deadline_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  what sockets and other threads do sets no event
            await asyncio.sleep(0.002)


class Engine:
    """Publishes batches with one removal each, whose hash is `1000 * life + seq`; keeps them all for replay."""

    def __init__(self, topic: bytes = b"kv@e@m", topic_in_replay: bool = True) -> None:
        self.topic = topic
        self.topic_in_replay = topic_in_replay
        self.answers = True
        self.asked: list[int] = []
        self.life = 0
        self.buffer: list[bytes] = []
        self._tasks = Tasks("engine")
        self._context = zmq.asyncio.Context()

    def start(self, port: int = 0, replay_port: int = 0) -> None:
        self.pub, self.router = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        self.pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self.router.setsockopt(zmq.SNDHWM, 0)
        self.port, self.replay_port = self._bind(self.pub, port), self._bind(self.router, replay_port)
        self._tasks.spawn("replays", self._replays())

    def _bind(self, socket: zmq.asyncio.Socket, port: int) -> int:
        if not port:
            return int(socket.bind_to_random_port("tcp://127.0.0.1"))
        socket.bind(f"tcp://127.0.0.1:{port}")
        return port

    @property
    def source(self) -> EventEndpoint:
        return EventEndpoint(0, f"tcp://127.0.0.1:{self.port}", f"tcp://127.0.0.1:{self.replay_port}", "")

    async def subscribed(self) -> None:
        assert await asyncio.wait_for(self.pub.recv(), PATIENCE_S) == b"\x01"

    def _frames(self, seq: int) -> list[bytes]:
        return [self.topic, seq.to_bytes(8, "big"), self.buffer[seq]]

    def make(self, count: int = 1) -> list[int]:
        """Batches that nobody hears live."""
        first = len(self.buffer)
        for seq in range(first, first + count):
            event = {"type": "BlockRemoved", "block_hashes": [1000 * self.life + seq], "medium": "GPU"}
            self.buffer.append(msgspec.msgpack.encode([1e9 + 1e6 * self.life + seq, [event], 0]))
        return list(range(first, first + count))

    async def send(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            await self.pub.send_multipart(self._frames(seq))

    async def publish(self, count: int = 1) -> None:
        await self.send(self.make(count))

    async def _replays(self) -> None:
        while True:
            who, empty, start = await self.router.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(start, "big"))
            if not self.answers:
                continue
            skip = 0 if self.topic_in_replay else 1
            for seq in range(self.asked[-1], len(self.buffer)):
                await self.router.send_multipart([who, b"", *self._frames(seq)[skip:]])
            await self.router.send_multipart([who, b"", *[b"", b"\xff" * 8, b""][skip:]])

    async def stop(self) -> None:
        await self._tasks.close()
        self.pub.close(linger=0)
        self.router.close(linger=0)

    async def restart(self) -> None:
        """Another process on the same ports, with nothing cached."""
        await self.stop()
        self.life += 1
        self.buffer.clear()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    self.start(self.port, self.replay_port)
                    return
                except zmq.ZMQError:  # the ports are given back by another thread
                    self.pub.close(linger=0)
                    self.router.close(linger=0)
                    await asyncio.sleep(0.005)

    @property
    def hashes(self) -> list[int]:
        return [1000 * self.life + seq for seq in range(len(self.buffer))]


class Listener:
    """Keeps a stream book per target, and what its steps say."""

    def __init__(self) -> None:
        self.books: dict[TargetId, EventSequencer] = {}
        self.known: dict[TargetId, list[int]] = {}
        self.reasons: list[str] = []
        self.connects = 0
        self.raise_once = False
        self.over: list[OverLimit] = []

    def _take(self, target: TargetId, steps: list[Step]) -> int | None:
        for step in steps:
            match step:
                case ApplyBatch(events):
                    for event in events:
                        assert isinstance(event, BlocksRemoved)
                        self.known[target] += event.hashes
                case ForgetTarget():
                    self.known[target].clear()
                case RequestReplay(start_seq):
                    return start_seq
        return None

    def _book(self, target: TargetId) -> EventSequencer:
        self.known.setdefault(target, [])
        return self.books.setdefault(target, EventSequencer(replayable=True))

    def on_connected(self, target: TargetId) -> int | None:
        self.connects += 1
        return self._take(target, self._book(target).on_connected(0.0))

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        if self.raise_once:
            self.raise_once = False
            raise RuntimeError("a bug in the listener")
        return self._take(target, self._book(target).on_live(batch, 0.0, 0.0))

    def on_replayed(self, target: TargetId, batch: EventBatch) -> int | None:
        return self._take(target, self._book(target).on_replayed(batch, 0.0))

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        return self._take(target, self._book(target).on_replay_end(complete, 0.0))

    def on_malformed(self, target: TargetId, reason: str) -> None:
        self.reasons.append(reason)

    def resume(self, target: TargetId) -> bool:
        return False

    def sweep(self) -> bool:
        return False

    def over_bounds(self, target: TargetId) -> None:
        return None

    def target_over_limit(self, target: TargetId, over: OverLimit) -> None:
        self.over.append(over)

    def caught_up(self, engine: Engine, target: TargetId = T) -> bool:
        book = self.books.get(target)
        return book is not None and book.trusted and self.known[target] == engine.hashes


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    made.start()
    yield made
    await made.stop()
    made._context.term()


@asynccontextmanager
async def feed(listener: Listener, replay_timeout_s: float = 5.0) -> AsyncIterator[KvEventSubscriber]:
    tasks = Tasks("feed")
    events = KvEventSubscriber(listener, listener, tasks, SystemClock(), replay_timeout_s)
    try:
        yield events
    finally:
        await events.close()
        await tasks.close()


@asynccontextmanager
async def following(engine: Engine) -> AsyncIterator[Listener]:
    listener = Listener()
    async with feed(listener) as events:
        events.subscribe(T, engine.source)
        await engine.subscribed()
        await until(lambda: listener.caught_up(engine))
        yield listener


async def test_a_fresh_engine_is_followed_live(engine: Engine) -> None:
    async with following(engine) as listener:
        assert engine.asked == [0]
        await engine.publish(500)
        await until(lambda: listener.caught_up(engine))
        assert engine.asked == [0]
        assert not listener.reasons


@pytest.mark.parametrize("topic_in_replay", [True, False], ids=["0.26", "0.24"])
async def test_what_was_before_is_replayed(engine: Engine, topic_in_replay: bool) -> None:
    engine.topic_in_replay = topic_in_replay
    engine.make(300)
    async with following(engine) as listener:
        assert not listener.books[T].joined_late
        assert not listener.reasons


async def test_lost_batches_are_fetched(engine: Engine) -> None:
    async with following(engine) as listener:
        await engine.publish(3)
        engine.make(4)
        await engine.publish(2)
        await until(lambda: listener.caught_up(engine))
        assert listener.books[T].gaps == 1


async def test_repeated_and_reordered_batches_end_up_in_order(engine: Engine) -> None:
    async with following(engine) as listener:
        await engine.send([engine.make()[0]] * 3)
        one, two, three = engine.make(3)
        await engine.send([three, one, two, two])
        await until(lambda: listener.caught_up(engine))
        assert listener.known[T] == [0, 1, 2, 3]


async def test_messages_that_are_none_of_ours_are_counted(engine: Engine) -> None:
    async with following(engine) as listener:
        await engine.publish()
        await engine.pub.send_multipart([b"one frame"])
        await engine.pub.send_multipart([b"", b"short", b"\x90"])
        await engine.pub.send_multipart([b"", b"\0" * 8, b"not msgpack"])
        await engine.publish()
        await until(lambda: listener.caught_up(engine))
        assert listener.reasons == ["frames", "sequence", "payload"]


async def test_a_restart_on_the_same_port_is_noticed_even_when_idle(engine: Engine) -> None:
    async with following(engine) as listener:
        await engine.publish(5)
        await until(lambda: listener.caught_up(engine))
        await engine.restart()
        await until(lambda: listener.connects == 2 and listener.caught_up(engine))
        assert listener.known[T] == []
        await engine.subscribed()
        await engine.publish(2)
        await until(lambda: listener.caught_up(engine))
        assert listener.books[T].restarts == 1


async def test_a_restart_that_overtook_us_is_relearned(engine: Engine) -> None:
    async with following(engine) as listener:
        await engine.publish(5)
        await until(lambda: listener.caught_up(engine))
        await engine.restart()
        engine.make(9)
        await until(lambda: listener.connects == 2 and listener.caught_up(engine))
        assert listener.known[T] == [1000 + seq for seq in range(9)]


async def test_an_engine_that_is_not_there_yet(engine: Engine) -> None:
    source = engine.source
    await engine.stop()
    listener = Listener()
    async with feed(listener) as events:
        events.subscribe(T, source)
        await engine.restart()
        await engine.subscribed()
        await engine.publish(3)
        await until(lambda: listener.caught_up(engine))


async def test_a_silent_replay_endpoint_is_logged_once_and_once_when_it_answers_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warmroute.feeds.kv_events")
    endpoint = engine.source.replay_endpoint
    async with feed(listener := Listener(), replay_timeout_s=0.05) as events:
        engine.answers = False
        events.subscribe(T, engine.source)
        await engine.subscribed()
        await until(lambda: T in listener.books and listener.books[T].state == "lost")
        assert [f"e/0: no KV event replay from {endpoint} within 0.05 s" in line for line in caplog.messages] == [True]
        await engine.restart()
        engine.answers = True
        await until(lambda: listener.connects == 2 and listener.caught_up(engine))
        assert caplog.messages[1:] == [f"e/0: KV event replays from {endpoint} are answered again"]


async def test_without_replays_a_restart_is_seen_in_its_numbers(engine: Engine) -> None:
    """Whatever its clock: that of the second process is far behind."""
    engine.life = 5
    async with feed(listener := Listener()) as events:
        listener.books[T], listener.known[T] = EventSequencer(replayable=False), []
        events.subscribe(T, engine.source._replace(replay_endpoint=None))
        await engine.subscribed()
        await engine.publish(5)
        await until(lambda: listener.caught_up(engine))
        engine.life = 0
        await engine.restart()
        await engine.subscribed()
        await engine.publish(3)
        await until(lambda: listener.caught_up(engine))
        assert listener.books[T].restarts == 1


@pytest.mark.parametrize("without", [False, True], ids=["silent", "none"])
async def test_without_an_answer_a_replay_times_out(engine: Engine, without: bool) -> None:
    engine.answers = False
    engine.make(3)
    listener = Listener()
    async with feed(listener, replay_timeout_s=1.0) as events:
        events.subscribe(T, engine.source._replace(replay_endpoint=None) if without else engine.source)
        await engine.subscribed()
        await until(lambda: T in listener.books and listener.books[T].state == "lost")
        assert engine.asked == ([] if without else [0, 0])
        await engine.publish(2)
        await until(lambda: listener.books[T].trusted)
        await until(lambda: listener.known[T] == [3, 4])
        assert listener.books[T].joined_late


async def test_an_endpoint_that_is_none(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    async with feed(listener, replay_timeout_s=0.05) as events:
        events.subscribe(T, EventEndpoint(0, "nonsense", None, ""))
        assert listener.reasons == ["endpoint"]
        events.subscribe(T, engine.source._replace(replay_endpoint="nonsense"))
        await engine.subscribed()
        await until(lambda: T in listener.books and listener.books[T].state == "lost")
    assert caplog.text.count("cannot subscribe to KV events at nonsense") == 1
    assert caplog.text.count("cannot request a KV event replay at nonsense") == 2


async def test_only_the_topic_asked_for(engine: Engine) -> None:
    listener = Listener()
    async with feed(listener) as events:
        events.subscribe(T, engine.source._replace(topic="kv@e"))
        assert await asyncio.wait_for(engine.pub.recv(), PATIENCE_S) == b"\x01kv@e"
        await engine.pub.send_multipart([b"other", b"short", b""])
        await engine.publish(2)
        await until(lambda: listener.caught_up(engine) and listener.known[T] == [0, 1])
        assert not listener.reasons


async def test_a_long_replay_leaves_the_loop_its_turns(engine: Engine) -> None:
    engine.make(10_000)
    listener, most = Listener(), 0

    async def count_per_turn() -> None:
        nonlocal most
        before = -1
        while True:
            await asyncio.sleep(0)
            now = listener.books[T].last_seq if T in listener.books else -1
            most, before = max(most, now - before), now

    tasks = Tasks("test")
    async with feed(listener) as events:
        tasks.spawn("count", count_per_turn())
        events.subscribe(T, engine.source)
        await until(lambda: listener.caught_up(engine))
        await tasks.close()
    assert 1 <= most <= stream_reader.SLICE_PIECES


async def test_a_failing_listener_stops_nothing_for_long(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async with following(engine) as listener:
        listener.raise_once = True
        await engine.publish(2)
        await until(lambda: listener.caught_up(engine))
        assert "a bug in the listener" in caplog.text


async def test_dropped_targets_are_silent_and_leave_nothing_open(engine: Engine) -> None:
    await engine.publish(3)
    listener = Listener()
    open_files = len(os.listdir("/proc/self/fd"))
    async with feed(listener) as events:
        targets = [TargetId(f"e/{rank}") for rank in range(20)]
        for target in targets:
            events.subscribe(target, engine.source)
        await until(lambda: all(listener.caught_up(engine, target) for target in targets))
        for target in targets:
            events.subscribe(target, engine.source)  # anew, while everything runs
        events.unsubscribe(targets[0])
        events.unsubscribe(targets[0])
        for target in targets[1:]:
            events.unsubscribe(target)
        heard = dict(listener.known)
        await engine.publish(5)
        events.subscribe(T, engine.source)
        await until(lambda: len(listener.known[T]) == 8)
        assert all(listener.known[target] == heard[target] for target in targets[1:])
    await until(lambda: len(os.listdir("/proc/self/fd")) <= open_files + 1)  # uvloop opens one for itself


async def test_a_listener_may_drop_the_target_while_it_is_told(engine: Engine) -> None:
    listener = Listener()
    async with feed(listener) as events:
        connected = listener.on_connected

        def drop(target: TargetId) -> int | None:
            events.unsubscribe(target)
            return connected(target)

        listener.on_connected = drop  # type: ignore[method-assign]
        events.subscribe(T, engine.source)
        await until(lambda: listener.connects == 1)
        listener.on_connected = connected  # type: ignore[method-assign]
        events.subscribe(T, engine.source)
        await until(lambda: listener.connects == 2)
        assert engine.asked == [] or engine.asked == [0]


# what libzmq cannot do to us: a peer that speaks ZMTP by hand


class RawPeer:
    """Accepts connections, greets as a PUB, and sends what it is told."""

    def __init__(self, *frames: bytes, greeting: bytes = zmtp.GREETING) -> None:
        ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"
        self.data = greeting + bytes((4, len(ready))) + ready + b"".join(frames)
        self.received = bytearray()
        self.connections = 0
        self.endpoint = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with suppress(ConnectionError):
            writer.write(self.data)
            while data := await reader.read(65536):
                self.received += data
        writer.close()

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def raw_peer(*frames: bytes, **options: bytes) -> AsyncIterator[RawPeer]:
    peer = RawPeer(*frames, **options)
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        peer.endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield peer
        await peer.close()


def raw(content: bytes, flags: int = 0) -> bytes:
    return bytes((flags | zmtp.LONG,)) + len(content).to_bytes(8, "big") + content


ZEROS = msgspec.msgpack.encode([1.5, [0] * 200_000, 0])


@pytest.mark.parametrize(
    ("frames", "detail"),
    [
        ([bytes((zmtp.LONG,)) + (1 << 40).to_bytes(8, "big")], "bytes"),
        ([raw(bytes(zmtp.MESSAGE_BYTES // 2), zmtp.MORE)] * 2, "bytes"),
        ([raw(b"", zmtp.MORE)] * 20, "frames"),
        ([raw(b"", zmtp.MORE), raw(bytes(8), zmtp.MORE), raw(ZEROS)], "events"),
    ],
    ids=["frame", "message", "frames", "events"],
)
async def test_more_than_a_message_is_told_and_cut_off(frames: list[bytes], detail: str) -> None:
    listener = Listener()
    async with raw_peer(*frames) as peer, feed(listener) as events:
        events.subscribe(T, EventEndpoint(0, peer.endpoint, None, ""))
        await until(lambda: listener.over != [])
        assert listener.over[0].limit == "message"
        assert detail in listener.over[0].detail
        events.unsubscribe(T)


async def test_what_is_not_read_waits_in_the_engine() -> None:
    """A listener that takes nothing in: what was read and not taken stays bounded."""
    message = raw(b"", zmtp.MORE) + raw(bytes(8), zmtp.MORE) + raw(b"x" * 100_000)

    class Busy(Listener):
        def resume(self, target: TargetId) -> bool:
            return True  # for ever at the first message

    listener = Busy()
    async with raw_peer(*[message] * 200) as peer, feed(listener) as events:
        events.subscribe(T, EventEndpoint(0, peer.endpoint, None, ""))
        stream = events._streams[T]
        await until(lambda: stream._intake.held_bytes > zmtp.HIGH_WATER_BYTES)
        for _ in range(200):
            await asyncio.sleep(0)
        assert stream._intake.held_bytes < zmtp.HIGH_WATER_BYTES + 512 * 1024
        intake = stream._intake
        events.unsubscribe(T)
        assert intake.held_bytes == 0


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 200 OK\r\n\r\n", bytes(64), b"\xff" + bytes(63), zmtp.GREETING[:10] + b"\x01" + bytes(53)]
)
async def test_a_peer_that_is_none_is_tried_again(greeting: bytes) -> None:
    listener = Listener()
    async with raw_peer(greeting=greeting) as peer, feed(listener) as events:
        events.subscribe(T, EventEndpoint(0, peer.endpoint, None, ""))
        await until(lambda: peer.connections >= 2)
        assert listener.connects == 0


async def test_a_silent_peer_is_left_and_one_that_answers_is_kept(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmtp, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(zmtp, "SILENT_S", 1.0)  # longer than a busy machine keeps an answer from being read
    silent, answering = Listener(), Listener()
    async with raw_peer() as peer, feed(silent) as first, feed(answering) as second:
        second.subscribe(T, engine.source)
        first.subscribe(T, EventEndpoint(0, peer.endpoint, None, ""))
        await until(lambda: silent.connects >= 3)
        assert peer.received.count(b"\x04PING") >= 3
        assert answering.connects == 1


async def test_a_ping_is_answered_with_what_it_carries() -> None:
    listener = Listener()
    async with raw_peer(b"\x04\x0b\x04PING\0\0ctxt") as peer, feed(listener) as events:
        events.subscribe(T, EventEndpoint(0, peer.endpoint, None, "topic"))
        await until(lambda: b"\x04PONGctxt" in peer.received)
        assert b"\0\x06\x01topic" in peer.received


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "events"
    listener, peer = Listener(), RawPeer()
    async with await asyncio.start_unix_server(peer.serve, path), feed(listener) as events:
        events.subscribe(T, EventEndpoint(0, f"ipc://{path}", None, ""))
        await until(lambda: listener.connects == 1)
        events.unsubscribe(T)
        await peer.close()


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://", "tcp://h", "tcp://h:0", "tcp://h:65536", "tcp://:5", "udp://h:5", "ipc://", "h:5"]
)
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(ValueError, match="not tcp"):
        zmtp.parse_endpoint(endpoint)


def test_endpoints() -> None:
    assert zmtp.parse_endpoint("tcp://10.0.0.5:5557") == ("10.0.0.5", 5557)
    assert zmtp.parse_endpoint("tcp://[fd00::5]:5557") == ("fd00::5", 5557)
    assert zmtp.parse_endpoint("ipc:///run/e.sock") == "/run/e.sock"
    assert zmtp.parse_endpoint("ipc://@e") == "\0e"
