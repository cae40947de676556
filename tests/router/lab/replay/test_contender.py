"""What one policy would have done on the views of others, worked by hand."""

from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ConfigError
from router.lab.replay.contender import FLOOR, Contender, QuantileSketch, load_contenders
from router.scheduling.experiments.dry_run import TargetMove
from scorers.registry import load_registry
from tests.router.lab.replay.scene import named, to
from tests.suites.views import a_load, a_row, a_view, an_overlap

WARM = a_row("a", an_overlap(800), a_load(requests=1))
COLD = a_row("b", an_overlap(0))
VIEW = a_view(WARM, COLD, prompt_tokens=1000)


def test_differences_are_its_own_choice_minus_what_was_made() -> None:
    contender = Contender(named("least_requests"))  # always b
    for made in (WARM, WARM, COLD, COLD):
        contender.add(VIEW, "whole", made)
    found = contender.result()
    assert (found.choices, found.agreed, found.agreement, found.failed) == (4, 2, 0.5, 0)
    # a: 5 + 25 + 200 * 900 * 1e-6 = 30.18 ms; b: 5 + 125 + 1000 * 500 * 1e-6 = 130.5 ms; half of them move
    assert found.ttft_ms == pytest.approx((130.5 - 30.18) / 2)
    assert found.ttft_p10_ms == pytest.approx(130.5 - 30.18, rel=0.01)
    assert found.ttft_p90_ms == found.ttft_p10_ms
    assert found.overlap_tokens == -400
    assert (found.uneven_made, found.uneven) == (1, 2)
    assert found.moves == (TargetMove("a/0", "b/0", 2),)


def test_its_sessions_are_its_own() -> None:
    contender = Contender(named("session_affinity"))
    view = VIEW._replace(session="s")
    contender.add(view._replace(last_target="b/0"), "whole", WARM)
    contender.add(view._replace(last_target="a/0"), "whole", WARM)
    assert contender.result().moves == (TargetMove("a/0", "b/0", 2),)


def test_one_that_always_agrees_has_no_differences() -> None:
    contender = Contender(to("a/0"))
    contender.add(VIEW, "whole", WARM)
    found = contender.result()
    assert (found.ttft_ms, found.overlap_tokens, found.moves) == (0, 0, ())
    assert (found.ttft_p10_ms, found.ttft_p90_ms) == (None, None)


def test_one_that_breaks_is_counted_and_goes_on() -> None:
    contender = Contender(to("broken"))
    for _ in range(3):
        contender.add(VIEW, "whole", WARM)
    found = contender.result()
    assert (found.choices, found.failed, found.agreement, found.ttft_ms) == (0, 3, None, None)
    assert found.fault == "policy broken: fixed: RuntimeError: boom"


def test_where_candidates_were_left_out_whose_choice_hangs_on_them_is_counted() -> None:
    contender = Contender(named("least_requests"))
    for view in (VIEW, VIEW._replace(others=98), VIEW._replace(others=98)):
        contender.add(view, "whole", WARM, named("expected_ttft"))
    contender.add(VIEW._replace(others=98), "whole", WARM, named("least_requests"))
    assert (contender.result().choices, contender.result().partial) == (4, 2)


def test_where_nobody_looked_at_caches_one_that_counts_on_them_is_blind() -> None:
    unseen = a_view(a_row("a"), a_row("b"))
    for name, expected in (("prefix_overlap", 2), ("least_requests", 0)):
        contender = Contender(named(name))
        for view in (unseen, unseen, VIEW):
            contender.add(view, "whole", view.rows[0])
        assert contender.result().blind == expected


REGISTRY = load_registry()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("round_robin", "random"):
        (tmp_path / f"{name}.yaml").write_text(f"scorers: [{{name: {name}}}]\n")
    (tmp_path / "README.md").write_text("no policy\n")
    return tmp_path


def test_names_and_files_in_the_order_given(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "elsewhere" / "mine.yml"
    mine.parent.mkdir()
    mine.write_text("scorers: [{name: least_requests}]\n")
    found = load_contenders([str(mine), "round_robin"], folder, REGISTRY)
    assert [(policy.name, policy.scorers[0].name) for policy in found] == [
        ("mine", "least_requests"),
        ("round_robin", "round_robin"),
    ]


def test_without_a_folder_names_are_looked_up_here_or_in_configs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load_contenders(["random"], None, REGISTRY)[0].name == "random"
    (folder / "configs/policies").mkdir(parents=True)
    (folder / "configs/policies/only_here.yaml").write_text("scorers: [{name: random}]\n")
    assert load_contenders(["only_here"], None, REGISTRY)[0].name == "only_here"


def test_every_problem_is_told_at_once(folder: Path) -> None:
    broken = folder / "broken.yaml"
    broken.write_text("scorers: [{name: roud_robin}]\n")
    again = folder / "more" / "random.yaml"
    again.parent.mkdir()
    again.write_text("scorers: [{name: random}]\n")
    given = ["round_robbin", str(broken), str(folder / "gone.yaml"), "random", str(again)]
    with pytest.raises(ConfigError) as refused:
        load_contenders(given, folder, REGISTRY)
    lines = str(refused.value).splitlines()
    assert lines[0] == (
        f'--policy: unknown policy "round_robbin": did you mean "round_robin"? (in {folder}); or give a file (.yaml)'
    )
    assert lines[1].startswith(f"{broken}:1: scorers[0]: unknown scorer 'roud_robin'")
    assert str(folder / "gone.yaml") in lines[2]
    assert lines[3] == '--policy: "random" is given twice; rename one of the files'
    assert len(lines) == 4


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder: .*nowhere; give files"):
        load_contenders(["random"], tmp_path / "nowhere", REGISTRY)


def of(values: list[float]) -> QuantileSketch:
    quantiles = QuantileSketch()
    for value in values:
        quantiles.add(value)
    return quantiles


@given(st.lists(st.floats(-1e7, 1e7), min_size=1), st.floats(0, 1))
def test_within_one_percent_of_the_true_one(values: list[float], share: float) -> None:
    true = sorted(values)[max(1, ceil(share * len(values))) - 1]
    assert of(values).at(share) == pytest.approx(true, rel=0.0101, abs=FLOOR)


def test_both_ends() -> None:
    # of -100, -10, 0, 10, ..., 70 the tenth part is the first, nine tenths are the ninth
    values = [-100.0, -10.0, *(10.0 * number for number in range(8))]
    assert of(values).at(0.1) == pytest.approx(-100, rel=0.01)
    assert of(values).at(0.9) == pytest.approx(60, rel=0.01)
    assert of(values).at(0.25) == 0


def test_none_of_nothing() -> None:
    assert QuantileSketch().at(0.5) is None


def test_a_million_values_need_few_buckets() -> None:
    quantiles = of([0.37 * number - 20_000 for number in range(100_000)])
    assert len(quantiles._counts) < 2_000
