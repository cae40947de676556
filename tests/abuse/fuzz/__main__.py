"""Fuzz one target: `python -m tests.abuse.fuzz TARGET [--minutes 10]`, guided by coverage (Atheris over libFuzzer).

Inputs that reach something new are kept in build/fuzz/TARGET, from where the next run goes on. A finding is written to
build/fuzz as `crash-...`, `timeout-...` or `oom-...`: mend it, and move the file to corpus/TARGET, so that it is tried
by every `make test`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

BUILD = Path("build/fuzz")
TIMEOUT_S = 5  # for one input
MEMORY_MB = 1024
LONGEST_INPUT = 16 * 1024


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing needs Atheris: pip install atheris (make fuzz does)")
    arguments = argparse.ArgumentParser(prog="python -m tests.abuse.fuzz")
    arguments.add_argument("target")
    arguments.add_argument("--minutes", type=float, default=10.0)
    chosen = arguments.parse_args()
    with atheris.instrument_imports(include=["router", "scorers", "yaml"]):
        from tests.abuse.fuzz.targets import CORPUS, TARGETS
    if chosen.target not in TARGETS:
        sys.exit(f"targets: {', '.join(TARGETS)}")
    found = BUILD / chosen.target
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={chosen.minutes * 60:.0f}", f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB}"]
    options = [*limits, f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={BUILD}/", "-print_final_stats=1"]
    with TARGETS[chosen.target]() as target:
        atheris.Setup([sys.argv[0], *options, str(found), str(CORPUS / chosen.target)], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
