"""Frames on a pipe: messages come out as they went in, and a pipe that closes inside one ends them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.testbed.loadgen.job import encode_frame, read_frame


def read_all(sent: bytes) -> list[bytes]:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        found = []
        while (message := await read_frame(reader)) is not None:
            found.append(message)
        return found

    return asyncio.run(read())


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_messages_come_out_as_they_went_in(messages: list[bytes]) -> None:
    assert read_all(b"".join(map(encode_frame, messages))) == messages


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_a_message_that_breaks_off_is_none(cut: int) -> None:
    assert read_all(encode_frame(b"whole") + encode_frame(b"broken")[:cut]) == [b"whole"]
