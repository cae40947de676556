"""vLLM's side of a prefill/decode pair: which requests can be split, and the bodies of both halves.

    mooncake   both halves at once, tied by a `transfer_id`; the decode engine finds the prefill engine through the
               latter's bootstrap server and engine id (`read_engine_ids`)
    nixl       the prefill half's answer names the location of the KV (`read_kv_params`), which the decode half
               carries unchanged

The decode body is the client's, byte for byte, with `kv_transfer_params` appended. The prefill body requests one
token and nothing else, and must end by length: after an early stop a Mooncake producer may drop the KV, for which
the decode engine would then wait minutes. Pure. Source: vLLM 0.32, protocol 7.1, 7.2, 11.30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from router.errors import BadRequest
from router.fleet.engine_limits import MAX_RANKS, NAME_CHARS
from router.prompt.body_rewrite import open_body
from router.prompt.prompt import Endpoint

PARAMS = "kv_transfer_params"
LEASE_S = 30.0
"""How long a Nixl producer retains KV that no decode engine fetched (`kv_lease_duration`)."""

NIXL_PREFILL = msgspec.json.encode(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)

_ONE, _TRUE, _FALSE = Raw(b"1"), Raw(b"true"), Raw(b"false")
_NO = frozenset((b"null", b"false", b"0"))
_DROPPED = frozenset(("stream_options", "return_token_ids", "min_tokens", "stop", "stop_token_ids", "stop_sequences"))
_ENDLESS = {"ignore_eos": _TRUE}
_SET: dict[Endpoint, dict[str, Raw]] = {
    Endpoint.CHAT: {"max_tokens": _ONE, **_ENDLESS},
    Endpoint.COMPLETIONS: {"max_tokens": _ONE, **_ENDLESS},
    Endpoint.RESPONSES: {"max_output_tokens": _ONE, "store": _FALSE, **_ENDLESS},
    Endpoint.MESSAGES: {"max_tokens": _ONE},  # has no `ignore_eos`: see `ended_by_length`
}
_WHOLE_IF = ("use_beam_search", "echo", "background", "previous_response_id", "prompt_embeds", PARAMS)
_WHOLE_IF_GIVEN = ("prompt_logprobs", "prompt_logprob_token_ids")  # such a request reads no cache; 0 counts too
_SEQUENCES = ("n", "best_of")


class _Tool(msgspec.Struct):
    type: str = "function"


_TOOLS: msgspec.json.Decoder[list[_Tool] | None] = msgspec.json.Decoder(list[_Tool] | None)


class MooncakeParams(NamedTuple):
    """`kv_transfer_params` of the two halves, as JSON."""

    prefill: bytes
    decode: bytes


def can_split(endpoint: Endpoint, body: bytes) -> bool:
    """Return whether one KV transfer serves the whole request.

    The transfer is for one engine request: several prompts or sequences, beams, and the rounds of a server-side
    tool would request the KV again and wait for KV that has already been handed over. A body that cannot be parsed
    is not split either.
    """
    if endpoint not in _SET:
        return False
    try:
        members = open_body(body, ()).members
    except BadRequest:
        return False
    return (
        not any(_value_start(members, name) not in _NO for name in _WHOLE_IF)
        and not any(_value_start(members, name) != b"null" for name in _WHOLE_IF_GIVEN)
        and all(_value_start(members, name) in (b"null", b"1") for name in _SEQUENCES)
        and not (endpoint is Endpoint.COMPLETIONS and _many_prompts(_value_start(members, "prompt")))
        and not (endpoint is Endpoint.RESPONSES and _server_tools(members.get("tools")))
    )


def mooncake_params(transfer_id: str, bootstrap_url: str, engine_id: str) -> MooncakeParams:
    """Return both halves' parameters. `engine_id`: that of the prefill target's rank; `transfer_id`: never
    reused.
    """
    prefill = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    decode = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": bootstrap_url,
        "remote_engine_id": engine_id,
        "transfer_id": transfer_id,
    }
    return MooncakeParams(msgspec.json.encode(prefill), msgspec.json.encode(decode))


def prefill_body(endpoint: Endpoint, body: bytes, params: bytes) -> bytes:
    """Return the client's request, changed so that it only computes the prompt."""
    members = open_body(body, _DROPPED).members
    members |= {"stream": _FALSE, **_SET[endpoint], PARAMS: Raw(params)}
    if "max_completion_tokens" in members:  # it takes precedence over `max_tokens`
        members["max_completion_tokens"] = _ONE
    return msgspec.json.encode(members)


def decode_body(body: bytes, params: bytes) -> bytes:
    """Return the client's request with `params` before its closing brace."""
    view, end = memoryview(body), body.rindex(b"}")
    return b"".join((view[:end], b',"kv_transfer_params":', params, b"}"))  # one copy: large bodies are costly


def read_kv_params(answer: bytes) -> bytes | None:
    """Return the decode half's parameters from a Nixl prefill half's answer, verbatim; None if there are none."""
    params = _field(answer, PARAMS)
    return None if params is None or bytes(params) in (b"null", b"{}") else bytes(params)


def ended_by_length(endpoint: Endpoint, answer: bytes) -> bool:
    """Return whether the prefill half ended by length. Only `/v1/messages` may begin with an end of text
    instead.
    """
    return endpoint is not Endpoint.MESSAGES or _field(answer, "stop_reason") == Raw(b'"max_tokens"')


def read_engine_ids(answer: bytes) -> dict[int, str] | None:
    """Parse a Mooncake bootstrap server's `GET /query`: engine ids by data-parallel rank; None if the answer is
    unreadable or has more ranks than an instance may have.
    """
    try:
        ranks = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(ranks, dict) or len(ranks) > MAX_RANKS:
        return None
    entries = [(rank, entry.get("engine_id")) for rank, entry in ranks.items() if isinstance(entry, dict)]
    named = [(rank, id) for rank, id in entries if isinstance(id, str) and 0 < len(id) <= NAME_CHARS]
    return {int(rank): id for rank, id in named if rank.isdecimal() and len(rank) < 10}


def _value_start(members: Mapping[str, Raw], name: str) -> bytes:
    """Return the first bytes of a field's value; a missing field reads like null."""
    return bytes(memoryview(members[name])[:16]) if name in members else b"null"


def _many_prompts(prompt: bytes) -> bool:
    """Return whether the prompt is a list of texts or of lists of token ids, even with one entry."""
    return prompt.startswith(b"[") and prompt[1:].lstrip()[:1] in (b'"', b"[", b"")


def _server_tools(tools: Raw | None) -> bool:
    """Return whether the engine itself would call a tool and continue to generate."""
    try:
        kinds = [tool.type for tool in _TOOLS.decode(tools) or ()] if tools is not None else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return any(kind != "function" for kind in kinds)


def _field(answer: bytes, name: str) -> Raw | None:
    try:
        return msgspec.json.decode(answer, type=dict[str, Raw]).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
