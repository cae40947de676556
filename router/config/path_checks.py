"""What a valid configuration points to and does not find: files, folders, environment variables, an empty fleet.

The only part of reading that looks beyond the files' own text. It answers with problems, never raises, so that all
of them are told at once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from router.config import yaml_source
from router.config.schema import Config, InstanceConfig
from router.config.yaml_source import YamlProblem


def check_references(config: Config) -> list[YamlProblem]:
    """Everything that the main file names and that is not there. Policies are looked at by `read.load_policies`."""
    return [
        *_fleet(config),
        *_tokenizers(config),
        *_files(config),
        *_variable(("index", "key_secret_env"), config.index.key_secret_env),
    ]


def check_instances(instances: Sequence[InstanceConfig], path: yaml_source.Path = ()) -> Iterator[YamlProblem]:
    """The same for a list of instances that stands at `path`, and ids that are given twice."""
    times = Counter(instance.id for instance in instances)
    for i, instance in enumerate(instances):
        yield from _file((*path, i, "ca_file"), instance.ca_file)
        yield from _variable((*path, i, "api_key_env"), instance.api_key_env)
        if times[instance.id] > 1:
            yield YamlProblem((*path, i), f'two instances are called "{instance.id}": give them names of their own')
        yield from _roles((*path, i), instance)
        if isinstance(instance.kv_events, list):
            ranks = Counter(source.rank for source in instance.kv_events)
            for rank in (rank for rank, count in ranks.items() if count > 1):
                yield YamlProblem((*path, i, "kv_events"), f"rank {rank} is given twice")


def _roles(path: yaml_source.Path, instance: InstanceConfig) -> Iterator[YamlProblem]:
    """Half of a pair must say how KV gets across, and with Mooncake where to find it."""
    if instance.role == "both":
        return
    if instance.transfer is None:
        yield YamlProblem((*path, "transfer"), f"role {instance.role} needs it: give `transfer: {{protocol: ...}}`")
    elif (
        instance.role == "prefill"
        and instance.transfer.protocol == "mooncake"
        and instance.transfer.bootstrap_url is None
    ):
        yield YamlProblem((*path, "transfer"), "a prefill instance with protocol mooncake needs `bootstrap_url`")


def _fleet(config: Config) -> Iterator[YamlProblem]:
    fleet = config.fleet
    if not fleet.instances and fleet.file is None and fleet.embedded is None and config.stack is None:
        yield YamlProblem(("fleet",), "no engines: give at least one of instances, file and embedded")
    yield from check_instances(fleet.instances, ("fleet", "instances"))


def _tokenizers(config: Config) -> Iterator[YamlProblem]:
    for model, source in config.tokenizers.items():
        if source.path is not None and not Path(source.path, "tokenizer.json").is_file():
            yield YamlProblem(("tokenizers", model, "path"), f"there is no tokenizer.json in {source.path}")
        yield from _file(("tokenizers", model, "chat_template"), source.chat_template)


def _files(config: Config) -> Iterator[YamlProblem]:
    if config.listen.tls is not None:
        yield from _file(("listen", "tls", "cert_file"), config.listen.tls.cert_file)
        yield from _file(("listen", "tls", "key_file"), config.listen.tls.key_file)
    yield from _file(("clients", "keys_file"), config.clients.keys_file)
    yield from _file(("fleet", "file"), config.fleet.file)
    if config.policies_dir is not None and not Path(config.policies_dir).is_dir():
        yield YamlProblem(("policies_dir",), f"no such folder: {config.policies_dir}")


def _file(path: yaml_source.Path, name: str | None) -> Iterator[YamlProblem]:
    if name is not None and not Path(name).is_file():
        yield YamlProblem(path, f"no such file: {name}")


def _variable(path: yaml_source.Path, name: str | None) -> Iterator[YamlProblem]:
    if name is not None and not os.environ.get(name):
        yield YamlProblem(path, f"the environment variable {name} is not set")
