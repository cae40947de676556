"""`python -m router.testbed.emulator '{"port": 0, ...}'` runs one emulated engine, configured by `EngineOptions`.

The embedded fleet starts its engines this way; users call `warmroute engine`, which runs the same server.
"""

from __future__ import annotations

from router.testbed.child_process import run_from_argument
from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.server import run_engine

if __name__ == "__main__":
    run_from_argument("warmroute engine", EngineOptions, run_engine)
