"""Every request begins at once: admission control that only counts, to compare with, or to switch to."""

from __future__ import annotations

from dataclasses import dataclass

from scorers.admission.contract import AdmissionRule


@dataclass(eq=False)
class NoAdmission(AdmissionRule):
    """Admits everything, and what waits when it takes over."""
