"""Make the configuration for a list of engine URLs: as settings for `serve`, as a commented file for `init`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from router.cli.init.survey import describe_engine, recommend
from router.config.lookup import SHIPPED
from router.config.reader import parse_config
from router.config.schema import Config
from router.config.yaml_source import YamlPath, format_path
from router.errors import MAX_LINE_CHARS, ConfigError, quote_name
from router.operate.doctor.survey import EngineSurvey

COMMAND_LINE = "command line"  # instead of a file's name
HEADER = """\
# Warmroute configuration, written by `warmroute init`. All keys and defaults: warmroute check FILE
# Start the router: warmroute serve --config FILE
"""


def parse_tokenizers(options: Sequence[str]) -> dict[str, str]:
    """Return the absolute folder of each `MODEL=PATH` by model. Raises ConfigError for an option without `=`."""
    pairs = [option.partition("=") for option in options]
    if wrong := [model for model, _, path in pairs if not model or not path]:
        raise ConfigError(f"--tokenizer: found {wrong[0]!r}, wanted MODEL=PATH")
    return {model: str(Path(path).absolute()) for model, _, path in pairs}


def config_of_urls(urls: Sequence[str], tokenizers: Sequence[str]) -> Config:
    """Return the configuration of engines by URL, with every shipped policy. Raises ConfigError for a wrong
    input.
    """
    folders = parse_tokenizers(tokenizers)
    settings = {
        "fleet": {"instances": [{"url": url.rstrip("/")} for url in urls]},
        "tokenizers": {model: {"path": path} for model, path in folders.items()},
        "policies_dir": str(SHIPPED / "policies"),
    }
    typed: dict[YamlPath, str] = {("fleet", "instances", i, "url"): _name_url(url, i) for i, url in enumerate(urls)}
    typed |= {("tokenizers", model, "path"): f"--tokenizer {quote_name(model)}" for model in folders}
    names = {f"{COMMAND_LINE}: {format_path(path)}: ": f"{name}: " for path, name in typed.items()}
    try:
        return parse_config(json.dumps(settings), COMMAND_LINE, Path.cwd(), has_lines=False)
    except ConfigError as error:
        lines = [_replace_start(line, names) for line in error.complaints]
        raise ConfigError(*lines, omitted=error.omitted) from error


def _name_url(url: str, position: int) -> str:
    """Return the argument as it was typed, or its number if it may contain a password."""
    return f"URL {position + 1}" if "@" in url else quote_name(url)


def _replace_start(line: str, names: Mapping[str, str]) -> str:
    """Return the line with the name of its place in `names`, if it begins with one."""
    return next((name + line.removeprefix(place) for place, name in names.items() if line.startswith(place)), line)


def config_text(
    surveys: Sequence[EngineSurvey],
    tokenizers: Sequence[str],
    policy: str,
    ports: tuple[int, int],
    api_key_env: str | None = None,
) -> str:
    """Return the commented YAML of the configuration, with these public and admin `ports`; an engine with an error
    becomes a commented entry.
    """
    lines = [HEADER, "listen:", f"  port: {ports[0]}", ""]
    lines += [
        "admin: # policies, records, metrics; without tokens only on a loopback address",
        f"  port: {ports[1]}",
        "",
    ]
    lines += ["fleet:", "  instances:"]
    for survey in surveys:
        lines += _instance(survey, api_key_env)
    lines += ["", *_tokenizer_lines(surveys, parse_tokenizers(tokenizers)), ""]
    lines += ["# `warmroute policies` lists the policies that can stand here.", f"active: {json.dumps(policy)}"]
    return "\n".join(lines) + "\n"


def _instance(survey: EngineSurvey, api_key_env: str | None) -> list[str]:
    if survey.error is not None:
        note = "take the # off the next line when it runs"
        return [f"    # {survey.url}: {_comment(survey.error)}; {note}", f"    #- url: {survey.url}"]
    lines = [f"    # {_comment(line)}" for line in describe_engine(survey)]
    lines += [f"    # to turn on: {advice.flags}  ({advice.reason})" for advice in recommend(survey)]
    lines.append(f"    - url: {survey.url}")
    if api_key_env is not None:
        lines.append(f"      api_key_env: {api_key_env}")
    if survey.sources is None:  # the engine cannot report its event endpoints
        host = urlsplit(survey.url).hostname
        lines += ["      #kv_events:", f"      #  - endpoint: tcp://{host}:5557"]
        lines.append(f"      #    replay_endpoint: tcp://{host}:5657")
    return lines


def _tokenizer_lines(surveys: Sequence[EngineSurvey], tokenizers: dict[str, str]) -> list[str]:
    models = {survey.model: survey.root for survey in surveys if survey.model is not None}
    lines = ["# A local tokenizer finds a prompt's blocks faster than a request to the engine's /tokenize."]
    given = [model for model in {**models, **tokenizers} if model in tokenizers]
    if given:
        lines.append("tokenizers:")
        lines += [f"  {json.dumps(model)}:\n    path: {json.dumps(tokenizers[model])}" for model in given]
    missing = [model for model in models if model not in tokenizers]
    if missing and not given:
        lines.append("#tokenizers:")
    for model in missing:
        root = _comment(models[model] or "")
        lines += [f"#  {json.dumps(model)}:", f"#    path: {root if root.startswith('/') else '/path/to/model'}"]
    return lines


def _comment(text: str) -> str:
    """Return an engine's own text on one line: text after a line break would be read as configuration."""
    return quote_name(text, MAX_LINE_CHARS)
