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


def signed(issuer: Issuer, payload: bytes, **header: Any) -> str:
    """Return a token with a payload that `Issuer.token` would not write: JSON of any kind, or none."""
    return jwt.PyJWS().encode(payload, issuer.key, algorithm="EdDSA", headers={"kid": "k1"} | header)


GOOD = {"iss": ISSUER, "aud": AUDIENCE, "exp": 4_000_000_000, "sub": "team"}
NO_MOMENTS = [
    '"4000000000"', '"soon"', '""', "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, "1e999", "-1e999", "NaN",
    "Infinity", "-Infinity", "true", "false", "[4000000000]", "{}", "null",
]  # fmt: skip


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", NO_MOMENTS)
def test_a_moment_is_a_number_of_seconds(claim: str, value: str) -> None:
    """RFC 7519, NumericDate: whatever else is there is no token that can be judged, and none is a fault of ours."""
    issuer = Issuer()
    payload = json.dumps(GOOD | {claim: "HERE"}).replace('"HERE"', value)
    with pytest.raises(Unauthorized) as refused:
        verify(verifier(issuer), signed(issuer, payload.encode()))
    assert refused.value.code == "invalid_token"


@pytest.mark.parametrize("moments", [{"exp": 4e9}, {"exp": 1e308}, {"exp": 2**63}, {"nbf": -1, "iat": 0.5}])
def test_every_number_of_seconds_is_a_moment(moments: dict[str, float]) -> None:
    issuer = Issuer()
    tokens, token = verifier(issuer), signed(issuer, json.dumps(GOOD | moments).encode())
    assert verify(tokens, token) == verify(tokens, token) == ("team", None)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"null", b"7", b"[]", b'"team"', b"\xff", b"{" * 5000, b"[" * 5000, b'{"a":' * 2000 + b"1" + b"}" * 2000,
        *(
            json.dumps(GOOD | changed).encode()
            for changed in (
                {"aud": [AUDIENCE, 7]}, {"aud": [[AUDIENCE]]}, {"aud": 7}, {"aud": {}}, {"aud": {AUDIENCE: 1}},
                {"iss": 7}, {"iss": [ISSUER]}, {"iss": {}}, {"sub": 7}, {"sub": ["team"]}, {"sub": {}}, {"sub": True},
            )
        ),
        json.dumps(GOOD).encode().replace(b"}", b', "exp": 1}'),  # of equal names the last one counts
    ],
)  # fmt: skip
def test_a_payload_of_another_form_is_refused(payload: bytes) -> None:
    issuer = Issuer()
    with pytest.raises(Unauthorized):
        verify(verifier(issuer), signed(issuer, payload))


@pytest.mark.parametrize(
    "header",
    [
        b"", b"[]", b"7", b"null", b"\xff", b"[" * 9000, b'{"a":' * 1500, b'{"alg":"EdDSA"}', b'{"kid":"k1"}',
        b'{"alg":["EdDSA"],"kid":"k1"}', b'{"alg":{},"kid":"k1"}', b'{"alg":null,"kid":"k1"}', b'{"alg":7,"kid":"k1"}',
        b'{"alg":"EdDSA","kid":7}', b'{"alg":"EdDSA","kid":["k1"]}', b'{"alg":"EdDSA","kid":{}}',
        b'{"alg":"EdDSA","kid":"' + b"k" * 9000 + b'"}', b'{"alg":"EdDSA","kid":' + b"9" * 5000 + b"}",
        b'{"alg":"EdDSA","kid":"k1","crit":7}', b'{"alg":"EdDSA","kid":"k1","b64":false,"crit":["b64"]}',
        b'{"alg":"EdDSA","kid":"\\ud800"}',
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    """Anybody can write one: it is read before the signature."""
    two = verifier()
    two.set_keys(Issuer("k1").jwks(Issuer("k2").jwk()), "jwks.json")
    segments = (base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, b"{}", b"sig"))
    with pytest.raises(Unauthorized):
        verify(two, ".".join(segments))


@pytest.mark.parametrize("plan", [["gold"], {"gold": 1}, 7, 0, True, False, None, "", "\ud800"])
def test_a_class_that_is_no_name_is_not_the_default_class(plan: object) -> None:
    issuer = Issuer()
    payload = json.dumps(GOOD | {"plan": plan}).encode()
    if plan == "\ud800":  # a name, which the directory does not know
        assert verify(verifier(issuer, class_claim="plan"), signed(issuer, payload)) == ("team", plan)
        return
    with pytest.raises(Unauthorized, match="'plan'") as refused:
        verify(verifier(issuer, class_claim="plan"), signed(issuer, payload))
    assert refused.value.code == "invalid_token"
    assert verify(verifier(issuer), signed(issuer, payload)) == ("team", None), "where the claim means nothing"


def test_a_token_without_the_class_claim_has_the_class_of_its_tenant() -> None:
    issuer = Issuer()
    assert verify(verifier(issuer, class_claim="plan"), issuer.token("team")) == ("team", None)


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
    "jwks",
    [
        b"", b"[]", b"{}", b"null", b'{"keys": []}', b'{"keys": 7}', b'{"keys": [7]}', b'{"keys": {"a": 1}}', b"\xff",
        b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b'{"keys": [{"kty": "oct"}]}',
        b"[" * 100_000, b'{"keys": ' * 20_000, b"9" * 5000,
        b'{"keys": [{"kty": ["OKP"]}]}', b'{"keys": [{"kty": "RSA", "n": 7, "e": 7}]}',
        b'{"keys": [{"kty": "OKP", "crv": [], "x": 7}]}', b'{"keys": [{"kty": "EC", "crv": {}, "x": 7, "y": 8}]}',
    ],
)  # fmt: skip
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
