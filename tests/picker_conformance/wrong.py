"""The wrong pickers by the number of the case that each must fail. They are in `wrong_choices`, `wrong_bodies` and
`wrong_responses`; each changes one step of the reference picker.
"""

from __future__ import annotations

from typing import Any

from tests.picker_conformance.reference_picker import PickerSession, ReferencePicker

WRONG: dict[int, list[type[ReferencePicker]]] = {}


def breaks(number: int) -> Any:
    """Enter a class under the number of the case that it must fail: a picker, or the sessions of one."""

    def enter(wrong: Any) -> Any:
        if issubclass(wrong, ReferencePicker):
            picker: type[ReferencePicker] = wrong
        else:
            picker = type(wrong.__name__, (ReferencePicker,), {"__init__": _with_session(wrong)})
        WRONG.setdefault(number, []).append(picker)
        return wrong

    return enter


def _with_session(session: type[PickerSession]) -> Any:
    def init(self: ReferencePicker) -> None:
        ReferencePicker.__init__(self)
        self.session = session

    return init
