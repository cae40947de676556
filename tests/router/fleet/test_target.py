"""What happens to several parts of a target at once."""

from __future__ import annotations

from router.config import schema
from router.engines.base import Gauges
from router.fleet.instances import Fleet, Instance


def test_a_target_is_named_after_instance_and_rank_and_renewal_reaches_every_part() -> None:
    instance = Fleet(schema.Fleet()).join(schema.Instance(url="http://a:1"))
    assert isinstance(instance, Instance)
    target = instance.targets[0]
    assert target.id == "a:1/0"
    for _ in range(3):
        target.breaker.ended("failure", 0.0)
        target.trust.observe(160, 0, 16)
    target.polled(Gauges(1, 0, 0.2, 16, 3200, None, None), 5.0)
    target.speed.observe(100, 0, 50.0, 1.0)
    assert target.breaker.state(0.0) == "open"
    assert not target.trust.trusted
    assert target.capacity_tokens == 3200
    target.polled(Gauges(2, 0, 0.2, None, None, None, None), 6.0)
    assert target.capacity_tokens == 3200, "a page that does not say takes nothing back"
    target.renew()
    assert target.breaker.lets(0.0)
    assert target.trust.trusted
    assert (target.capacity_tokens, target.block_tokens, target.books.gauges_at) == (None, None, None)
    assert target.speed.samples == 1, "the hardware is the same"
