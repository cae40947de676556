"""The sections `adapters` and `adapter_loading`: LoRA adapters that the router loads where a request needs them."""

from __future__ import annotations

from router.config.sections.base import Positive, Seconds, Section

MAX_ADAPTERS = 1000


class AdapterConfig(Section):
    path: str
    """folder or repository of the adapter, as the engines reach it (`lora_path`)"""
    base: str
    """model that it belongs to, by the name under which engines serve it"""


class AdapterLoadingConfig(Section):
    """Engines need VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, which lets whoever reaches them load any adapter."""

    max_loaded: Positive = 4
    """adapters of an instance, those included that it was started with; beyond, the coldest one that the router may
    unload makes room. At most the engine's --max-cpu-loras"""
    wait_s: Seconds = 30.0
    """longest wait of a request for its adapter, seconds; after it: 503"""
    retry_s: Seconds = 10.0
    """pause after a failed loading of an adapter, in which requests for it get 503 at once, seconds"""
