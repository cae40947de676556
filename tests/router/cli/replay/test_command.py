"""`warmroute replay` on real files: what it prints, writes and refuses."""

from __future__ import annotations

import gzip
import io
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from router.cli.replay.command import NotReproduced, inspect, replay
from router.clock import SystemClock
from router.config import schema
from router.errors import ConfigError, WarmrouteError
from router.features.decision_log.reader import DecisionLogError
from router.features.decision_log.writer import DecisionLogWriter
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer
from router.scheduling.policy.record import Record
from scorers import registry
from scorers.best import Best
from scorers.contract import Scorer, Unit, View
from tests.router.lab.replay.scene import FOLDER, decided, lines, named, of_a_large_fleet, to
from tests.suites.plugins import Pupil
from tests.suites.views import a_load, a_row, a_view, an_overlap

ROWS = (a_row("a", an_overlap(800), a_load(requests=1)), a_row("b", an_overlap(0)), a_row("c", an_overlap(0)))
VIEW = a_view(*ROWS, prompt_tokens=1000, session="s")


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(told: Console) -> str:
    assert isinstance(told.file, io.StringIO)
    return told.file.getvalue()


def write(path: Path, records: Iterable[Record]) -> Path:
    data = b"".join(lines(records))
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "decisions-1.jsonl.gz", decided(named("least_requests"), [VIEW] * 40))


def row_of(table: str, name: str) -> list[str]:
    """Its only row, in any table."""
    (line,) = [line for line in table.splitlines() if line.strip().startswith(f"{name}  ")]
    return line.split()


def test_what_the_ledger_wrote_is_decided_again_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "decision_log"
    decision_log = DecisionLogWriter(schema.DecisionLogConfig(folder=str(folder)), 5, "run", SystemClock())
    decision_log.start()
    for record in decided(named("session_affinity"), [VIEW._replace(session=f"s{i % 7}") for i in range(300)]):
        decision_log.add(record)
    decision_log.close()
    told = console()
    assert replay([folder], console=told)
    assert row_of(printed(told), "session_affinity")[2:] == ["300", "300", "100", "%"]
    assert "Every logged choice came out the same: 300 of 300 (100 %)." in printed(told)


