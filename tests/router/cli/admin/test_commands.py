"""`warmroute policy` and `warmroute experiment` against a running admin API."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from router.cli.admin import commands as module
from router.cli.admin.commands import experiment, policy
from router.errors import ConfigError, WarmrouteError
from tests.router.cli.admin.conftest import Running
from tests.router.control.control_plane import BROKEN, EXPERIMENT, TEXTS


def test_list_says_what_is_in_use_and_what_went_wrong(router: Running) -> None:
    router.here(router.house.control.start_experiment, EXPERIMENT, "ann")
    with pytest.raises(ConfigError):
        router.here(router.house.control.put_policy, "new", BROKEN, "ann")
    said = router.said(policy, "list")
    rows = {line.split()[0]: line.split()[2:] for line in said.splitlines() if line.startswith(" ") and line.strip()}
    assert rows["near"] == ["active,", "arm", "50%"]
    assert rows["far"] == ["arm", "50%"]
    assert rows["other"] == ["-", "-"]
    assert "admin: not in force since 1970-01-01 01:23:20 UTC: policy new:1: scorers[0]" in said
    assert "undo would take back: start experiment of near, far" in said


def test_show_prints_what_put_takes(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "near.yaml"
    file.write_text(router.said(policy, "show", "near"))
    assert "prefix_overlap" in file.read_text()
    assert "nothing changes: it is so already" in router.said(policy, "put", str(file))


def test_plan_put_activate_undo_audit(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXTS["far"])
    planned = router.said(policy, "plan", str(file))
    assert planned.splitlines()[:2] == [
        "would: put policy mine and activate it",
        "2 of the last 2 choices would change (100.0%)",
    ]
    assert router.house.active == "near"
    assert "done: put policy mine" in router.said(policy, "put", str(file))
    assert "would: activate mine" in router.said(policy, "plan", "mine")
    assert "done: activate mine" in router.said(policy, "activate", "mine")
    assert router.house.active == "mine"
    assert "would: undo" in router.said(policy, "undo", "--dry-run")
    assert "undone: activate mine" in router.said(policy, "undo")
    assert router.house.active == "near"
    said = router.said(policy, "audit", "--limit", "2")
    assert "activate mine" in said
    assert "active: near -> mine" in said
    assert "put policy mine" not in said
    assert "anybody" in said


def test_put_under_another_name_and_activate(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXTS["far"])
    router.said(policy, "put", str(file), "--name", "yours", "--activate")
    assert router.house.active == "yours"


def test_what_is_typed_wrong(router: Running, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        router.said(policy, "put", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(ConfigError, match='unknown policy "nera": did you mean "near"'):
        router.said(policy, "activate", "nera")
    with pytest.raises(WarmrouteError, match="there is no switch left to undo"):
        router.said(policy, "undo")
    (tmp_path / "a b.yaml").write_text(TEXTS["far"])
    with pytest.raises(ConfigError, match="policy 'a b': a name has 1 to 100 letters"):
        router.said(policy, "put", str(tmp_path / "a b.yaml"))


def run_some(router: Running, requests: int = 300) -> None:
    """Requests of 100 ms, and 200 ms on `far`, of which every tenth fails."""

    def run() -> None:
        core, clock = router.house.core, router.house.clock
        assert core.experiment is not None
        for i in range(requests):
            record = router.house.record()
            core.assign_policy(record, b"unit %d" % i)
            slow = record.arm == "far"
            record.done, record.ttft_ms = True, 200.0 if slow else 100.0
            record.duration_ms = 2 * record.ttft_ms
            record.status = 500 if slow and i % 10 == 0 else 200
            record.prompt_tokens, record.cached_tokens = 100, 50
            core.complete(record)
            clock.advance(1.0)  # type: ignore[attr-defined]
            core.experiment.poll(clock.now())

    router.here(run)


def test_none(router: Running) -> None:
    assert router.said(experiment, "show") == "no experiment is running\n"
    with pytest.raises(WarmrouteError, match="no experiment is running"):
        router.said(experiment, "end")


def test_start_show_end(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text("experiment:\n  unit: request\n  arms: {near: 50, far: 50}\n  shadows: [other]\n")
    assert "would: start experiment of near, far" in router.said(experiment, "start", str(file), "--dry-run")
    assert "done: start experiment of near, far" in router.said(experiment, "start", str(file))
    run_some(router)
    said = router.said(experiment, "show")
    assert "against near; intervals hold at every look" in said
    rows = [line.split() for line in said.splitlines()]
    (p50,) = [row for row in rows if row[:2] == ["ttft_p50", "near"]]
    assert p50[2:4] == ["100", "ms"] or p50[2:4] == ["101", "ms"]  # of a histogram of 1 % steps
    assert "worse" in said
    assert "the arms share caches" in said
    assert "shadows, by prediction" in said
    assert router.said(experiment) == said
    assert "near decides for everybody" in router.said(experiment, "end")
    assert "no experiment is running; the last one ended" in router.said(experiment, "show")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_chart(router: Running, tmp_path: Path, suffix: str, magic: bytes) -> None:
    router.here(router.house.control.start_experiment, EXPERIMENT, "ann")
    run_some(router)
    file = tmp_path / f"chart{suffix}"
    assert f"written: {file}" in router.said(experiment, "show", "--chart", str(file)).replace("\n", "")
    assert file.read_bytes().startswith(magic)
    if suffix == ".svg":
        assert "ttft_p90" in file.read_text()


def test_a_chart_of_an_experiment_that_has_just_begun(router: Running, tmp_path: Path) -> None:
    router.here(router.house.control.start_experiment, EXPERIMENT, "ann")
    router.said(experiment, "show", "--chart", str(tmp_path / "chart.png"))
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_charts_that_cannot_be(router: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"the name must end in \.png or \.svg"):
        router.said(experiment, "show", "--chart", str(tmp_path / "chart.gif"))
    with pytest.raises(WarmrouteError, match="there is nothing to draw"):
        router.said(experiment, "show", "--chart", str(tmp_path / "chart.png"))
    router.here(router.house.control.start_experiment, EXPERIMENT, "ann")
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match=r"--chart: .*chart\.png: (file exists|not a directory)"):
        router.said(experiment, "show", "--chart", str(tmp_path / "file" / "chart.png"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(WarmrouteError, match=r"pip install 'warmroute\[lab\]'"):
        router.said(experiment, "show", "--chart", str(tmp_path / "chart.png"))


def test_watch_looks_again_until_it_is_stopped(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)
    router.said(experiment, "show", "--watch")
    assert looks == [module.REFRESH_S] * 3


def test_options_before_the_word_are_not_lost_in_silence() -> None:
    with pytest.raises(ConfigError, match="options go after the command: warmroute experiment show --admin"):
        CliRunner().invoke(experiment, ["--watch", "show"], catch_exceptions=False)
