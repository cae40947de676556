from router.lab.simulator.event_queue import EventQueue


def test_what_comes_first_happens_first_and_at_one_time_in_the_order_in_which_it_was_put() -> None:
    moments, seen = EventQueue(), []

    def note(name: str) -> None:
        seen.append((name, moments.now_s))

    moments.at(2.0, note, "b")
    moments.at(1.0, note, "a")
    moments.at(2.0, note, "c")
    while moments.step():
        pass
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0)]


def test_what_happens_may_put_more_there_and_what_has_passed_comes_at_once() -> None:
    moments, seen = EventQueue(), []

    def again(left: int) -> None:
        seen.append(moments.now_s)
        if left:
            moments.at(moments.now_s - 1.0, again, left - 1)

    moments.at(5.0, again, 2)
    while moments.step():
        pass
    assert seen == [5.0, 5.0, 5.0]
    assert not moments.step()
