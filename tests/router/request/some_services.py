"""Services of which a test needs only some."""

from __future__ import annotations

from typing import Any

from router.request.services import Services


def some_services(**given: Any) -> Services:
    """Return services of which only those `given` are there."""
    services = Services.__new__(Services)
    for name, part in given.items():
        object.__setattr__(services, name, part)
    return services
