"""The holder of an admin token, and the policy that a holder may choose."""

from __future__ import annotations

from hashlib import sha256

import pytest

from router.config.sections.listeners import AdminTokenConfig
from router.errors import BadRequest, Forbidden
from router.request.admin_tokens import AdminTokens, read_override
from router.scheduling.policy.policy import fallback_policy

TOKENS = [
    AdminTokenConfig(name=name, hash=sha256(secret.encode()).hexdigest(), rights=["read"])
    for name, secret in (("ann", "secret-a"), ("bob", "secret-b"))
]
MAY = AdminTokenConfig(name="ann", hash=sha256(b"yes").hexdigest(), rights=["override"])
MAY_NOT = AdminTokenConfig(name="bob", hash=sha256(b"no").hexdigest(), rights=["read", "write"])
POLICIES = {"one": fallback_policy(), "two": fallback_policy()}


def test_the_holder_of_a_token_is_found() -> None:
    tokens = AdminTokens(TOKENS)
    assert [tokens.holder(given) for given in (b"secret-a", b" secret-b ")] == TOKENS
    assert [tokens.holder(given) for given in (b"", b"secret", b"secret-a2", b"\xff")] == [None] * 4


def test_an_unknown_token_has_no_holder() -> None:
    assert not AdminTokens([])
    assert AdminTokens(TOKENS)
    assert AdminTokens([]).holder(b"") is None


def asked(policy: bytes | None, token: bytes | None, tokens: tuple[AdminTokenConfig, ...] = (MAY, MAY_NOT)) -> object:
    sent = {b"x-warmroute-policy": policy, b"x-warmroute-token": token}
    fields = {name: value for name, value in sent.items() if value is not None}
    return read_override(fields, AdminTokens(tokens), POLICIES)


def test_without_the_header_there_is_no_override() -> None:
    assert asked(None, None) is None
    assert asked(None, b"wrong") is None


def test_a_holder_with_the_right_gets_the_policy() -> None:
    assert asked(b" two ", b"yes") == (POLICIES["two"], "ann")


@pytest.mark.parametrize("token", [None, b"", b"no", b"wrong"])
def test_another_token_does_not(token: bytes | None) -> None:
    with pytest.raises(Forbidden, match='needs an admin token with the right "override"'):
        asked(b"two", token)


def test_without_tokens_no_policy_can_be_chosen() -> None:
    with pytest.raises(Forbidden):
        asked(b"two", b"yes", ())


def test_a_policy_that_is_not_here_is_named_with_those_that_are() -> None:
    with pytest.raises(BadRequest, match="there is no policy `three`; policies here: one, two"):
        asked(b"three", b"yes")
