"""The install step, with pins that need no network. What makes environments is marked `stack`: it takes seconds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from router.lab.local_stack import install


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARMROUTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    file = tmp_path / "requirements.txt"
    file.write_text("# nothing\n")
    return file


@pytest.mark.stack
def test_an_environment_is_made_once_even_by_two_at_once(pins: Path) -> None:
    finished: list[Path] = []
    runs = [threading.Thread(target=install.cached_venv, args=("kind", pins, finished.append)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    venv = install.venv_path("kind", pins)
    assert finished == [venv]
    assert (venv / "bin" / "python").exists()

    (venv / install.STAMP).unlink()  # as if the first run had been cut off
    assert install.cached_venv("kind", pins, finished.append) == venv
    assert finished == [venv, venv]


def test_other_pins_are_another_environment(pins: Path) -> None:
    before = install.venv_path("kind", pins)
    pins.write_text("# nothing else\n")
    assert install.venv_path("kind", pins) != before


@pytest.mark.parametrize(
    ("log_text", "line"),
    [
        (
            "ERROR: No matching distribution found for torch==2.13.0+cpu",
            f"pip cannot find torch's CPU build (torch==2.13.0+cpu): set {install.EXTRA_INDEX} to an index with",
        ),
        ("ERROR: No matching distribution found for other==1.0", "pip cannot find other==1.0 for Python 3."),
        ("ERROR: something else\nERROR: and more\n", "pip failed: ERROR: something else; full log: "),
        ("Killed", "pip failed: Killed; full log: "),
        ("", "pip failed: no output; full log: "),
    ],
)
def test_a_failure_is_explained_in_one_line(tmp_path: Path, log_text: str, line: str) -> None:
    log = tmp_path / "pip.log"
    log.write_text(f"Collecting things\n{log_text}\n" if log_text else "")
    why = install.explain_pip_failure(log)
    assert why.startswith(line)
    assert "\n" not in why


@pytest.mark.stack
def test_a_failed_install_is_not_complete(pins: Path) -> None:
    pins.write_text("warmroute-tests-need-this==1.0\n")
    with pytest.raises(install.InstallFailed, match="pip cannot find warmroute-tests-need-this"):
        install.cached_venv("kind", pins, lambda _: None)
    assert not (install.venv_path("kind", pins) / install.STAMP).exists()
