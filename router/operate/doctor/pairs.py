"""Check the pairs of prefill and decode instances: each has a counterpart, and both halves fit together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import urlsplit

from router.config.sections.listeners import is_loopback
from router.operate.doctor.check import Check
from router.operate.doctor.engines import block_tokens_of, find_difference
from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import ExaminedEngine, Subject, list_names

ALONE = "decode engines compute every prompt themselves, and prefill engines do nothing"
Group = tuple[str, str | None, str | None]  # model, transfer protocol, revision


def check_complete(subject: Subject) -> Iterator[FleetFinding]:
    """Each half has a counterpart of its model, protocol and revision."""
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        counterparts = {_group(engine) for engine in _halves(subject, other)}
        for engine in _halves(subject, role):
            if _group(engine) in counterparts:
                continue
            model, protocol, revision = _group(engine)
            near = [group for group in counterparts if group[0] == model]
            key, theirs, ours = "role", f"role {other}", role
            if any(group[1] == protocol for group in near):
                key, theirs, ours = "revision", str(near[0][2]), str(revision)
            elif near:
                key, theirs, ours = "transfer", str(near[0][1]), str(protocol)
            what = f"no {other} instance with the same {key}" if key != "role" else f"no {other} instance of {model}"
            yield FleetFinding(
                "fault",
                f"{what}, so it is in no pair",
                ALONE,
                f"{key}: the same on both sides  # {ours} here, {theirs} there" if near else f"list a {other} instance",
                (engine.name,),
                engine.place(key),
            )


def check_alike(subject: Subject) -> Iterator[FleetFinding]:
    """Both halves have the same block size and model."""
    groups: defaultdict[Group, list[ExaminedEngine]] = defaultdict(list)
    for role in ("prefill", "decode"):
        for engine in _halves(subject, role):
            groups[_group(engine)].append(engine)
    for engines in groups.values():
        if (sizes := find_difference(engines, block_tokens_of)) is not None:
            yield FleetFinding(
                "fault",
                f"prefill and decode instances have different blocks: {sizes.values} tokens",
                "KV cannot be handed over: requests fail, or are computed twice",
                f"engine: --block-size {sizes.usual} on both sides",
                list_names(engines),
            )


def check_bootstrap(subject: Subject) -> Iterator[FleetFinding]:
    """The bootstrap server of each prefill instance answers."""
    for engine in subject.usable:
        if engine.bootstrap:
            yield FleetFinding(
                "fault",
                f"its bootstrap server does not answer: {engine.bootstrap}",
                "no pair is made with it: decode engines compute its prompts themselves",
                "bootstrap_url: http://HOST:8998, its VLLM_MOONCAKE_BOOTSTRAP_PORT",
                (engine.name,),
                engine.place("transfer", "bootstrap_url"),
            )


def check_transfer(subject: Subject) -> Iterator[FleetFinding]:
    """A prefill instance with Nixl reports where its KV can be fetched, at an address that other machines reach."""
    for engine in subject.usable:
        probe = engine.probe
        if probe is None or probe.transfer_params is None:
            continue
        if probe.transfer_params is False:
            yield FleetFinding(
                "fault",
                "answers a prefill without saying where its KV is",
                "decode engines compute every prompt once more",
                'engine: --kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'',
                (engine.name,),
            )
        elif is_loopback(probe.transfer_host or "") and not _is_local(engine, subject):
            yield FleetFinding(
                "fault",
                f"tells decode engines to fetch its KV from {probe.transfer_host}",
                "engines on other machines do not find it: requests fail, or are computed twice",
                f"engine: VLLM_NIXL_SIDE_CHANNEL_HOST={urlsplit(engine.config.url).hostname}",
                (engine.name,),
            )


def _is_local(engine: ExaminedEngine, subject: Subject) -> bool:
    """Return whether all engines are on one machine."""
    hosts = {urlsplit(one.config.url).hostname or "" for one in subject.engines}
    return all(is_loopback(host) for host in hosts) or hosts == {urlsplit(engine.config.url).hostname}


def _halves(subject: Subject, role: str) -> list[ExaminedEngine]:
    return [engine for engine in subject.usable if engine.config.role == role]


def _group(engine: ExaminedEngine) -> Group:
    transfer = engine.config.transfer
    return engine.model or "", None if transfer is None else transfer.protocol, engine.config.revision


CHECKS = (
    Check("pairs.complete", "each half has a counterpart of its protocol and revision", "engines", check_complete),
    Check("pairs.alike", "both halves have the same blocks", "engines", check_alike),
    Check("pairs.bootstrap", "bootstrap servers of prefill instances answer", "engines", check_bootstrap),
    Check(
        "pairs.transfer",
        "prefill instances say where their KV is, at an address that others reach",
        "prompts",
        check_transfer,
    ),
)
