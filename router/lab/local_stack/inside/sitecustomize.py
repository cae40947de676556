"""Patch run at the start of every engine (PYTHONPATH): waiting processes sleep 50 us instead of yielding in a loop.

vLLM's processes wait for each other in a loop around sched_yield(2) (vllm/distributed/utils.py). With fewer cores
than processes, as here, such a loop starves the process that shares its core: loads from the pool took ten seconds
and more, until the master considered Mooncake's client dead. 50 us of sleep cost a request no measurable time.
"""

import os
import time

os.sched_yield = lambda: time.sleep(50e-6)
