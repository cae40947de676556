from pathlib import Path

import pytest

from router.errors import ConfigError
from router.testbed.replay.policies import policies
from scorers.registry import load_registry

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
    found = policies([str(mine), "round_robin"], folder, REGISTRY)
    assert [(policy.name, policy.scorers[0].name) for policy in found] == [
        ("mine", "least_requests"),
        ("round_robin", "round_robin"),
    ]


def test_without_a_folder_names_are_looked_up_here_or_in_configs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert policies(["random"], None, REGISTRY)[0].name == "random"
    (folder / "configs/policies").mkdir(parents=True)
    (folder / "configs/policies/only_here.yaml").write_text("scorers: [{name: random}]\n")
    assert policies(["only_here"], None, REGISTRY)[0].name == "only_here"


def test_every_problem_is_told_at_once(folder: Path) -> None:
    broken = folder / "broken.yaml"
    broken.write_text("scorers: [{name: roud_robin}]\n")
    again = folder / "more" / "random.yaml"
    again.parent.mkdir()
    again.write_text("scorers: [{name: random}]\n")
    given = ["round_robbin", str(broken), str(folder / "gone.yaml"), "random", str(again)]
    with pytest.raises(ConfigError) as refused:
        policies(given, folder, REGISTRY)
    lines = str(refused.value).splitlines()
    assert lines[0] == (
        f'--policy: unknown policy "round_robbin": did you mean "round_robin"? (in {folder}); or give a file (.yaml)'
    )
    assert lines[1].startswith("policies.broken: scorers[0]: unknown scorer 'roud_robin'")
    assert str(folder / "gone.yaml") in lines[2]
    assert lines[3] == '--policy: "random" is given twice; rename one of the files'
    assert len(lines) == 4


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder: .*nowhere; give files"):
        policies(["random"], tmp_path / "nowhere", REGISTRY)
