"""The decision log's files on disk: names, owners, and nothing written into nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.features.decision_log.files import OpenLogFile, list_compressed, list_plain

AT_S = 1_700_000_000.9  # 2023-11-14 22:13:20 UTC
NAME = "decisions-20231114T221320Z-{}.jsonl"


def test_a_file_is_named_by_its_time_and_has_at_once_what_was_written(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path / "a" / "b", AT_S)
    file.write(b"one\n")
    file.write(b"two\n")
    assert file.path == tmp_path / "a" / "b" / NAME.format("0001")
    assert file.path.read_bytes() == b"one\ntwo\n"
    assert file.bytes == 8
    file.close()


def test_files_of_the_same_second_have_numbers_also_after_compression(tmp_path: Path) -> None:
    (tmp_path / f"{NAME.format('0001')}.gz").touch()
    files = [OpenLogFile(tmp_path, AT_S) for _ in range(2)]
    assert [file.path.name for file in files] == [NAME.format("0002"), NAME.format("0003")]
    assert [path.name for path in list_plain(tmp_path)] == [NAME.format("0002"), NAME.format("0003")]
    assert [path.name for path in list_compressed(tmp_path)] == [f"{NAME.format('0001')}.gz"]
    for file in files:
        file.close()


def test_names_sort_by_time(tmp_path: Path) -> None:
    made = []
    for at_s in (AT_S, AT_S + 1, AT_S + 86_400, AT_S + 40_000_000):
        file = OpenLogFile(tmp_path, at_s)
        file.close()
        made.append(file.path)
    assert list_plain(tmp_path) == made


def test_a_file_that_others_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path, AT_S)
    file.check()
    file.path.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="No such file"):
        file.check()
    file.path.write_bytes(b"somebody else's")
    with pytest.raises(FileNotFoundError, match="was replaced"):
        file.check()
    file.discard()
    assert file.path.read_bytes() == b"somebody else's"


def test_a_discarded_file_is_gone(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path, AT_S)
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        OpenLogFile(tmp_path / "file" / "folder", AT_S)
