"""The section `admission`: which requests may begin now, and which ones wait."""

from __future__ import annotations

from router.config.sections.base import PluginConfig, Seconds, Section


class AdmissionConfig(Section):
    """Admission control: which requests may begin now, and which ones wait. A change takes effect without a
    restart.
    """

    enabled: bool = False
    """queue the requests that the rule does not admit"""
    rule: PluginConfig = PluginConfig(name="fit")
    """what decides, with its parameters; `fit`: a session begins when its context and those of all live sessions
    fit the KV caches of the fleet
    """
    max_wait_s: Seconds = 300.0
    """longest wait in the queue, seconds; after it: 429 with Retry-After"""
    idle_s: Seconds = 300.0
    """silence after which a session is forgotten, seconds; rule `fit`: until then it counts with the probability,
    learned from other sessions, that it returns"""
