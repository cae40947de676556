"""Objects of which a test needs only some attributes."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def partial_object(kind: type[T], **attributes: Any) -> T:
    """Return an object of `kind` that has `attributes` and no others. A compiled module takes nothing that only looks
    like one.
    """
    made = kind.__new__(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
