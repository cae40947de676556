"""Signed tokens: which are taken, and why others are not."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest

from router.config.sections.clients import JwtConfig
from router.errors import ConfigError, NoTarget, Unauthorized
from router.tenants.tokens import TokenVerifier
from tests.router.tenants.issuer import AUDIENCE, ISSUER, Issuer


def verifier(issuer: Issuer | None = None, **options: Any) -> TokenVerifier:
    config = JwtConfig.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "jwks.json"} | options)
    made = TokenVerifier(config)
    if issuer is not None:
        made.set_keys(issuer.jwks(), "jwks.json")
    return made


def verify(verifier: TokenVerifier, token: str) -> tuple[str, str | None]:
    return verifier.verify(token.encode(), time.time())


def test_a_good_token_names_its_tenant() -> None:
    issuer = Issuer()
    assert verify(verifier(issuer), issuer.token("team")) == ("team", None)
    assert verify(verifier(issuer, tenant_claim="org"), issuer.token("user", org="team")) == ("team", None)
    assert verify(verifier(issuer, class_claim="plan"), issuer.token("team", plan="gold")) == ("team", "gold")
    assert verify(verifier(issuer), issuer.token("team", aud=["other", AUDIENCE])) == ("team", None)


def test_a_key_without_an_id_is_used_where_it_is_the_only_one() -> None:
    issuer = Issuer(None)
    assert verify(verifier(issuer), issuer.token("team")) == ("team", None)
    two = verifier()
    two.set_keys(Issuer("k1").jwks(Issuer("k2").jwk()), "jwks.json")
    with pytest.raises(Unauthorized, match="not known"):
        verify(two, issuer.token("team"))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"lives_s": -31.0}, "expired"),
        ({"exp": None}, "exp"),
        ({"nbf": time.time() + 3600}, "not yet valid"),
        ({"iss": "https://evil.test"}, "issuer"),
        ({"aud": "other"}, "udience"),
        ({"aud": None}, "aud"),
        ({"tenant": None}, "no claim 'sub'"),
        ({"tenant": ""}, "no claim 'sub'"),
    ],
)
def test_what_is_wrong_with_a_token_is_said(claims: dict[str, Any], why: str) -> None:
    issuer = Issuer()
    with pytest.raises(Unauthorized, match=why) as refused:
        verify(verifier(issuer), issuer.token(**({"tenant": "team"} | claims)))
    assert refused.value.code == "invalid_token"


def test_clocks_may_differ_a_little() -> None:
    issuer = Issuer()
    assert verify(verifier(issuer), issuer.token("team", lives_s=-20.0)) == ("team", None)


def test_only_the_issuers_own_key_signs() -> None:
    issuer, thief = Issuer(), Issuer()
    with pytest.raises(Unauthorized, match="not valid"):
        verify(verifier(issuer), thief.token("team"))


def test_no_token_is_taken_unsigned_or_signed_with_what_is_published() -> None:
    issuer = Issuer()
    payload = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 300, "sub": "team"}
    unsigned = jwt.encode(payload, None, algorithm="none", headers={"kid": "k1"})
    public = base64.urlsafe_b64decode(issuer.jwk()["x"] + "==")
    hmac_signed = jwt.encode(payload, public, algorithm="HS256", headers={"kid": "k1"})
    for token in (unsigned, hmac_signed, "a.b.c", "..", issuer.token("team") + "x"):
        with pytest.raises(Unauthorized):
            verify(verifier(issuer), token)
    shared = {"kty": "oct", "k": base64.urlsafe_b64encode(public).decode(), "kid": "shared"}
    both = verifier()
    both.set_keys(issuer.jwks(shared), "jwks.json")
    with pytest.raises(Unauthorized, match="not known"):
        verify(both, jwt.encode(payload, public, algorithm="HS256", headers={"kid": "shared"}))


def test_an_unknown_key_is_asked_for_and_works_once_it_is_published() -> None:
    old, new = Issuer("old"), Issuer("new")
    asked: list[bool] = []
    tokens = verifier(old)
    tokens.on_unknown_key = lambda: asked.append(True)
    with pytest.raises(Unauthorized, match="a key that is not known here"):
        verify(tokens, new.token("team"))
    assert asked == [True]
    tokens.set_keys(new.jwks(), "jwks.json")
    assert verify(tokens, new.token("team")) == ("team", None)


def test_a_withdrawn_key_counts_no_more() -> None:
    old, new = Issuer("old"), Issuer("new")
    tokens, token = verifier(old), old.token("team")
    assert verify(tokens, token) == verify(tokens, token) == ("team", None)  # the second one is remembered
    tokens.set_keys(new.jwks(), "jwks.json")
    with pytest.raises(Unauthorized):
        verify(tokens, token)


def test_a_remembered_token_ends_when_it_expires() -> None:
    issuer = Issuer()
    tokens, token = verifier(issuer, leeway_s=0.0), issuer.token("team", lives_s=2.0)
    assert tokens.verify(token.encode(), time.time()) == ("team", None)
    tokens._keys = {}  # so that only what is remembered can answer
    assert tokens.verify(token.encode(), time.time()) == ("team", None)
    with pytest.raises(NoTarget):
        tokens.verify(token.encode(), time.time() + 3.0)


def test_before_there_are_keys_a_token_is_not_wrong() -> None:
    with pytest.raises(NoTarget, match="try again"):
        verify(verifier(), Issuer().token("team"))


@pytest.mark.parametrize(
    "jwks", [b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b"\xff"]
)
def test_what_is_no_key_set_is_refused_and_the_old_one_stays(jwks: bytes) -> None:
    issuer = Issuer()
    tokens = verifier(issuer)
    with pytest.raises(ConfigError, match=r"^jwks\.json: "):
        tokens.set_keys(jwks, "jwks.json")
    assert verify(tokens, issuer.token("team")) == ("team", None)


def test_a_token_without_end_is_not_parsed() -> None:
    with pytest.raises(Unauthorized, match="more than 16,384 bytes"):
        verify(verifier(Issuer()), "a." + "b" * 17_000 + ".c")


def test_a_key_set_may_have_keys_of_unknown_kinds() -> None:
    issuer = Issuer()
    tokens = verifier()
    tokens.set_keys(json.dumps({"keys": [issuer.jwk(), {"kty": "new", "kid": "x"}]}).encode(), "jwks.json")
    assert verify(tokens, issuer.token("team")) == ("team", None)
