"""A profile from what a router has learned: which numbers are taken, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from router.config.reader import dump_yaml, read_profile_file
from router.config.sections.simulation import ProfileFile
from router.errors import ConfigError, WarmrouteError
from router.lab.engine_profile import EngineProfile
from router.lab.sweep.options import PROFILES, load_profile
from router.operate.learned_profile import LearnedProfile, learn_profile, read_instances

Json = dict[str, Any]
PLAIN = read_profile_file(PROFILES / "plain.yaml")


def instance(
    id: str = "a",
    prefill: tuple[float, ...] = (20.0, 50.0, 4.0),
    decode: tuple[float, ...] = (30.0, 80.0, 40.0),
    samples: tuple[int, int] = (300, 200),
    deviations: tuple[float, float, float] = (1.0, 2.0, 3.0),
    *,
    models: tuple[str, ...] = ("m",),
    kv_tokens: int | None = 70_000,
    ranks: int = 1,
) -> Json:
    """As `GET /admin/instances` lists it, with more than is read."""
    speed = dict(zip(("base_ms", "us_per_token", "ns_per_token_context"), prefill, strict=True))
    alone = dict(zip(("base_ms", "us_per_request", "ns_per_context_token"), decode, strict=True))
    target = {
        "capacity_tokens": kv_tokens,
        "speed": speed | {"samples": samples[0], "age_s": 1.0, "decode": None},
        "decode_alone": alone | {"samples": samples[1], "age_s": None},
        "speed_deviation": {"prefill": deviations, "decode_alone": deviations},
    }
    targets = [target | {"id": f"{id}/{rank}"} for rank in range(ranks)]
    return {"id": id, "state": "ready", "models": models, "targets": targets}


def learned(*instances: Json) -> LearnedProfile:
    return learn_profile(read_instances({"instances": instances}), PLAIN, "plain", "these engines")


def profile(made: LearnedProfile, folder: Path) -> EngineProfile:
    """As a simulation reads it."""
    (folder / "mine.yaml").write_text(dump_yaml(made.file))
    return load_profile(str(folder / "mine.yaml"))


def sources(file: ProfileFile) -> dict[str, str]:
    """Return by value where it comes from."""
    return {name: value["source"] for name, value in yaml.safe_load(dump_yaml(file)).items() if isinstance(value, dict)}


def test_what_was_learned_and_reported_is_taken_and_the_rest_is_another_profile_s(tmp_path: Path) -> None:
    made = learned(
        instance("a"),
        instance("b", prefill=(22.0, 51.0, 5.0)),
        instance("c", prefill=(24.0, 52.0, 6.0), kv_tokens=90_000),
        instance("unmeasured", prefill=(10.0, 100.0, 2.0), samples=(3, 0)),
    )
    assert profile(made, tmp_path) == EngineProfile(
        name="mine",
        kv_tokens=70_000,
        kv_bytes_per_token=131_072.0,
        us_per_token=51.0,
        ns_per_pair=5.0,
        us_per_decode=80.0,
        weights_ms=8.0,
        ns_per_context_token=40.0,
        step_ms=22.0,
        batched_tokens=8192,
        max_seqs=256,
    )
    told = sources(made.file)
    assert told["us_per_token"] == "learned from 900 lone prefills at 3 instances, ± 2"
    assert told["kv_tokens"] == "reported by 4 targets, the median of 70,000 to 90,000"
    assert told["max_seqs"] == "not known, so that of plain: as the others"
    assert told["weights_ms"].startswith("fixed part of a decode step, 30 ms, learned from 600 streamed answers")
    assert told["weights_ms"].endswith("less step_ms")
    assert made.notes == (
        "Of profile plain: kv_bytes_per_token, batched_tokens, max_seqs. Correct in the file what you know: "
        "batched_tokens (--max-num-batched-tokens), max_seqs (--max-num-seqs).",
    )


def test_a_step_of_the_profile_takes_as_long_as_the_lines_say(tmp_path: Path) -> None:
    own = profile(learned(instance()), tmp_path)
    assert own.prefill_s(2000, 1000) == pytest.approx((20.0 + 50.0 * 2.0 + 4.0 * 2000 * 2000 / 1e6) / 1e3)
    assert own.step_s(0, 0.0, 1, 200_000.0) == pytest.approx((30.0 + 40.0 * 0.2) / 1e3)


def test_what_a_prefill_takes_beyond_a_decode_step_is_in_no_step(tmp_path: Path) -> None:
    own = profile(learned(instance(prefill=(35.0, 50.0, 4.0))), tmp_path)
    assert (own.step_ms, own.weights_ms) == (30.0, 0.0)


def test_decode_steps_that_are_not_learned_yet_are_said_and_not_made_up(tmp_path: Path) -> None:
    made = learned(instance(samples=(300, 11)))
    own = profile(made, tmp_path)
    assert (own.step_ms, own.us_per_token) == (20.0, 50.0)
    assert (own.weights_ms, own.us_per_decode, own.ns_per_context_token) == (10.0, 0.0, 0.0)  # those of `plain`
    assert made.notes[0].startswith(
        "Decode steps are not learned yet: 11 streamed answers were measured at one engine at most, 12 are needed"
    )
    assert "Of profile plain: kv_bytes_per_token, us_per_decode, weights_ms, ns_per_context_token" in made.notes[-1]


def test_nothing_learned() -> None:
    with pytest.raises(WarmrouteError, match=r"has not learned how fast its engines are: 7 lone prefills .* 12 are"):
        learned(instance(samples=(7, 0)), instance("b", samples=(2, 0)))


def test_a_slope_that_may_be_nothing_is_named() -> None:
    assert learned(instance(deviations=(9.0, 9.0, 9.0))).notes[0] == (
        "Uncertain, as the traffic so far hardly shows it: ns_per_pair 4 ± 9."
    )


def test_engines_that_one_profile_cannot_describe_are_named() -> None:
    fast, slow = instance("fast"), instance("slow", prefill=(40.0, 150.0, 4.0))
    notes = learned(fast, instance("fast2"), slow, instance("two", ranks=2)).notes
    assert "times its time for 2,048 prompt tokens, slow 2.7." in notes[0]
    assert notes[1] == "The profile is of one rank, and instances have up to 2: simulate ranks as instances."


def test_one_model_at_a_time() -> None:
    both = {
        "instances": [instance("a", models=("m", "m-lora")), instance("b", models=("n",)), instance("c", models=())]
    }
    with pytest.raises(ConfigError, match="no model in common: choose one with --model: m, m-lora, n"):
        read_instances(both)
    assert [one.id for one in read_instances(both, "n")] == ["b"]
    with pytest.raises(ConfigError, match="--model: no engine serves x; they serve m, m-lora, n"):
        read_instances(both, "x")


@pytest.mark.parametrize("answer", [{}, {"instances": [{"id": "a"}]}, {"instances": [instance() | {"targets": [{}]}]}])
def test_another_form_of_answer(answer: Json) -> None:
    with pytest.raises(WarmrouteError, match="not the answer of a router of this version"):
        read_instances(answer)


def test_no_engine() -> None:
    with pytest.raises(WarmrouteError, match="no engine of the router has reported a model yet"):
        read_instances({"instances": [instance(models=())]})
