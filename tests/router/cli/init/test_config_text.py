"""The written file reads back as what `serve URL...` starts with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from router.cli.init.config_text import config_of_urls, config_text, parse_tokenizers
from router.cli.init.survey import EngineSurvey
from router.config.reader import parse_config
from router.errors import ConfigError
from router.fleet.engine_facts import EventEndpoint, ModelCard
from tests.paths import TOKENIZER

URLS = ["http://10.0.0.1:8100", "http://10.0.0.2:8100"]
SURVEYS = [EngineSurvey(url, cards=(ModelCard("org/m: 1", "/models/m", None, None),), sources=()) for url in URLS]


def test_the_file_amounts_to_what_serve_starts_with() -> None:
    tokenizers = [f"org/m: 1={TOKENIZER}"]
    text = config_text(SURVEYS, tokenizers, "warm", (8000, 8001))
    started = config_of_urls(URLS, tokenizers).model_copy(update={"policies_dir": None})
    assert parse_config(text, "main.yaml", Path("/")) == started


def test_without_a_tokenizer_the_section_is_ready_to_be_taken_in() -> None:
    text = config_text(SURVEYS, [], "lmetric", (0, 0))
    assert yaml.safe_load(text)["active"] == "lmetric"
    code = "\n".join(line.removeprefix("#") for line in text.splitlines() if not re.match(r"# \S", line))
    assert yaml.safe_load(code)["tokenizers"] == {"org/m: 1": {"path": "/models/m"}}


def test_an_engine_that_did_not_answer_is_a_commented_entry() -> None:
    text = config_text([SURVEYS[0], EngineSurvey(URLS[1], error="GET /health: 503")], [], "warm", (8000, 8001))
    assert (
        f"    # {URLS[1]}: GET /health: 503; take the # off the next line when it runs\n    #- url: {URLS[1]}\n" in text
    )
    assert [one["url"] for one in yaml.safe_load(text)["fleet"]["instances"]] == URLS[:1]
    whole = yaml.safe_load(text.replace("#- url", "- url"))
    assert [one["url"] for one in whole["fleet"]["instances"]] == URLS


def test_where_events_are_is_ready_to_be_taken_in_for_engines_that_cannot_be_asked() -> None:
    text = config_text([SURVEYS[0]._replace(sources=None)], [], "warm", (8000, 8001), "ENGINE_KEY")
    code = yaml.safe_load(text.replace("      #", "      "))
    (instance,) = code["fleet"]["instances"]
    assert instance["api_key_env"] == "ENGINE_KEY"
    assert instance["kv_events"] == [
        {"endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": "tcp://10.0.0.1:5657"},
    ]


def test_what_an_engine_says_of_itself_cannot_become_configuration() -> None:
    evil = "x\nadmin: {host: 0.0.0.0}\r\u2028\x1b[2J"
    hostile = EngineSurvey(
        URLS[0],
        version=evil,
        cards=(ModelCard(evil, "/" + evil, None, None), ModelCard(evil, evil, evil, None)),
        sources=(EventEndpoint(0, evil, evil, evil),),
        unreachable=(evil,),
    )
    silent = EngineSurvey(URLS[1], error=evil)
    for tokenizers in ([], [f"{evil}={TOKENIZER}"]):
        text = config_text([hostile, silent], tokenizers, "warm", (8000, 8001))
        assert all(line.isprintable() for line in text.split("\n"))
        config = parse_config(text, "main.yaml", Path("/"))
        assert config.admin.host == "127.0.0.1"
        assert [instance.url for instance in config.fleet.instances] == URLS[:1]


@pytest.mark.parametrize("option", ["m", "=path", "m="])
def test_a_tokenizer_is_a_model_and_a_path(option: str) -> None:
    with pytest.raises(ConfigError, match=r"--tokenizer: found .*, wanted MODEL=PATH"):
        parse_tokenizers([option])
