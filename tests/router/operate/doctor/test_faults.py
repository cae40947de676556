"""Every fault that the doctor knows, planted in a fleet of emulated engines, and named with the line to change.

`FAULTS` is the list. The silent ones are those of which no request fails and nothing is logged: hits are lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest

from router.lab.emulator.mooncake_master import MasterFaults
from router.operate.doctor.finding import MergedFinding
from tests.paths import TOKENIZER
from tests.router.operate.doctor.balancer import Balancer
from tests.router.operate.doctor.conftest import (
    MODEL,
    AheadClock,
    Fleet,
    Json,
    alarms,
    examined,
    of_check,
    running,
)

pytestmark = pytest.mark.doctor

LONGEST_S = 30.0
Plant = Callable[[Json, Fleet], Any]


class Fault(NamedTuple):
    """A fault, how it is planted, and what must be named."""

    check: str
    at: tuple[str, ...]  # engines
    says: str  # part of what was found
    change: str  # part of the change
    engines: tuple[Json, ...] = ({}, {})
    config: Plant | None = None  # changes the configuration, or the running fleet
    line: str | None = None  # part of the configuration's line to change; None: an engine's command line
    pool: bool = False
    clocks: tuple[AheadClock, ...] = ()
    silent: bool = False
    also: tuple[str, ...] = ()  # other checks that rightly name it, too


def instance(config: Json, i: int, **keys: Any) -> None:
    config["fleet"]["instances"][i] |= keys


def sources(fleet: Fleet, i: int, **changes: Any) -> list[Json]:
    """The event sources of an engine as they stand in a configuration."""
    return [
        {"rank": int(rank), "endpoint": each["endpoint"], "replay_endpoint": each["replay_endpoint"]} | changes
        for rank, each in fleet.engines[i].sources().items()
    ]


def token(name: str, text: str) -> Json:
    return {"name": name, "hash": hashlib.sha256(text.encode()).hexdigest()}


def stand_by(fleet: Fleet) -> None:
    assert fleet.master is not None
    fleet.master.faults = MasterFaults(standby=True)


PAIR: tuple[Json, Json] = ({"role": "prefill", "transfer": "mooncake"}, {"role": "decode", "transfer": "mooncake"})
ONE, BOTH = ("engine-1",), ("engine-0", "engine-1")
FAULTS: dict[str, Fault] = {
    # engines
    "nobody listens": Fault(
        "engines.reachable", ONE, "cannot be connected to at port 1", "url: http://HOST:PORT",
        config=lambda config, _: instance(config, 1, url="http://127.0.0.1:1"), line="url: http://127.0.0.1:1",
    ),
    "an API key is missing": Fault(
        "engines.reachable", ONE, "refuses requests without an API key", "api_key_env: NAME",
        engines=({}, {"api_key": "secret"}), line="url: ",
    ),
    "the engine core has died": Fault(
        "engines.reachable", ONE, "GET /health: 503", "restart it",
        config=lambda _, fleet: fleet.engines[1].faults(unhealthy=True), line="url: ",
    ),
    "the engine hangs": Fault(
        "engines.reachable", ONE, "does not answer in time", "hangs",
        config=lambda _, fleet: fleet.engines[1].faults(freeze=True), line="url: ",
    ),
    "one engine twice": Fault(
        "engines.one_each", ONE, "is the same engine as engine-0", "remove this entry",
        config=lambda config, fleet: instance(config, 1, url=fleet.engines[0].url.replace("127.0.0.1", "localhost")),
        line="url: http://localhost", silent=True,
    ),
    "two names for one model": Fault(
        "engines.models", ("engine-2",), "is served under different names", "--served-model-name warm-tiny",
        engines=({"tokenizer": "TOKENIZER"}, {"tokenizer": "TOKENIZER"}, {"tokenizer": "TOKENIZER", "model": "tiny"}),
        silent=True,
    ),
    "two models under one name": Fault(
        "engines.models", ("engine-2",), "different models are served as warm-tiny", "--served-model-name",
        engines=({}, {}, {"tokenizer": "TOKENIZER"}), silent=True,
    ),
    "prefix caching is off": Fault(
        "engines.prefix_caching", ONE, "prefix caching is off", "--enable-prefix-caching",
        engines=({}, {"prefix_caching": False}), silent=True,
    ),
    "requests fail": Fault(
        "engines.answers", ONE, "does not answer a small prompt (completions): status 500", "look at its log",
        config=lambda _, fleet: fleet.engines[1].faults(error_rate=1.0), line="url: ",
    ),
    "cached tokens are not reported": Fault(
        "engines.prompt_token_details", ONE, "does not report cached tokens", "--enable-prompt-tokens-details",
        engines=({}, {"cached_tokens": False}), silent=True,
    ),
    "two versions": Fault(
        "engines.versions", ("engine-2",), "0.30.1 and 0.32.0", "one version",
        engines=({}, {}, {"version": "0.30.1"}),
    ),
    "two block sizes": Fault(
        "engines.blocks", ("engine-2",), "16 and 32 tokens", "--block-size 16",
        engines=({}, {}, {"block_tokens": 32}), silent=True,
    ),
    # events
    "events are off": Fault(
        "events.on", ONE, "KV events are off", "--kv-events-config", engines=({}, {"events": False}), silent=True
    ),
    "vLLM connects instead of binding": Fault(
        "events.address", ONE, '"tcp://0.0.0.0:15557": vLLM connects', '"tcp://*:15557"',
        engines=({}, {"events_endpoint": "tcp://0.0.0.0:15557"}), silent=True,
    ),
    "nobody publishes at the endpoint": Fault(
        "events.reachable", ONE, "no publisher answers at tcp://127.0.0.1:1",
        "kv_events: auto  # the engine reports tcp://127.0.0.1:",
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1, endpoint="tcp://127.0.0.1:1")),
        line="kv_events:", silent=True,
    ),
    "events of two engines are swapped": Fault(
        "events.arriving", ("engine-0",), "published where those of engine-1 are expected", "endpoint: tcp://127.0.0.1:",
        config=lambda config, fleet: [
            instance(config, 0, kv_events=sources(fleet, 1)), instance(config, 1, kv_events=sources(fleet, 0))
        ],
        line="endpoint: ", silent=True,
    ),
    "events are lost on the way": Fault(
        "events.arriving", ONE, "no event came from", "--kv-events-config",
        config=lambda _, fleet: fleet.engines[1].faults(drop_events=1.0), line="url: ", silent=True,
    ),
    "another topic": Fault(
        "events.arriving", ONE, "with topic 'kv'", 'topic: ""',
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1, topic="kv")),
        line="topic: kv", silent=True,
    ),
    "a rank has no stream": Fault(
        "events.ranks", ONE, "rank 1 has no event stream", "kv_events: add {rank: 1, endpoint: ",
        engines=({}, {"ranks": 2}),
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1)[:1]),
        line="kv_events:", silent=True,
    ),
    "no replay": Fault(
        "events.replay", ONE, "cannot be replayed", '"replay_endpoint": "tcp://*:5657"',
        engines=({}, {"replay": False}), silent=True,
    ),
    "replay requests are not answered": Fault(
        "events.replay", ONE, "are not answered", "open that port",
        config=lambda _, fleet: fleet.engines[1].faults(silent_replays=True), line="url: ", silent=True,
    ),
    "a wrong clock": Fault(
        "events.clocks", ("engine-0",), "90 s ahead of", "chrony", clocks=(AheadClock(90.0),), silent=True
    ),
    # tokens
    "a tokenizer for a model that nobody serves": Fault(
        "tokens.models", (), "tokenizers has warm-tini, which is a model that no engine serves", "write warm-tiny",
        config=lambda config, _: config.update(tokenizers={"warm-tini": {"path": TOKENIZER}}),
        line="warm-tini:", silent=True,
    ),
    "the tokenizer of another model": Fault(
        "tokens.agree", BOTH, "has another tokenizer than tokenizers.warm-tiny.path", "path: the folder",
        config=lambda config, _: config.update(tokenizers={MODEL: {"path": "OTHER"}}), line="path: ", silent=True,
    ),
    "half of the fleet with another chat template": Fault(
        "tokens.agree", ONE, "renders chats of warm-tiny otherwise", "chat_template",
        engines=({}, {"chat_template": "TEMPLATE"}), line="warm-tiny:", silent=True,
    ),
    "chats that engines render by code": Fault(
        "tokens.agree", BOTH, "generates from other ids than its /tokenize returns", "name the session of each chat",
        config=lambda _, fleet: [engine.faults(renders="other_count") for engine in fleet.engines], silent=True,
    ),
    # hits
    "hits of salted prompts are unknown": Fault(
        "hits.agree", ONE, "hits of requests with cache_salt are not predicted", "vLLM 0.19",
        engines=({}, {"version": "0.18.1", "events_format": "array", "replay_format": "bare"}), silent=True,
        also=("engines.versions",),
    ),
    "hits of adapters are unknown": Fault(
        "hits.agree", ONE, "hits of requests with an adapter are not predicted", "vLLM 0.16",
        engines=(
            {"loras": ("sql",)},
            {"loras": ("sql",), "version": "0.15.0", "events_format": "array", "replay_format": "bare"},
        ),
        silent=True, also=("engines.versions",),
    ),
    # the shared pool
    "the master is gone": Fault(
        "pool.masters", ("http://127.0.0.1:1",), "GET /health: no answer", "metrics_port",
        config=lambda config, _: config.update(pool={"masters": ["http://127.0.0.1:1"]}), line="127.0.0.1:1",
    ),
    "no master leads": Fault(
        "pool.masters", (), "no master of the pool leads", "list all masters", pool=True,
        config=lambda _, fleet: stand_by(fleet), line="masters:", silent=True,
    ),
    "keys with another prefix": Fault(
        "pool.keys", (), "the engines' blocks have other keys", "set cache_prefix to ''", pool=True,
        config=lambda config, _: config["pool"].update(models={MODEL: {"cache_prefix": "blue"}}),
        line="warm-tiny:", silent=True,
    ),
    "too many ranks in a key": Fault(
        "pool.keys", (), "the engines' blocks have other keys", "set tensor_parallel to 1", pool=True,
        config=lambda config, _: config["pool"].update(models={MODEL: {"tensor_parallel": 2}}),
        line="warm-tiny:", silent=True,
    ),
    "another hash seed": Fault(
        "pool.hashes", (), "'7', but the engines hash without PYTHONHASHSEED", "leave it out", pool=True,
        config=lambda config, _: config["pool"].update(models={MODEL: {"hash_seed": "7"}}),
        line="hash_seed: '7'", silent=True,
    ),
    "engines that hash in two ways": Fault(
        "pool.hashes", ("engine-2",), "hashes blocks of warm-tiny otherwise", "--prefix-caching-hash-algo", pool=True,
        engines=({}, {}, {"hash_algo": "sha256_cbor"}), silent=True,
    ),
    "an engine that saves nothing": Fault(
        "pool.keys", ONE, "put nothing of it into the pool", "MooncakeStoreConnector", pool=True,
        engines=({}, {"pool_url": None}), line="masters:", silent=True,
    ),
    # pairs
    "halves of two revisions": Fault(
        "pairs.complete", ("engine-0",), "no decode instance with the same revision", "revision: the same",
        engines=PAIR, config=lambda config, _: instance(config, 1, revision="2"), line="revision: '1'", silent=True,
    ),
    "halves with different blocks": Fault(
        "pairs.alike", BOTH, "different blocks: 16 and 32 tokens", "--block-size",
        engines=(PAIR[0], PAIR[1] | {"block_tokens": 32}), silent=True, also=("engines.blocks",),
    ),
    "a bootstrap server at another port": Fault(
        "pairs.bootstrap", ("engine-0",), "its bootstrap server does not answer", "bootstrap_url: http://HOST:8998",
        engines=PAIR,
        config=lambda config, _: config["fleet"]["instances"][0]["transfer"].update(bootstrap_url="http://127.0.0.1:1"),
        line="bootstrap_url: http://127.0.0.1:1", silent=True,
    ),
    "a prefill engine without its connector": Fault(
        "pairs.transfer", ("engine-0",), "without saying where its KV is", "NixlConnector",
        engines=({}, {"role": "decode", "transfer": "nixl"}),
        config=lambda config, _: instance(config, 0, role="prefill", transfer={"protocol": "nixl"}, revision="1"),
        silent=True,
    ),
    # policies
    "a policy whose weight is 0": Fault(
        "policies.tell_apart", (), "policy mine cannot tell targets apart by their cache", "weights above 0",
        config=lambda config, _: config.update(
            active="mine",
            policies={"mine": {"scorers": [{"name": "prefix_overlap", "weight": 0.0}, {"name": "queue_depth"}]}},
        ),
        line="scorers:", silent=True,
    ),
    "a policy that does not look at caches": Fault(
        "policies.blind", (), "no policy in force looks at caches", "active: warm",
        config=lambda config, _: config.update(active="round_robin"), line="active: round_robin", silent=True,
    ),
    # limits
    "too few files": Fault(
        "limits.files", (), "files may be open (hard limit)", "concurrent: ",
        config=lambda config, _: config.update(limits={"concurrent": 900_000_000}), line="concurrent: 900000000",
        also=("limits.kernel",), silent=True,
    ),
    "idle connections are kept too long": Fault(
        "limits.keepalive", (), "kept for 30 s", "keepalive_s: 4",
        config=lambda config, _: config.update(limits={"keepalive_s": 30.0}), line="keepalive_s: 30.0", silent=True,
    ),
    "more bodies than memory": Fault(
        "limits.memory", (), "workers on", "workers: ", config=lambda config, _: config.update(workers=4096),
        line="workers: 4096", silent=True,
    ),
    # security
    "the admin port is open to the world": Fault(
        "security.admin", (), "admin.host is 0.0.0.0", "host: 127.0.0.1",
        config=lambda config, _: config.update(admin={"host": "0.0.0.0", "tokens": [token("ops", "a long one")]}),
        line="host: 0.0.0.0", silent=True,
    ),
    "an admin token that anybody guesses": Fault(
        "security.tokens", (), "the admin token of ops is 'changeme'", "openssl rand",
        config=lambda config, _: config.update(admin={"tokens": [token("ops", "changeme")]}), line="hash: ",
        silent=True,
    ),
    "a snapshot that everybody can read": Fault(
        "security.secrets", (), "others can read", "chmod 600",
        config=lambda config, _: config.update(index={"snapshot_file": "/etc/hostname"}),
        line="snapshot_file: ", silent=True,
    ),
}  # fmt: skip


def in_file(found: MergedFinding, file: Path) -> str:
    """The lines that a finding names, as they stand in the file."""
    lines = file.read_text().splitlines()
    return "\n".join(lines[place.line - 1] for place in found.places)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_named(name: str, tmp_path: Path, model_dir: Path) -> None:
    fault, file = FAULTS[name], tmp_path / "main.yaml"
    engines, other_model = [copied(options, tmp_path) for options in fault.engines], model_dir
    async with running(*engines, pool=fault.pool, clocks=fault.clocks) as fleet:
        config = fleet.config()
        if fault.config is not None:
            fault.config(config, fleet)
        for source in config["tokenizers"].values():
            source["path"] = str(other_model) if source["path"] == "OTHER" else source["path"]
        examination = await examined(file, config)
    assert examination.took_s < LONGEST_S
    found = of_check(examination, fault.check)
    assert [one.finding.at for one in found if fault.says in one.finding.what] == [fault.at], alarms(examination)
    named = {one.finding.check for one in examination.findings}
    assert named <= {fault.check, *fault.also}, "something else is blamed, too"
    (one,) = [one for one in found if fault.says in one.finding.what]
    assert fault.change in one.finding.change
    assert bool(one.places) == (fault.line is not None)
    assert fault.line is None or fault.line in in_file(one, file)


async def test_several_engines_behind_one_address(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running({}, {}, {}))
        balancer = await stack.enter_async_context(Balancer([one.server.port for one in fleet.engines[1:]]))
        config = fleet.config()
        url = balancer.url
        config["fleet"]["instances"][1:] = [{"url": url, "name": "engine-1"}]
        examination = await examined(tmp_path / "main.yaml", config)
    (found,) = of_check(examination, "engines.one_each")
    assert found.finding.at == ("engine-1",)
    assert url in in_file(found, tmp_path / "main.yaml")


def copied(options: Json, folder: Path) -> Json:
    """The options, with a copy of the model's folder for TOKENIZER, and a template of its own for TEMPLATE."""
    if options.get("chat_template") == "TEMPLATE":
        file = folder / "template.jinja"
        file.write_text("{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}")
        return options | {"chat_template": str(file)}
    if options.get("tokenizer") != "TOKENIZER":
        return options
    return options | {"tokenizer": str(copytree(TOKENIZER, folder / "model", dirs_exist_ok=True))}
