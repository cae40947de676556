"""Learned prefill, fetch and decode times of one instance, starting from configured priors.

The prefill time in ms is the contract's curve (`scorers.contract.Speed`), base + a * new + b * new * (context +
new / 2). The time to fetch KV over a link, from host memory or the pool, is a `Transfer`, base + c * tokens. The
time of a decode step, one token for every request in the batch, is a `Decode`, base + d * requests + e * context.
All are linear in their coefficients, so `RecursiveLeastSquares` fits them. An engine that becomes several times slower,
or recovers, is noticed after three samples of the curve (`slowdown`). Decode steps are no evidence: prefills of other
requests between them make several samples in a row three times as long.

    a lone answer that loaded nothing:   TTFT                                        -> the prefill curve
    a lone answer that loaded tokens:    TTFT - curve(computed tokens)               -> that link
    vLLM's counters between two polls:   mean time and size of its loads             -> the pool, at first
    a streamed answer of some length:    mean time per token after the first         -> the decode step
    the same, less the prefills of others meanwhile                                  -> the engine's own decode step

TTFT includes everything that a request waits for: the lookup, the queue before the single receiving thread, and the
scheduler step that notices the end. The counters time only the copy, so they are too optimistic; they only need to
distinguish a slow pool from a fast one before enough lone requests have been measured. Each source has its own fit,
so that neither source has to correct the other.

An instance is assumed to be as fast as its peers (the model's instances of its role) until its own samples
distinguish it from them (`assume`). Otherwise an unmeasured instance would be priced by the configured prior while
its twins are priced by measurements, and noise would decide among twins that cost the same.

Queueing would look like slowness, so callers pass only requests with no other prefill at the target
(`Booking.alone`). Decoding is never alone: its fit depends on the other requests in the batch. A client waits for the
prefills between its tokens, so the decode step of a `Speed` includes them; whoever computes these prefills beside it,
as a simulation does, needs the engine's own step (`decode_alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from router.config.schema import SpeedPrior, TransferPrior
from router.fleet.load import PrefilledWork, attended_pairs
from router.fleet.recursive_least_squares import NOISE_FLOOR_MS, RecursiveLeastSquares
from router.fleet.saved_parts import SavedFit
from router.fleet.step_change import SteppedFit
from scorers.contract import Decode, Speed, Transfer

Fitted = TypeVar("Fitted", Transfer, Decode)
Link = Literal["cpu", "disk", "pool", "pool_disk", "peer"]
LINKS: tuple[Link, ...] = get_args(Link)

CURVE_SAMPLES = 12  # then even a prior 20 times off is within 30 % (tests), so remainders are not mostly its error
LINK_SAMPLES = 6  # three per coefficient: the fit no longer depends on its prior, nor on one sample
LONGEST_MS = 3.6e6  # longer times are invalid
DECODE_EVERY_S = 0.5  # more samples would shorten the time that the last hundred cover, and each sample costs 10 us
DECODE_NOISE_MS = 0.2  # jitter left in the mean over many steps
VALUE_MAX_AGE_S = 1.0  # a `Speed` is reused this long, so its ages are good to a second


class SpeedDeviation(NamedTuple):
    """One standard deviation of each coefficient of an instance's own fits, in the order of the contract's fields."""

    prefill: tuple[float, ...]
    decode_alone: tuple[float, ...]


class LatencyModel:
    """The fits of one instance. Features are scaled to thousands of tokens and millions of pairs, so that the
    coefficients are exactly those of the contract, in the same units.
    """

    def __init__(self, prior: SpeedPrior) -> None:
        curve = [prior.base_ms, prior.us_per_token, prior.ns_per_token_context]
        self._curve = SteppedFit(curve)
        self._links = [_fit_transfer(getattr(prior, link)) for link in LINKS]
        self._pool_counters = _fit_transfer(prior.pool)
        step = prior.decode
        self._decode = _Fit(Decode, [step.base_ms, step.us_per_request, step.ns_per_context_token], DECODE_NOISE_MS)
        self._decode_alone = _Fit(Decode, list(self._decode.coefficients), DECODE_NOISE_MS)
        self._decode_at: float | None = None
        self._typical: Speed | None = None  # the typical speed of the instance's peers
        self.has_news = False  # whether a fit got its first sample
        self._value: Speed | None = None
        self._value_at = 0.0

    @property
    def samples(self) -> int:
        """Number of prefills that the curve was learned from."""
        return self._curve.samples

    @property
    def slowdown(self) -> float:
        """Time of prefills, when last measured, as a multiple of that before the engine became slower; 1.0 if it did
        not.
        """
        return self._curve.slowdown

    @property
    def deviation(self) -> SpeedDeviation:
        """The uncertainty of the prefill curve and of `decode_alone`."""
        return SpeedDeviation(self._curve.deviations, self._decode_alone.deviations)

    def decode_alone(self, now: float) -> Decode:
        """Return the engine's own decode step: without the prefills of other requests between the steps."""
        return self._decode_alone.value(now)

    def on_new_process(self) -> None:
        """Assume the speed before the engine became slower: what slowed the process down may have ended with it."""
        self._curve.forget_slowdown()
        self._value = None

    @property
    def fits(self) -> list[RecursiveLeastSquares]:
        """All fits, in a fixed order: new fits are appended at the end."""
        return [self._curve, *self._links, self._pool_counters, self._decode, self._decode_alone]

    def restore(self, saved: Sequence[SavedFit], saved_at: float) -> None:
        """Continue from the `fits` that another router had at `saved_at`, for the fits without samples here."""
        for fit, state in zip(self.fits, saved, strict=False):  # another version may have more or fewer fits
            fit.restore(state, saved_at)
        self._value = None

    def observe_prefill(self, new: int, context: int, ttft_ms: float, now: float, *, steps: bool = True) -> None:
        """Add a prefill of `new` tokens after `context` cached tokens that took `ttft_ms` without queueing. Without
        `steps` it may have waited for memory, and is no sign that the engine became slower or recovered.
        """
        if new <= 0 or context < 0 or not 0 < ttft_ms < LONGEST_MS:
            return
        self._curve.observe([1.0, new / 1e3, attended_pairs(new, context) / 1e6], ttft_ms, now, steps=steps)
        self._note(self._curve)

    def observe_fetch(self, link: Link, tokens: int, new: int, context: int, ttft_ms: float, now: float) -> None:
        """Add a request that fetched `tokens` of its `context` over a link and computed `new` tokens, in `ttft_ms`
        without queueing. Ignored until the curve has enough samples to be subtracted. If the curve is a little too
        slow, the remainder may be negative; it still counts, since otherwise only remainders that are too long
        would count.
        """
        if not 0 < tokens <= context or new < 0 or not 0 < ttft_ms < LONGEST_MS or self.samples < CURVE_SAMPLES:
            return
        computing_ms = self.own(now).prefill_ms(new, context)
        fit = self._links[LINKS.index(link)]
        fit.observe([1.0, tokens / 1e3], ttft_ms - computing_ms, now, computing_ms)
        self._note(fit)

    def observe_pool_load(self, tokens: float, ms: float, now: float) -> None:
        """Add a load of `tokens` from the pool in `ms`, by the engine's counters (may be a mean of several)."""
        if tokens > 0 and 0 < ms < LONGEST_MS:
            self._pool_counters.observe([1.0, tokens / 1e3], ms, now)
            self._note(self._pool_counters)

    def observe_decode_step(
        self,
        step_ms: float,
        requests: float,
        context_tokens: float,
        now: float,
        prefilled: PrefilledWork | None = None,
    ) -> None:
        """Add an answer's mean time per token in a batch of `requests` with `context_tokens`, including the
        answer's own; `prefilled` is the prefill work of other requests per token, None if unknown. One sample per
        `DECODE_EVERY_S` is taken, the others are ignored.
        """
        if requests <= 0 or context_tokens < 0 or not 0 < step_ms < LONGEST_MS:
            return
        if self._decode_at is not None and now - self._decode_at < DECODE_EVERY_S:
            return
        self._decode_at = now
        batch = [1.0, requests / 1e3, context_tokens / 1e6]
        self._decode.observe(batch, step_ms, now)
        if prefilled is not None and self.samples >= CURVE_SAMPLES:
            # without the fixed part of a prefill: its step decodes as well
            prefills_ms = self._curve.predict([0.0, prefilled.tokens / 1e3, prefilled.attended / 1e6])
            self._decode_alone.observe(batch, step_ms - prefills_ms, now, prefills_ms)
        self._note(self._decode)

    def _note(self, fit: RecursiveLeastSquares) -> None:
        """Record that `fit` got a sample."""
        self.has_news = self.has_news or fit.samples == 1
        self._value = None

    def assume(self, typical: Speed) -> bool:
        """Assume the speed of peers: for the curve and the decode step while the fits here cannot be distinguished
        from the peers', and for links without a sample here. Return whether that changes anything.

        Otherwise an instance that was never alone with a fetch would keep the configured prior. If the prior is too
        optimistic, the instance gets the fetches of the whole fleet, and so is never alone with a fetch.
        """
        if typical is self._typical:
            return False
        before = self._typical
        self._typical = typical
        changed = before is None or before[:3] != typical[:3] or before.decode != typical.decode
        for link, fit in zip(LINKS, self._links, strict=True):
            elsewhere: Transfer | None = getattr(typical, link)
            if elsewhere is not None and elsewhere.samples:
                changed |= fit.assume(elsewhere._replace(samples=0, age_s=None))
        if changed:
            self._value = None
        return changed

    def speed(self, now: float) -> Speed:
        """Return the fits as a `Speed`, reused for `VALUE_MAX_AGE_S`."""
        value = self._value
        if value is None or now - self._value_at > VALUE_MAX_AGE_S:
            value = self._value = self._build_speed(now)
            self._value_at = now
        return value

    def _build_speed(self, now: float) -> Speed:
        own, typical = self.own(now), self._typical
        if typical is None:
            return own
        base_ms, us_per_token, ns_per_token_context = own[:3]
        if typical.samples and self._curve.is_like(typical[:3]):
            base_ms, us_per_token, ns_per_token_context = typical[:3]
        decode, elsewhere = own.decode, typical.decode
        if decode is not None and elsewhere is not None and elsewhere.samples and self._decode.is_like(elsewhere[:3]):
            decode = Decode(*elsewhere[:3], decode.samples, decode.age_s)
        return Speed(base_ms, us_per_token, ns_per_token_context, *own[3:10], decode)

    def own(self, now: float) -> Speed:
        """Return the fits of this instance alone."""
        self._curve.relax(now)
        cpu, disk, pool, pool_disk, peer = self._links
        if pool.samples < LINK_SAMPLES and self._pool_counters.samples:
            pool = self._pool_counters
        base_ms, us_per_token, ns_per_token_context = self._curve.coefficients
        return Speed(
            base_ms,
            us_per_token,
            ns_per_token_context,
            self._curve.samples,
            self._curve.age_s(now),
            cpu.value(now),
            disk.value(now),
            pool.value(now),
            pool_disk.value(now),
            peer.value(now),
            self._decode.value(now),
        )


class _Fit(RecursiveLeastSquares, Generic[Fitted]):
    """A fit whose coefficients are the first fields of a contract type, followed by `samples` and `age_s`."""

    __slots__ = ("_kind", "_prior")

    def __init__(self, kind: Callable[..., Fitted], prior: Sequence[float], floor_ms: float = NOISE_FLOOR_MS) -> None:
        super().__init__(prior, floor_ms)
        self._kind: Callable[..., Fitted] = kind
        self._prior: Fitted = kind(*prior, 0, None)

    def assume(self, prior: Fitted) -> bool:
        """Replace the prior before the first sample; return whether that changes it."""
        if self.samples or prior == self._prior:
            return False
        self._prior = prior
        return True

    def value(self, now: float) -> Fitted:
        """Return the fitted value, or the prior before the first sample (most links of most instances never have
        one).
        """
        if not self.samples:
            return self._prior
        fitted: Fitted = self._kind(*self.coefficients, self.samples, self.age_s(now))
        return fitted


def _fit_transfer(prior: TransferPrior) -> _Fit[Transfer]:
    return _Fit(Transfer, [prior.base_ms, prior.us_per_token])
