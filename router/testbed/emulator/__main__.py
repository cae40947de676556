"""`python -m router.testbed.emulator '{"port": 0, ...}'`: one emulated engine, told by a JSON object of
`EngineOptions`.

Prints one line of JSON when it takes requests. This is how the embedded fleet starts its children; people use
`warmroute engine`, which calls the same `run`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import uvloop

from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.parent_watch import die_with_parent
from router.testbed.emulator.server import serve_engine


def print_json_line(facts: dict[str, Any]) -> None:
    """The one line on standard output."""
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()


def run(options: EngineOptions) -> None:
    """Serve until SIGTERM. Raises OSError when a port is taken, FileNotFoundError without a tokenizer."""
    if options.parent_pid is not None:
        die_with_parent(options.parent_pid)
    uvloop.run(serve_engine(options, print_json_line))


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        options = msgspec.json.decode(sys.argv[1] if len(sys.argv) > 1 else "{}", type=EngineOptions)
        run(options)
    except (msgspec.DecodeError, OSError) as wrong:
        sys.exit(f"warmroute engine: {wrong}")


if __name__ == "__main__":
    main()
