"""Costs without waiting: nothing is measured in a load, and what is uncertain in moments when nobody computes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import weakref
from pathlib import Path

import pytest

from localspec import LLM, AsyncLLM
from localspec.compute.context_options import ContextOptions
from localspec.decoding.calibrate import WIDTHS, Calibrator, calibrate
from localspec.decoding.costs import BUSY, LEARNED, CostTable
from localspec.engine import assumed_costs, idle_costs
from localspec.engine.engine import Engine
from localspec.engine.idle_costs import IdleCalibration
from localspec.engine.measured_costs import calibrated_files, keep_costs, known_costs
from localspec.engine.options import EngineOptions
from localspec.llama.context import Context
from localspec.store.measurements import Measurements

from .fakes import random_model
from .simulation import CURVES, Clock, TimedContext, table
from .tinygguf import write_gemma, write_pair

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
GREEDY = {"temperature": 0, "max_tokens": 12}
SECONDS = 120


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("idle costs"))


@pytest.fixture
def quiet(monkeypatch) -> None:
    """Idle moments begin at once, and this machine counts as calm."""
    monkeypatch.setattr("localspec.answers.idle_moments.QUIET_SECONDS", 0.01)
    monkeypatch.setattr("localspec.decoding.calibrate.UNSTEADY", 1e9)
    monkeypatch.setattr(idle_costs.IdleCalibration.__init__, "__defaults__", (SECONDS, time.perf_counter))


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Widths of all passes that are made."""
    made: list[int] = []
    decode = Context.decode

    def counting(self, spans):
        made.append(sum(len(span.tokens) for span in spans))
        return decode(self, spans)

    monkeypatch.setattr(Context, "decode", counting)
    return made


def eventually(condition) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.01)


def measuring() -> bool:
    return any(thread.name == "localspec measuring" for thread in threading.enumerate())


def load(files, home, **options) -> LLM:
    return LLM.from_files(
        *files, **{"n_ctx": 512, "threads": 1, "home": home, "cache_type_v": "bf16", **options}
    )


# The load


def test_a_load_makes_no_pass_and_the_first_answer_drafts_by_assumed_costs(
    files, tmp_path, passes, monkeypatch
):
    monkeypatch.setattr("localspec.answers.idle_moments.QUIET_SECONDS", 1000)
    with load(files, tmp_path) as llm:
        assert passes == [] and "measured" not in llm.drafting
        assert llm.generate("abc", **GREEDY).ids
    (kept, *others) = Measurements(tmp_path / "calibration", 2)
    tables = [CostTable.from_dict(found.result) for found in (kept, *others)]
    assert any(0 < found.certainty[1] <= LEARNED for found in tables)  # learned from its passes
    assert not any(found.measured for found in tables) and calibrated_files(tmp_path) == set()


def test_what_is_measured_in_a_load_is_asked_for(files, tmp_path, passes):
    with load(files, tmp_path, calibrate=True):
        assert set(WIDTHS) <= set(passes)
    assert {name for name, _ in calibrated_files(tmp_path)} == {"target.gguf", "draft.gguf"}


# Idle moments


def test_idle_moments_measure_what_is_uncertain_once(files, tmp_path, quiet, passes):
    with load(files, tmp_path) as llm:
        llm._keeper._costs.most.target.observe(7, 0, 0.1)  # a width that is never measured
        eventually(lambda: not measuring())
        assert set(WIDTHS) <= set(passes)
        assert llm._keeper._costs.most.certain
    assert {name for name, _ in calibrated_files(tmp_path)} == {"target.gguf", "draft.gguf"}
    passes.clear()
    with load(files, tmp_path) as llm:
        assert not measuring() and passes == [] and llm._keeper._costs.most.certain


