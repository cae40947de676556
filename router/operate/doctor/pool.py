"""Check the shared pool: one master leads, and the router queries the keys that the engines write.

With one wrong part of a key, or another hash, the router never finds a block, as if the pool were empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.config.sections.pool import PoolModelConfig
from router.features.pool.hash_detection import HashDetection
from router.features.pool.key_check import diagnose
from router.features.pool.keys import KeyForm
from router.kvcache.engine_hashes import DEFAULT_SEED, EngineChain
from router.operate.doctor.check import Check
from router.operate.doctor.engines import find_difference
from router.operate.doctor.finding import Edit, FleetFinding
from router.operate.doctor.hashes import find_chains, find_saved, first_blocks
from router.operate.doctor.subject import ExaminedEngine, Subject

UNKNOWN = "what the pool holds is unknown, so loading from it is never planned for"


def check_masters(subject: Subject) -> Iterator[FleetFinding]:
    """Every master answers, and one leads."""
    for i, master in enumerate(subject.masters):
        if master.trouble is not None:
            alone = not any(one.leads for one in subject.masters)
            why = UNKNOWN if alone else "the next election may find nobody"
            change = "start it there, or the URL of its HTTP server (metrics_port, 9003; not the RPC port 50051)"
            place = subject.place("pool", "masters", i)
            severity = "fault" if alone else "warning"
            yield FleetFinding(severity, master.trouble, why, change, (master.url,), place)  # type: ignore[arg-type]
    leading = [master.url for master in subject.masters if master.leads]
    place = subject.place("pool", "masters")
    if subject.masters and not leading and not any(master.trouble for master in subject.masters):
        change = "list all masters, the leading one among them; or look why none is elected (etcd)"
        yield FleetFinding("fault", "no master of the pool leads", UNKNOWN, change, (), place)
    if len(leading) > 1:
        what = "several masters lead: they are pools of their own, or split"
        change = "list the masters of one pool; look at its election (etcd)"
        yield FleetFinding("fault", what, "each engine's blocks are in one of them", change, tuple(leading), place)


def check_hashes(subject: Subject) -> Iterator[FleetFinding]:
    """Engines of one model hash alike, and as configured."""
    if subject.config is None or subject.config.pool is None:
        return
    for model, engines in subject.by_model().items():
        settings = subject.config.pool.models.get(model) or PoolModelConfig()
        apart = find_difference(engines, lambda one, settings=settings: _describe(find_chains(one, settings)))  # type: ignore[misc]
        if apart is not None:
            yield FleetFinding(
                "fault",
                f"hashes blocks of {model} otherwise than the others: {apart.values}",
                "it shares nothing with them: what one puts into the pool the other does not find",
                "engine: the same --prefix-caching-hash-algo, PYTHONHASHSEED, --block-size and version for all",
                apart.odd,
            )
            continue
        detection = HashDetection(model, settings)
        for engine in engines:
            for first in first_blocks(engine):
                detection.observe(first)
        if detection.trouble is not None:
            key, _, what = detection.trouble.removeprefix(f"pool.models.{model}").lstrip(".").partition(": ")
            path = ("pool", "models", model, *([key] if key else []))
            yield FleetFinding(
                "fault",
                what.partition(": ")[0],
                UNKNOWN,
                what.partition(": ")[2] or what,
                (),
                subject.place(*path),
                _hash_edit(model, key, settings, engines),
            )


def check_keys(subject: Subject) -> Iterator[FleetFinding]:
    """A block that an engine has just computed is in the pool, under the key that the router queries."""
    if subject.config is None or subject.config.pool is None or subject.pool_keys is None:
        return
    for model, engines in subject.by_model().items():
        settings = subject.config.pool.models.get(model) or PoolModelConfig()
        saving = [one for one in engines if one.config.role != "decode" and find_chains(one, settings)]
        saved = {one.name: digest for one in saving if (digest := find_saved(subject.pool_keys, one)) is not None}
        for engine in saving:
            if engine.name not in saved:
                yield FleetFinding(
                    "fault",
                    "computed a prompt, and put nothing of it into the pool",
                    "what it computes is lost to the other engines",
                    "engine: --kv-transfer-config with MooncakeStoreConnector, and this master in MOONCAKE_CONFIG_PATH",
                    (engine.name,),
                    subject.place("pool", "masters"),
                )
        sample = next((one for one in saving if one.name in saved), None)
        if sample is None or sample.usable is None:
            continue
        form = KeyForm.from_config(settings, sample.usable.root)
        trouble = None if form is None else diagnose(model, form, subject.pool_keys, saved[sample.name])
        if trouble is not None:
            what, _, change = trouble.removeprefix(f"pool.models.{model}: ").rpartition(": ")
            place = subject.place("pool", "models", model)
            yield FleetFinding("fault", what, UNKNOWN, change, (), place, _key_edit(model, change))


def check_router(subject: Subject) -> Iterator[FleetFinding]:
    """A running router finds a leading master, and reports no trouble with the keys of any model."""
    for router in subject.routers:
        if not router.pool or not router.pool.get("configured"):
            continue
        if router.pool.get("leader") is None:
            change = "see pool.masters; the router must reach them, not only this machine"
            yield FleetFinding("fault", "no master leads, for the router", UNKNOWN, change, (router.url,))
        for model in router.pool.get("models") or ():
            if model.get("trouble"):
                place = subject.place("pool", "models", str(model.get("name")))
                yield FleetFinding("fault", str(model["trouble"]), UNKNOWN, "as it says", (router.url,), place)


def _describe(chains: set[EngineChain] | None) -> str | None:
    """Return one of the hash chains as text. None: unknown."""
    if chains is None:
        return None
    if not chains:
        return "no known algorithm and seed"
    chain = min(chains, key=lambda one: (one.algo, one.seed, not one.tagged))
    seed = "without PYTHONHASHSEED" if chain.seed == DEFAULT_SEED else f"with PYTHONHASHSEED={chain.seed}"
    return f"{chain.algo} {seed}"


def _hash_edit(model: str, key: str, settings: PoolModelConfig, engines: Sequence[ExaminedEngine]) -> Edit | None:
    """Return the edit that sets `key` to the engines' value. None if that value is not certain."""
    chains = [chain for engine in engines for chain in find_chains(engine, settings) or ()]
    sizes = {first.block_tokens for engine in engines for first in first_blocks(engine)}
    path = ("pool", "models", model, key)
    match key:
        case "hash_algo" if chains:
            return Edit(path, chains[0].algo)
        case "hash_seed" if chains:
            return Edit(path, None if chains[0].seed == DEFAULT_SEED else chains[0].seed)
        case "block_tokens" if len(sizes) == 1:
            return Edit(path, sizes.pop())
    return None


def _key_edit(model: str, change: str) -> Edit | None:
    """Return the edit for a change of one key part, such as `set tensor_parallel to 2 (not 1)`, else None."""
    words = change.split()
    if ";" in change or ", or" in change or len(words) != 6 or words[0] != "set":
        return None
    value = words[3].strip("'")
    return Edit(("pool", "models", model, words[1]), int(value) if value.isdecimal() else value)


CHECKS = (
    Check("pool.masters", "every master answers, and one leads", "configuration", check_masters),
    Check("pool.hashes", "engines of one model hash alike, and as configured", "prompts", check_hashes),
    Check("pool.keys", "a computed block is in the pool, under the router's key", "prompts", check_keys),
    Check("pool.router", "a running router has a leader, and its names are right", "router", check_router),
)
