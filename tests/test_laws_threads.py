"""Laws of the number of threads: room is left to others before passes collapse, and nothing is lost where nobody is."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.decoding.stats import Step
from localspec.decoding.threads import HOLD, MOST_HOLD, ThreadControl
from localspec.system.neighbours import Glance

from .neighbours import IK, LIBRARIES, TICK, Library, Schedule, World, coming_and_going

SECONDS = 40.0
LONG = 1.0
"""Seconds of a token that a reader notices."""
STEADY_LOADS: dict[str, tuple[Schedule, float]] = {
    "one": ([(0.0, 1)], 2.0),
    "two": ([(0.0, 2)], 3.0),
    "one every 5 s": (coming_and_going(1, 5, SECONDS), 2.0),
    "two every 5 s": (coming_and_going(2, 5, SECONDS), 3.0),
    "two every second": (coming_and_going(2, 1, SECONDS), 3.0),
}
"""And how many times an idle machine's a token may take there, in the median."""


def token_seconds(steps: list[Step]) -> float:
    """The median over all tokens."""
    return statistics.median(step.seconds / len(step.tokens) for step in steps for _ in step.tokens)


def rate(steps: list[Step]) -> float:
    return sum(len(step.tokens) for step in steps) / sum(step.seconds for step in steps)


def arrivals(schedule: Schedule, until: float) -> int:
    counts = [0, *(count for start, count in schedule if start <= until)]
    return sum(later > sooner for sooner, later in pairwise(counts))


def idle(library: Library) -> float:
    return library.target[0]


@pytest.mark.parametrize("library", list(LIBRARIES))
@pytest.mark.parametrize("load", list(STEADY_LOADS))
def test_beside_others_passes_are_slower_and_do_not_collapse(library, load):
    schedule, times = STEADY_LOADS[load]
    world = World.of(LIBRARIES[library], schedule)
    for steps in (world.run_plain(SECONDS), World.of(LIBRARIES[library], schedule).run(SECONDS)):
        assert token_seconds(steps) <= times * idle(LIBRARIES[library])
        assert sum(step.seconds > LONG for step in steps) <= arrivals(schedule, SECONDS)


@pytest.mark.parametrize("library", list(LIBRARIES))
@pytest.mark.parametrize("load", list(STEADY_LOADS))
def test_drafting_beside_others_is_no_slower_than_plain_decoding_beside_them(library, load):
    schedule, _ = STEADY_LOADS[load]
    plain = rate(World.of(LIBRARIES[library], schedule).run_plain(SECONDS))
    assert rate(World.of(LIBRARIES[library], schedule).run(SECONDS)) >= 0.95 * plain


@pytest.mark.parametrize("library", list(LIBRARIES))
def test_an_idle_machine_loses_nothing(library):
    """Nor one on which somebody works a little now and then, as on any desktop."""
    blips = [(0.5 * index + shift, count) for index in range(80) for shift, count in ((0.0, 0), (0.48, 1))]
    for schedule in ([(0.0, 0)], blips):
        chosen, fixed = (World.of(LIBRARIES[library], schedule, chosen=chosen) for chosen in (True, False))
        assert rate(chosen.run(SECONDS)) >= 0.98 * rate(fixed.run(SECONDS))
        assert chosen.control is not None and chosen.control.count == 2


@pytest.mark.parametrize("library", list(LIBRARIES))
def test_threads_come_back_when_cores_are_free_and_not_before(library):
    world = World.of(LIBRARIES[library], [(0.0, 2), (10.0, 0)])
    assert world.control is not None
    world.run_plain(9.0)
    assert world.control.count == 1
    controller = world.controller()
    while world.control.count == 1:
        world.run(0.1, controller)
    assert 10.0 + 0.8 * HOLD <= world.machine.clock.now <= 10.0 + HOLD + 1.0


def test_neighbours_that_come_and_go_are_waited_for_longer_each_time():
    """So passes hardly collapse for them; and once they have gone for good, it is as fast as ever."""
    world = World.of(IK, [*coming_and_going(2, 5, 100), (100.0, 0)])
    world.run_plain(99.0)
    assert world.control is not None and world.control.count == 1
    changes = world.control.num_changes
    assert changes <= 8  # of twenty that come or go
    steps = world.run_plain(100.0 + MOST_HOLD)
    assert world.control.count == 2 and world.control.num_changes == changes + 1
    assert steps[-1].seconds < 1.1 * idle(IK)


def test_a_system_that_hides_others_shows_them_by_slow_passes():
    """Two in a row, or one that collapsed; then it is tried again more and more seldom."""
    world = World.of(IK, [(0.0, 0), (5.0, 2), (65.0, 0)], blind=True)
    controller = world.controller()
    world.run(4.0, controller)
    assert world.control is not None and world.control.count == 2
    steps = world.run(56.0, controller)
    assert sum(step.seconds > LONG for step in steps) <= 8
    assert token_seconds(steps) <= 3 * idle(IK)
    world.run(2 * MOST_HOLD, controller)
    assert world.control.count == 2


@pytest.mark.parametrize("library", list(LIBRARIES))
def test_what_passes_cost_is_learned_for_the_number_of_threads_they_had(library):
    """With two threads nothing has changed, though passes collapsed; with one it is what that costs."""
    world = World.of(LIBRARIES[library], [(0.0, 0), (4.0, 2), (30.0, 0)])
    controller = world.controller()
    world.run(25.0, controller)
    assert world.control is not None and world.control.count == 1
    one, _ = world.tables[1]
    assert one is controller.target
    assert one.time(1) == pytest.approx(LIBRARIES[library].seconds(False, 1, 1, 2), rel=0.1)
    world.run(15.0, controller)
    two, _ = world.tables[2]
    assert world.control.count == 2 and controller.target is two
    assert two.time(1) == pytest.approx(idle(LIBRARIES[library]), rel=0.05)


