"""The schema of the Helm chart's values. The part under `$defs` is the router's own configuration, so that Helm refuses
what the router would refuse; the rest is written by hand, beside `values.yaml`.
"""

from __future__ import annotations

import json

from docs.tools.config_keys import unwrap_descriptions
from docs.tools.pages import ROOT
from router.config.schema import Config

VALUES_SCHEMA = ROOT / "deploy/helm/warmroute/values.schema.json"


def render_values_schema() -> str:
    """Return the text of `VALUES_SCHEMA` with the current definitions of the router's configuration."""
    schema = json.loads(VALUES_SCHEMA.read_text(encoding="utf-8"))
    config = unwrap_descriptions(Config.model_json_schema())
    schema["$defs"] = config.pop("$defs") | {"Config": config}
    return json.dumps(schema, indent=2) + "\n"
