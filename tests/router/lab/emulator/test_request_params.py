"""Token ids that a chat carries, read as vLLM 0.32 reads them; examples of a JSON Schema."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from router.errors import BadRequest
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.emulator.request_params import IDS_PARAMETER, make_example, read_prompt_token_ids
from tests.fakes.engines import engine

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "one two three four"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "where": {"anyOf": [{"type": "object", "properties": {"city": {"type": "string"}}}, {"type": "null"}]},
        "kind": {"const": "person"},
        "weight": {"type": "number"},
        "tall": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "where", "kind", "weight", "tall"],
    "additionalProperties": False,
}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]


def read(
    ids: Any = (1, 2), version: str = "0.32.0", faults: EngineFaults | None = None, **fields: Any
) -> list[int] | None:
    given = list(ids) if isinstance(ids, tuple) else ids
    body = {"messages": MESSAGES, "kv_transfer_params": {"prompt_token_ids": given}} | fields
    return read_prompt_token_ids(EngineOptions(version=version), faults or EngineFaults(), body)


@pytest.mark.parametrize(
    ("version", "taken"), [("0.31.4", None), ("0.32.0", [1, 2]), ("0.100.0", [1, 2]), ("1.0.0", [1, 2])]
)
def test_since_0_32(version: str, taken: list[int] | None) -> None:
    assert read(version=version) == taken


@pytest.mark.parametrize("fields", [{"echo": True}, {"messages": IMAGE}])
def test_what_must_be_rendered_is_rendered_whatever_the_ids(fields: dict[str, Any]) -> None:
    assert read([], **fields) is None


@pytest.mark.parametrize("params", [None, {}, {"prompt_token_ids": None}, {"do_remote_decode": True}, "x"])
def test_none_given(params: object) -> None:
    assert (
        read_prompt_token_ids(EngineOptions(), EngineFaults(), {"messages": MESSAGES, "kv_transfer_params": params})
        is None
    )


@pytest.mark.parametrize("ids", [[], ["1"], [1, True], [-1], [1.0], {"1": 2}])
def test_what_is_no_list_of_ids_is_refused_by_the_parameter_s_name(ids: object) -> None:
    with pytest.raises(BadRequest) as refused:
        read(ids)
    assert (refused.value.param, IDS_PARAMETER in refused.value.message) == (IDS_PARAMETER, True)


def test_faults() -> None:
    assert read(faults=EngineFaults(ignore_ids=True)) is None
    with pytest.raises(BadRequest, match="out of vocabulary"):
        read(faults=EngineFaults(refuse_ids=True))


async def test_the_engine_counts_them_and_finds_them_in_its_cache() -> None:
    ids = list(range(300, 340))
    body = {
        "model": "warm-tiny",
        "messages": MESSAGES,
        "max_tokens": 1,
        "kv_transfer_params": {"prompt_token_ids": ids},
    }
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url) as http:
        answers = [(await http.post(CHAT, json=body)).raise_for_status().json()["usage"] for _ in range(2)]
        assert [answer["prompt_tokens"] for answer in answers] == [40, 40]
        assert answers[1]["prompt_tokens_details"]["cached_tokens"] == 32
        fake.faults(ignore_ids=True)
        rendered = (await http.post(CHAT, json=body)).json()["usage"]["prompt_tokens"]
        assert rendered == (await http.post("/tokenize", json={"messages": MESSAGES})).json()["count"] != 40


async def test_an_engine_may_name_no_ids() -> None:
    body = {"model": "warm-tiny", "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url) as http:
        named = []
        for no_ids in (False, True):
            fake.faults(no_ids=no_ids)
            answer = (await http.post(CHAT, json=body)).raise_for_status().json()
            named.append([bool(answer["prompt_token_ids"]), bool(answer["choices"][0]["token_ids"])])
        assert named == [[True, True], [False, False]]


async def test_the_version_is_reported() -> None:
    async with engine(version="0.31.2") as fake, httpx.AsyncClient(base_url=fake.url) as http:
        assert (await http.get("/version")).json() == {"version": "0.31.2"}


@pytest.mark.parametrize("schema", [PERSON, {}, {"type": "string"}, {"type": "array"}, {"type": "null"}])
def test_fits_its_schema(schema: dict[str, Any]) -> None:
    jsonschema.validate(make_example(schema), schema)


def test_a_schema_that_contains_itself_ends() -> None:
    endless: dict[str, Any] = {"type": "object", "properties": {}}
    endless["properties"]["child"] = endless
    assert str(make_example(endless)).count("child") == 8
