"""Fuzz targets for what proves who a client is: tokens in headers, the keys of their issuer, and the keys file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from router.config.reader import parse_client_keys
from router.config.sections.clients import ClientsConfig, JwtConfig, is_client_name
from router.errors import ConfigError, NoTarget, Unauthorized
from router.tenants.directory import TenantDirectory
from router.tenants.tokens import TokenVerifier

NOW_S = 1_800_000_000.0
ISSUER = "https://issuer.test"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY_SET = json.dumps({"keys": [json.loads(OKPAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k1"}]}).encode()
SIGNED, HEADER, VALUE = 0, 1, 2


def token_target() -> Callable[[bytes], None]:
    """Return the target for headers with a token: only a signed payload may name a tenant.

    The first byte decides what follows: a payload that the issuer signed, a token's header, or a whole value.
    """
    config = JwtConfig(issuer=ISSUER, audience="warmroute", jwks_file="jwks.json", class_claim="plan")
    verifier = TokenVerifier(config)
    verifier.set_keys(KEY_SET, "jwks.json")
    directory = TenantDirectory(ClientsConfig(jwt=config), verifier)

    def target(data: bytes) -> None:
        kind, rest = data[0] % 3 if data else VALUE, data[1:]
        value = b"Bearer " + _make_token(kind, rest) if kind != VALUE else rest
        try:
            tenant = directory.identify({b"authorization": value}, trusted=False, now_wall_s=NOW_S)
        except Unauthorized:
            return
        assert kind == SIGNED, "a token that the issuer has not signed"
        assert is_client_name(tenant.name)

    return target


def _make_token(kind: int, data: bytes) -> bytes:
    if kind == SIGNED:
        return jwt.PyJWS().encode(data, KEY, algorithm="EdDSA", headers={"kid": "k1"}).encode()
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (data, b'{"sub":"team"}', bytes(64)))


def read_keys(data: bytes) -> None:
    """Any bytes are the keys of an issuer (first byte even) or of clients (odd), or a ConfigError."""
    read: Callable[[bytes, str], Any] = parse_client_keys
    if not data or data[0] % 2 == 0:
        verifier = TokenVerifier(JwtConfig(issuer=ISSUER, audience="warmroute", jwks_file="jwks.json"))
        read = verifier.set_keys
    try:
        named = read(data[1:], "file")
    except ConfigError:
        return
    if named is None:
        _try_keys(verifier)
    else:
        assert all(len(key) == 64 and is_client_name(name) for key, name in named.items())


def _try_keys(verifier: TokenVerifier) -> None:
    """Verify a token with whatever keys there are: it is signed with none of them."""
    assert verifier.ready
    token = jwt.encode({"sub": "team"}, KEY, algorithm="EdDSA", headers={"kid": "k1"})
    try:
        verifier.verify(token.encode(), NOW_S)
    except (Unauthorized, NoTarget):
        return
    raise AssertionError("a token without `exp` is valid")