schedules = st.lists(st.tuples(st.floats(0.05, 8.0), st.integers(0, 3)), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(schedules, st.sampled_from(list(LIBRARIES)), st.integers(0, 2))
def test_whoever_comes_and_goes(changes, library, at_first):
    """One slow token each time they come, at most, and drafting is never much slower than plain decoding."""
    schedule, now = [(0.0, at_first)], 0.0
    for seconds, count in changes:
        now += seconds
        schedule.append((now, count))
    seconds = now + 5.0
    plain = World.of(LIBRARIES[library], schedule).run_plain(seconds)
    drafted = World.of(LIBRARIES[library], schedule).run(seconds)
    for steps in (plain, drafted):
        assert sum(step.seconds > LONG for step in steps) <= arrivals(schedule, seconds)
    # Where they come in the middle of a pass is chance, which one of two runs may have more of.
    lost = [sum(step.seconds for step in steps if step.seconds > LONG) for steps in (plain, drafted)]
    speed = [
        sum(len(step.tokens) for step in steps) / (sum(step.seconds for step in steps) - waste)
        for steps, waste in zip((plain, drafted), lost, strict=True)
    ]
    assert speed[1] >= 0.9 * speed[0]


# What is decided from what is seen


class Looks:
    """Glances at a machine of so many processors, made by hand."""

    def __init__(self, processors: int) -> None:
        self.processors = processors
        self.glance = Glance(0.0, 0.0, 0.0)

    def __call__(self) -> Glance:
        return self.glance

    def passes(self, seconds: float, own: float, others: float) -> None:
        """So much time passes; own, others: processors used."""
        last = self.glance
        busy = last.busy + (own + others) * seconds
        self.glance = Glance(last.at + seconds, busy, last.own + own * seconds)


def after(looks: Looks, control: ThreadControl, seconds: float, own: float, others: float) -> int:
    """Threads after so many seconds of passes of 50 ms."""
    for _ in range(round(seconds / 0.05)):
        looks.passes(0.05, own, others)
        control.decide()
    return control.count


@pytest.mark.parametrize(
    ("most", "processors", "others", "expected"),
    [
        (2, 2, 0.0, 2), (2, 2, 0.3, 2), (2, 2, 0.67, 1), (2, 2, 1.0, 1), (2, 2, 2.0, 1),
        (4, 4, 0.2, 4), (4, 4, 1.0, 3), (4, 4, 2.0, 2), (4, 4, 4.0, 1),
        (4, 8, 1.0, 4), (4, 8, 4.0, 4), (4, 8, 6.0, 2), (4, 8, 8.0, 1), (8, 8, 0.1, 8), (8, 8, 1.0, 7), (1, 2, 2.0, 1),
    ],
)  # fmt: skip
def test_as_many_threads_as_there_is_room_for(most, processors, others, expected):
    """most: the cores; processors may be twice as many, and the second ones are room too."""
    looks = Looks(processors)
    assert after(looks, ThreadControl(most, processors, looks), 1.0, 0.5, others) == expected


def test_only_allowed_numbers_are_chosen():
    looks = Looks(8)
    control = ThreadControl(8, 8, looks, allowed=(8, 4, 1))
    assert after(looks, control, 1.0, 0.5, 1.0) == 4
    assert after(looks, control, 1.0, 0.5, 5.0) == 1
    only = ThreadControl(8, 8, looks, allowed=(8,))
    assert after(looks, only, 1.0, 0.5, 8.0) == 8


def test_what_this_process_computes_beside_its_passes_is_another_neighbour():
    """Once there is one thread; with as many as processors its own work cannot be told apart."""
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    after(looks, control, 0.5, 0.5, 2.0)
    assert after(looks, control, 5.0, 2.0, 0.0) == 1
    assert after(looks, control, 5.0, 1.0, 0.0) == 2


@pytest.mark.parametrize("between", [0.0, 0.05, 0.3])
def test_a_tick_is_no_neighbour_however_soon_after_another_look(between):
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    for _ in range(100):
        looks.passes(0.0001, 1.0, TICK / 0.0001)
        control.decide()
        looks.passes(0.05, 2.0, 0.0)
        control.decide()
        looks.passes(between, 0.0, 0.0)
        assert control.decide() == 2


def test_a_look_after_a_pass_that_collapsed_is_enough():
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    assert after(looks, control, 5.0, 2.0, 0.0) == 2
    looks.passes(2.4, 1.0, 1.0)
    assert control.decide() == 1


def test_a_pause_counts_as_time_in_which_cores_were_free():
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    assert after(looks, control, 1.0, 0.5, 2.0) == 1
    looks.passes(60.0, 0.0, 0.02)
    assert control.decide() == 2
    looks.passes(60.0, 0.0, 1.0)
    assert control.decide() == 1


def test_all_that_are_governed_follow():
    class Passes:
        threads = 0

        def set_threads(self, count: int) -> None:
            self.threads = count

    looks, contexts = Looks(2), (Passes(), Passes())
    control = ThreadControl(2, 2, looks)
    for context in contexts:
        control.govern(context)
    assert [context.threads for context in contexts] == [2, 2]
    after(looks, control, 0.5, 0.5, 2.0)
    assert [context.threads for context in contexts] == [1, 1]
