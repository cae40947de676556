"""Complaints name a place, whatever was written."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from router.config.schema import Config, InstanceConfig
from router.config.validation_errors import describe_unknown, translate_errors

WORDS = st.sampled_from(
    [
        "listen",
        "port",
        "tls",
        "fleet",
        "instances",
        "url",
        "kv_events",
        "rank",
        "policies",
        "scorers",
        "name",
        "x",
        "file",
    ]
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.sampled_from(["", "auto", "http://a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def leads_to_something(data: Any, path: tuple[str | int, ...]) -> bool:
    """Each step but the last is in the data."""
    for step in path[:-1]:
        if (isinstance(data, dict) and step in data) or (isinstance(data, list) and isinstance(step, int)):
            data = data[step]
        else:
            return False
    return True


def validation_error(data: Any, kind: Any) -> ValidationError | None:
    try:
        TypeAdapter(kind).validate_python(data, strict=True)
    except ValidationError as error:
        return error
    return None


@given(ANYTHING, st.sampled_from([Config, list[InstanceConfig]]))
def test_any_data_gets_complaints_that_can_be_placed(data: Any, kind: Any) -> None:
    if (error := validation_error(data, kind)) is None:
        return
    problems = translate_errors(data, kind, error)
    assert len(problems) == error.error_count()
    for problem in problems:
        assert problem.text
        assert leads_to_something(data, problem.path)


def test_the_nearest_known_name_or_all_of_them() -> None:
    assert describe_unknown("key", "prot", ["port", "host"]) == 'unknown key "prot": did you mean "port"?'
    assert describe_unknown("key", "xyz", ["port", "host"]) == 'unknown key "xyz": known here: host, port'
    assert describe_unknown("policy", "xyz", []) == 'unknown policy "xyz": known here: none'
