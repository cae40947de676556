"""A router in which every feature is configured, to list what all of them add: metrics and endpoints."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client.core import Metric

from router.app import App
from router.config import schema
from router.control.api.admin import admin_app

MODEL, NOWHERE = "llama", "http://127.0.0.1:1"


def list_families() -> list[Metric]:
    """Return all metrics that `/metrics` can have."""
    with TemporaryDirectory() as folder:
        return list(_build_whole_router(Path(folder)).metrics_page().collect())


def describe_admin_api() -> dict[str, Any]:
    """Return the OpenAPI description of all endpoints that the admin listener can have."""
    unused: Any = object()
    with TemporaryDirectory() as folder:
        status = _build_whole_router(Path(folder)).status
        return admin_app(status, unused, unused, unused, []).openapi()


def _build_whole_router(folder: Path) -> App:
    """Build a router with every feature, and do not start it."""
    return App(whole_config(folder))


def whole_config(folder: Path) -> schema.Config:
    """Return a configuration with every feature; `folder` is for what a router would write."""
    described: dict[str, Any] = {
        "seed": 1,
        "listen": {"trusted_proxies": ["127.0.0.1/32"]},
        "policies": {"warm": {"scorers": [{"name": "random"}]}},
        "fleet": {"instances": [{"name": "a", "url": NOWHERE}]},
        "clients": {"tenant_header": "x-tenant"},
        "models": {"chat": {"to": MODEL}, "shared": {"split": {name: {"model": name, "share": 50} for name in "ab"}}},
        "adapters": {"llama-de": {"base": MODEL, "path": "/adapters/de"}},
        "wake": {"models": {"warm-*": {"webhook": {"url": NOWHERE}}}},
        "pool": {"masters": [NOWHERE]},
        "preload": {"join": True},
        "tracing": {"endpoint": NOWHERE},
        "records": {"decision_log": {"folder": str(folder / "decisions")}},
    }
    return schema.Config.model_validate(described)
