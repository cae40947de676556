"""A single request under another policy than the one in force: for holders of a token with the right to ask for it.

    X-Warmroute-Policy: NAME          X-Warmroute-Token: an admin token with the right `override`

Neither header ever reaches an engine (`proxy/headers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from router.errors import BadRequest, Forbidden
from router.request.admin_tokens import AdminTokens
from router.scheduling.policy.policy import Policy

POLICY, TOKEN = b"x-warmroute-policy", b"x-warmroute-token"


class PolicyOverride(NamedTuple):
    """A policy that the client asks for by header, whatever is in force."""

    policy: Policy
    by: str  # the name of the admin token that has the right to


def read_override(
    header: Callable[[bytes], bytes | None], admins: AdminTokens, policies: Mapping[str, Policy]
) -> PolicyOverride | None:
    """What a request asks for; None: nothing. `header` finds one by its name in lower case.

    Raises `Refused` for a policy that is not here, and for whoever may not choose one.
    """
    if (given := header(POLICY)) is None:
        return None
    holder = admins.holder(header(TOKEN) or b"")
    if holder is None or "override" not in holder.rights:
        raise Forbidden(
            f'choosing a policy by {POLICY.decode()} needs an admin token with the right "override" in '
            f"{TOKEN.decode()}",
            code="missing_right",
        )
    if (policy := policies.get(name := given.decode("latin-1").strip())) is None:
        names = ", ".join(sorted(policies))
        raise BadRequest(f"there is no policy `{name}`; policies here: {names}", code="unknown_policy")
    return PolicyOverride(policy, holder.name)
