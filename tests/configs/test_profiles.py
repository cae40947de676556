"""The profiles that come with the project: what is published of their hardware, and what follows from it."""

from __future__ import annotations

import json
import re

import pytest

from router.config.lookup import list_files
from router.config.reader import read_profile_file
from router.config.yaml_source import load as document
from router.lab.engine_profile import EngineProfile
from router.lab.sweep import options
from router.lab.sweep.options import load_profile
from tests.paths import CONFIGS, ROOT
from tests.suites.json_schema import violations

PROFILES = list_files(options.PROFILES)
DENSE = ["llama-3.1-8b-h100", "qwen3-32b-2xh100", "llama-3-70b-8xa800", "llama-3-70b-8xh100"]


def per_token_s(profile: EngineProfile, new: int, context: int) -> float:
    return profile.prefill_s(new, context) / new


def test_there_are_those_that_are_promised() -> None:
    assert {*DENSE, "kimi-gb200-tp4", "kimi-gb200-dp1", "cpu-tiny", "plain"} <= set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_each_says_where_every_number_is_from(name: str) -> None:
    file = read_profile_file(PROFILES[name])
    sources = [number["source"] for number in file.model_dump().values() if isinstance(number, dict)]
    assert len(sources) == 10 + (file.tail_tokens is not None)  # of hybrid models alone
    assert all(source and "\n" not in source for source in sources)


@pytest.mark.parametrize("name", PROFILES)
def test_each_is_what_its_schema_says(name: str) -> None:
    schema = json.loads((CONFIGS / "profile.schema.json").read_text(encoding="utf-8"))
    assert violations(document(PROFILES[name]).data, schema) == []
    without = document(PROFILES[name]).data | {"kv_tokens": {"value": 1}}
    assert any("source" in one for one in violations(without, schema))


@pytest.mark.parametrize("name", DENSE)
def test_a_long_context_makes_each_new_token_dearer(name: str) -> None:
    """The published bar: 2,000 new tokens on a context of 80,000 run 2.5 to 3 times slower per token than on none."""
    profile = load_profile(name)
    assert 2.5 <= per_token_s(profile, 2000, 80_000) / per_token_s(profile, 2000, 0) <= 3.0


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "dimension", "bytes_each"),
    [
        ("llama-3.1-8b-h100", 32, 8, 128, 2),
        ("qwen3-32b-2xh100", 64, 8, 128, 2),
        ("llama-3-70b-8xa800", 80, 8, 128, 2),
        ("llama-3-70b-8xh100", 80, 8, 128, 2),
        ("cpu-tiny", 8, 4, 64, 2),
    ],
)
def test_kv_of_a_token_follows_from_the_architecture(
    name: str, layers: int, kv_heads: int, dimension: int, bytes_each: int
) -> None:
    assert load_profile(name).kv_bytes_per_token == 2 * layers * kv_heads * dimension * bytes_each  # K and V


@pytest.mark.parametrize(
    ("name", "flop_per_token", "flop_per_pair", "peak_tflops"),
    [
        # 2 x parameters of the layers; 4 x layers x heads x dimension
        ("llama-3.1-8b-h100", 2 * 6.98e9, 4 * 32 * 32 * 128, 989),
        ("qwen3-32b-2xh100", 2 * 31.2e9, 4 * 64 * 64 * 128, 2 * 989),
        ("llama-3-70b-8xa800", 2 * 68.5e9, 4 * 80 * 64 * 128, 8 * 312),
        ("llama-3-70b-8xh100", 2 * 68.5e9, 4 * 80 * 64 * 128, 8 * 989),
    ],
)
def test_no_gpu_computes_faster_than_gpus_do(
    name: str, flop_per_token: float, flop_per_pair: float, peak_tflops: float
) -> None:
    """40 to 60 % of the peak in GEMM, 50 to 65 % in attention: what is published of such kernels."""
    profile, peak = load_profile(name), peak_tflops * 1e12
    assert 0.39 <= flop_per_token / (profile.us_per_token / 1e6) / peak <= 0.60
    assert 0.49 <= flop_per_pair / (profile.ns_per_pair / 1e9) / peak <= 0.66


def test_qwen_on_two_h100_is_as_published_by_llm_d() -> None:
    """307,328 tokens of KV, and 15,928 tokens/s at its peak: no prompt is computed faster, good ones nearly so."""
    profile = load_profile("qwen3-32b-2xh100")
    assert profile.kv_tokens == 307_328
    rates = [1 / per_token_s(profile, new, 0) for new in (500, 1000, 2000, 4000, 8000)]
    assert 0.94 * 15_928 <= max(rates) <= 15_928


def test_one_answer_takes_the_time_of_reading_the_weights() -> None:
    """Per step of one request over 1,000 tokens; 7 ms is what such a GPU is seen to take for 8B in BF16."""
    steps_ms = {name: 1e3 * load_profile(name).step_s(0, 0, 1, 1000) for name in DENSE}
    assert steps_ms["llama-3.1-8b-h100"] == pytest.approx(6.65, abs=0.1)  # 1.0 + 5.6 + 1,000 x 48.9 ns
    assert steps_ms["qwen3-32b-2xh100"] == pytest.approx(14.95, abs=0.1)
    assert steps_ms["llama-3-70b-8xa800"] == pytest.approx(15.7, abs=0.1)
    assert steps_ms["llama-3-70b-8xh100"] == pytest.approx(10.0, abs=0.1)


def test_the_page_shows_what_they_come_to() -> None:
    """Rounded: within one in a hundred."""
    page = (ROOT / "docs/plan/simulate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d,]+) / ([\d,]+) \| ([\d.]+) / ([\d.]+) ms \| ([\d,]+) \|", page, re.M)
    assert {name for name, *_ in rows} == set(PROFILES)
    for name, *shown in rows:
        profile = load_profile(name)
        rates = [1 / per_token_s(profile, 2000, context) for context in (0, 80_000)]
        steps_ms = [1e3 * profile.step_s(0, 0, count, 8000 * count) for count in (1, 64)]
        assert [float(each.replace(",", "")) for each in shown] == pytest.approx(
            [*rates, *steps_ms, profile.kv_tokens], rel=0.01
        )
