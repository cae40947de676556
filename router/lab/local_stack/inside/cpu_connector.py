"""vLLM's MooncakeConnector (prefill/decode, engine to engine) on a CPU. Runs inside vLLM 0.32.0, not in the router.

The connector's worker queries `torch.accelerator` for the current device's number, which raises without an
accelerator. The worker needs the number only for a call that does nothing on a CPU, so it gets 0 while it is built.
The class has the same name as the class that it replaces, because MultiConnector looks up its children by class
name when it builds statistics, whatever their module. The class has no statistics, because MultiConnector has no
Prometheus metrics for them, and its API server would end on an assertion at the first transfer.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector


class MooncakeConnector(mooncake_connector.MooncakeConnector):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        ask = torch.accelerator.current_device_index
        if not torch.accelerator.is_available():
            torch.accelerator.current_device_index = lambda: 0
        try:
            super().__init__(*arguments, **named)
        finally:
            torch.accelerator.current_device_index = ask

    def get_kv_connector_stats(self) -> None:
        return None
