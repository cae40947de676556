"""How often properties are tried: once more than the profile `quick` says only where the profile is `deep`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(many: int, **others: Any) -> settings:
    """Return settings that try a property `many` times under the profile `deep`; `quick` has its own number for all.

    Settings that name a number apply under every profile, so tests name it here instead.
    """
    if settings.get_current_profile_name() == "quick":
        many = min(many, settings.default.max_examples)
    return settings(max_examples=many, **others)
