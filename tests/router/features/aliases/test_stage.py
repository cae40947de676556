"""A request for an alias becomes one for its model: which bytes change, and which stay."""

from __future__ import annotations

import json
from typing import Any

from router.clock import ManualClock
from router.config.schema import FleetConfig
from router.config.sections.models import AliasConfig
from router.features.aliases.aliases import ModelAliases
from router.features.aliases.stage import ModelNames, NamedPrompt, name_other
from router.fleet.fleet import Fleet
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds, Unread
from router.scheduling.scheduler import Scheduler

OPTIONS = ReadOptions(want_source=False)
DROPPED = UnknownIds("dropped")
BODY = b'{ "model": "chat",  "messages": [ {"role": "user", "content": "hi"} ], "x": 1.50 }'


def read(body: bytes) -> Prompt:
    return read_prompt(Endpoint.CHAT.value, None, body, OPTIONS)


async def resolve(body: bytes, **alias: Any) -> NamedPrompt:
    scheduler = Scheduler.__new__(Scheduler)  # asked for stored responses only, of which there are none here
    aliases = {"chat": AliasConfig.model_validate({"to": "llama"} | alias)}
    names = ModelNames(ModelAliases(aliases, Fleet(FleetConfig())), scheduler, ManualClock(), "run")

    async def again(changed: bytes) -> Prompt:
        return read(changed)

    return await names.resolve(read(body), body, None, again)


async def test_a_name_that_is_no_alias_changes_nothing() -> None:
    body = BODY.replace(b"chat", b"llama")
    prompt, choice = await resolve(body)
    assert (prompt.body, prompt.model, choice) == (body, "llama", None)


async def test_only_the_model_changes_and_values_keep_their_bytes() -> None:
    prompt, choice = await resolve(BODY)
    assert prompt.model == "llama"
    assert choice is not None
    assert choice.alias == "chat"
    assert prompt.body == b'{"model":"llama","messages":[ {"role": "user", "content": "hi"} ],"x":1.50}'


async def test_an_alias_of_its_own_name_without_parameters_keeps_the_body() -> None:
    prompt, _ = await resolve(BODY, to="chat")
    assert prompt.body is BODY


async def test_defaults_and_caps_are_read_as_if_the_client_had_sent_them() -> None:
    prompt, _ = await resolve(BODY, defaults={"temperature": 0.5}, caps={"max_tokens": 32})
    sent = json.loads(prompt.body)
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("llama", 0.5, 32)
    assert prompt.output_tokens == 32


async def test_a_repeated_name_leaves_no_alias_behind() -> None:
    prompt, _ = await resolve(BODY.replace(b'"x"', b'"model":"chat","x"'))
    assert prompt.body.count(b'"model"') == 1


async def test_a_large_body_is_changed_too() -> None:
    body = BODY.replace(b"hi", b"hi " * 300_000)
    prompt, _ = await resolve(body)
    assert json.loads(prompt.body) == json.loads(body) | {"model": "llama"}


async def test_a_prompt_for_a_fallback_is_read_anew_and_keeps_what_the_router_asked_for() -> None:
    prompt, _ = await resolve(BODY.replace(b'"x"', b'"stream":true,"x"'))
    prompt.source = DROPPED  # dropped after it was tokenised
    other = name_other(prompt, "qwen")
    assert (other.model, prompt.model) == ("qwen", "llama")
    assert isinstance(other.source, Unread)
    assert other.hide_usage
    assert json.loads(other.body)["stream_options"] == {"include_usage": True}


async def test_a_form_changes_in_its_model_alone() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b"
    scheduler = Scheduler.__new__(Scheduler)
    aliases = {"chat": AliasConfig.model_validate({"to": "llama", "caps": {"max_tokens": 3}})}
    names = ModelNames(ModelAliases(aliases, Fleet(FleetConfig())), scheduler, ManualClock(), "run")

    async def again(changed: bytes) -> Prompt:
        raise AssertionError("nothing but the model changes in a form")

    read_ = read_prompt("/v1/audio/transcriptions", kind, form, OPTIONS)
    prompt, choice = await names.resolve(read_, form, None, again)
    assert choice is not None
    assert (prompt.model, prompt.body) == ("llama", form.replace(b"chat", b"llama"))
    other = await names.fall_back(prompt, choice._replace(model="qwen"))
    assert (other.model, other.body, other.source) == ("qwen", form.replace(b"chat", b"qwen"), prompt.source)
