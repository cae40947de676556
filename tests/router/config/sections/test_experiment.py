"""The `experiment` section: what it takes, and what it says of what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import parse_experiment, read_config
from router.config.sections.experiment import ExperimentConfig
from router.errors import ConfigError

KNOWN = ("warm", "random", "round_robin")
MAIN = """\
fleet: {instances: [{url: 'http://127.0.0.1:8100'}]}
policies:
  warm: {scorers: [{name: random}]}
  random: {scorers: [{name: random}]}
"""


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        parse_experiment(text, KNOWN, "warm")
    return str(refusal.value)


def test_the_whole_of_it() -> None:
    experiment = parse_experiment(
        """
        experiment:
          unit: api_key
          seed: 7
          arms: {warm: 90, random: 10}
          shadows: [round_robin]
          guard: {metric: error_rate, worse_by: 20%, alpha: 0.01, min_units: 50, action: report}
          limits: {ttft_p90_max_ms: 30000, error_rate_max: 5%}
          isolate: instances
          observe_s: 60
        """,
        KNOWN,
        "warm",
    )
    assert (experiment.unit, experiment.seed, experiment.shares) == ("api_key", 7, {"warm": 90.0, "random": 10.0})
    assert (experiment.guard.worse_by, experiment.limits.error_rate_max) == (0.2, 0.05)
    assert (experiment.isolate, experiment.observe_s, experiment.guard.action) == ("instances", 60.0, "report")


def test_without_the_word_above_it() -> None:
    assert parse_experiment("arms: {warm: 100}\nshadows: [random]", KNOWN, "warm") == ExperimentConfig(
        arms={"warm": 100.0}, shadows=["random"]
    )


def test_two_arms_of_one_policy_with_an_admission_rule_each() -> None:
    experiment = parse_experiment(
        """
        unit: time
        arms:
          random: 20
          fit: {share: 50, policy: warm, admission: {name: fit}}
          cap: {share: 30, policy: warm, admission: {name: concurrency, per_target: 3}}
        """,
        KNOWN,
        "warm",
    )
    assert experiment.shares == {"random": 20.0, "fit": 50.0, "cap": 30.0}
    assert experiment.policies == {"random": "random", "fit": "warm", "cap": "warm"}
    assert experiment.compares_admission
    assert ExperimentConfig.model_validate_json(experiment.model_dump_json()) == experiment
    assert experiment.model_dump(mode="json")["arms"]["random"] == 20.0


@pytest.mark.parametrize(("written", "share"), [("0.2", 0.2), ("20%", 0.2), ("'2.5 %'", 0.025), ("0", 0.0)])
def test_a_share_is_a_number_or_percent(written: str, share: float) -> None:
    text = f"arms: {{warm: 100}}\nguard: {{worse_by: {written}}}"
    assert parse_experiment(text, KNOWN, "warm").guard.worse_by == share


def test_shadows_alone_are_beside_the_active_policy() -> None:
    alone = parse_experiment("shadows: [random]", KNOWN, "warm")
    assert alone == parse_experiment("arms: {warm: 100}\nshadows: [random]", KNOWN, "warm")
    assert alone.shares == {"warm": 100.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("arms: {warm: 90, random: 20}", "arms: found shares that add up to 110, wanted 100 (percent)"),
        ("arms: {warm: 110, random: -10}", "arms.random: found the share -10, wanted more than 0"),
        ("arms: {warm: 100, random: 0}", "arms.random: found the share 0, wanted more than 0"),
        ("arms: {warm: 90, randm: 10}", 'experiment:1: arms.randm: unknown policy "randm": did you mean "random"?'),
        ("arms: {warm: 50, warm: 50}", "arms.warm: given twice"),
        ("arms: {warm: 100}\nshadows: [warm]", "shadows[0]: found warm, which is an arm already: remove it"),
        ("arms: {warm: 100}\nshadows: [random, random]", "shadows[1]: found random again: remove one"),
        ("arms: {warm: 100}\nshadows: [nope]", 'experiment:2: shadows[0]: unknown policy "nope"'),
        ("arms: {}", "the experiment has neither arms nor shadows: give the policies to compare"),
        ("shadows: [warm]", "experiment:1: shadows[0]: found warm, which is active: remove it"),
        ("unit: sesion\narms: {warm: 100}", "experiment:1: unit"),
        ("arms: {warm: 100}\nguard: {metric: p90}", "experiment:2: guard.metric"),
        ("arms: {warm: 100}\nguard: {worse_by: lots}", "experiment:2: guard.worse_by"),
        ("arms: {warm: 100}\nlimits: {error_rate_max: 500%}", "experiment:2: limits.error_rate_max"),
        ("arms: {warm: 50, random: 50}\nunit: time\nisolate: instances", "isolate: instances needs another unit"),
        ("arms: {warm: 100}\nguards: {}", "guard"),
        ("arms: {a: {share: 100, policy: wrm}}", 'experiment:1: arms.a.policy: unknown policy "wrm"'),
        ("arms: {warm: {share: 100, rule: fit}}", "experiment:1: arms.warm.rule"),
        ("arms: {warm: {share: 100, admission: {name: fit}}}", "compare them with unit: time"),
        (
            "arms: {a: {share: 100, policy: warm}}\nshadows: [warm]",
            "shadows[0]: found warm, which is an arm already: remove it",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    assert says in refused(text)


def test_a_main_file_whose_experiment_names_a_missing_policy(tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text(MAIN + "experiment: {arms: {warm: 50, rondom: 50}, shadows: [worm]}\n")
    with pytest.raises(ConfigError) as refusal:
        read_config(file)
    assert str(refusal.value).splitlines() == [
        f'{file}:5: experiment.arms.rondom: unknown policy "rondom": did you mean "random"?',
        f'{file}:5: experiment.shadows[0]: unknown policy "worm": did you mean "warm"?',
    ]
