"""How fast an instance computes and fetches, learned from what its requests showed, starting from stated priors.

Computing is the contract's curve (`scorers.contract.Speed`), milliseconds = base + a * new + b * new * (context +
new / 2); fetching KV over a link, from host memory or the pool, is a `Transfer`, base + c * tokens; one token for
everybody in the batch is a `Decode`, base + d * requests + e * context. All are lines in their coefficients, so
`RecursiveLeastSquares` follows them.

    a lone answer that loaded nothing:   TTFT                                        -> the prefill curve
    a lone answer that loaded tokens:    TTFT - curve(what it computed)              -> that link
    vLLM's counters between two polls:   mean time and size of its loads             -> the pool, till the above suffice
    a streamed answer of some length:    mean time per token after the first         -> the decode step

TTFT tells what a request really waits for: the lookup, the queue before the one thread that receives, the scheduler's
step that notices the end. The counters time the bare copy, so they promise too much; they only must tell a slow pool
from a fast one before lone requests have. Each way has a fit of its own, so neither must unlearn the other.

Queueing would be mistaken for slowness: callers feed only requests that had the target's prefill for themselves
(`Booking.alone`). Decoding is never alone: its neighbours are what the line is about.
"""

from __future__ import annotations

from typing import Literal, get_args

from router.config.schema import DecodePrior, SpeedPrior, TransferPrior
from router.fleet.load import attended_pairs
from router.fleet.recursive_least_squares import RecursiveLeastSquares
from scorers.contract import Decode, Speed, Transfer

Link = Literal["cpu", "disk", "pool", "pool_disk", "peer"]
LINKS: tuple[Link, ...] = get_args(Link)

CURVE_SAMPLES = 12  # a prior 20 times off is then within 30 % (tests): what is left after it is not mostly its error
LINK_SAMPLES = 6  # two coefficients, thrice: a fit that no longer hangs on its prior, nor on one sample
LONGEST_MS = 3.6e6  # an hour is no measurement
DECODE_EVERY_S = 0.5  # more samples only shorten what the last hundred of them remember, and each costs 10 us
DECODE_NOISE_MS = 0.2  # means over many steps: what is left of their jitter
VALUE_MAX_AGE_S = 1.0  # a published Speed is reused this long: its ages are then good to a second


class LatencyModel:
    """One instance's. Features are scaled to thousands of tokens and millions of pairs, which makes the coefficients
    exactly those of the contract, in its units.
    """

    def __init__(self, prior: SpeedPrior) -> None:
        self._curve = RecursiveLeastSquares([prior.base_ms, prior.us_per_token, prior.ns_per_token_context])
        self._links = [_Line(getattr(prior, link)) for link in LINKS]
        self._pool_counted = _Line(prior.pool)
        self._steps = _Steps(prior.decode)
        self._steps_at: float | None = None
        self._value: Speed | None = None
        self._value_at = 0.0

    @property
    def samples(self) -> int:
        """Prefills that the curve was learned from."""
        return self._curve.samples

    def observe_prefill(self, new: int, context: int, ttft_ms: float, now: float) -> None:
        """A prefill of `new` tokens after `context` cached ones took `ttft_ms` with nothing else in its way."""
        if new <= 0 or context < 0 or not 0 < ttft_ms < LONGEST_MS:
            return
        self._curve.observe([1.0, new / 1e3, attended_pairs(new, context) / 1e6], ttft_ms, now)
        self._value = None

    def observe_fetch(self, link: Link, tokens: int, new: int, context: int, ttft_ms: float, now: float) -> None:
        """Of `context` tokens `tokens` came over a link, and `new` were computed: all in `ttft_ms`, nothing in its way.

        Ignored until the curve has samples enough to be subtracted. What is left may be negative where the curve is a
        little too slow: it counts, else only the too long ones would.
        """
        if not 0 < tokens <= context or new < 0 or not 0 < ttft_ms < LONGEST_MS or self.samples < CURVE_SAMPLES:
            return
        computing_ms = self.speed(now).prefill_ms(new, context)
        self._links[LINKS.index(link)].observe([1.0, tokens / 1e3], ttft_ms - computing_ms, now, computing_ms)
        self._value = None

    def observe_pool_load(self, tokens: float, ms: float, now: float) -> None:
        """A load from the pool moved that many tokens in `ms`, by the engine's counters: the mean of several is as good
        as one, on a line.
        """
        if tokens > 0 and 0 < ms < LONGEST_MS:
            self._pool_counted.observe([1.0, tokens / 1e3], ms, now)
            self._value = None

    def observe_decode_step(self, step_ms: float, requests: float, context_tokens: float, now: float) -> None:
        """An answer's tokens came `step_ms` apart, in the mean, beside so many requests with so much context, itself
        included. One sample each `DECODE_EVERY_S` is taken, the others are ignored.
        """
        if requests <= 0 or context_tokens < 0 or not 0 < step_ms < LONGEST_MS:
            return
        if self._steps_at is not None and now - self._steps_at < DECODE_EVERY_S:
            return
        self._steps_at = now
        self._steps.observe([1.0, requests / 1e3, context_tokens / 1e6], step_ms, now)
        self._value = None

    def speed(self, now: float) -> Speed:
        value = self._value
        if value is None or now - self._value_at > VALUE_MAX_AGE_S:
            value = self._value = self._made(now)
            self._value_at = now
        return value

    def _made(self, now: float) -> Speed:
        cpu, disk, pool, pool_disk, peer = self._links
        if pool.samples < LINK_SAMPLES and self._pool_counted.samples:
            pool = self._pool_counted
        base_ms, us_per_token, ns_per_token_context = self._curve.coefficients
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
            self._steps.decode(now),
        )


class _Line(RecursiveLeastSquares):
    """One link's."""

    __slots__ = ("_stated",)

    def __init__(self, prior: TransferPrior) -> None:
        super().__init__([prior.base_ms, prior.us_per_token])
        self._stated = Transfer(prior.base_ms, prior.us_per_token, 0, None)

    def transfer(self, now: float) -> Transfer:
        if not self.samples:  # most links of most instances, for ever
            return self._stated
        base_ms, us_per_token = self.coefficients
        return Transfer(base_ms, us_per_token, self.samples, self.age_s(now))


class _Steps(RecursiveLeastSquares):
    """The decode step's."""

    __slots__ = ("_stated",)

    def __init__(self, prior: DecodePrior) -> None:
        super().__init__([prior.base_ms, prior.us_per_request, prior.ns_per_context_token], DECODE_NOISE_MS)
        self._stated = Decode(prior.base_ms, prior.us_per_request, prior.ns_per_context_token, 0, None)

    def decode(self, now: float) -> Decode:
        if not self.samples:
            return self._stated
        base_ms, us_per_request, ns_per_context_token = self.coefficients
        return Decode(base_ms, us_per_request, ns_per_context_token, self.samples, self.age_s(now))
