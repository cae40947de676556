"""The policy override: one request under another policy than the one in force, for holders of an admin token.

    X-Warmroute-Policy: NAME          X-Warmroute-Token: an admin token with the right `override`

Neither header reaches an engine (`proxy/headers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from router.errors import BadRequest, Forbidden
from router.request.admin_tokens import AdminTokens
from router.scheduling.policy.policy import Policy

POLICY, TOKEN = b"x-warmroute-policy", b"x-warmroute-token"


class PolicyOverride(NamedTuple):
    """A policy that the client selects by header, whatever is in force."""

    policy: Policy
    by: str  # name of the admin token


def read_override(
    header: Callable[[bytes], bytes | None], admin_tokens: AdminTokens, policies: Mapping[str, Policy]
) -> PolicyOverride | None:
    """Return the policy that a request selects, `None` for none. `header` finds a value by its name in lower case.

    Raises `Forbidden` without a token that has the right, and `BadRequest` for an unknown policy.
    """
    if (value := header(POLICY)) is None:
        return None
    holder = admin_tokens.holder(header(TOKEN) or b"")
    if holder is None or "override" not in holder.rights:
        raise Forbidden(
            f'choosing a policy by {POLICY.decode()} needs an admin token with the right "override" in '
            f"{TOKEN.decode()}",
            code="missing_right",
        )
    if (policy := policies.get(name := value.decode("latin-1").strip())) is None:
        names = ", ".join(sorted(policies))
        raise BadRequest(f"there is no policy `{name}`; policies here: {names}", code="unknown_policy")
    return PolicyOverride(policy, holder.name)
