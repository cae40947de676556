"""Dynamo's own offline replay of a Mooncake trace, run by the Python of the benchmark's own venv.

    dynamo_peer.py TRACE WORKERS SETTINGS         writes a list of reports as JSON, one per router mode

`SETTINGS` is the JSON of its engine's settings. The trace names blocks of 512 tokens.
"""

from __future__ import annotations

import json
import sys

MODES = ("round_robin", "kv_router")
WANTED = ("prefix_cache_reused_ratio", "mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "completed_requests")


def main() -> None:
    trace, workers, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    print(json.dumps([_replayed(trace, workers, settings, mode) for mode in MODES]))


def _replayed(trace: str, workers: int, settings: dict[str, object], mode: str) -> dict[str, float]:
    from dynamo._core import _normalize_mocker_config, run_mocker_trace_replay  # type: ignore[import-not-found]

    engine = _normalize_mocker_config({"engine": settings})
    report = run_mocker_trace_replay(
        [trace], extra_engine_args=engine, num_workers=workers, router_mode=mode, trace_block_size=512
    ).summary
    return {name: report[name] for name in WANTED}


if __name__ == "__main__":
    main()
