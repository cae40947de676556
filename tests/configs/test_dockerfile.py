"""The image, as far as it can be seen without building it."""

from __future__ import annotations

import json
import re

from tests.paths import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
LINES = [line.strip() for line in TEXT.splitlines() if line and not line.startswith("#")]


def argument(instruction: str) -> str:
    """Of the last such instruction, which is the one that counts."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")][-1]


def test_what_it_copies_is_there() -> None:
    copied = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    sources = [source for group in copied for source in group]
    assert {"router", "scorers", "configs", "constraints.txt", "LICENSE"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_it_does_not_run_as_root() -> None:
    last_stage = LINES[max(i for i, line in enumerate(LINES) if line.startswith("FROM ")) :]
    assert "USER 10001" in last_stage


def test_it_installs_the_wheel_from_the_lock() -> None:
    assert any(
        "pip wheel --no-deps --wheel-dir /dist ." in line
        and 'pip install -c constraints.txt "$(echo /dist/*.whl)[harmony,kimi,mistral,otel,picker]"' in line
        for line in LINES
    )


def test_it_serves_and_gets_signals() -> None:
    assert json.loads(argument("ENTRYPOINT")) == ["warmroute", "serve"]
    assert json.loads(argument("CMD")) == ["--config", "/etc/warmroute/config.yaml"]


def test_the_health_check_is_python_that_compiles() -> None:
    found = re.search(r"HEALTHCHECK .*CMD (\[.*\])", TEXT)
    assert found is not None
    program, flag, code = json.loads(found[1])
    assert (program, flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")
    assert "/health'" in code
