"""What was learned of an instance, taken over by another router, of another version perhaps."""

from __future__ import annotations

import msgspec
import pytest

from router.config import schema
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance
from router.fleet.saved_instance import SavedInstance, restore_instance, save_instance

decode = msgspec.msgpack.Decoder(SavedInstance).decode


def an_instance() -> Instance:
    instance = Fleet(schema.FleetConfig()).join(schema.InstanceConfig(name="a", url="http://a:1"))
    assert isinstance(instance, Instance)
    return instance


def experienced(now: float = 100.0) -> Instance:
    """One of which speeds were learned from 20 prefills, 10 fetches and 10 steps, the last of each at `now`."""
    instance = an_instance()
    model = instance.latency_model
    for n in range(20):
        model.observe_prefill(500 + 100 * n, 100 * n, 40.0 + 5 * n, now - 19 + n)
    for n in range(10):
        model.observe_fetch("pool", 1000 + 100 * n, 100, 2000, 30.0 + n, now - 9 + n)
        model.observe_decode_step(9.0 + n, 4 + n, 5000 * n, now - 9 + n)
    for delivered in (160, 0, 0, 0):
        instance.targets[0].overlap_accuracy.observe(160, delivered, 16)
    return instance


def test_what_was_learned_is_as_good_elsewhere_and_goes_on_from_there() -> None:
    old, new = experienced(), an_instance()
    restore_instance(new, decode(msgspec.msgpack.encode(save_instance(old, 103.0))), 7.0)
    assert new.latency_model.speed(7.0) == old.latency_model.speed(103.0)  # ages included, by another clock
    assert not new.targets[0].overlap_accuracy.trusted
    for instance, now in ((old, 104.0), (new, 8.0)):
        instance.latency_model.observe_prefill(3000, 0, 400.0, now)
        for _ in range(3):
            instance.targets[0].overlap_accuracy.observe(160, 160, 16)
        assert instance.targets[0].overlap_accuracy.trusted
    assert new.latency_model.speed(8.0) == old.latency_model.speed(104.0)
    assert (new.targets[0].overlap_accuracy.overestimated, old.targets[0].overlap_accuracy.overestimated) == (0, 3)


def test_what_was_learned_here_stays() -> None:
    here = experienced()
    before = here.latency_model.speed(100.0)
    other = an_instance()
    other.latency_model.observe_prefill(1, 0, 9000.0, 99.0)
    restore_instance(here, save_instance(other, 100.0), 100.0)
    assert here.latency_model.speed(100.0) == before


@pytest.mark.parametrize("change", ["fewer fits", "more fits", "other coefficients", "nothing learned"])
def test_another_version_gives_what_both_know(change: str) -> None:
    saved = save_instance(experienced(), 100.0)
    fits = {
        "fewer fits": saved.fits[:1],
        "more fits": [*saved.fits, saved.fits[0]],
        "other coefficients": [saved.fits[1], *saved.fits[1:]],
        "nothing learned": save_instance(an_instance(), 100.0).fits,
    }[change]
    new = an_instance()
    restore_instance(new, msgspec.structs.replace(saved, fits=fits), 100.0)
    speed = new.latency_model.speed(100.0)
    assert speed.samples == (20 if change in ("fewer fits", "more fits") else 0)
    assert speed.pool is not None
    assert speed.pool.samples == (10 if change in ("more fits", "other coefficients") else 0)


def test_ranks_that_are_not_here_are_left_out() -> None:
    saved = save_instance(experienced(), 100.0)
    new = an_instance()
    restore_instance(new, msgspec.structs.replace(saved, accuracy={3: saved.accuracy[0]}), 100.0)
    assert new.targets[0].overlap_accuracy.trusted
