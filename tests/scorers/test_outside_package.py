"""The scorer of the tutorial as a package that is built, installed by pip and used, all as its reader would.

Only the build backend is spared: what it would make, a wheel, is written here, so that no network is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

import scorers
from docs.tools.pages import read_blocks

ROOT = Path(scorers.__file__).parents[1]
PAGE = ROOT / "docs/policies/write-a-scorer.md"

POLICY = """\
scorers:
  - name: crowding
    weight: 2
    full: 100
"""

DECISION = """\
from pathlib import Path
from router.config.reader import read_any
from router.scheduling.policy.policy import build_policy
from tests.suites.views import a_load, a_row, a_view

pair = [a_row("pair", load=a_load(requests=40), rank=rank) for rank in (0, 1)]
lone = a_row("lone", load=a_load(requests=70))
decision = build_policy("p", read_any(Path("POLICY"))).decide(a_view(*pair, lone))
print(decision.terms[0].name, decision.costs, decision.target)
"""


def code(language: str) -> str:
    """The last block of that language in the tutorial."""
    return [block.text for block in read_blocks(PAGE) if block.language == language][-1]


def wheel(folder: Path) -> Path:
    """The example and its entry points as a wheel: a zip of the module beside a `.dist-info` folder (PEP 427)."""
    points = tomllib.loads(code("toml"))["project"]["entry-points"]
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in points.items()]
    (module,) = {reference.split(":")[0] for named in points.values() for reference in named.values()}
    package, _, name = module.rpartition(".")
    files = {
        f"{package}/__init__.py": "",
        f"{package}/{name}.py": code("python"),
        "example-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n",
        "example-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "example-1.0.dist-info/entry_points.txt": "\n".join(groups),
    }
    files["example-1.0.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files)
    path = folder / "example-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def run(*command: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A fresh process, in the repository."""
    environment = {**os.environ, "COLUMNS": "400"} | ({} if site is None else {"PYTHONPATH": str(site)})
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the package into."""
    folder = tmp_path_factory.mktemp("outside")
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    installed = run(*pip, "--target", str(target), str(wheel(folder)))
    assert installed.returncode == 0, installed.stderr
    return target


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "crowded.yaml"
    path.write_text(POLICY)
    return path


def test_check_reads_a_policy_with_the_outside_scorer(site: Path, policy: Path) -> None:
    checked = run(sys.executable, "-m", "router", "check", str(policy), site=site)
    assert checked.returncode == 0, checked.stderr
    assert "name: crowding" in checked.stdout


def test_check_reads_the_policy_of_the_tutorial(site: Path, policy: Path) -> None:
    policy.write_text(code("yaml"))
    checked = run(sys.executable, "-m", "router", "check", str(policy), site=site)
    assert checked.returncode == 0, checked.stderr


def test_its_parameters_are_checked_as_our_own(site: Path, policy: Path) -> None:
    policy.write_text(POLICY.replace("full: 100", "ful: 100"))
    checked = run(sys.executable, "-m", "router", "check", str(policy), site=site)
    assert checked.returncode != 0
    assert "scorer crowding: unknown parameter 'ful' (did you mean 'full'?)" in re.sub(r"\s+", " ", checked.stderr)
    policy.write_text(POLICY.replace("full: 100", "full: 0"))
    checked = run(sys.executable, "-m", "router", "check", str(policy), site=site)
    assert "full: at least 1, not 0" in re.sub(r"\s+", " ", checked.stderr)


def test_where_the_package_is_not_installed_its_name_is_unknown(policy: Path) -> None:
    checked = run(sys.executable, "-m", "router", "check", str(policy))
    assert checked.returncode != 0
    assert "unknown scorer 'crowding'" in checked.stderr


def test_a_decision_uses_it(site: Path, policy: Path) -> None:
    # the pair's ranks share 80 requests: 0.8 of 100, weighted 2; the lone one has 70, the most on one rank: 1.4
    decided = run(sys.executable, "-c", DECISION.replace("POLICY", str(policy)), site=site)
    assert decided.returncode == 0, decided.stderr
    assert decided.stdout.split() == ["crowding", "(1.6,", "1.6,", "1.4)", "lone/0"]
