"""Admin tokens: who holds one, told from what was given, without telling anything by the time it takes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from router.config.sections.listeners import AdminTokenConfig


class AdminTokens:
    def __init__(self, tokens: Sequence[AdminTokenConfig]) -> None:
        self._known = [(token, bytes.fromhex(token.hash)) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._known)

    def holder(self, given: bytes) -> AdminTokenConfig | None:
        """The entry of a token; None: nobody's."""
        digest = hashlib.sha256(given.strip()).digest()
        # All are compared, in constant time each: how long it takes says nothing about any of them.
        found = [token for token, known in self._known if hmac.compare_digest(digest, known)]
        return found[0] if found else None
