"""The active policies: one policy, or the arms of an experiment with their shares of the units, and shadows.

A hash assigns each unit (such as a session) to an arm, so the unit stays on that arm across restarts and on every
replica, and nothing needs to be stored. Each arm draws a number that looks exponentially distributed with the arm's
share as the rate, and the least number wins:

    arm(unit) = argmin over arms of  -ln(u(seed, arm, unit)) / share

(weighted rendezvous hashing; P(arm) is the arm's share.) If an arm's share grows at the cost of another arm's,
units move only from the latter to the former. With more than two arms, some units also move between the others, at
most 2 d / (1 + d) of all units in total, where d is the share that changes hands; no stateless rule can guarantee
less.

An arm that was rolled back stays in the draw, but its units go to the first arm: no other unit moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from hashlib import blake2b
from math import log
from typing import NamedTuple

from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.scheduling.policy.policy import Orders, Policy, merge_orders
from scorers.contract import Needs


class Assignment(NamedTuple):
    """A unit's place in an experiment."""

    arm: str  # by the draw
    policy: Policy  # the first arm's if the arm was rolled back


@dataclass(frozen=True)
class PolicySet:
    """All policies by name, which of them are active and in which role, and the admission settings. A policy set is
    replaced as a whole and never changed.
    """

    policies: Mapping[str, Policy]
    active: str  # name of the policy that decides for requests outside of an experiment
    experiment: ExperimentConfig | None = None
    rolled_back: frozenset[str] = frozenset()  # arms whose units go to the first arm
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    needs: Needs = field(init=False)
    needs_cache: bool = field(init=False)
    needs_session: bool = field(init=False)
    orders: Orders | None = field(init=False)  # of all policies in use, see `Policy.orders`
    continuation: bool = field(init=False)  # whether any policy in use allows continuation

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", reduce(Needs.__or__, (p.needs for p in self.in_use), Needs.NONE))
        object.__setattr__(self, "needs_cache", Needs.CACHE in self.needs)
        object.__setattr__(self, "needs_session", Needs.SESSION in self.needs)
        object.__setattr__(self, "continuation", any(p.continuation for p in self.in_use))
        object.__setattr__(self, "orders", reduce(merge_orders, (p.orders for p in self.in_use)))

    @property
    def policy(self) -> Policy:
        """The policy for requests outside of an experiment."""
        return self.policies[self.active]

    @property
    def in_use(self) -> list[Policy]:
        """The active policy, and the policies of arms and shadows."""
        names = [self.active]
        if self.experiment is not None:
            names += [*self.experiment.policies.values(), *self.experiment.shadows]
        return [self.policies[name] for name in dict.fromkeys(names)]

    @property
    def digests(self) -> dict[str, str]:
        """Digests of `in_use` by name: equal in two processes that decide alike."""
        return {policy.name: policy.digest for policy in self.in_use}

    @property
    def first(self) -> str | None:
        """The arm that the others are compared with; None without an experiment."""
        return None if self.experiment is None else next(iter(self.experiment.arms))

    @property
    def arm_digests(self) -> tuple[str, ...]:
        """Digests of the arms' policies: with other policies, the same experiment counts as a new one."""
        names = () if self.experiment is None else self.experiment.policies.values()
        return tuple(self.policies[name].digest for name in names)

    @property
    def live_arms(self) -> list[str]:
        """Arms that are not rolled back."""
        return [] if self.experiment is None else [arm for arm in self.experiment.arms if arm not in self.rolled_back]

    def assign(self, unit: bytes) -> Assignment:
        """Return a unit's arm and policy. Call this only during an experiment."""
        assert self.experiment is not None
        arm = draw_arm(self.experiment.seed, self.experiment.shares, unit)
        return Assignment(arm, self.policies[self.experiment.policies[self._heir(arm)]])

    def admission_of(self, unit: bytes | None) -> AdmissionConfig:
        """Return the admission section in force. If the arm of `unit` (a window of time) names a rule, the section
        has that rule. `unit` is None outside of an experiment.
        """
        if self.experiment is None or unit is None or not self.experiment.compares_admission:
            return self.admission
        arm = self._heir(draw_arm(self.experiment.seed, self.experiment.shares, unit))
        rule = self.experiment.arms[arm].admission
        return self.admission if rule is None else self.admission.model_copy(update={"rule": rule})

    def instances_for(self, arm: str, instances: Sequence[str]) -> frozenset[str]:
        """Return the instances of an isolated arm; may be empty if there are fewer instances than arms. The
        instances of an arm that was rolled back go to the first arm.
        """
        assert self.experiment is not None
        owners = slice_instances(self.experiment.seed, tuple(self.experiment.shares.items()), tuple(instances))
        heir = self._heir(arm)
        return frozenset(instance for instance, owner in owners.items() if self._heir(owner) == heir)

    def _heir(self, arm: str) -> str:
        """Return the arm that gets this arm's units and instances: the first arm if this arm was rolled back."""
        assert self.experiment is not None
        return next(iter(self.experiment.arms)) if arm in self.rolled_back else arm

    def with_rollback(self, arm: str) -> PolicySet:
        """Return a copy with the arm rolled back."""
        return replace(self, rolled_back=self.rolled_back | {arm})


def draw_arm(seed: int, shares: Mapping[str, float], unit: bytes) -> str:
    """Return the arm of a unit, the same for equal arguments in every process."""
    if len(shares) == 1:
        return next(iter(shares))
    return min(shares, key=lambda arm: _draw(seed, arm, unit) / shares[arm])


@lru_cache(maxsize=16)
def slice_instances(seed: int, shares: tuple[tuple[str, float], ...], instances: tuple[str, ...]) -> dict[str, str]:
    """Return the isolated arm that each instance serves. The instances are ordered by hash and cut into runs, whose
    lengths follow the shares, with at least one instance each. With fewer instances than arms, the last arms get
    none. When an instance joins or leaves, at most one instance per arm changes hands.
    """
    order = sorted(instances, key=lambda name: _draw(seed, "", name.encode()))
    runs = _runs([share for _, share in shares], len(order))
    owners = [arm for (arm, _), run in zip(shares, runs, strict=True) for _ in range(run)]
    return dict(zip(order, owners, strict=True))


def _runs(shares: Sequence[float], places: int) -> list[int]:
    """Return whole numbers that sum to `places` and are as close to the shares as possible, each at least 1 if
    `places` suffices.
    """
    runs = [1 if i < places else 0 for i in range(len(shares))]
    while sum(runs) < places:
        short = max(range(len(shares)), key=lambda i: shares[i] / (runs[i] + 1))
        runs[short] += 1
    return runs


def _draw(seed: int, arm: str, unit: bytes) -> float:
    """Draw from the exponential distribution with rate 1."""
    text = b"%d\0%b\0%b" % (seed, arm.encode(), unit)
    word = int.from_bytes(blake2b(text, digest_size=8, person=b"warmroute-arm").digest(), "big")
    return -log(((word >> 12) + 0.5) / 2**52)
