"""From the operator's files to `Config`, or to one `ConfigError` that names everything that is wrong with them.

Strict, because a misspelt key that is silently ignored costs a night: unknown keys are refused with the nearest known
one, nothing is converted (`port: "8000"` is text, not a number), and what a file refers to (policies, certificates,
environment variables) must be there. Relative paths count from the folder of the file they stand in and come back
absolute, so nobody else needs to know where that was. What a scorer's own parameters mean is not known here: the
policy checks them when it is built (`router/scheduling/policy/policy.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from router.config import yaml_source
from router.config.lookup import YAML_SUFFIXES, list_shipped_policies
from router.config.path_checks import check_instances, check_references
from router.config.schema import Config, InstanceConfig, PolicyConfig
from router.config.sections.base import Section
from router.config.sections.engine_profile import ProfileFile
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.faults import TroubleFile
from router.config.validation_errors import describe_unknown, translate_errors
from router.config.yaml_source import YamlDocument, YamlProblem, load, parse, read_text
from router.errors import ConfigError

T = TypeVar("T")

CLIENT_KEY = re.compile(r"([0-9a-fA-F]{64})\s+(\S.*)")


class ReadConfig(NamedTuple):
    """The main file and all policies, from wherever it has them."""

    config: Config
    policies: dict[str, PolicyConfig]


def read_config(path: Path | str) -> Config:
    """The main configuration, its paths absolute. Raises `ConfigError` with one line per problem, over all files."""
    return read_all(path).config


def read_all(path: Path | str) -> ReadConfig:
    """As `read_config`, with its policies."""
    text = load(Path(path))
    config = _validate(text, Config)
    policies: dict[str, PolicyConfig] = {}
    problems = check_references(config)
    elsewhere: list[str] = []
    missing = {problem.path for problem in problems}
    if ("policies_dir",) not in missing:
        with _collecting(elsewhere):
            policies = load_policies(config)
            problems += check_policy_names(config, policies)
    if config.fleet.file is not None and ("fleet", "file") not in missing:
        with _collecting(elsewhere):
            read_instances(config.fleet.file)
    if config.clients.keys_file is not None and ("clients", "keys_file") not in missing:
        with _collecting(elsewhere):
            read_client_keys(config.clients.keys_file)
    here = [str(text.refusal(problems))] if problems else []
    if here or elsewhere:
        raise ConfigError("\n".join(here + elsewhere))
    return ReadConfig(config, policies)


def check_policy_names(config: Config, policies: Collection[str]) -> list[YamlProblem]:
    """Where the configuration names a policy that is not there."""
    known = {*policies, *list_shipped_policies()}
    active = (
        []
        if config.active in policies
        else [YamlProblem(("active",), describe_unknown("policy", config.active, known))]
    )
    return active + (
        [] if config.experiment is None else check_experiment_policies(config.experiment, known, ("experiment",))
    )


def check_experiment_policies(
    experiment: ExperimentConfig, policies: Collection[str], at: yaml_source.Path = ()
) -> list[YamlProblem]:
    """The same of an experiment, which stands at this path of its document."""
    named: list[tuple[yaml_source.Path, str]] = [((*at, "arms", arm), arm) for arm in experiment.arms]
    named += [((*at, "shadows", i), shadow) for i, shadow in enumerate(experiment.shadows)]
    return [
        YamlProblem(path, describe_unknown("policy", name, policies)) for path, name in named if name not in policies
    ]


def read_policy_file(path: Path | str) -> PolicyConfig:
    """One policy. Raises `ConfigError`; whether its scorers exist is seen when it is built."""
    return _validate(load(Path(path)), PolicyConfig)


def read_profile_file(path: Path | str) -> ProfileFile:
    """One profile of a simulated instance. Raises `ConfigError`."""
    return _validate(load(Path(path)), ProfileFile)


def read_trouble_file(path: Path | str) -> TroubleFile:
    """What goes wrong in a simulation. Raises `ConfigError`; whether a fleet has such instances is seen there."""
    return _validate(load(Path(path)), TroubleFile)


def parse_policy(text: str, name: str) -> PolicyConfig:
    """As `read_policy_file`, of a text that somebody sent."""
    return _validate(parse(text, f"policy {name}"), PolicyConfig)


def parse_policies(text: str) -> dict[str, PolicyConfig]:
    """Several policies by name, as under `policies` in the main file. Raises `ConfigError`."""
    policies = _validate(given := parse(text, "policies"), dict[str, PolicyConfig])
    if not policies:
        raise given.refusal([YamlProblem((), "there is none: wanted at least one policy, by its name")])
    return policies


def parse_experiment(text: str, policies: Collection[str]) -> ExperimentConfig:
    """An `experiment` section of these policies, with or without that word above it. Raises `ConfigError`."""
    given = parse(text, "experiment")
    below: yaml_source.Path = ("experiment",) if isinstance(given.data, dict) and "experiment" in given.data else ()
    experiment = _validate(given, _Alone).experiment if below else _validate(given, ExperimentConfig)
    if problems := check_experiment_policies(experiment, policies, below):
        raise given.refusal(problems)
    return experiment


class _Alone(Section):
    experiment: ExperimentConfig


def read_any(path: Path | str) -> Config | PolicyConfig | ExperimentConfig | ProfileFile | TroubleFile:
    """A main file, a policy file (it has `scorers`), a profile's (`kv_tokens`), a trouble's (any of its keys), or an
    experiment's (it has nothing else; whether its policies exist is known where they are). Raises `ConfigError`.
    """
    text = load(Path(path))
    if isinstance(text.data, dict) and "kv_tokens" in text.data:
        return read_profile_file(path)
    if isinstance(text.data, dict) and not TroubleFile.model_fields.keys().isdisjoint(text.data):
        return read_trouble_file(path)
    if isinstance(text.data, dict) and "scorers" in text.data:
        return read_policy_file(path)
    if isinstance(text.data, dict) and set(text.data) == {"experiment"}:
        return _validate(text, _Alone).experiment
    return read_config(path)


def select_policy(config: Config, given: str) -> Config:
    """Return `config` with this policy (a name or a file) in force and no experiment.

    Raises ConfigError when no policy has that name, or the file is not a policy.
    """
    file = Path(given)
    is_file = file.suffix in YAML_SUFFIXES
    config = config.model_copy(update={"active": file.stem if is_file else given, "experiment": None})
    policies = load_policies(config)
    if is_file:
        policies[file.stem] = read_policy_file(file)
    elif given not in policies:
        known = {*policies, *list_shipped_policies()}
        raise ConfigError(f"--policy: {describe_unknown('policy', given, known)}; or give a file (.yaml)")
    return config.model_copy(update={"policies": policies, "policies_dir": None})


def read_instances(path: Path | str) -> list[InstanceConfig]:
    """The list of engines in `fleet.file`; `[]` is a valid one. Raises `ConfigError`."""
    text = load(Path(path))
    instances = _validate(text, list[InstanceConfig])
    if problems := list(check_instances(instances)):
        raise text.refusal(problems)
    return instances


def load_policies(config: Config) -> dict[str, PolicyConfig]:
    """Return all policies by name: inline, of `policies_dir`, and the shipped ones that only the configuration names.

    A policy of the user's own overrides the shipped one of that name. Raises ConfigError when a file is not a policy,
    or a name is both inline and in `policies_dir`.
    """
    policies = dict(config.policies)
    problems: list[str] = []
    folder = None if config.policies_dir is None else Path(config.policies_dir)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"policies_dir: no such folder: {folder}")
    for file in sorted(file for file in (folder.iterdir() if folder else ()) if file.suffix in YAML_SUFFIXES):
        if file.stem in policies:
            problems.append(f'{file}: there is already a policy "{file.stem}", inline or in another file')
        with _collecting(problems):
            policies[file.stem] = read_policy_file(file)
    if problems:
        raise ConfigError("\n".join(problems))
    experiment = () if config.experiment is None else (*config.experiment.arms, *config.experiment.shadows)
    shipped = list_shipped_policies()
    for name in (config.active, *experiment):
        if name not in policies and name in shipped:
            policies[name] = read_policy_file(shipped[name])
    return policies


def read_client_keys(path: Path | str) -> dict[str, str]:
    """Clients' names by the sha256 (lower-case hex) of their API keys. `#` begins a comment. Raises `ConfigError`."""
    names: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if (match := CLIENT_KEY.fullmatch(text)) is not None:
            names[match[1].lower()] = match[2]
        elif text:
            problems.append(f"{path}:{number}: wanted the sha256 of a key (64 hex digits) and a name")
    if problems:
        raise ConfigError("\n".join(problems))
    return names


def dump_yaml(config: Section, policies: Mapping[str, PolicyConfig] | None = None) -> str:
    """The configuration as YAML with every default written out; with `policies`, all of them inline.

    Nothing secret can be in it: keys and tokens are named by environment variable or given as hashes.
    """
    plain = config.model_dump(mode="json")
    if policies is not None:
        plain |= {"policies_dir": None, "policies": {name: p.model_dump(mode="json") for name, p in policies.items()}}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _validate(text: YamlDocument, kind: type[T]) -> T:
    try:
        return TypeAdapter(kind).validate_python(text.data, strict=True, context=text.folder)
    except ValidationError as error:
        raise text.refusal(translate_errors(text.data, kind, error)) from None


@contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))
