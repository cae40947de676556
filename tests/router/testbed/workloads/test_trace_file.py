"""Trace files come whole or not at all."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.errors import ConfigError, WarmrouteError
from router.testbed.workloads.trace_file import write_lines


def test_plain_and_packed(tmp_path: Path) -> None:
    lines = [b"one\n", b"two\n"]
    assert write_lines(tmp_path / "new" / "a.jsonl", lines) == 2
    assert write_lines(tmp_path / "a.jsonl.gz", lines) == 2
    assert (tmp_path / "new" / "a.jsonl").read_bytes() == b"one\ntwo\n"
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == b"one\ntwo\n"


def test_the_same_lines_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_lines(tmp_path / name, [b"one\n"])
    first, second = ((tmp_path / name).read_bytes() for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert first == second


def test_half_a_file_does_not_stay(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"one\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "a.jsonl", failing())
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.jsonl"):
        write_lines(tmp_path / "a.csv", [])
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match="--out"):
        write_lines(tmp_path / "file" / "a.jsonl", [])