@pytest.mark.parametrize("sliding", [False, True])
def test_a_conversation_stays_in_the_cells_while_it_is_measured(files, tmp_path, quiet, passes, sliding):
    """The next turn reads only what is new, and says what it says without any measuring."""
    used = (write_gemma(tmp_path / "gemma.gguf"),) if sliding else files
    first = "a conversation that is in the cells. " * 3
    said = {}
    for measured in (False, True):
        with load(used, tmp_path, draft_tokens="auto" if measured else 0) as llm:
            start = llm.generate(first, seed=3, max_tokens=12)
            if measured:
                passes.clear()
                eventually(lambda: not measuring())
                assert 32 in passes and llm._keeper._costs.most.certain
            before = [*llm.tokenize(first), *start.ids]
            second = llm.generate([*before, *b"and more"], seed=4, max_tokens=12)
            assert second.stats.cached_tokens == len(before) - 1  # the last one had not been read
            said[measured] = (start.ids, second.ids)
    assert said[True] == said[False]


class Interrupted:
    """A measuring pass, the `moment`-th, that goes on until it is told to end."""

    def __init__(self, monkeypatch, moment: int = 1) -> None:
        self.begun, self.num_passes = threading.Event(), 0
        timed = Calibrator.time

        def endless(calibrator, width):
            self.num_passes += 1
            if self.num_passes >= moment:
                flag = calibrator._context.cancel
                self.begun.set()
                eventually(lambda: flag.is_set)
            return timed(calibrator, width)

        monkeypatch.setattr(Calibrator, "time", endless)


@pytest.mark.parametrize("moment", [1, 4, 12])
@pytest.mark.parametrize("use", ["generate", "exclusive", "unload", "engine", "close", "forget", "cancel"])
def test_whoever_comes_ends_the_measuring_pass(files, tmp_path, quiet, monkeypatch, use, moment):
    with load(files, tmp_path, draft_tokens=0) as llm:
        expected = llm.generate("abc", **GREEDY).ids
    pass_ = Interrupted(monkeypatch, moment)
    llm = load(files, tmp_path)
    assert pass_.begun.wait(SECONDS)
    started = time.monotonic()
    if use == "generate":
        assert llm.generate("abc", **GREEDY).ids == expected
    elif use == "exclusive":
        with llm.exclusive() as engine:
            assert engine.target.length() == len(engine.session.tokens) == 0
    elif use == "engine":
        assert llm.engine.target.length() == 0
        assert llm.engine.session.forward([65])  # it is the caller's, and nothing stops its passes
        eventually(lambda: not measuring())
    elif use == "unload":
        assert llm.unload() and not llm.loaded
    elif use == "cancel":  # which is for answers: the next one is not cancelled
        llm.cancel()
        assert llm.generate("abc", **GREEDY).ids == expected
    else:
        getattr(llm, use)()
    assert time.monotonic() - started < 30
    llm.close()
    eventually(lambda: not measuring())


def test_measuring_ends_with_an_llm_that_nobody_holds(files, tmp_path, monkeypatch):
    llm = load(files, tmp_path)
    assert measuring()
    del llm
    eventually(lambda: not measuring())


def test_an_llm_that_nobody_holds_is_gone_in_the_middle_of_its_measuring(files, tmp_path, quiet, monkeypatch):
    pass_ = Interrupted(monkeypatch, moment=3)  # goes on until it is cancelled
    llm = load(files, tmp_path)
    weights = llm._keeper._engine.target.weights
    assert pass_.begun.wait(SECONDS)
    gone = weakref.ref(llm)
    del llm
    assert gone() is None
    eventually(lambda: weights._handle is None and not measuring())
    assert pass_.num_passes == 3


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError])
def test_a_pass_that_fails_ends_the_measuring_in_silence(files, tmp_path, quiet, monkeypatch, error):
    timed, widths = Calibrator.time, iter(range(1000))

    def failing(calibrator, width):
        if next(widths) == 4:
            raise error("no more")
        return timed(calibrator, width)

    monkeypatch.setattr(Calibrator, "time", failing)
    with load(files, tmp_path) as llm:
        eventually(lambda: not measuring())
        assert llm._keeper._costs._idle.over
        engine = llm._keeper._engine
        assert engine.target.length(0) == engine.draft.length(0) == 0
        assert next(widths) == 5 and llm.generate("abc", **GREEDY).ids


