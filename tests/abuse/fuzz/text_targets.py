"""Fuzz targets that read a text or a body: configuration, client bodies, answers and pages of engines."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from router.backends.vllm import disaggregation
from router.backends.vllm.info import read_event_sources, read_models, read_tokenize
from router.backends.vllm.metrics import read_gauges
from router.config.reader import parse_experiment, parse_policies, parse_policy
from router.config.schema import Config, InstanceConfig
from router.config.validation_errors import translate_errors
from router.config.yaml_source import parse
from router.errors import MAX_COMPLAINTS, MAX_LINE_CHARS, BadRequest, ConfigError
from router.fleet.engine_limits import OverLimit
from router.prompt.api.conversation_id import read_turns
from router.prompt.api.parse import ReadOptions, read_prompt, read_request_headers
from router.prompt.prompt import Endpoint
from router.prompt.usage import HideUsage, UsageTail
from router.scheduling.policy.policy import build_policy
from tests.abuse.fuzz.pieces import split

LONGEST_ERROR = (MAX_COMPLAINTS + 1) * (MAX_LINE_CHARS + 10)
STRIPPED = frozenset({"kv_transfer_params", "vllm_xargs"})
PATHS = (*(endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.OTHER), "/v1/embeddings")
READERS = (ReadOptions(STRIPPED), ReadOptions(STRIPPED, inject_usage=False, want_source=False))


def read_configuration(data: bytes) -> None:
    """Any text is a policy, policies, an experiment, a main file and a list of engines, or a short ConfigError."""
    text = data.decode(errors="surrogateescape").encode(errors="replace").decode()
    for read in (
        lambda: build_policy("p", parse_policy(text, "p")),
        lambda: parse_policies(text),
        lambda: parse_experiment(text, ["warm"], "warm"),
        lambda: _validate(text, Config),
        lambda: _validate(text, list[InstanceConfig]),
    ):
        try:
            read()
        except ConfigError as error:
            said = str(error)
            assert said, "no reason"
            assert len(said) <= LONGEST_ERROR, len(said)
            assert all(line.isprintable() for line in said.split("\n")), said


def _validate(text: str, kind: Any) -> None:
    document = parse(text, "text")
    try:
        TypeAdapter(kind).validate_python(document.data, strict=True)
    except ValidationError as error:
        raise document.to_error(translate_errors(document.data, kind, error, MAX_COMPLAINTS)) from None


def read_body(data: bytes) -> None:
    """A body is a prompt or a BadRequest; what goes on to the engine has none of the fields that only we may set."""
    if len(data) < 2:
        return
    path, reader, body = PATHS[data[0] % len(PATHS)], READERS[data[1] % 2], data[2:]
    headers = read_request_headers({b"x-session-id": body[:20], b"x-slo-ttft-ms": body[:5]})
    try:
        prompt = read_prompt(path, "application/json", body, reader, headers)
    except BadRequest:
        return
    read_turns(prompt)
    if prompt.endpoint is not Endpoint.OTHER:
        with suppress(BadRequest):  # a key that nobody reads may not be UTF-8
            disaggregation.can_split(prompt.endpoint, prompt.body)
    with suppress(ValueError, RecursionError):  # an engine's parser may refuse it: then nothing comes of it
        seen = json.loads(prompt.body)
        assert isinstance(seen, dict), "forwarded, and not an object"
        assert not STRIPPED & seen.keys(), "a field of the router's own goes on to the engine"


def read_metrics_page(data: bytes) -> None:
    """No page raises, and what comes back is finite and not negative."""
    page = read_gauges(data)
    for rank, gauges in {}.items() if isinstance(page, OverLimit) else page.items():
        assert rank >= 0
        assert all(figure is None or figure >= 0 for figure in (gauges.running, gauges.waiting, gauges.kv_usage))


def read_engine_json(data: bytes) -> None:
    """No JSON answer of an engine raises."""
    read_models(data)
    read_event_sources(data, "10.0.0.1")
    read_tokenize(data)


def read_answer(data: bytes) -> None:
    """Usage is read from any answer; hiding it takes one event at most and changes nothing else."""
    pieces = split(data)
    whole = b"".join(pieces)
    for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES):
        tail = UsageTail(endpoint)
        for piece in pieces:
            tail.feed(piece)
        tail.read_usage()
        tail.response_id()
        tail.ended()
    hide = HideUsage()
    shown = b"".join([hide.feed(piece) for piece in pieces]) + hide.end()
    if shown != whole:
        gone = len(whole) - len(shown)
        at = next((i for i, (a, b) in enumerate(zip(shown, whole, strict=False)) if a != b), len(shown))
        starts = range(max(0, at - gone), at + 1)
        assert any(shown == whole[:s] + whole[s + gone :] and b'"usage"' in whole[s : s + gone] for s in starts)
