"""Admin tokens: finds the holder of a token, and the policy that a holder may choose for one request.

    X-Warmroute-Policy: NAME          X-Warmroute-Token: an admin token with the right `override`

Neither header reaches an engine (`proxy/headers.py`). The time of a check reveals nothing about any token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from router.config.sections.listeners import AdminTokenConfig
from router.errors import BadRequest, Forbidden, list_names, quote_name
from router.scheduling.policy.policy import Policy

POLICY: Final = b"x-warmroute-policy"
TOKEN: Final = b"x-warmroute-token"


class AdminTokens:
    def __init__(self, tokens: Sequence[AdminTokenConfig]) -> None:
        self._digests = [(token, bytes.fromhex(token.hash)) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holder(self, token: bytes) -> AdminTokenConfig | None:
        """Return the entry of `token`; None if the token is unknown."""
        digest = hashlib.sha256(token.strip()).digest()
        # All entries are compared, each in constant time, so the time reveals nothing about any of them.
        found = [entry for entry, expected in self._digests if hmac.compare_digest(digest, expected)]
        return found[0] if found else None


class PolicyOverride(NamedTuple):
    """A policy that the client selects by header, whichever policy is active."""

    policy: Policy
    by: str  # name of the admin token


def read_override(
    fields: Mapping[bytes, bytes], admin_tokens: AdminTokens, policies: Mapping[str, Policy]
) -> PolicyOverride | None:
    """Return the policy that a request selects; None if it selects none. `fields` are the request's headers, with
    names in lower case.

    Raises `Forbidden` without a token that has the right, and `BadRequest` for an unknown policy.
    """
    if POLICY not in fields:
        return None
    value = fields[POLICY]
    holder = admin_tokens.holder(fields.get(TOKEN, b""))
    if holder is None or "override" not in holder.rights:
        raise Forbidden(
            f'choosing a policy by {POLICY.decode()} needs an admin token with the right "override" in '
            f"{TOKEN.decode()}",
            code="missing_right",
        )
    if (policy := policies.get(name := value.decode("latin-1").strip())) is None:
        raise BadRequest(
            f"there is no policy `{quote_name(name)}`; policies here: {list_names(policies)}", code="unknown_policy"
        )
    return PolicyOverride(policy, holder.name)