def test_measuring_keeps_no_weights_in_memory(files, tmp_path, quiet, monkeypatch):
    """Neither does it count as a use, nor are weights loaded for it."""
    Interrupted(monkeypatch)
    with load(files, tmp_path, unload_after=0.3) as llm:
        eventually(lambda: not llm.loaded)
        time.sleep(0.3)
        assert not llm.loaded


# How much, and what is kept of it


class Engines:
    """An engine of timed contexts."""

    def __init__(self, files, slowdown=lambda now: 1.0) -> None:
        self.clock, row = Clock(), random_model(8, 1)
        self.engine = Engine(*files, EngineOptions(n_ctx=256, threads=1))
        for role in ("target", "draft"):
            real = getattr(self.engine, role)
            timed = TimedContext(self.clock, table(CURVES["Q4_0"]), lambda length: row((length,)), slowdown)
            timed.weights, timed.threads, timed.n_outputs, timed.options = (
                real.weights, real.threads, real.n_outputs, real.options,
            )  # fmt: skip
            setattr(self.engine, role, timed)
            self.engine.sessions[role].context = timed


def test_measuring_is_bounded_whatever_passes_take(files):
    for speed in (0.01, 1.0, 20.0):
        world = Engines(files, lambda now, speed=speed: speed)
        idle = IdleCalibration(8.0, world.clock)
        costs = known_costs(world.engine, Path("nowhere"))
        visits = 0
        while not idle.over:
            visits += 1
            assert visits < 50
            idle.visit(world.engine, costs, lambda: False)
        longest = speed * table(CURVES["Q4_0"]).time(32)
        assert world.clock.now <= 8.0 + 2 * longest
        world.engine.close()


def test_each_interrupted_visit_leaves_something_and_together_they_do_it(files):
    world = Engines(files)
    idle = IdleCalibration(60.0, world.clock)
    costs = known_costs(world.engine, Path("nowhere"))
    world.engine.session.tokens = []
    for _ in range(60):
        asked = iter(range(100))
        idle.visit(world.engine, costs, lambda asked=asked: next(asked) > 25)
        assert world.engine.target.length(0) == world.engine.draft.length(0) == 0
    assert costs.target.certainty[1] == 1 and idle.over
    world.engine.close()


def test_uncertain_costs_are_kept_and_certain_ones_take_their_place(files, tmp_path):
    busy = iter([1.0, 3.0, 1.0, 6.0, 2.0] * 1000)
    expected = table(CURVES["Q4_0"])
    last = 0.0
    for slowdown, certain in (
        (lambda now: next(busy), False),
        (lambda now: next(busy), False),
        (lambda now: 1.0, True),
    ):
        world = Engines(files, slowdown)
        costs = known_costs(world.engine, tmp_path)
        assert not costs.certain and costs.target.certainty[1] == pytest.approx(last)
        idle = IdleCalibration(8.0, world.clock)
        while not idle.over:
            idle.visit(world.engine, costs, lambda: False)
        keep_costs(world.engine, costs, tmp_path)
        assert costs.target.certain == certain
        last = costs.target.certainty[1]
        assert certain or 0 < last <= BUSY
        world.engine.close()
    for width in expected.seconds:
        if width in costs.target.seconds:
            assert costs.target.time(width) == pytest.approx(expected.time(width), rel=0.05)
    # And what is uncertain does not take the place of what is certain.
    uncertain = known_costs(world.engine, Path("nowhere"))
    uncertain.target.observe(1, 0, 5.0)
    keep_costs(world.engine, uncertain, tmp_path)
    assert known_costs(world.engine, tmp_path).target.certain


def test_what_was_kept_before_there_were_certainties_is_certain():
    old = CostTable.from_dict({"seconds": {"1": 0.1, "4": 0.2}, "slope": 0, "row_slope": 0})
    assert old.certain and CostTable.from_dict(json.loads(json.dumps(old.to_dict()))).certain