def test_others_are_held_against_what_was_done(log: Path, tmp_path: Path) -> None:
    told, out = console(), tmp_path / "out"
    given = ["prefix_overlap", "least_requests"]
    for name in given:
        (tmp_path / f"{name}.yaml").write_text(f"scorers: [{{name: {name}}}]\n")
    assert replay([log], given, tmp_path, out / "r.json", out / "r.png", console=told)
    # always a instead of b or c: 30.18 ms instead of 130.5, 800 tokens more, all on one of three
    made = row_of(printed(told), "prefix_overlap")
    assert made[:5] == ["prefix_overlap", "40", "0", "%", "-100.3"]
    assert made[7:9] == ["+800", "3.00"]
    same = [line.split() for line in printed(told).splitlines() if line.strip().startswith("least_requests  ")]
    assert same[1][:6] == ["least_requests", "40", "100", "%", "+0.0", "-"]
    report = json.loads((out / "r.json").read_text())
    assert (report["complete"], report["choices"], report["same"], report["bad_lines"]) == (True, 40, 40, 0)
    assert report["contended"][0]["ttft_ms"] == pytest.approx(30.18 - 130.5)
    assert (out / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_policy_that_saw_a_large_fleet_in_part_is_marked_wherever_it_is_shown(tmp_path: Path) -> None:
    log = write(tmp_path / "decisions-1.jsonl", of_a_large_fleet("expected_ttft", 10))
    for name in ("least_work_left", "round_robin"):
        (tmp_path / f"{name}.yaml").write_text(f"scorers: [{{name: {name}}}]\n")
    told, out = console(), tmp_path / "r.json"
    assert replay([log], ["least_work_left", "round_robin"], tmp_path, out, tmp_path / "r.svg", console=told)
    assert row_of(printed(told), "round_robin (partly seen)")[3:6] == ["10", "0", "%"]
    assert row_of(printed(told), "least_work_left")[1] == "10"
    assert "round_robin: 10 of 10 choices are partly seen: for a large fleet the log holds" in printed(told)
    found = {one["policy"]: one["partial"] for one in json.loads(out.read_text())["contended"]}
    assert found == {"least_work_left": 0, "round_robin": 10}
    assert "round_robin (partly seen)" in (tmp_path / "r.svg").read_text()


def test_a_chart_is_also_an_svg(log: Path, tmp_path: Path) -> None:
    assert replay([log], [str(FOLDER / "random.yaml")], chart=tmp_path / "r.svg", console=console())
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_files_and_folders_of_one_name_order(log: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "decisions-2.jsonl", decided(named("random"), [VIEW] * 5))
    told = console()
    assert replay([tmp_path, log], console=told)  # the folder holds both, and each counts once
    assert [row_of(printed(told), name)[2] for name in ("least_requests", "random")] == ["40", "5"]
    assert replay([other], console=console())


def test_a_limit_ends_it_early(log: Path) -> None:
    told = console()
    assert replay([log], limit=7, console=told)
    assert row_of(printed(told), "least_requests")[2] == "7"


def test_a_choice_that_comes_out_otherwise_is_an_error_with_its_record(tmp_path: Path) -> None:
    spec = schema.PolicyConfig.model_validate(
        {"scorers": [{"name": "least_requests"}], "filters": [{"name": "max_waiting"}]}
    )
    records = [*decided(to("a/0", name="liar", spec=spec), [VIEW] * 2), *decided(named("random"), [VIEW] * 3)]
    log = write(tmp_path / "decisions-1.jsonl", records)
    told = console()
    with pytest.raises(NotReproduced, match="2 of 5 choices were not reproduced"):
        replay([log], console=told)
    said = printed(told)
    assert row_of(said, "liar")[2:] == ["2", "0", "0", "%"]
    assert "2 of 2 choices came out different:" in said
    assert "  run-0 (whole): logged a/0, now " in said
    assert "Every logged choice" not in said


def test_a_policy_that_cannot_be_built_is_an_error_with_its_reason(tmp_path: Path) -> None:
    log = write(tmp_path / "decisions-1.jsonl", decided(to("a/0"), [VIEW]))
    told = console()
    with pytest.raises(NotReproduced):
        replay([log], console=told)
    assert "a/0 (by hand): 1 choices could not be made again: it was built by hand" in printed(told)


def test_one_record_with_the_parts_of_its_costs_and_what_others_would_have_chosen(tmp_path: Path) -> None:
    log = write(tmp_path / "decisions-1.jsonl.gz", decided(named("expected_ttft"), [VIEW] * 5))
    told, out = console(), tmp_path / "r.json"
    inspect([log], "run-3", [str(FOLDER / "least_requests.yaml"), str(FOLDER / "jsew.yaml")], None, out, told)
    said = printed(told)
    assert said.startswith("run-3, m, policy expected_ttft\n\na/0, ended: ok\n")
    assert "a/0: expected_ttft costs 100 ms less than at " in said
    # 5 + 200 * 0.125 + 200 * (800 + 100) / 1e6, all of it computing: the only part, as nobody waits
    (chosen,) = [line.split() for line in said.splitlines() if line.strip().startswith("a/0 (chosen)")]
    assert chosen == ["a/0", "(chosen)", "30.18", "30.18"]
    (other,) = [line.split() for line in said.splitlines() if line.strip().startswith("least_requests ")]
    assert (other[2:4], other[4:]) == (["+100.3", "-800"], ["0.00", "1.00"])
    assert "jsew: it learns: it decided by what it knows now" in said
    report = json.loads(out.read_text())
    assert (report["id"], report["policy"], len(report["choices"]), len(report["others"])) == (
        "run-3", "expected_ttft", 1, 2
    )  # fmt: skip
    candidate = report["choices"][0]["decision"]["candidates"][0]
    assert candidate["terms"]["expected_ttft"]["parts"] == pytest.approx({"wait": 0.0, "compute": 30.18})


def test_a_record_that_comes_out_otherwise_says_so_beside_what_was_logged(tmp_path: Path) -> None:
    spec = schema.PolicyConfig.model_validate({"scorers": [{"name": "prefix_overlap"}]})
    log = write(tmp_path / "decisions-1.jsonl", decided(to("c/0", name="liar", spec=spec), [VIEW]))
    told = console()
    inspect([log], "run-0", console=told)
    assert "c/0, ended: ok\ndecided again, it is a/0\n" in printed(told)
    assert "c/0 (chosen)" in printed(told)


def test_a_record_of_a_policy_that_cannot_be_built_is_shown_with_the_reason(tmp_path: Path) -> None:
    log = write(tmp_path / "decisions-1.jsonl", decided(to("a/0"), [VIEW]))
    told = console()
    inspect([log], "run-0", console=told)
    assert "it was built by hand: the log does not hold its definition" in printed(told)


def test_a_record_that_is_not_there_is_an_error(log: Path) -> None:
    with pytest.raises(WarmrouteError, match="--record: run-99: the log has no such record"):
        inspect([log], "run-99", console=console())


def learning(spec: str) -> Policy:
    wanted = schema.PolicyConfig.model_validate({"scorers": [{"name": spec}]})
    return Policy("learns", [], [WeightedScorer(spec, 1.0, Pupil())], NamedPicker("best", Best()), spec=wanted)


def test_a_scorer_that_learns_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTINS[Scorer], "pupil", "tests.suites.plugins:Pupil")  # type: ignore[index]
    log = write(tmp_path / "decisions-1.jsonl", decided(learning("pupil"), [VIEW] * 6))
    told = console()
    assert replay([log], console=told)
    assert "4 of 6 choices came out different:" in printed(told)
    assert "It has a scorer that learns while it runs" in printed(told)


