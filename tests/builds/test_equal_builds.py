"""The compiled build and the pure one do the same: index, framing and decisions."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scorers.build import PURE, is_compiled
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(not is_compiled(), reason="nothing is compiled here: `make compiled`")


def said(*words: str, pure: bool) -> str:
    env = {name: value for name, value in os.environ.items() if name != PURE} | ({PURE: "1"} if pure else {})
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_processes_run_different_builds() -> None:
    asked = ("-c", "import router.kvcache.index as module; print(module.__file__.rpartition('.')[2])")
    assert (said(*asked, pure=False), said(*asked, pure=True)) == ("so\n", "py\n")


def test_index_and_framing_answer_alike() -> None:
    compiled, pure = (said("-m", "tests.builds.behaviour", "300", pure=pure).splitlines() for pure in (False, True))
    assert len(pure) == 300
    assert [line for line, other in zip(compiled, pure, strict=True) if line != other] == []


def test_all_policies_decide_alike() -> None:
    words = ("-m", "router", "simulate", "--scale", "0.1", "--requests", "200", "-w", "groups", "-n", "4", "-j", "1")
    compiled, pure = (said(*words, "-p", "all", "--json", pure=pure) for pure in (False, True))
    assert compiled == pure
