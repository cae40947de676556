"""Finds requests whose engine may run tools itself, so that answering them twice may do something twice."""

from __future__ import annotations

from typing import Any

import msgspec

from router.prompt.prompt import Endpoint, Prompt

CLIENT_TOOLS = frozenset(("function", "custom"))  # run by the client


def names_engine_tools(prompt: Prompt) -> bool:
    """Return whether `/v1/responses` gets tools such as `mcp`, `code_interpreter` and `web_search_preview`."""
    if prompt.endpoint is not Endpoint.RESPONSES:
        return False
    tools: Any = msgspec.json.decode(prompt.body).get("tools")
    return isinstance(tools, list) and any(
        isinstance(tool, dict) and tool.get("type") not in CLIENT_TOOLS for tool in tools
    )
