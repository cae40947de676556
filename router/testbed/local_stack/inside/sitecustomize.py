"""Runs at the start of every engine (PYTHONPATH): waiting processes sleep a moment instead of yielding in a loop.

vLLM's processes wait for each other in a loop around sched_yield(2) (vllm/distributed/utils.py). Where cores are fewer
than processes, as here, such a loop starves who shares its core: loads from the pool were seen to take ten seconds and
more, until the master took Mooncake's client for dead. 50 us of sleep cost a request nothing that can be measured.
"""

import os
import time

os.sched_yield = lambda: time.sleep(50e-6)
