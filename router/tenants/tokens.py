"""Verifies the signed tokens (JWT) of clients with the public keys of an identity provider.

PyJWT does the cryptography. Only algorithms with a public key are accepted: with a shared secret, anyone who can
read the published keys could sign. A verified token is remembered for a minute, since a client sends the same token
with every request and RSA takes longer than all other work of the router for a request.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from math import isfinite, nan
from typing import Any, NamedTuple

import jwt

from router.config.sections.clients import JwtConfig
from router.errors import ConfigError, NoTarget, Unauthorized, quote_name

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REMEMBERED = 10_000
REMEMBERED_S = 60.0  # tokens with a key that the provider withdrew are accepted for this long
MAX_TOKEN_BYTES = 16_384
RETRY_AFTER_S = 5
INVALID = "invalid_token"  # the code of a refusal
UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""Exceptions that PyJWT does not convert: for JSON of another form, keys without their value, infinite numbers and
deep nesting. Older versions pass more of them.
"""
MOMENTS = ("exp", "nbf", "iat")


class Claims(NamedTuple):
    tenant: str
    service_class: str | None  # None: the token names none


class _Remembered(NamedTuple):
    claims: Claims
    until_wall_s: float


class TokenVerifier:
    """Verifies tokens. `on_unknown_key` is called for a token with an unknown key, since there may be new keys."""

    def __init__(self, config: JwtConfig, on_unknown_key: Callable[[], None] = lambda: None) -> None:
        self.on_unknown_key = on_unknown_key
        self._config = config
        self._keys: dict[str | None, jwt.PyJWK] = {}  # by key id
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()  # by the token's sha256

    @property
    def ready(self) -> bool:
        """Whether there are keys."""
        return bool(self._keys)

    def set_keys(self, jwks: bytes, where: str) -> None:
        """Replace the keys by those of a JSON Web Key Set, without keys of unknown kinds. Raises `ConfigError` if
        the text is no such set or has no key for signatures; the old keys then stay in use.
        """
        try:
            found = jwt.PyJWKSet.from_json(jwks.decode()).keys
        except (AttributeError, jwt.PyJWTError, *UNREADABLE) as error:
            raise ConfigError(f"{where}: not a JSON Web Key Set: {error}") from None
        usable = {key.key_id: key for key in found if key.public_key_use in (None, "sig") and key.key_type != "oct"}
        if not usable:
            raise ConfigError(f"{where}: no public key for signatures in it")
        self._keys = usable
        self._remembered.clear()

    def verify(self, token: bytes, now_wall_s: float) -> Claims:
        """Return the claims of a token. Raises `Unauthorized`, and `NoTarget` while there are no keys yet."""
        digest = hashlib.sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None and now_wall_s < known.until_wall_s:
            return known.claims
        if not self._keys:
            raise NoTarget("the keys of the token's issuer are not known yet; try again", retry_after_s=RETRY_AFTER_S)
        payload = self._decode(token)
        config = self._config
        moments = {claim: _read_moment(payload, claim) for claim in MOMENTS if claim in payload}
        if (tenant := _read_text(payload, config.tenant_claim)) is None:
            raise Unauthorized(f"the token has no claim {config.tenant_claim!r} that names a tenant", code=INVALID)
        service_class = None
        if config.class_claim in payload and (service_class := _read_text(payload, config.class_claim)) is None:
            raise Unauthorized(f"the token's claim {config.class_claim!r} names no service class", code=INVALID)
        claims = Claims(tenant, service_class)
        self._remembered[digest] = _Remembered(claims, min(moments["exp"] + config.leeway_s, now_wall_s + REMEMBERED_S))
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return claims

    def _decode(self, token: bytes) -> dict[str, Any]:
        config = self._config
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthorized(f"the token has more than {MAX_TOKEN_BYTES:,} bytes", code=INVALID)
        try:
            key = self._find_key(jwt.get_unverified_header(token))
            payload: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, *UNREADABLE) as error:
            raise Unauthorized(f"the token is not valid: {quote_name(str(error))}", code=INVALID) from None
        return payload

    def _find_key(self, header: dict[str, Any]) -> jwt.PyJWK:
        """Return the key that a token's header names, or the only key if it names none. Raises `Unauthorized`."""
        name = header.get("kid")
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if (key := self._keys.get(name if isinstance(name, str) else None)) is None:
            self.on_unknown_key()
            raise Unauthorized("the token is signed with a key that is not known here", code=INVALID)
        return key


def _read_moment(payload: dict[str, Any], claim: str) -> float:
    """Return a claim that is a number of seconds (RFC 7519, NumericDate). Raises `Unauthorized` if it is not a
    number: PyJWT accepts what `int()` accepts, including text.
    """
    value = payload[claim]
    try:
        seconds = float(value) if type(value) in (int, float) else nan
    except OverflowError:
        seconds = nan
    if not isfinite(seconds):
        raise Unauthorized(f"the token's claim {claim!r} is not a number of seconds", code=INVALID)
    return seconds


def _read_text(payload: dict[str, Any], claim: str) -> str | None:
    value = payload.get(claim)
    return value if isinstance(value, str) and value else None
