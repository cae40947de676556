"""Check what a valid configuration refers to: files, folders, environment variables, at least one engine.

The only part of reading that looks beyond the text of the files. The checks return problems instead of raising, so
that one error can report all of them.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from router.config.pem_files import PemFault, load_pair, load_trust
from router.config.schema import Config, EventSource, InstanceConfig
from router.config.sections.base import WILDCARDS, find_choice_fault, find_repeated, split_base_url, url_host
from router.config.sections.discovery import KubernetesConfig
from router.config.sections.listeners import TlsConfig
from router.config.sections.replicas import ReplicasConfig
from router.config.yaml_source import YamlPath, YamlProblem

SHORTEST_SECRET = 16
LISTENERS = "listen", "admin", "metrics", "picker", "keda", "replicas"
TOKENIZER_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model.v*", "tiktoken.model")


def check_references(config: Config) -> list[YamlProblem]:
    """Return a problem for each missing thing that the main file names, except policies
    (`reader.load_policies`).
    """
    return [
        *_check_fleet(config),
        *_check_tokenizers(config),
        *_check_paths(config),
        *_check_outputs(config),
        *_check_tls(config),
        *find_shared_ports(config),
        *_check_variable(("index", "key_secret_env"), config.index.key_secret_env),
        *_check_wake(config),
        *_check_replicas(config.replicas),
    ]


def check_instances(instances: Sequence[InstanceConfig], path: YamlPath = ()) -> Iterator[YamlProblem]:
    """Yield a problem for each missing reference, each engine that is listed twice, each duplicate id and each event
    endpoint without a host, in the list of instances found at `path`.
    """
    addresses = [split_base_url(instance.url) for instance in instances]
    times = Counter(id for id, _ in {(instance.id, at) for instance, at in zip(instances, addresses, strict=True)})
    listed: dict[tuple[str, int], InstanceConfig] = {}
    cas: set[str | None] = {None}
    for i, instance in enumerate(instances):
        if (first := listed.setdefault(addresses[i], instance)) is not instance:
            yield YamlProblem(
                (*path, i, "url"),
                f'found the address of instance "{first.id}" again, wanted one instance per engine: '
                "else its load and its cache are counted twice; remove one of the two entries",
            )
        if instance.ca_file not in cas:  # most often one file for all engines
            cas.add(instance.ca_file)
            yield from _check_ca((*path, i, "ca_file"), instance.ca_file)
        yield from _check_variable((*path, i, "api_key_env"), instance.api_key_env)
        if times[instance.id] > 1:
            yield YamlProblem((*path, i), f'found two instances called "{instance.id}": give each its own `name`')
        yield from _check_transfer((*path, i, "transfer"), instance)
        if isinstance(instance.kv_events, list):
            ranks = [source.rank for source in instance.kv_events]
            for j in find_repeated(ranks):
                place = (*path, i, "kv_events", j, "rank")
                yield YamlProblem(place, f"found rank {ranks[j]} again, wanted each rank once")
            for j, source in enumerate(instance.kv_events):
                yield from _check_endpoints((*path, i, "kv_events", j), source, instance)


def _check_endpoints(path: YamlPath, source: EventSource, instance: InstanceConfig) -> Iterator[YamlProblem]:
    """Yield a problem for each endpoint with a host that only the engine itself can use: it binds that address."""
    for key, endpoint in (("endpoint", source.endpoint), ("replay_endpoint", source.replay_endpoint)):
        bound, _, port = (endpoint or "").removeprefix("tcp://").rpartition(":")
        if bound in WILDCARDS:
            host = url_host(split_base_url(instance.url)[0])
            yield YamlProblem(
                (*path, key),
                f'found the host "{bound}", at which the engine itself listens, wanted the engine\'s address as this '
                f"router reaches it: write tcp://{host}:{port}, or `kv_events: auto`: vLLM 0.31 and later report it",
            )


def _check_transfer(path: YamlPath, instance: InstanceConfig) -> Iterator[YamlProblem]:
    """A prefill or decode instance needs a transfer protocol; with Mooncake, prefill needs its bootstrap server
    too.
    """
    if instance.role == "both":
        return
    if instance.transfer is None:
        yield YamlProblem(
            path, f"missing, wanted with role {instance.role}: give `transfer: {{protocol: nixl}}` or mooncake"
        )
    elif (
        instance.role == "prefill"
        and instance.transfer.protocol == "mooncake"
        and instance.transfer.bootstrap_url is None
    ):
        yield YamlProblem(
            path, "found no bootstrap_url, which a prefill instance with protocol mooncake needs: give it"
        )


def _check_fleet(config: Config) -> Iterator[YamlProblem]:
    fleet = config.fleet
    if not fleet.has_sources and fleet.embedded is None and config.stack is None:
        yield YamlProblem(
            ("fleet",), "found no engines, wanted at least one of instances, file, dns, kubernetes and embedded"
        )
    yield from check_instances(fleet.instances, ("fleet", "instances"))
    if fleet.dns is not None:
        yield from _check_ca(("fleet", "dns", "ca_file"), fleet.dns.ca_file)
        yield from _check_variable(("fleet", "dns", "api_key_env"), fleet.dns.api_key_env)
    if fleet.kubernetes is not None:
        yield from _check_kubernetes(fleet.kubernetes)


def _check_wake(config: Config) -> Iterator[YamlProblem]:
    for name, model in ({} if config.wake is None else config.wake.models).items():
        if model.webhook is not None:
            path = "wake", "models", name, "webhook"
            yield from _check_ca((*path, "ca_file"), model.webhook.ca_file)
            yield from _check_variable((*path, "token_env"), model.webhook.token_env)
        elif model.deployment is None and config.keda is None:
            yield YamlProblem(
                ("wake", "models", name),
                "the model has neither `webhook` nor `deployment`: give one of them, "
                "or the section `keda`: KEDA starts it",
            )


def _check_kubernetes(config: KubernetesConfig) -> Iterator[YamlProblem]:
    path = "fleet", "kubernetes"
    given = {"selector": config.selector is not None, "inference_pool": config.inference_pool is not None}
    if (fault := find_choice_fault("the section", given)) is not None:
        yield YamlProblem(path, fault)
    for i in find_repeated(config.ports):
        yield YamlProblem((*path, "ports", i), f"found {config.ports[i]} again: remove one")
    if config.api is not None:
        yield from _check_file((*path, "api", "token_file"), config.api.token_file)
        yield from _check_ca((*path, "api", "ca_file"), config.api.ca_file)
    yield from _check_ca((*path, "ca_file"), config.ca_file)
    yield from _check_variable((*path, "api_key_env"), config.api_key_env)


def _check_replicas(config: ReplicasConfig | None) -> Iterator[YamlProblem]:
    if config is None:
        return
    given = {"peers": bool(config.peers), "dns": config.dns is not None, "selector": config.selector is not None}
    if (fault := find_choice_fault("the section", given)) is not None:
        yield YamlProblem(("replicas",), fault)
    path = "replicas", "secret_env"
    yield from _check_variable(path, config.secret_env)
    if 0 < len(os.environ.get(config.secret_env, "")) < SHORTEST_SECRET:
        text = f"the secret in {config.secret_env} has fewer than {SHORTEST_SECRET} characters"
        yield YamlProblem(path, f"{text}: openssl rand -hex 32 makes one")


def _check_tokenizers(config: Config) -> Iterator[YamlProblem]:
    for model, source in config.tokenizers.items():
        if source.path is not None and (problem := _examine_folder(Path(source.path))) is not None:
            yield YamlProblem(("tokenizers", model, "path"), problem)
        yield from _check_file(("tokenizers", model, "chat_template"), source.chat_template)


def _examine_folder(folder: Path) -> str | None:
    """Return why there is no tokenizer in a model folder; None if there is one."""
    if not os.path.isdir(folder):
        return _describe_missing_folder(str(folder))
    if any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return None
    wanted = f"{', '.join(TOKENIZER_FILES[:-1])} or {TOKENIZER_FILES[-1]}"
    return f"found no tokenizer in {folder}, wanted {wanted}: give the folder that the engine loads its model from"


def _check_paths(config: Config) -> Iterator[YamlProblem]:
    yield from _check_file(("clients", "keys_file"), config.clients.keys_file)
    if config.clients.jwt is not None:
        yield from _check_file(("clients", "jwt", "jwks_file"), config.clients.jwt.jwks_file)
    if config.clients.tenant_header is not None and not config.listen.trusted_proxies and config.picker is None:
        yield YamlProblem(
            ("clients", "tenant_header"),
            "found a header that nobody may send: list the proxies that set it in listen.trusted_proxies",
        )
    yield from _check_file(("fleet", "file"), config.fleet.file)
    if config.tracing is not None:
        yield from _check_file(("tracing", "headers_file"), config.tracing.headers_file)
    if config.policies_dir is not None and not os.path.isdir(config.policies_dir):
        yield YamlProblem(("policies_dir",), _describe_missing_folder(config.policies_dir))


def _check_outputs(config: Config) -> Iterator[YamlProblem]:
    yield from _check_output(("admin", "audit_file"), config.admin.audit_file)
    yield from _check_output(("clients", "usage_file"), config.clients.usage_file)
    yield from _check_output(("index", "snapshot_file"), config.index.snapshot_file)
    if (decision_log := config.records.decision_log) is not None:
        yield from _check_output(("records", "decision_log", "folder"), decision_log.folder, is_folder=True)


def _check_tls(config: Config) -> Iterator[YamlProblem]:
    sections = {"listen": config.listen, "picker": config.picker, "keda": config.keda}
    for name, section in sections.items():
        if section is None or not isinstance(tls := section.tls, TlsConfig):
            continue
        path = name, "tls"
        missing = [
            *_check_file((*path, "cert_file"), tls.cert_file),
            *_check_file((*path, "key_file"), tls.key_file),
        ]
        yield from missing
        if not missing and isinstance(fault := load_pair(tls.cert_file, tls.key_file), PemFault):
            yield YamlProblem((*path, fault.key), fault.text)


def find_shared_ports(config: Config) -> Iterator[YamlProblem]:
    """Yield a problem for each listener whose port another listener of the configuration has."""
    sections = {name: getattr(config, name) for name in LISTENERS if getattr(config, name) is not None}
    keys = [(name, "port") for name in sections]
    if config.picker is not None:
        keys.append(("picker", "health_port"))
    for number, (name, key) in enumerate(keys):
        section, port = sections[name], getattr(sections[name], key)
        for other_name, other_key in keys[:number]:
            other = sections[other_name]
            shares_host = other.host == section.host or {other.host, section.host} & {*WILDCARDS}
            if port and port == getattr(other, other_key) and shares_host:  # 0: the system chooses one
                both = [(name, key), (other_name, other_key)]
                both.sort(key=lambda path: path[1] not in sections[path[0]].model_fields_set)  # the one of the file
                is_default = both[1][1] not in sections[both[1][0]].model_fields_set
                default = " (its default, not in this file)" if is_default else ""
                text = f"{port} is {'.'.join(both[1])} too{default}, wanted a port of its own"
                yield YamlProblem(both[0], text)


def _check_file(path: YamlPath, name: str | None) -> Iterator[YamlProblem]:
    if name is not None and (text := _find_file_fault(name)) is not None:
        yield YamlProblem(path, text)


def _check_ca(path: YamlPath, name: str | None) -> Iterator[YamlProblem]:
    if name is None:
        return
    if (text := _find_file_fault(name)) is not None:
        yield YamlProblem(path, text)
    elif isinstance(fault := load_trust(name), PemFault):
        yield YamlProblem(path, fault.text)


def _find_file_fault(name: str) -> str | None:
    """Return why there is no file of this name, and what to do; None if there is one."""
    try:
        mode = os.stat(name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"no such file: {name}; correct the path"
    except OSError as error:
        return f"{name} cannot be read: {(error.strerror or str(error)).lower()}; let the router's user read it"
    if stat.S_ISREG(mode):
        return None
    return f"found the folder {name}, wanted a file" if stat.S_ISDIR(mode) else f"{name} is no regular file, wanted one"


def _check_output(path: YamlPath, name: str | None, *, is_folder: bool = False) -> Iterator[YamlProblem]:
    """Yield a problem if the router can never write `name`, as something of another kind is there or above it."""
    if name is None:
        return
    if not is_folder and os.path.isdir(name):
        yield YamlProblem(path, f"found the folder {name}, wanted a file")
    above = Path(name) if is_folder else Path(name).parent
    found = next((str(each) for each in (above, *above.parents) if os.path.exists(each)), None)
    if found is not None and not os.path.isdir(found):
        yield YamlProblem(path, f"cannot write {name}: {found} is a file, not a folder: choose a path in a folder")


def _describe_missing_folder(name: str) -> str:
    if os.path.exists(name):
        return f"found the file {name}, wanted a folder"
    return f"no such folder: {name}; correct the path"


def _check_variable(path: YamlPath, name: str | None) -> Iterator[YamlProblem]:
    if name is not None and not os.environ.get(name):
        yield YamlProblem(
            path,
            f"the environment variable {name} is not set here: set it for this command and for the router",
        )