@pytest.mark.parametrize("certainty", [[1], {"1": 2.0}, {"1": -0.1}, {"1": "much"}, 5])
def test_a_certainty_that_is_none_is_refused(certainty):
    with pytest.raises((ValueError, TypeError)):
        CostTable.from_dict({"seconds": {"1": 0.1}, "slope": 0, "row_slope": 0, "certainty": certainty})


def test_measuring_is_skipped_after_any_pass_and_keeps_what_is_known():
    for after in (0, 1, 3, 7, 30):
        row, clock = random_model(8, 1), Clock()
        context = TimedContext(clock, table(CURVES["Q4_0"]), lambda length, row=row: row((length,)))
        asked = iter(range(1000))
        found = calibrate(
            context, verifies=True, clock=clock, skip=lambda asked=asked, n=after: next(asked) >= n
        )
        assert found.table.time(1) > 0 and found.complete == (after == 30) and context.length(0) == 0
        assert set(found.table.seconds) == set(WIDTHS) or after < 30  # nothing of a width that was timed once
        assert len(found.table.seconds) <= max(after, 8) / 2 or after == 30


# What is assumed


def test_a_padded_pass_is_assumed_to_cost_what_it_costs(files):
    engine = Engine(*files, EngineOptions(n_ctx=256, threads=1))
    try:
        assert isinstance(engine.target.options, ContextOptions)
        plain, padded = (assumed_costs.assumed_costs(engine.target, min_width=width) for width in (1, 4))
        assert padded.time(1) == padded.time(4) == pytest.approx(plain.time(4))
        assert not plain.measured and not plain.paced
    finally:
        engine.close()


# Several at once, and asyncio


def test_two_llms_in_a_process_are_measured_each_for_itself(files, tmp_path, quiet):
    with load(files, tmp_path / "plain", draft_tokens=0) as llm:
        expected = llm.generate("abc", **GREEDY).ids
    first, second = (load(files, tmp_path / name) for name in ("first", "second"))
    with first, second:
        assert first.generate("abc", **GREEDY).ids == second.generate("abc", **GREEDY).ids == expected
        eventually(lambda: not measuring())
        for llm in (first, second):
            assert llm._keeper._costs.most.certain
            assert llm.generate("abc", **GREEDY).ids == expected
        assert first._keeper._costs.most.target is not second._keeper._costs.most.target


def test_closing_one_llm_leaves_the_measuring_of_the_other(files, tmp_path, quiet, monkeypatch):
    pass_ = Interrupted(monkeypatch, moment=3)
    first, second = (load(files, tmp_path / name) for name in ("first", "second"))
    assert pass_.begun.wait(SECONDS)
    monkeypatch.undo()  # passes are as short as ever from here on
    first.close()
    with second:
        assert second.generate("abc", **GREEDY).ids
    eventually(lambda: not measuring())


@pytest.mark.parametrize("end", ["task", "answer", "llm", "close", "drop"])
@pytest.mark.parametrize("moment", [1, 6])
def test_asyncio_ends_a_measuring_pass_in_its_middle(files, tmp_path, quiet, monkeypatch, end, moment):
    with load(files, tmp_path, draft_tokens=0) as llm:
        expected = llm.generate("abc", **GREEDY).ids
    pass_ = Interrupted(monkeypatch, moment)

    async def main() -> None:
        llm = AsyncLLM(load(files, tmp_path))
        assert await asyncio.to_thread(pass_.begun.wait, SECONDS)
        if end == "close":
            await asyncio.wait_for(llm.close(), 30)
            return
        if end == "task":
            task = asyncio.create_task(llm.generate("abc", temperature=0, max_tokens=400))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif end != "drop":
            answer = llm.stream("abc", temperature=0, max_tokens=400)
            (answer if end == "answer" else llm).cancel()
            async for _ in answer:
                pass
        if end != "drop":
            assert (await llm.generate("abc", **GREEDY)).ids == expected
            await llm.close()

    asyncio.run(main())
    eventually(lambda: not measuring())
