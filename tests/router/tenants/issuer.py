"""An identity provider: a key of its own, the key set that it publishes, and tokens that it signs."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

ISSUER, AUDIENCE = "https://issuer.test", "warmroute"


class Issuer:
    def __init__(self, key_id: str | None = "k1", **options: Any) -> None:
        self.key_id = key_id
        self.options = options  # of `JwtConfig`
        self.key = Ed25519PrivateKey.generate()

    def jwk(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(OKPAlgorithm.to_jwk(self.key.public_key()))
        return found if self.key_id is None else found | {"kid": self.key_id}

    def jwks(self, *more: dict[str, Any]) -> bytes:
        return json.dumps({"keys": [self.jwk(), *more]}).encode()

    def token(self, tenant: Any, lives_s: float = 300.0, **claims: Any) -> str:
        payload = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + lives_s, "sub": tenant} | claims
        headers = None if self.key_id is None else {"kid": self.key_id}
        kept = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(kept, self.key, algorithm="EdDSA", headers=headers)
