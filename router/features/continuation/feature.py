"""Continuation: a stream whose engine fails in the middle is continued by another engine."""

from __future__ import annotations

from router.control.core import Core
from router.control.feature import Feature
from router.features.continuation.carry_on import continue_stream
from router.request.stages import FeaturePath


class ContinuationFeature(Feature):
    """Continues streams, within `limits.continuation_bytes`."""

    def __init__(self, core: Core) -> None:
        self.path = FeaturePath(recovery=continue_stream)
