"""Laws of the number of threads: room is left to others before passes collapse, and nothing is lost where nobody is."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.stats import Step
from localspec.decoding.threads import HOLD, MOST_HOLD, ThreadControl
from localspec.system.neighbours import Glance

from .neighbours import IK, LIBRARIES, TICK, Library, Machine, Schedule, World, coming_and_going
from .simulation import table

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


class Follower:
    """Hears of every number of threads."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def set_threads(self, count: int) -> None:
        self.seen.append(count)


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


@pytest.mark.parametrize(("library", "gain"), [("ik", 1.2), ("llama", 0.95)])
@pytest.mark.parametrize("load", list(STEADY_LOADS))
def test_drafting_goes_on_beside_others_where_it_pays_and_costs_nothing_elsewhere(library, gain, load):
    """Against plain decoding beside the same others; alone one library gains 1.4x and the other nothing."""
    schedule, _ = STEADY_LOADS[load]
    plain = rate(World.of(LIBRARIES[library], schedule).run_plain(SECONDS))
    assert rate(World.of(LIBRARIES[library], schedule).run(SECONDS)) >= gain * plain


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
    world, follower = World.of(IK, [*coming_and_going(2, 5, 100), (100.0, 0)]), Follower()
    assert world.control is not None
    world.control.govern(follower)
    world.run_plain(99.0)
    assert follower.seen[-1] == 1 and len(follower.seen) <= 9  # of twenty that come or go
    before = list(follower.seen)
    steps = world.run_plain(100.0 + MOST_HOLD)
    assert follower.seen == [*before, 2]
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


# What a controller makes of it


def controlled() -> tuple[Looks, AdaptiveController]:
    looks = Looks(2)
    world = World(IK, Machine([(0.0, 0)]), ThreadControl(2, 2, looks))
    return looks, world.controller()


def one_round(seconds: float, *tokens: int, draft_seconds: float = 0.0) -> Step:
    """Of a pass over as many tokens as it gave, all but the last one drafted."""
    width, drafted = len(tokens), len(tokens) - 1
    passes = seconds - draft_seconds
    return Step(width, 0, tokens, 0, drafted, drafted, drafted > 0, None, draft_seconds, passes, seconds)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_pass_for_which_there_was_no_room_is_neither_learned_nor_owed(drafts):
    """What it should have taken is."""
    looks, controller = controlled()
    plan = controller.plan(4 * drafts, 0)
    tokens, expected = (5,), controller.target.time(1)
    if drafts:
        assert plan.pays_for_pass("model", 1) and plan.take("model", 0.9)
        tokens, expected = (5, 6), controller.target.time(2) + controller.draft.time(1)
    before = controller.target, controller.draft.time(1)
    looks.passes(2.4, 1.0, 1.0)
    controller.observe(one_round(2.4, *tokens, draft_seconds=1.1 * drafts))
    assert controller.threads.count == 1
    assert controller.target is before[0] and controller.target.scale == 1.0
    assert controller.draft.time(1) == before[1]
    owed = expected - len(tokens) * controller.target.time(1)
    assert controller.ledger.balance == pytest.approx(owed)
    controller.plan(0, 0)
    assert controller.target is not before[0]
    assert controller.ledger.balance == pytest.approx(owed)


def test_what_rounds_give_is_expected_of_fewer_threads_in_their_own_time():
    looks, controller = controlled()
    for index in range(40):
        tokens = (5, 6) if index % 4 == 3 else (5,)
        seconds = controller.target.time(len(tokens))
        controller.plan(4, 0)
        looks.passes(seconds, 2.0, 0.0)
        controller.observe(one_round(seconds, *tokens))
    before = controller.rate(4, 0) * controller.target.time(1)
    assert 1.05 < before < 1.25
    looks.passes(2.4, 1.0, 1.0)
    controller.plan(4, 0)
    assert controller.threads.count == 1
    assert controller.rate(4, 0) * controller.target.time(1) == pytest.approx(before, rel=0.01)


def test_a_number_that_changes_in_a_round_leaves_the_costs_of_the_draft_as_they_are():
    """Its passes had one number, and that of the target another, whose costs are learned."""
    looks, controller = controlled()
    plan = controller.plan(4, 0)
    assert plan.pays_for_pass("model", 1) and plan.take("model", 0.9)
    looks.passes(1.2, 1.0, 1.0)
    assert controller.threads.decide() == 1  # before the target's pass
    looks.passes(0.12, 1.0, 1.0)
    controller.observe(one_round(1.32, 5, 6, draft_seconds=1.2))
    one = controller.costs_for(1)
    assert controller.target is one[0] and controller.draft is one[1]
    assert one[1].time(1) == pytest.approx(2 * table(IK.draft).time(1))
    assert one[0].time(2) == pytest.approx(0.12, rel=0.1) and one[0].has_news
    assert abs(controller.ledger.balance) < 0.2


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


@pytest.mark.parametrize(("others", "expected"), [(0.0, 2), (0.35, 2), (0.45, 1), (0.67, 1)])
def test_a_little_work_of_others_does_not_keep_threads_away(others, expected):
    """Nor do those who are between what one makes room for and what one comes back beside change anything."""
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    assert after(looks, control, 0.5, 0.5, 2.0) == 1
    assert after(looks, control, 3.0, 0.9, others) == expected


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


def test_engines_of_one_process_that_take_turns_are_no_neighbours_of_each_other():
    """Once one of them had fewer threads, the passes of the other between its own kept it there."""
    looks = Looks(2)
    control = ThreadControl(2, 2, looks)
    assert after(looks, control, 0.5, 0.5, 2.0) == 1
    for _ in range(6):
        looks.passes(1.5, 2.0, 0.0)  # the other engine, with two threads
        count = after(looks, control, 0.6, 1.0, 0.0)
    assert count == 2
    for _ in range(6):
        looks.passes(1.5, 1.0, 1.0)  # a neighbour is there meanwhile
        count = after(looks, control, 0.6, 1.0, 1.0)
    assert count == 1


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
    looks, contexts = Looks(2), (Follower(), Follower())
    control = ThreadControl(2, 2, looks)
    for context in contexts:
        control.govern(context)
    after(looks, control, 0.5, 0.5, 2.0)
    assert [context.seen for context in contexts] == [[2, 1], [2, 1]]
