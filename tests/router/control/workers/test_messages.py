"""Messages between supervisor and workers: to bytes and back, however the bytes are cut."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.whole_router import whole_config
from router.config.schema import Config
from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    FrameReader,
    JoinHosts,
    LivingWorker,
    Members,
    OpenListeners,
    StartWorker,
    StopWorker,
    WorkerBuilt,
    WorkerFailed,
    WorkerMessage,
    WorkerReady,
    WorkerStarted,
    WorkerStopping,
    WorkerUp,
    encode_messages,
)


def test_a_worker_gets_the_configuration_as_it_was_given(tmp_path: Path) -> None:
    """With all defaults written out: a key that may only be set beside another one may have its default alone."""
    config = whole_config(tmp_path)
    assert Config.model_validate_json(config.model_dump_json()) == config


MESSAGES: list[WorkerMessage] = [
    StartWorker(1, "{}", None, False, (1 << 64) - 1, "host", "@name", b"\x00\xff", True, False, True),
    Members([LivingWorker(0, "run0", 17, True), LivingWorker(1, "run1", 18, False)], 0, True),
    OpenListeners(),
    JoinHosts(),
    StopWorker(1.0),
    WorkerBuilt("run1", 18),
    WorkerFailed("admin.port: taken"),
    WorkerStarted(),
    WorkerReady(),
    WorkerUp(),
    WorkerStopping(),
    AskMessage(0, "scrape", "openmetrics"),
    AnswerMessage(0, b"[]"),
]


@given(st.lists(st.lists(st.sampled_from(MESSAGES))), st.lists(st.integers(1, 40), min_size=1))
def test_messages_arrive_in_order_wherever_the_bytes_are_cut(
    frames: list[list[WorkerMessage]], cuts: list[int]
) -> None:
    data = b"".join(encode_messages(messages) for messages in frames)
    received, reader, at, turn = [], FrameReader(), 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        received += list(reader.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    assert received == [message for messages in frames for message in messages]


@pytest.mark.parametrize("body", [b"\x91\xa4What", b"\x91\x91\xa4What", b"\xc0", b"\x91\x92\xaaStopWorker\xa11"])
def test_an_unknown_message_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(FrameReader().feed(len(body).to_bytes(4) + body))
