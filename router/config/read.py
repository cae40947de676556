"""From the operator's files to `Config`, or to one `ConfigError` that names everything that is wrong with them.

Strict, because a misspelt key that is silently ignored costs a night: unknown keys are refused with the nearest known
one, nothing is converted (`port: "8000"` is text, not a number), and what a file refers to (policies, certificates,
environment variables) must be there. Relative paths count from the folder of the file they stand in and come back
absolute, so nobody else needs to know where that was. What a scorer's own parameters mean is not known here: the
policy checks them when it is built (`router/decide/policy.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from router.config.complaints import complaints, unknown
from router.config.document import Document, Problem, load, text_of
from router.config.references import broken_instances, broken_references
from router.config.schema import DEFAULT_POLICY, Config, Instance, Policy
from router.errors import ConfigError

T = TypeVar("T")

POLICY_SUFFIXES = (".yaml", ".yml")
CLIENT_KEY = re.compile(r"([0-9a-fA-F]{64})\s+(\S.*)")


def read_config(path: Path | str) -> Config:
    """The main configuration, its paths absolute. Raises `ConfigError` with one line per problem, over all files."""
    document = load(Path(path))
    config = _checked(document, Config)
    problems = broken_references(config)
    elsewhere: list[str] = []
    missing = {problem.path for problem in problems}
    if ("policies_dir",) not in missing:
        with _collected(elsewhere):
            policies = load_policies(config)
            if config.active not in policies:
                problems.append(Problem(("active",), unknown("policy", config.active, policies)))
    if config.fleet.file is not None and ("fleet", "file") not in missing:
        with _collected(elsewhere):
            read_instances(config.fleet.file)
    if config.clients.keys_file is not None and ("clients", "keys_file") not in missing:
        with _collected(elsewhere):
            read_client_keys(config.clients.keys_file)
    here = [str(document.refusal(problems))] if problems else []
    if here or elsewhere:
        raise ConfigError("\n".join(here + elsewhere))
    return config


def read_policy_file(path: Path | str) -> Policy:
    """One policy. Raises `ConfigError`; whether its scorers exist is seen when it is built."""
    return _checked(load(Path(path)), Policy)


def read_either(path: Path | str) -> Config | Policy:
    """A main file or a policy file, told apart by its `scorers`. Raises `ConfigError`."""
    data = load(Path(path)).data
    return read_policy_file(path) if isinstance(data, dict) and "scorers" in data else read_config(path)


def read_instances(path: Path | str) -> list[Instance]:
    """The list of engines in `fleet.file`; `[]` is a valid one. Raises `ConfigError`."""
    document = load(Path(path))
    instances = _checked(document, list[Instance])
    if problems := list(broken_instances(instances)):
        raise document.refusal(problems)
    return instances


def load_policies(config: Config, base_dir: Path | str = "") -> dict[str, Policy]:
    """Every policy by its name: those given inline and of `policies_dir`; without either, the default.

    `base_dir` is where a relative `policies_dir` starts; a config from `read_config` has an absolute one.
    Raises `ConfigError`.
    """
    policies = dict(config.policies)
    if config.policies_dir is None:
        return policies or {"default": DEFAULT_POLICY}
    folder = Path(base_dir, config.policies_dir)
    if not folder.is_dir():
        raise ConfigError(f"policies_dir: no such folder: {folder}")
    problems: list[str] = []
    for file in sorted(file for file in folder.iterdir() if file.suffix in POLICY_SUFFIXES):
        if file.stem in policies:
            problems.append(f'{file}: there is already a policy "{file.stem}", inline or in another file')
        with _collected(problems):
            policies[file.stem] = read_policy_file(file)
    if problems:
        raise ConfigError("\n".join(problems))
    return policies


def read_client_keys(path: Path | str) -> dict[str, str]:
    """Clients' names by the sha256 (lower-case hex) of their API keys. `#` begins a comment. Raises `ConfigError`."""
    names: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text_of(Path(path)).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if (match := CLIENT_KEY.fullmatch(text)) is not None:
            names[match[1].lower()] = match[2]
        elif text:
            problems.append(f"{path}:{number}: wanted the sha256 of a key (64 hex digits) and a name")
    if problems:
        raise ConfigError("\n".join(problems))
    return names


def effective(config: Config | Policy, policies: Mapping[str, Policy] | None = None) -> str:
    """The configuration as YAML with every default written out; with `policies`, all of them inline.

    Nothing secret can be in it: keys and tokens are named by environment variable or given as hashes.
    """
    plain = config.model_dump(mode="json")
    if policies is not None:
        plain |= {"policies_dir": None, "policies": {name: p.model_dump(mode="json") for name, p in policies.items()}}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _checked(document: Document, kind: type[T]) -> T:
    try:
        return TypeAdapter(kind).validate_python(document.data, strict=True, context=document.file.absolute().parent)
    except ValidationError as error:
        raise document.refusal(complaints(document.data, kind, error)) from None


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))
