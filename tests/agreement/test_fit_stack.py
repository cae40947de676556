"""The fit finds again what times were made of."""

from __future__ import annotations

import pytest

from tests.agreement.fit_stack import Decode, Load, Prefill, Samples, fit

CHUNK = 2048


def made(noise: float = 0.0) -> Samples:
    """9 ms a step, 1.1 us a context token, 260 us a token, 210 ns a pair, 18 ms a prompt; loads 11 ms and 8 us each."""
    signs = [1, -1, -1, 1, 1, -1, 1, -1]

    def stretched(ms: float, number: int) -> float:
        return ms * (1 + noise * signs[number % len(signs)])

    prompts = [(new, context) for new in (128, 512, 2048, 8192) for context in (0, 2048, 12_288)]
    prefills = [
        Prefill(new, context, stretched(18 + 9 * -(-new // CHUNK) + 0.26 * new + 210e-6 * new * (context + new / 2), i))
        for i, (new, context) in enumerate(prompts)
    ]
    batches = [(batch, context) for batch in (1, 2, 4, 8) for context in (280, 6168)]
    decodes = [Decode(b, c, stretched(9 + 1.1e-3 * b * c, i)) for i, (b, c) in enumerate(batches)]
    loads = [Load(tokens, stretched(11 + 8e-3 * tokens, i)) for i, tokens in enumerate((512, 2048, 6144, 12_288))]
    return Samples(prefills, decodes, loads)


def test_exact_times_give_exact_terms() -> None:
    found = fit(made(), CHUNK)
    assert found[:7] == pytest.approx((9, 1100, 260, 210, 18, 11, 8), rel=1e-6)
    assert max(found.prefills_missed, found.decodes_missed, found.loads_missed) < 1e-9


def test_noisy_times_give_terms_nearby_and_say_how_noisy() -> None:
    found = fit(made(0.05), CHUNK)
    assert (found.us_per_token, found.ns_per_pair, found.ns_per_context_token) == pytest.approx(
        (260, 210, 1100), rel=0.15
    )
    assert 0.02 < found.prefills_missed <= 0.06
