"""Admin tokens: finds the holder of a token, in a time that says nothing about any token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from router.config.sections.listeners import AdminTokenConfig


class AdminTokens:
    def __init__(self, tokens: Sequence[AdminTokenConfig]) -> None:
        self._digests = [(token, bytes.fromhex(token.hash)) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holder(self, token: bytes) -> AdminTokenConfig | None:
        """Return the entry of `token`; `None` when it is unknown."""
        digest = hashlib.sha256(token.strip()).digest()
        # All are compared, in constant time each: how long it takes says nothing about any of them.
        found = [entry for entry, expected in self._digests if hmac.compare_digest(digest, expected)]
        return found[0] if found else None
