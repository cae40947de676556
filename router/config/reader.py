"""Read the operator's files into `Config`, or raise one `ConfigError` with everything that is wrong in them.

Strict, because a misspelt key that is silently ignored costs a night: an unknown key is refused with the nearest
known one, no value is converted (`port: "8000"` is text, not a number), and what a file refers to (policies,
certificates, environment variables) must exist. A relative path counts from the folder of the file that contains it
and is returned absolute, so later code need not know that folder. Plug-ins that a file names are built once to check
their names and parameters (`plugins.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from router.config.lookup import YAML_SUFFIXES, list_shipped_policies
from router.config.path_checks import check_instances, check_references
from router.config.plugins import (
    RESERVED,
    check_admission,
    check_config,
    check_experiment_rules,
    check_policies,
    check_policy,
)
from router.config.schema import FALLBACK_POLICY, MAX_POLICIES, Config, InstanceConfig, PolicyConfig
from router.config.sections.admission import AdmissionConfig
from router.config.sections.base import Section
from router.config.sections.clients import MAX_NAME_CHARS, is_client_name
from router.config.sections.experiment import ExperimentConfig
from router.config.validation_errors import describe_unknown, translate_errors
from router.config.yaml_source import POLICY, YamlDocument, YamlPath, YamlProblem, load, parse, read_bytes
from router.errors import HIDDEN, MAX_COMPLAINTS, ConfigError
from scorers.registry import PluginError, Registry, load_registry

if TYPE_CHECKING:  # a router does not load them
    from router.config.sections.gameday import GamedayFile
    from router.config.sections.simulation import ProfileFile, TroubleFile

T = TypeVar("T")

FOLLOWED = frozenset({("fleet", "file"), ("clients", "keys_file")})  # keys of files that are read again by themselves
MAX_KEYS_BYTES = 64 * 1024 * 1024  # of `clients.keys_file`: some 700,000 keys
KEY_LINE = "the sha256 of a key and the name of its client (`printf %s KEY | sha256sum`)"
NO_KEY = f"found {HIDDEN}, wanted {KEY_LINE}"
CLIENT_KEY = re.compile(r"([0-9a-fA-F]{64})\s+(\S.*)")


class ReadConfig(NamedTuple):
    """The main file, and all policies: inline ones and those of `policies_dir`."""

    config: Config
    policies: dict[str, PolicyConfig]


class ListedInstances(NamedTuple):
    """A list of engines as it is written; what it refers to may be missing."""

    document: YamlDocument
    instances: list[InstanceConfig]

    def resolve(self) -> list[InstanceConfig]:
        """Return the engines. Raises ConfigError for missing files and variables, and for two engines of one
        name.
        """
        if problems := list(check_instances(self.instances)):
            raise self.document.to_error(problems)
        return self.instances


class ExperimentFile(Section):
    experiment: ExperimentConfig


class AdmissionFile(Section):
    admission: AdmissionConfig


def read_config(path: Path | str) -> Config:
    """Read the main configuration. Raises ConfigError with one line per problem, over all files."""
    return read_all(path).config


def parse_config(text: str, name: str, folder: Path, *, has_lines: bool = True) -> Config:
    """Parse the main file from `text`, called `name` in messages; paths start at `folder`. `has_lines`: messages name
    lines of the text. Raises ConfigError.
    """
    document = parse(text, name, folder)
    return _read_all(document if has_lines else document._replace(first_line=0, lines={})).config


def read_all(path: Path | str) -> ReadConfig:
    """Return the main configuration with its policies. Raises ConfigError with one line per problem, over all
    files.
    """
    return _read_all(load(Path(path)))


def read_main(path: Path | str) -> ReadConfig:
    """Return the main configuration with its policies, as `read_all`, whatever is in the files that the router follows
    by themselves (`FOLLOWED`): an error in the list of engines must not refuse a policy. Raises ConfigError.
    """
    return _read_all(load(Path(path)), followed=False)


def _read_all(document: YamlDocument, *, followed: bool = True) -> ReadConfig:
    config = _validate(document, Config)
    if config.experiment is not None:
        experiment = _name_arms(document, config.experiment, config.active, ("experiment",))
        config = config.model_copy(update={"experiment": experiment})
    policies: dict[str, PolicyConfig] = {}
    problems = [problem for problem in check_references(config) if followed or problem.path not in FOLLOWED]
    problems += check_config(config, _load_registry())
    elsewhere: list[ConfigError] = []
    missing = {problem.path for problem in problems}
    if ("policies_dir",) not in missing:
        with _collecting(elsewhere):
            policies = load_policies(config)
            problems += check_policy_names(config, policies)
    if followed:
        if config.fleet.file is not None and ("fleet", "file") not in missing:
            with _collecting(elsewhere):
                read_instances(config.fleet.file)
        if config.clients.keys_file is not None and ("clients", "keys_file") not in missing:
            with _collecting(elsewhere):
                read_client_keys(config.clients.keys_file)
    here = [document.to_error(problems)] if problems else []
    if here or elsewhere:
        raise ConfigError(*here, *elsewhere)
    return ReadConfig(config, policies)


def check_policy_names(config: Config, policies: Collection[str]) -> list[YamlProblem]:
    """Return a problem for each policy named by `active` or `experiment` that is neither in `policies` nor
    shipped.
    """
    known = {*policies, *list_shipped_policies()}
    problems = _check_names([(("active",), config.active)], known)
    if config.experiment is not None:
        problems += check_experiment_policies(config.experiment, known, ("experiment",))
    return problems


def check_experiment_policies(
    experiment: ExperimentConfig, policies: Collection[str], path: YamlPath = ()
) -> list[YamlProblem]:
    """Return a problem for each arm or shadow of the section at `path` that is not among `policies`."""
    arms: list[tuple[YamlPath, str]] = [
        ((*path, "arms", arm) if arm == name else (*path, "arms", arm, "policy"), name)
        for arm, name in experiment.policies.items()
    ]
    shadows = [((*path, "shadows", i), name) for i, name in enumerate(experiment.shadows)]
    return _check_names(arms + shadows, policies)


def _check_names(names: Collection[tuple[YamlPath, str]], policies: Collection[str]) -> list[YamlProblem]:
    return [
        YamlProblem(path, describe_unknown("policy", name, policies)) for path, name in names if name not in policies
    ]


def read_policy_file(path: Path | str) -> PolicyConfig:
    """Read one policy. Raises ConfigError."""
    return _validate_policy(load(Path(path), POLICY))


def read_profile_file(path: Path | str) -> ProfileFile:
    """Read one profile of a simulated instance. Raises ConfigError."""
    from router.config.sections.simulation import ProfileFile

    return _validate(load(Path(path)), ProfileFile)


def read_trouble_file(path: Path | str) -> TroubleFile:
    """Read the faults of a simulation. Raises ConfigError; the simulation checks that the fleet has its
    instances.
    """
    from router.config.sections.simulation import TroubleFile

    return _validate(load(Path(path)), TroubleFile)


def read_gameday_file(path: Path | str) -> GamedayFile:
    """Read a game day. Raises ConfigError; what it changes of the router's configuration is checked by the
    router.
    """
    from router.config.sections.gameday import GamedayFile

    return _validate(load(Path(path)), GamedayFile)


def parse_policy(text: str, name: str) -> PolicyConfig:
    """Parse one policy from `text`; messages call it `policy NAME`. Raises ConfigError."""
    return _validate_policy(parse(text, f"policy {name}", limits=POLICY))


def parse_policies(text: str) -> dict[str, PolicyConfig]:
    """Parse several policies by name, as under `policies` in the main file. Raises ConfigError."""
    kind = Annotated[dict[str, PolicyConfig], Field(max_length=MAX_POLICIES)]
    policies = _validate(document := parse(text, "policies", limits=POLICY), kind)
    if not policies:
        raise document.to_error([YamlProblem((), "there is none: wanted at least one policy, by its name")])
    _require_none(document, check_policies(policies, _load_registry()))
    return policies


def parse_experiment(text: str, policies: Collection[str], active: str) -> ExperimentConfig:
    """Parse an `experiment` section over `policies`, with or without that key above it. Without arms, the policy that
    is active is its only one. Raises ConfigError.
    """
    document = parse(text, "experiment", limits=POLICY)
    nested = isinstance(document.data, dict) and "experiment" in document.data
    experiment = _validate(document, ExperimentFile).experiment if nested else _validate(document, ExperimentConfig)
    path: YamlPath = ("experiment",) if nested else ()
    experiment = _name_arms(document, experiment, active, path)
    unknown = check_experiment_policies(experiment, policies, path)
    _require_none(document, unknown + check_experiment_rules(experiment, _load_registry(), path))
    return experiment


def parse_admission(text: str) -> AdmissionConfig:
    """Parse an `admission` section, with or without that key above it. Raises ConfigError."""
    document = parse(text, "admission", limits=POLICY)
    nested = isinstance(document.data, dict) and "admission" in document.data
    admission = _validate(document, AdmissionFile).admission if nested else _validate(document, AdmissionConfig)
    _require_none(document, check_admission(admission, _load_registry(), ("admission",) if nested else ()))
    return admission


def read_any(
    path: Path | str,
) -> Config | PolicyConfig | ExperimentConfig | ProfileFile | TroubleFile | GamedayFile:
    """Read a file of any kind: its keys decide. Raises ConfigError.

    A policy file has `scorers`, a profile `kv_tokens`, a trouble file any key of `TroubleFile`, a game day
    `ends_s`, an experiment file `experiment` alone (its policies are not checked, since it does not say where they
    are); else it is a main file.
    """
    from router.config.sections.gameday import GamedayFile
    from router.config.sections.simulation import ProfileFile, TroubleFile

    document = load(Path(path))
    keys = set(document.data) if isinstance(document.data, dict) else set()
    if "kv_tokens" in keys:
        return _validate(document, ProfileFile)
    if keys & TroubleFile.model_fields.keys():
        return _validate(document, TroubleFile)
    if "ends_s" in keys:
        return _validate(document, GamedayFile)
    if "scorers" in keys:
        return _validate_policy(document)
    if keys == {"experiment"}:
        experiment = _validate(document, ExperimentFile).experiment
        _require_none(document, check_experiment_rules(experiment, _load_registry(), ("experiment",)))
        return experiment
    return read_config(path)


def select_policy(config: Config, policy: str) -> Config:
    """Return `config` with `policy`, a name or file, active and no experiment. Raises ConfigError if it is
    neither.
    """
    file = Path(policy)
    is_file = file.suffix in YAML_SUFFIXES
    config = config.model_copy(update={"active": file.stem if is_file else policy, "experiment": None})
    policies = load_policies(config)
    if is_file:
        policies[file.stem] = read_policy_file(file)
    elif policy not in policies:
        known = {*policies, *list_shipped_policies()}
        raise ConfigError(f"--policy: {describe_unknown('policy', policy, known)}; or give a file (.yaml)")
    return config.model_copy(update={"policies": policies, "policies_dir": None})


def read_instances(path: Path | str) -> list[InstanceConfig]:
    """Read the list of engines in `fleet.file`; an empty list is valid. Raises ConfigError."""
    return load_instances(path).resolve()


def load_instances(path: Path | str) -> ListedInstances:
    """Read the list of engines in `fleet.file` as it is written. Raises ConfigError."""
    document = load(Path(path))
    return ListedInstances(document, _validate(document, list[InstanceConfig]))


def load_policies(config: Config) -> dict[str, PolicyConfig]:
    """Return all policies by name: inline, of `policies_dir`, and the shipped ones that only the configuration
    names.

    A policy of the user's own overrides the shipped one of that name. Raises ConfigError when a file is not a
    policy, or a name is both inline and in `policies_dir`.
    """
    policies = dict(config.policies)
    problems: list[ConfigError] = []
    folder = None if config.policies_dir is None else Path(config.policies_dir)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"policies_dir: no such folder: {folder}")
    files = sorted(file for file in (folder.iterdir() if folder else ()) if file.suffix in YAML_SUFFIXES)
    if len(files) + len(policies) > MAX_POLICIES:
        raise ConfigError(f"policies_dir: {folder}: {len(files)} files, and at most {MAX_POLICIES} policies in all")
    for file in files:
        with _collecting(problems):
            if file.stem in policies:
                raise ConfigError(
                    f'{file}: there is already a policy "{file.stem}", inline or in another file: rename one'
                )
            if file.stem == FALLBACK_POLICY:
                raise ConfigError(f"{file}: {RESERVED}")
            policies[file.stem] = read_policy_file(file)
    if problems:
        raise ConfigError(*problems)
    experiment = () if config.experiment is None else (*config.experiment.policies.values(), *config.experiment.shadows)
    shipped = list_shipped_policies()
    for name in (config.active, *experiment):
        if name not in policies and name in shipped:
            policies[name] = read_policy_file(shipped[name])
    return policies


def read_client_keys(path: Path | str) -> dict[str, str]:
    """Return the names of clients by the sha256 (lower-case hex) of their API keys, from a file. Raises
    ConfigError.
    """
    return parse_client_keys(read_bytes(Path(path), MAX_KEYS_BYTES), str(path))


def parse_client_keys(content: bytes, where: str) -> dict[str, str]:
    """Return the names of clients by the sha256 (lower-case hex) of their API keys. `#` starts a comment; a client
    may have several keys. Raises ConfigError: of a file of another kind, only the first lines are read.
    """
    try:
        lines = StringIO(content.decode(), newline=None)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: found bytes that are no UTF-8 text (at byte {error.start}), wanted lines of {KEY_LINE}"
        ) from None
    names: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if len(problems) == MAX_COMPLAINTS:
            break
        text = line.partition("#")[0].strip()
        if (match := CLIENT_KEY.fullmatch(text)) is None:
            if text:
                problems.append(f"{where}:{number}: {NO_KEY}")
        elif not is_client_name(match[2]):
            problems.append(f"{where}:{number}: a client's name has 1 to {MAX_NAME_CHARS} printable characters")
        elif names.setdefault(match[1].lower(), match[2]) != match[2]:
            owner = names[match[1].lower()]
            problems.append(f'{where}:{number}: found a key that "{owner}" has already, wanted one client per key')
    if not names and not problems:  # also while a file is being written
        problems.append(f"{where}: found no key, so nobody could send requests; wanted lines of {KEY_LINE}")
    if problems:
        raise ConfigError(*problems)
    return names


def dump_yaml(config: Section, policies: Mapping[str, PolicyConfig] | None = None) -> str:
    """Return `config` as YAML with every default written out, and with all of `policies` inline unless None.

    It contains no secrets: keys and tokens are configured as environment variable names or hashes.
    """
    plain = config.model_dump(mode="json")
    if policies is not None:
        plain |= {"policies_dir": None, "policies": {name: p.model_dump(mode="json") for name, p in policies.items()}}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _validate(document: YamlDocument, kind: type[T]) -> T:
    try:
        return TypeAdapter(kind).validate_python(document.data, strict=True, context=document.folder)
    except ValidationError as error:
        problems = translate_errors(document.data, kind, error, most=MAX_COMPLAINTS)
        raise document.to_error(problems, error.error_count() - len(problems)) from None


def _name_arms(document: YamlDocument, experiment: ExperimentConfig, active: str, path: YamlPath) -> ExperimentConfig:
    try:
        return experiment.with_arms(active)
    except ValueError as error:
        place = (*path, "shadows", experiment.shadows.index(active))
        raise document.to_error([YamlProblem(place, str(error))]) from None


def _validate_policy(document: YamlDocument) -> PolicyConfig:
    policy = _validate(document, PolicyConfig)
    _require_none(document, check_policy(policy, _load_registry()))
    return policy


def _require_none(document: YamlDocument, problems: list[YamlProblem]) -> None:
    """Raises ConfigError if there is a problem."""
    if problems:
        raise document.to_error(problems)


def _load_registry() -> Registry:
    """Return the installed plug-ins. Raises ConfigError if two have one name."""
    try:
        return load_registry()
    except PluginError as error:
        raise ConfigError(f"installed plug-ins: {error}; uninstall one of the packages") from error


@contextmanager
def _collecting(problems: list[ConfigError]) -> Iterator[None]:
    """Add a `ConfigError` raised inside to `problems`."""
    try:
        yield
    except ConfigError as error:
        problems.append(error)
