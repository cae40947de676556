"""What a form is read as, what an edit leaves as it was, and which forms are refused because engines might differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.form_data import MAX_PARTS, edit_fields, is_form, open_form, read_delimiter, read_text
from router.prompt.prompt import Prompt

PATH = "/v1/audio/transcriptions"
KIND = "multipart/form-data; boundary=bb"
FILE = b'form-data; name="file"; filename="a;\\"b.wav"'


def form(*parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> bytes:
    """Return a body of parts, each a disposition and what it holds."""
    return b"".join(b"--bb\r\nContent-Disposition: %b\r\n\r\n%b\r\n" % part for part in parts) + b"--bb" + end


def field(name: str, value: bytes) -> tuple[bytes, bytes]:
    return b'form-data; name="%b"' % name.encode(), value


def read(body: bytes, kind: str = KIND) -> Prompt:
    return read_prompt(PATH, kind, body, ReadOptions())


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [(KIND, True), ("Multipart/Form-Data;boundary=x", True), ("multipart/form-database", False), (None, False)],
)
def test_forms_are_told_by_their_type(kind: str | None, is_one: bool) -> None:
    assert is_form(kind) is is_one


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (KIND, b"bb"),
        ('multipart/form-data; boundary="b b:"', b"b b:"),
        ("multipart/form-data;Boundary=bb ; charset=UTF-8;", b"bb"),
    ],
)
def test_boundaries(kind: str, boundary: bytes) -> None:
    assert read_delimiter(kind) == b"\r\n--" + boundary


@pytest.mark.parametrize(
    "disposition",
    [
        b'form-data; name="model"',
        b"form-data; name=model",
        b'Form-Data;Name="model";',
        b'form-data; x="a;b"; name=model',
    ],
)
@pytest.mark.parametrize("behind", [True, False])
def test_the_model_before_or_behind_the_file(disposition: bytes, behind: bool) -> None:
    parts = [(FILE, b"\0\r\n--b\r\n\r\n"), (disposition, b"whisper")]
    body = form(*(parts if behind else reversed(parts)))
    prompt = read(body)
    assert (prompt.model, prompt.delimiter) == ("whisper", b"\r\n--bb")
    assert prompt.body is body


def test_more_headers_do_not_matter() -> None:
    headers = (
        b"Content-Type: text/plain; charset=UTF-8\r\nContent-Length: 7\r\ncontent-disposition: form-data; name=model"
    )
    assert read(b"--bb\r\n" + headers + b"\r\n\r\nwhisper\r\n--bb--").model == "whisper"


@pytest.mark.parametrize("parts", [[], [field("model", b"")], [field("Model", b"x")], [field("model[]", b"x")]])
def test_no_model(parts: list[tuple[bytes, bytes]]) -> None:
    assert read(form((FILE, b"sound"), *parts)).model is None


def test_of_a_repeated_model_the_last_one_counts_and_all_change() -> None:
    body = form(field("model", b"a"), (FILE, b"sound"), field("model", b"b"))
    assert read(body).model == "b"
    changed = edit_fields(body, open_form(body, b"\r\n--bb"), {"model": b"longer"})
    assert changed == form(field("model", b"longer"), (FILE, b"sound"), field("model", b"longer"))


@pytest.mark.parametrize("name", ["vllm_xargs", "kv_transfer_params"])
def test_fields_that_only_the_router_may_set_are_cut_out(name: str) -> None:
    bad = field(name, b'{"kv_transfer_params": 1}')
    kept = (FILE, b"sound"), field("model", b"m")
    for parts in ((bad, *kept), (kept[0], bad, kept[1]), (*kept, bad), (bad, *kept, bad)):
        prompt = read(form(*parts))
        assert (prompt.body, prompt.model) == (form(*kept), "m")


@pytest.mark.parametrize(
    "body",
    [
        form((FILE, b"sound"))[:-6],  # cut off
        form((FILE, b"sound"), end=b"?"),
        form((FILE, b"sound"), end=b" \r\n"),
        b"preamble\r\n" + form((FILE, b"sound")),
        b"\r\n" + form((FILE, b"sound")),
        form((FILE, b"sound")).replace(b"\r\n", b"\n"),
        b"--bb\r\n\r\nno header\r\n--bb--",
        b"--bb\r\nx-other: 1\r\n\r\nno name\r\n--bb--",
        b"--bb\r\nContent-Disposition: form-data;\r\n name=folded\r\n\r\nx\r\n--bb--",
        form((b"form-data; name=a", b"x"))[:8] + b"content-disposition: form-data; name=model\r\n" + b"",
        form((b"form-data; name*=utf-8''model", b"x")),
        form((b"form-data; name=a; name*=utf-8''model", b"x")),
        form((b'form-data; name="mo\\del"', b"x")),
        form((b'form-data; name="a"; name="model"', b"x")),
        form((b'form-data; name="a"; filename=two words', b"x")),
        form((b"attachment; name=model", b"x")),
        form((b'form-data; name="\xff"', b"x")),
        form((b'form-data; name="model"; filename="m"', b"a file")),
        form(field("model", b"\xff")),
        form(*[field("a", b"")] * (MAX_PARTS + 1)),
        b"--bb\r\nContent-Disposition: form-data; name=a\r\nx: " + b"y" * 9000 + b"\r\n\r\nx\r\n--bb--",
        b"{}",
    ],
)
def test_what_engines_might_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read(body)


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        KIND + "; boundary=cc",
        KIND + "; charset=utf-7",
        "multipart/form-data; boundary=",
        KIND + "; x",
    ],
)
def test_so_is_a_type_without_one_boundary(kind: str) -> None:
    with pytest.raises(BadRequest):
        read(form(field("model", b"m")), kind)


names = st.text(st.characters(codec="utf-8", exclude_characters='"\\\r\n', exclude_categories=["C"]), min_size=1)
values = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"\r\n--b", b"--bb", b"\r\n--bbx"[:5]])


@given(st.lists(st.tuples(names | st.just("model"), values, st.booleans()), max_size=5))
def test_parts_are_those_that_were_written_and_can_all_be_cut_out(parts: list[tuple[str, bytes, bool]]) -> None:
    written = [
        (b'form-data; name="%b"%b' % (name.encode(), b'; filename="f"' * is_file), value)
        for name, value, is_file in parts
        if b"\r\n--bb" not in value
    ]
    body = form(*written)
    found = open_form(body, b"\r\n--bb").fields
    assert [body[one.start : one.end] for one in found] == [value for _, value in written]
    emptied = edit_fields(body, open_form(body, b"\r\n--bb"), {one.name: None for one in found})
    assert emptied == form()


def test_a_large_file_is_neither_copied_nor_counted_as_text() -> None:
    body = form((FILE, b'"[{\\,' * 1_000_000), field("model", b"m"))
    prompt = read(body)
    assert prompt.body is body
    assert read_text(body, open_form(body, b"\r\n--bb"), "model") == "m"
