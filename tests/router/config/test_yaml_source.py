"""YAML with lines: what is taken, and each thing that is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from router.config.yaml_source import YamlProblem, format_path, load, parse
from router.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    file = folder / "a.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str) -> str:
    """What is said about `text`, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    return str(caught.value).replace(f"{folder / 'a.yaml'}:", "")


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("off", "off"), ("yes", "yes"), ("true", True), ("False", False), ("~", None), ("null", None), ("", None),
        ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("007", 7), ("0x1F", 31), ("0o17", 15), ("-3", -3), ("+", "+"),
        ("1e3", 1000.0), (".5", 0.5), ("-1.5e-3", -0.0015), ("1.", 1.0), (".inf", ".inf"), (".nan", ".nan"),
        ("'7'", "7"), ('""', ""), ("1_000", "1_000"), ("<<", "<<"), ("!!str 7", "7"), ("1e999", float("inf")),
    ],
)  # fmt: skip
def test_scalars_of_yaml_1_2(tmp_path: Path, scalar: str, value: Any) -> None:
    found = load(written(tmp_path, f"a: {scalar}\n")).data["a"]
    assert (found, type(found)) == (value, type(value))


def test_lines_of_keys_and_entries(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a:\n  b: 1\n\nc:\n  - x\n  - d: 2\n"))
    assert document.data == {"a": {"b": 1}, "c": ["x", {"d": 2}]}
    paths = [(), ("a",), ("a", "b"), ("c",), ("c", 0), ("c", 1), ("c", 1, "d")]
    assert {format_path(path): document.line(path) for path in paths} == {
        "": 1, "a": 1, "a.b": 2, "c": 4, "c[0]": 5, "c[1]": 6, "c[1].d": 6,
    }  # fmt: skip


def test_a_missing_key_is_placed_where_it_would_stand(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a:\n  b: 1\nc:\n  d: {}\n"))
    assert document.line(("c", "d", "e", "f")) == 4
    assert document.line(("zz",)) == 1


def test_refusals_are_sorted_by_line_and_not_repeated(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: 1\nb: 2\n"))
    wrong = YamlProblem(("b",), "wrong")
    error = document.to_error([wrong, YamlProblem(("a",), "bad"), wrong])
    assert str(error) == f"{document.name}:1: a: bad\n{document.name}:2: b: wrong"


def test_an_alias_is_what_it_names(tmp_path: Path) -> None:
    assert load(written(tmp_path, "a: &x [1]\nb: *x\n")).data == {"a": [1], "b": [1]}


def test_a_key_given_twice(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a:\n  b: 1\n  c: 2\n  b: 3\n") == "4: a.b: given twice, first on line 2: remove one"


def test_a_key_that_is_not_text(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a:\n  7: x\n") == "2: a: the key 7 is not text: write it in quotes"
    assert "that is a list or has keys of its own is not text" in refusal(tmp_path, "? [a]\n: 1\n")


def test_an_empty_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, "") == refusal(tmp_path, "# only a comment\n") == "1: the file is empty"


def test_broken_syntax_with_its_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: 1\nb: [1\nc: 2\n").startswith("3: not YAML: ")
    assert refusal(tmp_path, "a:\n\t- 1\n").startswith("2: not YAML: found character '\\t'")
    assert refusal(tmp_path, "a: *nobody\n").startswith("1: not YAML: found undefined alias 'nobody'")
    assert refusal(tmp_path, "a: 1\n---\nb: 2\n").startswith("2: not YAML: found another document")
    assert refusal(tmp_path, "a: \x00\n").startswith("1: not YAML: unacceptable character")


def test_tags_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: !secret x\n") == "1: a: the YAML tag !secret is not supported"
    assert "is not supported" in refusal(tmp_path, "a: !!python/name:os.system x\n")
    assert refusal(tmp_path, "a: !!int seven\n") == "1: not YAML: seven is not of kind int (column 4)"


def test_an_alias_of_an_alias(tmp_path: Path) -> None:
    """No bomb can be built without them, and nothing that contains itself."""
    assert refusal(tmp_path, "a: &x\n  - *x\n") == "2: a[0]: an alias inside a node that has an anchor"
    assert refusal(tmp_path, "a: &x [1]\nb: &y [*x]\n") == "2: b[0]: an alias inside a node that has an anchor"
    assert load(written(tmp_path, "a: &x [1]\nb: {c: *x, d: &y 2, e: *y}\n")).data["b"] == {"c": [1], "d": 2, "e": 2}


def test_what_an_alias_stands_for_is_counted_and_not_copied(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: &x [1, 2]\nb: [*x, *x]\nc:\n- *x\n"))
    assert document.data["b"][0] is document.data["a"]
    assert (document.line(("b", 1, 0)), document.line(("c", 0, 1)), document.line(("c", 0))) == (1, 1, 4)
    one = "[" + "x, " * 98 + "x]"
    hundred = "[" + "*x, " * 99 + "*x]"
    assert len(load(written(tmp_path, f"a: &x {one}\nb: {hundred[:-9]}]\n")).data["b"]) == 98
    assert refusal(tmp_path, f"a: &x {one}\nb: {hundred}\n").startswith("2: not YAML: more than 10,000 values in all")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file; correct the path"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="found a folder, wanted a file"):
        load(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"no UTF-8 text \(at byte 3\)"):
        load(tmp_path / "b.yaml")


# texts that were sent


def test_a_text_is_called_what_it_is_told() -> None:
    document = parse("a: 1\nb: {c: 2}\n", "policy mine")
    assert (document.name, document.folder, document.data) == ("policy mine", None, {"a": 1, "b": {"c": 2}})
    assert str(document.to_error([YamlProblem(("b", "c"), "bad")])) == "policy mine:2: b.c: bad"
    with pytest.raises(ConfigError, match=r"^policy mine:1: the text is empty$"):
        parse("# nothing\n", "policy mine")


def test_json_is_read_with_all_its_characters() -> None:
    given = {"name": "a\u00e9\u4e2d\U0001f600/\t", "n": 1.5, "none": None}
    assert parse(json.dumps(given), "x").data == given
    assert parse(json.dumps(given, ensure_ascii=False), "x").data == given


def test_half_a_character_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^x:1: not YAML: .* is not of kind str \(column 4\)$"):
        parse('a: "\\ud83d"', "x")
    with pytest.raises(ConfigError, match="is not of kind str"):
        parse('"\\ud83d": a', "x")


def test_texts_that_would_take_for_ever() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]  # 10^9 values in 600 bytes
    with pytest.raises(ConfigError, match=r"^x:2: a1\[0\]: an alias inside a node that has an anchor"):
        parse("\n".join(layers), "x")
    with pytest.raises(ConfigError, match=r"^x:1: not YAML: nested more than 32 deep"):
        parse("[" * 5000, "x")
    with pytest.raises(ConfigError, match=r"^x:1: not YAML: nested more than 32 deep"):
        parse("? " * 500, "x")
    with pytest.raises(ConfigError, match=r"^x:1: not YAML: more than 10,000 values in all"):
        parse("[" + "x," * 10_001, "x")


def test_numbers_that_are_none() -> None:
    for text in ('a: "\\UFFFFFFFF"', "%YAML 1." + "9" * 5000 + "\n--- a", "a: !!int " + "9" * 5000):
        with pytest.raises(ConfigError, match=r"^x:1: not YAML: "):
            parse(text, "x")


def test_complaints_are_short() -> None:
    long = "x" * 100_000
    for text in (f"a: !{long} b", f"a: *{long}", f"{long}: 1\n{long}: 2", f"? [{long}]\n: 1", f"a: !!int {long}"):
        with pytest.raises(ConfigError) as caught:
            parse(text, "x")
        assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError) as caught:
        parse("".join("7: x\n" for _ in range(1000)), "x")
    assert str(caught.value).splitlines()[-1] == "and 980 more"


# files


def test_only_so_much_of_a_regular_file_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(ConfigError, match=r"large\.yaml: is larger than 2,097,152 bytes$"):
        load(large)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.yaml: cannot be read: is not a regular file$"):
        load(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="is not a regular file"):
        load(Path("/dev/zero"))
