"""String or list of parts: decided as vLLM decides."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest

from router.prompt.tokenization.content_format import iterates_content

RECORDED = json.loads((Path(__file__).parent / "data" / "vllm-0.32-renderings.json").read_text())["formats"]


OPENAI = "openai"


def detected(template: str) -> str:
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)
    return "openai" if iterates_content(environment.parse(template.replace("generation %}", "raw %}"))) else "string"


@pytest.mark.parametrize("name", RECORDED)
def test_as_the_engine_decides(name: str) -> None:
    template, expected = RECORDED[name]
    assert detected(template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}", "openai"),
        (
            "{% set a = messages %}{% set b = a %}{% for m in b %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for content in content %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
        ("{% for m in others %}{% for c in m.content %}{% endfor %}{% endfor %}", "string"),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}", "string"),
        ("{% set a = b %}{% set b = a %}{% set messages = messages %}x", "string"),
        ("{% for a, b in messages %}{% for c in a.content %}{% endfor %}{% endfor %}", "string"),
        ("plain", "string"),
    ],
)
def test_shapes(template: str, expected: str) -> None:
    assert detected(template) == expected
