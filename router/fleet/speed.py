"""How fast an instance computes and fetches, learned from what its requests showed, starting from stated priors.

Computing is the contract's curve (`scorers.contract.Speed`), milliseconds = base + a * new + b * new * (context +
new / 2); fetching KV over a link, from host memory or the pool, is a `Transfer`, base + c * tokens. Both are lines in
their coefficients, so `LeastSquares` follows them.

    a lone answer that loaded nothing:   TTFT                                        -> the prefill curve
    a lone answer that loaded tokens:    TTFT - curve(what it computed)              -> that link
    vLLM's counters between two polls:   mean time and size of its loads             -> the pool, till the above suffice

TTFT tells what a request really waits for: the lookup, the queue before the one thread that receives, the scheduler's
step that notices the end. The counters time the bare copy, so they promise too much; they only must tell a slow pool
from a fast one before lone requests have. Each way has a fit of its own, so neither must unlearn the other.

Queueing would be mistaken for slowness: callers feed only requests that had the target's prefill for themselves
(`Booking.alone`).
"""

from __future__ import annotations

from typing import Literal, get_args

from router.config.schema import SpeedPrior, TransferPrior
from router.fleet.least_squares import LeastSquares
from router.fleet.load import attended_pairs
from scorers.contract import Speed, Transfer

Link = Literal["cpu", "disk", "pool", "pool_disk", "peer"]
LINKS: tuple[Link, ...] = get_args(Link)

CURVE_SAMPLES = 12  # a prior 20 times off is then within 30 % (tests): what is left after it is not mostly its error
LINK_SAMPLES = 6  # two coefficients, thrice: a fit that no longer hangs on its prior, nor on one sample
LONGEST_MS = 3.6e6  # an hour is no measurement
VALUE_KEPT_S = 1.0  # a published Speed is reused this long: its ages are then good to a second


class Pace:
    """One instance's. Features are scaled to thousands of tokens and millions of pairs, which makes the coefficients
    exactly those of the contract, in its units.
    """

    def __init__(self, prior: SpeedPrior) -> None:
        self._curve = LeastSquares([prior.base_ms, prior.us_per_token, prior.ns_per_token_context])
        self._links = [_Line(getattr(prior, link)) for link in LINKS]
        self._pool_counted = _Line(prior.pool)
        self._value: Speed | None = None
        self._value_at = 0.0

    @property
    def samples(self) -> int:
        """Prefills that the curve was learned from."""
        return self._curve.samples

    def computed(self, new: int, context: int, ttft_ms: float, now: float) -> None:
        """A prefill of `new` tokens after `context` cached ones took `ttft_ms` with nothing else in its way."""
        if new <= 0 or context < 0 or not 0 < ttft_ms < LONGEST_MS:
            return
        self._curve.observe([1.0, new / 1e3, attended_pairs(new, context) / 1e6], ttft_ms, now)
        self._value = None

    def fetched(self, link: Link, tokens: int, new: int, context: int, ttft_ms: float, now: float) -> None:
        """Of `context` tokens `tokens` came over a link, and `new` were computed: all in `ttft_ms`, nothing in its way.

        Ignored until the curve has samples enough to be subtracted. What is left may be negative where the curve is a
        little too slow: it counts, else only the too long ones would.
        """
        if not 0 < tokens <= context or new < 0 or not 0 < ttft_ms < LONGEST_MS or self.samples < CURVE_SAMPLES:
            return
        computing_ms = self.speed(now).prefill_ms(new, context)
        self._links[LINKS.index(link)].observe([1.0, tokens / 1e3], ttft_ms - computing_ms, now, computing_ms)
        self._value = None

    def counted(self, tokens: float, ms: float, now: float) -> None:
        """A load from the pool moved that many tokens in `ms`, by the engine's counters: the mean of several is as good
        as one, on a line.
        """
        if tokens > 0 and 0 < ms < LONGEST_MS:
            self._pool_counted.observe([1.0, tokens / 1e3], ms, now)
            self._value = None

    def speed(self, now: float) -> Speed:
        value = self._value
        if value is None or now - self._value_at > VALUE_KEPT_S:
            value = self._value = self._made(now)
            self._value_at = now
        return value

    def _made(self, now: float) -> Speed:
        cpu, disk, pool, pool_disk, peer = self._links
        if pool.samples < LINK_SAMPLES and self._pool_counted.samples:
            pool = self._pool_counted
        base_ms, us_per_token, ns_per_token_context = self._curve.theta
        return Speed(
            base_ms,
            us_per_token,
            ns_per_token_context,
            self._curve.samples,
            self._curve.age_s(now),
            cpu.transfer(now),
            disk.transfer(now),
            pool.transfer(now),
            pool_disk.transfer(now),
            peer.transfer(now),
        )


class _Line(LeastSquares):
    """One link's."""

    __slots__ = ("_stated",)

    def __init__(self, prior: TransferPrior) -> None:
        super().__init__([prior.base_ms, prior.us_per_token])
        self._stated = Transfer(prior.base_ms, prior.us_per_token, 0, None)

    def transfer(self, now: float) -> Transfer:
        if not self.samples:  # most links of most instances, for ever
            return self._stated
        base_ms, us_per_token = self.theta
        return Transfer(base_ms, us_per_token, self.samples, self.age_s(now))