@dataclass
class Interrupted(Scorer):
    """The operator's Ctrl-C comes at the fourth decision."""

    unit = Unit.RAW

    def __post_init__(self) -> None:
        self.calls = 0

    def score(self, view: View) -> Sequence[float]:
        self.calls += 1
        if self.calls == 4:
            signal.raise_signal(signal.SIGINT)
        return [0.0] * len(view.rows)


def test_after_ctrl_c_there_is_a_part(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTINS[Scorer], "interrupted", f"{__name__}:Interrupted")  # type: ignore[index]
    (tmp_path / "interrupted.yaml").write_text("scorers: [{name: interrupted}]\n")
    told, before = console(), signal.getsignal(signal.SIGINT)
    assert not replay([log], ["interrupted"], tmp_path, tmp_path / "r.json", console=told)
    assert "Interrupted: the report holds what was decided again before." in printed(told)
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["complete"], report["contended"][0]["choices"]) == (False, 4)  # that one came to its end
    assert (report["choices"], report["same"]) == (4, 4)
    assert signal.getsignal(signal.SIGINT) is before


def test_lines_that_cannot_be_read_are_told_with_their_place(tmp_path: Path) -> None:
    written = lines(decided(named("random"), [VIEW] * 4))
    log = tmp_path / "decisions-1.jsonl"
    log.write_bytes(b"".join([*written[:3], b'{"record": 3}\n', *written[3:5], written[5][:50]]))
    told = console()
    assert replay([log], console=told)
    said = printed(told)
    assert row_of(said, "random")[2] == "3"
    assert "1 lines could not be read and were skipped:" in said
    assert f"  {log}:4: not a line of a decision log" in said
    assert f"{log}: its last line is unfinished" in said


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    told = console()
    assert replay([write(tmp_path / "decisions-1.jsonl", [])], console=told)
    assert printed(told).strip() == "The log holds no records."


@dataclass
class Broken(Scorer):
    unit = Unit.RAW

    def score(self, view: View) -> Sequence[float]:
        raise RuntimeError("boom [x]")


def test_what_breaks_is_told_with_its_first_fault(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTINS[Scorer], "broken", f"{__name__}:Broken")  # type: ignore[index]
    (tmp_path / "broken.yaml").write_text("scorers: [{name: broken}]\n")
    told = console()
    assert replay([log], ["broken"], tmp_path, chart=tmp_path / "r.png", console=told)
    assert "broken fails, first: policy broken: broken: RuntimeError: boom [x]" in printed(told)
    assert row_of(printed(told), "broken")[-1] == "40"
    assert not (tmp_path / "r.png").exists()  # there is nothing to draw


def test_a_log_that_knows_nothing_of_caches_says_so(tmp_path: Path) -> None:
    unseen = a_view(a_row("a"), a_row("b"))
    log = write(tmp_path / "decisions-1.jsonl", decided(named("round_robin"), [unseen] * 3))
    (tmp_path / "prefix_overlap.yaml").write_text("scorers: [{name: prefix_overlap}]\n")
    told = console()
    assert replay([log], ["prefix_overlap"], tmp_path, console=told)
    assert "prefix_overlap: 3 of 3 choices are of requests whose cache overlaps were not looked up" in printed(told)


def test_what_is_asked_wrongly_is_refused_before_anything_is_read(log: Path, tmp_path: Path) -> None:
    with pytest.raises(DecisionLogError, match="no such file or folder"):
        replay([tmp_path / "gone"], console=console())
    with pytest.raises(ConfigError, match=r"--chart: .*r.pdf: the name must end in .png or .svg"):
        replay([log], [str(FOLDER / "random.yaml")], chart=tmp_path / "r.pdf", console=console())
    with pytest.raises(ConfigError, match="--chart compares other policies"):
        replay([log], chart=tmp_path / "r.png", console=console())
    with pytest.raises(ConfigError, match="unknown policy"):
        replay([log], ["nobody_has_this"], tmp_path, console=console())


def test_a_chart_without_matplotlib_is_refused_at_once(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(WarmrouteError, match=r"pip install 'warmroute\[lab\]'"):
        replay([log], [str(FOLDER / "random.yaml")], chart=tmp_path / "r.png", console=console())
