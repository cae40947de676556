"""Compressing closed files, and removing the oldest."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from router.features.decision_log.compression import CHUNK_BYTES, FileCompressor
from router.features.decision_log.files import OpenLogFile

KEEP_ALL = 10**12


def a_file(folder: Path, at_wall_s: float, data: bytes = b"one\n") -> Path:
    file = OpenLogFile(folder, at_wall_s)
    file.write(data)
    file.close()
    return file.path


def packed(path: Path) -> Path:
    return path.with_suffix(".jsonl.gz")


def finish(packer: FileCompressor) -> None:
    while packer.busy:
        packer.step()


def test_files_are_compressed_one_after_the_other_in_steps(tmp_path: Path) -> None:
    data = os.urandom(2 * CHUNK_BYTES) + b"\n"
    paths = [a_file(tmp_path, 0.0, data), a_file(tmp_path, 1.0)]
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    for path in paths:
        packer.add(path)
    done = [packer.step() for _ in range(6)]
    # the first has three chunks, the second one; then each is put in its place
    assert done == [False, False, False, True, False, True]
    assert not packer.busy
    assert packer.step() is False
    assert gzip.decompress(packed(paths[0]).read_bytes()) == data
    assert gzip.decompress(packed(paths[1]).read_bytes()) == b"one\n"
    assert sorted(tmp_path.iterdir()) == [packed(path) for path in paths]


def test_the_plain_file_stays_until_the_other_is_complete(tmp_path: Path) -> None:
    path = a_file(tmp_path, 0.0)
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    packer.add(path)
    packer.step()
    assert path.exists()
    assert not packed(path).exists()
    packer.stop()
    assert list(tmp_path.iterdir()) == [path]
    finish(packer)
    assert list(tmp_path.iterdir()) == [packed(path)]


def test_what_a_dead_process_left_half_done_is_done_again(tmp_path: Path) -> None:
    path = a_file(tmp_path, 0.0)
    path.with_suffix(".jsonl.gz.tmp").write_bytes(b"half")
    packed(path).write_bytes(b"renamed, and then it died")
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    packer.add(path)
    finish(packer)
    assert gzip.decompress(packed(path).read_bytes()) == b"one\n"
    assert list(tmp_path.iterdir()) == [packed(path)]


def test_a_file_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path, 0.0)
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    packer.add(file.path)
    assert packer.step() is True
    assert list(tmp_path.iterdir()) == [file.path]
    file.close()


def test_a_file_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    packer.add(tmp_path / "decisions-1.jsonl")
    assert packer.step() is True
    assert not packer.busy


def test_a_file_that_fails_waits_behind_the_others(tmp_path: Path) -> None:
    bad, good = a_file(tmp_path, 0.0), a_file(tmp_path, 1.0)
    blocked = bad.with_suffix(".jsonl.gz.tmp")
    blocked.mkdir()
    packer = FileCompressor(tmp_path, KEEP_ALL, sync=False)
    packer.add(bad)
    packer.add(good)
    with pytest.raises(OSError, match="directory"):
        packer.step()
    assert [packer.step(), packer.step()] == [False, True]
    assert packed(good).exists()
    blocked.rmdir()
    finish(packer)
    assert gzip.decompress(packed(bad).read_bytes()) == b"one\n"


def test_the_oldest_go_while_all_together_are_too_large(tmp_path: Path) -> None:
    paths = [a_file(tmp_path, at_s, os.urandom(1000)) for at_s in range(5)]
    packer = FileCompressor(tmp_path, 3500, sync=False)
    for path in paths:
        packer.add(path)
    finish(packer)
    # random bytes do not compress: 1023 bytes each, and three are the most that fit
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [1023, 1023, 1023]
    assert sorted(tmp_path.iterdir()) == [packed(path) for path in paths[2:]]


def test_the_growing_file_counts_but_stays(tmp_path: Path) -> None:
    old = a_file(tmp_path, 0.0)
    growing = OpenLogFile(tmp_path, 1.0)
    growing.write(bytes(1000))
    packer = FileCompressor(tmp_path, 500, sync=False)
    packer.add(old)
    finish(packer)
    assert list(tmp_path.iterdir()) == [growing.path]
    growing.close()


@pytest.mark.parametrize(("sync", "times"), [(True, 2), (False, 0)])
def test_forced_to_disk_before_the_plain_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool, times: int
) -> None:
    path = a_file(tmp_path, 0.0)
    here: list[bool] = []
    force = os.fsync

    def seen(handle: int) -> None:
        here.append(path.exists())
        force(handle)

    monkeypatch.setattr(os, "fsync", seen)
    packer = FileCompressor(tmp_path, KEEP_ALL, sync)
    packer.add(path)
    finish(packer)
    assert here == [True] * times  # the file, then the folder
    assert packed(path).exists()
