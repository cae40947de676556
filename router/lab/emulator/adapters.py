"""LoRA adapters that are loaded in an emulated engine, and vLLM's endpoints that load and unload them.

    POST /v1/load_lora_adapter     {lora_name, lora_path}    200, 400 if already loaded, 404 if the path has none
    POST /v1/unload_lora_adapter   {lora_name}               200, 404 if it is not loaded

The endpoints exist if `runtime_loras` is set, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 (vLLM 0.32:
entrypoints/serve/lora, entrypoints/openai/models/serving.py). A path that begins with `/missing` has no adapter.
"""

from __future__ import annotations

from router.errors import BadRequest, NotFound
from router.lab.emulator.http_server import HttpExchange
from router.lab.emulator.request_schema import read_json

MISSING = "/missing"


class AdapterEndpoints:
    """Endpoints that load and unload adapters. They change `loaded`, the adapters' paths by name, which the engine
    and `/v1/models` read.
    """

    def __init__(self, loaded: dict[str, str]) -> None:
        self._loaded = loaded

    async def load(self, exchange: HttpExchange) -> None:
        """Load an adapter. Raises `BadRequest` or `NotFound` where vLLM would reject the request."""
        body = read_json(exchange)
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._loaded:
            raise BadRequest(f"The lora adapter '{name}' has already been loaded.")
        if path.startswith(MISSING):
            raise NotFound(f"Loading lora {name} failed: No adapter found for {path}")
        self._loaded[name] = path
        await exchange.send_body(f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain")

    async def unload(self, exchange: HttpExchange) -> None:
        """Unload an adapter. Raises `BadRequest` or `NotFound` where vLLM would reject the request."""
        name = read_json(exchange).get("lora_name")
        if not name:
            raise BadRequest("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._loaded:
            raise NotFound(f"The lora adapter '{name}' cannot be found.")
        del self._loaded[name]
        await exchange.send_body(f"Success: LoRA adapter '{name}' removed successfully.".encode(), "text/plain")
