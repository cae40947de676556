"""Files back into records, whatever happened to the files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.format import LoggedPolicy, LoggedRecord
from router.features.decision_log.reader import DecisionLogError, UnreadableLine, find_files, read
from tests.router.telemetry.records import POLICY, VIEW, a_record


def content(*numbers: int) -> bytes:
    encoder = RecordEncoder(1)
    return encoder.start_file("run", "0", 0.0) + b"".join(encoder.encode_record(a_record(number)) for number in numbers)


def numbers(*paths: Path) -> list[int]:
    return [entry.number for entry in read(paths) if isinstance(entry, LoggedRecord)]


def bad(*paths: Path) -> list[str]:
    return [
        str(entry).removeprefix(f"{entry.path.parent}/") for entry in read(paths) if isinstance(entry, UnreadableLine)
    ]


def test_policies_and_records_in_their_order(tmp_path: Path) -> None:
    (path := tmp_path / "decisions-1.jsonl").write_bytes(content(4, 5))
    known, first, second = read([path])
    assert isinstance(known, LoggedPolicy)
    assert known.policy == POLICY.spec
    assert isinstance(first, LoggedRecord)
    assert isinstance(second, LoggedRecord)
    assert (first.number, second.number, first.attempts[0].view) == (4, 5, VIEW)
    assert (first.policy, first.digest) == (known.name, known.digest)


def test_a_folder_plain_and_compressed_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "decisions-2.jsonl").write_bytes(content(3))
    (tmp_path / "decisions-1.jsonl.gz").write_bytes(gzip.compress(content(1, 2)))
    (tmp_path / "decisions-3.jsonl.gz").write_bytes(gzip.compress(content(4)))
    (tmp_path / "decisions-4.jsonl.gz.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert numbers(tmp_path, tmp_path / "decisions-1.jsonl.gz") == [1, 2, 3, 4]
    assert numbers(tmp_path / "decisions-2.jsonl") == [3]


def test_files_of_two_folders_are_read_by_time(tmp_path: Path) -> None:
    for name, number in (("a/decisions-1.jsonl", 1), ("b/decisions-2.jsonl", 2), ("a/decisions-3.jsonl", 3)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content(number))
    assert numbers(tmp_path / "a", tmp_path / "b") == [1, 2, 3]


def test_a_file_that_was_compressed_but_not_yet_removed_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "decisions-1.jsonl").write_bytes(content(1, 2))
    (tmp_path / "decisions-1.jsonl.gz").write_bytes(gzip.compress(content(1, 2)))
    assert numbers(tmp_path) == [1, 2]


def test_a_file_that_is_compressed_after_it_was_found(tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"decisions-{n}.jsonl").write_bytes(content(n))
    entries = read([tmp_path])
    next(entries)
    (tmp_path / "decisions-2.jsonl").unlink()
    (tmp_path / "decisions-2.jsonl.gz").write_bytes(gzip.compress(content(2)))
    assert [entry.number for entry in entries if isinstance(entry, LoggedRecord)] == [1, 2]


def test_a_file_that_is_removed_after_it_was_found(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        (tmp_path / f"decisions-{n}.jsonl").write_bytes(content(n))
    entries = read([tmp_path])
    next(entries)
    (tmp_path / "decisions-2.jsonl").unlink()
    rest = list(entries)
    assert [entry.number for entry in rest if isinstance(entry, LoggedRecord)] == [1, 3]
    assert [str(entry) for entry in rest if isinstance(entry, UnreadableLine)] == [
        f"{tmp_path}/decisions-2.jsonl:0: cannot be opened: No such file or directory"
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_last_line_is_skipped_and_reported(tmp_path: Path, packed: bool) -> None:
    whole = content(1, 2)
    for cut in (1, 40, 500):
        torn = whole[:-cut]
        path = tmp_path / ("decisions-1.jsonl.gz" if packed else "decisions-1.jsonl")
        path.write_bytes(gzip.compress(torn) if packed else torn)
        assert numbers(path) == [1]
        (entry,) = (entry for entry in read([path]) if isinstance(entry, UnreadableLine))
        assert (entry.torn, entry.line, entry.why) == (True, 4, "the last line is not finished")


def test_a_damaged_line_is_skipped_and_reported_with_its_place(tmp_path: Path) -> None:
    lines = content(1, 2, 3).splitlines(keepends=True)  # head, policy, three records
    lines[3] = b"\x00" * 20 + b"\n"
    (path := tmp_path / "decisions-1.jsonl").write_bytes(b"".join([*lines, b'{"record": {"id": 7}}\n']))
    assert numbers(path) == [1, 3]
    malformed, missing = bad(path)
    assert malformed.startswith("decisions-1.jsonl:4: not a line of a decision log: JSON is malformed")
    assert missing.startswith("decisions-1.jsonl:6: not a line of a decision log: Expected `str`, got `int`")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (path := tmp_path / "decisions-1.jsonl").write_bytes(content(1) + b'{"policy": {"name": "\xff"}}\n')
    assert numbers(path) == [1]
    assert len(bad(path)) == 1


@pytest.mark.parametrize("damage", ["cut", "garbled", "wrong sum", "no gzip"])
def test_a_damaged_compressed_file_gives_what_it_can_and_the_next_goes_on(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(content(*range(200)))
    data = {
        "cut": whole[: len(whole) // 2],
        "garbled": whole[:10] + b"\xff" + whole[11:],  # after the head: a kind of deflate block that there is not
        "wrong sum": whole[:-8] + b"12345678",
        "no gzip": b"PK" + whole,
    }[damage]
    (tmp_path / "decisions-1.jsonl.gz").write_bytes(data)
    (tmp_path / "decisions-2.jsonl").write_bytes(content(999))
    *first, last = numbers(tmp_path)
    assert last == 999
    assert first == list(range(len(first)))
    assert any("breaks off" in why for why in bad(tmp_path))


def test_a_later_form_is_not_guessed_at(tmp_path: Path) -> None:
    (path := tmp_path / "decisions-1.jsonl").write_bytes(content(1).replace(b'"version":2', b'"version":3', 1))
    assert numbers(path) == []
    assert bad(path) == ["decisions-1.jsonl:1: written by warmroute 0 in format 3; this version reads formats 1 to 2"]


def test_the_format_before_this_one_is_read_with_its_field_names(tmp_path: Path) -> None:
    text = content(1).replace(b'"version":2', b'"version":1', 1).replace(b'"admission_ms":null', b'"door_ms":12.5', 1)
    assert b"door_ms" in text
    (tmp_path / "ledger-1.jsonl").write_bytes(text)
    (record,) = [entry for entry in read([tmp_path]) if isinstance(entry, LoggedRecord)]
    assert record.stages.admission_ms == 12.5


def strange(path: Path, fields: list[str]) -> list[str]:
    lines = content(1).splitlines(keepends=True)
    head = json.loads(lines[0])
    head["file"]["fields"]["PoolHit"] = fields
    path.write_bytes(b"".join([json.dumps(head).encode() + b"\n", *lines[1:]]))
    return bad(path)


def test_arrays_with_other_fields_are_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "decisions-1.jsonl"
    wrong = ["decisions-1.jsonl:1: written by warmroute 0, whose PoolHit has other fields: read it with that version"]
    assert strange(path, ["age_s", "tokens"]) == wrong
    assert strange(path, ["tokens", "age_s", "memory_tokens", "mood"]) == wrong
    assert strange(path, ["tokens", "age_s"]) == []  # written before there were more, which have defaults
    assert numbers(path) == [1]


def test_progress_adds_up_to_what_lies_on_disk(tmp_path: Path) -> None:
    (tmp_path / "decisions-1.jsonl.gz").write_bytes(gzip.compress(content(*range(600))))
    (tmp_path / "decisions-2.jsonl").write_bytes(content(*range(600)))
    (tmp_path / "decisions-3.jsonl").write_bytes(content(1).replace(b'"version":1', b'"version":2', 1))
    passed: list[int] = []
    for _ in read([tmp_path], passed.append):
        pass
    assert sum(passed) == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert len(passed) > 5
    assert min(passed) >= 0


def test_nothing_to_read_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        DecisionLogError, match=r"there are no decision log files \(decisions-\*.jsonl or decisions-\*.jsonl.gz\) in it"
    ):
        read([tmp_path])
    with pytest.raises(DecisionLogError, match="nowhere: there is no such file or folder"):
        find_files([tmp_path / "nowhere"])
