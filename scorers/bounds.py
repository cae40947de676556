"""Bounds that many parameters have, refused in words for whoever wrote the policy file.

Types are checked before a plug-in is built (parameters.py); these are for its `__post_init__`.
"""

from __future__ import annotations


def check_not_negative(**values: float) -> None:
    """Raises ValueError that names the first parameter below 0."""
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name}: at least 0, not {value}")


def check_shares(**values: float) -> None:
    """Raises ValueError that names the first parameter outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: a share between 0 and 1, not {value}")
