"""Who holds an admin token."""

from __future__ import annotations

from hashlib import sha256

from router.config.sections.listeners import AdminTokenConfig
from router.request.admin_tokens import AdminTokens

TOKENS = [
    AdminTokenConfig(name=name, hash=sha256(secret.encode()).hexdigest(), rights=["read"])
    for name, secret in (("ann", "secret-a"), ("bob", "secret-b"))
]


def test_the_holder_of_a_token_is_found() -> None:
    tokens = AdminTokens(TOKENS)
    assert [tokens.holder(given) for given in (b"secret-a", b" secret-b ")] == TOKENS
    assert [tokens.holder(given) for given in (b"", b"secret", b"secret-a2", b"\xff")] == [None] * 4


def test_an_unknown_token_has_no_holder() -> None:
    assert not AdminTokens([])
    assert AdminTokens(TOKENS)
    assert AdminTokens([]).holder(b"") is None
