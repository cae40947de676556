"""Begin and end of each fault of the fleet, the pool and the routers."""

from __future__ import annotations

from router.config.sections.gameday import TRAITS, GamedayFault
from router.lab.gameday.stage import Stage

NAMED = frozenset({"engine", "router"})  # parameters whose values are numbers of processes with names


async def begin_fault(stage: Stage, fault: GamedayFault) -> None:
    """Let a fault of the fleet, the pool or the router begin. Raises WarmrouteError when the router refuses."""
    engine = fault.engine or 0
    match fault.fault:
        case "kill":
            stage.kill_engine(engine)
        case "freeze":
            stage.freeze_engine(engine)
        case "wedge":
            await stage.set_engine_faults(engine, wedge=True)
        case "slow":
            await stage.set_engine_faults(engine, slow=fault.factor)
        case "lossy_events":
            await _set_all(stage, drop_events=fault.share)
        case "wrong_events":
            await stage.set_engine_faults(engine, hide_removals=True)
        case "full_disk":
            for router in stage.routers:
                router.fill_disk()
        case "dead_pool":
            await stage.stop_pool()
        case "partition":
            for relay in stage.relays[engine]:
                relay.stall() if fault.how == "stall" else relay.refuse()
        case "bad_policy":
            await stage.activate(fault.policy or "")
        case "clock_jump" if fault.of == "router":
            for router in stage.routers:
                router.set_clock(fault.jump_s)
        case "clock_jump":
            await _set_all(stage, clock_offset_s=fault.jump_s)
        case "kill_worker":
            stage.routers[fault.router or 0].kill_worker(fault.worker)
        case "kill_router":
            await stage.routers[fault.router or 0].kill()


async def end_fault(stage: Stage, fault: GamedayFault) -> None:
    """Undo what `begin_fault` did; a killed engine or worker comes back by itself."""
    engine = fault.engine or 0
    match fault.fault:
        case "freeze":
            stage.continue_engines()
        case "wedge":
            await stage.set_engine_faults(engine, wedge=False)
        case "slow":
            await stage.set_engine_faults(engine, slow=1.0)
        case "lossy_events":
            await _set_all(stage, drop_events=0.0)
        case "wrong_events":
            await stage.set_engine_faults(engine, hide_removals=False)
        case "full_disk":
            for router in stage.routers:
                router.free_disk()
        case "dead_pool":
            await stage.start_pool()
        case "partition":
            for relay in stage.relays[engine]:
                await relay.heal()
        case "bad_policy":
            await stage.undo()
        case "clock_jump" if fault.of == "router":
            for router in stage.routers:
                router.set_clock(0.0)
        case "clock_jump":
            await _set_all(stage, clock_offset_s=0.0)
        case "kill_router":
            await stage.routers[fault.router or 0].start()


async def _set_all(stage: Stage, **faults: object) -> None:
    for number in range(stage.script.fleet.engines):
        await stage.set_engine_faults(number, **faults)


def describe(fault: GamedayFault) -> str:
    """Return the fault and its place, such as `engine-1, factor 4`."""
    values = {name: getattr(fault, name) for name in TRAITS[fault.fault].parameters}
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"{name}-{text}" if name in NAMED else f"{name} {text}" for name, text in texts.items())
