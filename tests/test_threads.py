"""The number of threads on real libraries and with real neighbours: who follows it, and what is kept of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from localspec import LLM
from localspec.compute.context_options import ContextOptions
from localspec.decoding.calibrate import Calibration
from localspec.decoding.classes import threads_alike
from localspec.decoding.costs import CostTable
from localspec.decoding.session import Span
from localspec.engine import strict
from localspec.engine.idle_costs import IdleCalibration
from localspec.engine.libraries import libraries
from localspec.engine.measured_costs import Role
from localspec.engine.options import EngineOptions
from localspec.gguf.metadata import read_metadata
from localspec.store.measurements import Measurements
from localspec.system import neighbours
from localspec.system.cores import physical_cores
from localspec.system.neighbours import TICK, Glance, Neighbours

from .fakes import FakeContext
from .tinygguf import write_pair

GREEDY = {"temperature": 0, "ignore_eos": True}
SECONDS = 120
CORES = 2
"""Whatever this machine has."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("threads"))


class Others:
    """In the place of `Neighbours`: others use as many processors as is said."""

    processors = 0.0

    def __init__(self) -> None:
        self._last = Glance(time.perf_counter(), 0.0, 0.0)

    def look(self) -> Glance:
        now, last = time.perf_counter(), self._last
        own = time.process_time()
        busy = last.busy + own - last.own + self.processors * (now - last.at)
        self._last = Glance(now, busy, own)
        return self._last


@pytest.fixture
def others(monkeypatch) -> type[Others]:
    """A machine of two cores."""

    class Ours(Others):
        pass

    for name, value in (("Neighbours", Ours), ("processors", lambda: CORES)):
        monkeypatch.setattr(f"localspec.engine.opening.{name}", value)
    for room in ("ggml.context", "engine.measured_costs", "engine.draft_copy", "engine.strict"):
        monkeypatch.setattr(f"localspec.{room}.physical_cores", lambda: CORES)
    return Ours


def load(files, home, **options) -> LLM:
    return LLM.from_files(*files, **{"n_ctx": 512, "home": home, "cache_type_v": "bf16", **options})


def count(llm: LLM) -> int:
    """Threads of the next pass, which both models have."""
    target, draft = (llm.settings[role]["threads"] for role in ("target", "draft"))
    assert target == draft
    return target


def answer_until(llm: LLM, condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        llm.generate("abc", max_tokens=40, **GREEDY)


# Libraries


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.key)
def test_a_library_takes_another_number_between_two_passes(files, library):
    metadata = read_metadata(files[0])
    if refusal := library.refusal(metadata):
        pytest.fail(refusal)
    weights = library.open_weights(metadata)
    rows = {}
    try:
        context = weights.open_context(ContextOptions(n_ctx=64, n_batch=8, n_outputs=1, threads=2))
        asked = context._lib.llama_n_threads
        asked.restype, asked.argtypes = ctypes.c_int32, [ctypes.c_void_p]
        for threads in (2, 1, 2):
            context.set_threads(threads)
            (rows[threads],) = context.decode([Span(0, (1, 2, 3), 0, 1)])
            context.truncate(0, 0)
            assert context.threads == threads == asked(context._handle)
        assert np.allclose(rows[1], rows[2], atol=1e-3)
        context.close()
    finally:
        weights.close()


# Who decides


def test_both_models_follow_what_others_leave_and_the_text_stays(files, tmp_path, others):
    with load(files, tmp_path, draft_tokens=3) as llm:
        assert count(llm) == CORES
        expected = llm.generate("abc", max_tokens=40, **GREEDY)
        assert expected.stats.threads == CORES
        others.processors = 2.0
        answer_until(llm, lambda: count(llm) == 1)
        assert llm.generate("abc", max_tokens=40, **GREEDY).stats.threads == 1
        others.processors = 0.0
        answer_until(llm, lambda: count(llm) == CORES)
        assert llm.generate("abc", max_tokens=40, **GREEDY).ids == expected.ids


def test_the_first_pass_after_a_load_knows_of_others(files, tmp_path, others, monkeypatch):
    """By what they did while it loaded."""
    others.processors = 2.0
    monkeypatch.setattr("localspec.engine.opening.check_memory", lambda _loads: time.sleep(0.3))
    with load(files, tmp_path) as llm:
        assert llm.generate("abc", max_tokens=1, **GREEDY).stats.threads == 1


def test_a_prompt_is_read_with_as_many_as_there_is_room_for_at_each_piece(
    files, tmp_path, others, monkeypatch
):
    """Also that of the draft model, and one whose tokens are scored."""
    with load(files, tmp_path, draft_tokens=3, no_draft=True) as llm:
        context, seen = llm.engine.target, []
        decode = context.decode

        def passes(spans):
            seen.append(context.threads)
            others.processors = 2.0
            time.sleep(0.3)
            return decode(spans)

        context.n_batch = 20
        monkeypatch.setattr(context, "decode", passes)
        llm.generate("a" * 50, max_tokens=1, **GREEDY)
        assert seen == [CORES, 1, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_number_that_was_asked_for_stays(files, tmp_path, others, threads):
    with load(files, tmp_path, threads=threads) as llm:
        others.processors = 2.0
        started = time.monotonic()
        answer_until(llm, lambda: time.monotonic() > started + 0.6)
        assert count(llm) == threads and llm.engine.threads is None


def test_a_gpu_keeps_its_own(files, tmp_path, others, monkeypatch):
    """Of a target there nothing is decided; a draft there stays as it is beside a target on the processor."""
    monkeypatch.setattr("localspec.llama.backend.resolve_gpu_layers", lambda value, name="", **_: value)
    where = {"library": "llama"} if "library" in EngineOptions.__dataclass_fields__ else {}
    others.processors = 2.0
    with load(files, tmp_path, gpu_layers=9, draft_gpu_layers=0, **where) as llm:
        assert llm.engine.threads is None
    with load(files, tmp_path, draft_tokens=3, gpu_layers=0, draft_gpu_layers=9, **where) as llm:
        answer_until(llm, lambda: llm.engine.target.threads == 1)
        assert llm.engine.draft.threads == CORES


def test_it_goes_on_after_the_weights_were_freed(files, tmp_path, others):
    with load(files, tmp_path) as llm:
        others.processors = 2.0
        answer_until(llm, lambda: count(llm) == 1)
        assert llm.unload()
        others.processors = 0.0
        answer_until(llm, lambda: count(llm) == CORES)
        controller = llm._keeper.adaptive
        assert controller.target is llm._keeper._costs.most.target
        others.processors = 2.0
        answer_until(llm, lambda: count(llm) == 1)
        answer_until(llm, lambda: controller.target is llm._keeper._costs.fewer[1].target)


# What passes cost


def kept(home: Path) -> dict[tuple[str, int], CostTable]:
    """Costs on disk, by file and number of threads."""
    found = Measurements(home / "calibration", 2)
    return {(m.facts["file"], m.facts["threads"]): CostTable.from_dict(m.result) for m in found}


def test_answers_teach_the_costs_of_the_threads_they_had_and_both_are_kept(files, tmp_path, others):
    with load(files, tmp_path) as llm:
        llm.generate("abc", max_tokens=40, **GREEDY)
        others.processors = 2.0
        answer_until(llm, lambda: count(llm) == 1)
        for _ in range(3):
            llm.generate("abc", max_tokens=40, **GREEDY)
        assert llm._keeper.adaptive.target is llm._keeper._costs.fewer[1].target
        learned = llm._keeper._costs.fewer[1].target
    found = kept(tmp_path)
    assert {("target.gguf", 1), ("target.gguf", 2)} <= set(found)
    assert found["target.gguf", 1].seconds == pytest.approx(learned.learned().seconds)
    others.processors = 2.0
    with load(files, tmp_path) as llm:
        answer_until(llm, lambda: count(llm) == 1 and bool(llm._keeper._costs.fewer))
        assert llm._keeper._costs.fewer[1].target.certainty[1] >= found["target.gguf", 1].certainty[1]


def test_calibrating_beside_others_measures_the_threads_there_is_room_for(
    files, tmp_path, others, monkeypatch
):
    """And nothing of it counts as the costs of all of them."""
    monkeypatch.setattr("localspec.answers.idle_moments.QUIET_SECONDS", 1000)
    monkeypatch.setattr("localspec.decoding.calibrate.UNSTEADY", 1e9)
    with load(files, tmp_path) as llm:
        others.processors = 2.0
        time.sleep(0.3)
        costs = llm.calibrate()
        assert costs.threads == 1 and costs.certain and not llm._keeper._costs.most.certain
    assert {threads for _, threads in kept(tmp_path)} == {1}


@pytest.mark.parametrize(("steady", "complete"), [(False, True), (False, False), (True, True)])
def test_beside_others_only_a_whole_and_steady_measuring_counts(steady, complete):
    """Else a calm token beside slow wide passes made drafting look hopeless, for good: nothing tried it again."""
    found = Calibration(CostTable({1: 1.0, 2: 2.2}, certainty={1: 1.0, 2: 0.2}), steady, complete=complete)
    tables = {}
    for beside_others in (False, True):
        tables[beside_others] = CostTable({1: 2.0, 2: 2.6}, certainty={1: 0.5, 2: 0.5})
        Role(None, True, 1, None, tables[beside_others], beside_others).take_over(found)
    assert tables[False].time(1) == 1.0
    assert tables[True].time(1) == (1.0 if steady else 2.0)
    assert steady or tables[True].time(2) == 2.6


def test_idle_moments_beside_others_are_used_for_fewer_threads(files, tmp_path, others, monkeypatch):
    """The others, all of them, wait until cores are free."""
    monkeypatch.setattr("localspec.answers.idle_moments.QUIET_SECONDS", 0.5)
    monkeypatch.setattr("localspec.decoding.calibrate.UNSTEADY", 1e9)
    monkeypatch.setattr(IdleCalibration.__init__, "__defaults__", (SECONDS, time.perf_counter))
    others.processors = 2.0
    with load(files, tmp_path) as llm:
        keeper, ends = llm._keeper, time.monotonic() + SECONDS
        while not (1 in keeper._costs.fewer and keeper._costs.fewer[1].certain):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert keeper.may_measure
        others.processors = 0.0
        while not keeper._costs.most.certain:
            assert time.monotonic() < ends
            time.sleep(0.01)
    assert all(
        kept(tmp_path)[name, threads].certain for name in ("target.gguf", "draft.gguf") for threads in (1, 2)
    )


# Strict mode


def differing(bits: Callable[[int, int], float]) -> FakeContext:
    """Rows depend on the number of threads and the width of a pass."""

    class Context(FakeContext):
        threads = 8

        def set_threads(self, threads: int) -> None:
            self.threads = threads

        def decode(self, spans):
            (rows,) = super().decode(spans)
            return [[row + np.float32(bits(self.threads, len(spans[0].tokens))) for row in rows]]

    return Context(lambda prefix: np.zeros(5, dtype=np.float32), 5, n_ctx=128, n_batch=16, n_outputs=16)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (lambda threads, width: 0.0, (8, 4, 1)),
        (lambda threads, width: float(threads == 4), (8, 1)),
        (lambda threads, width: float(threads < 8 and width == 16), (8,)),
        (lambda threads, width: float(threads == 8), (8,)),
    ],
)
def test_numbers_of_threads_with_the_same_bits_are_found(bits, expected):
    context = differing(bits)
    assert threads_alike(context, (8, 4, 1), (1, 4, 16), 20) == expected
    assert context.threads == 8 and context.length(0) == 0


@pytest.mark.parametrize("alike", [(2, 1), (2,)])
def test_strict_mode_changes_the_number_only_where_bits_stay(files, tmp_path, others, monkeypatch, alike):
    monkeypatch.setattr(strict, "threads_alike", lambda *_args, **_options: alike)
    others.processors = 2.0
    for _ in range(2):  # measured, and from disk
        with load(files, tmp_path, strict=True, draft_tokens=3) as llm:
            started = time.monotonic()
            answer_until(llm, lambda started=started: time.monotonic() > started + 0.6)
            assert count(llm) == min(alike)


def test_strict_mode_tries_numbers_of_threads_once(files, tmp_path, others, monkeypatch):
    asked = []

    def alike(context, counts, widths, length):
        asked.append((tuple(counts), min(widths), max(widths)))
        return tuple(counts)

    monkeypatch.setattr(strict, "threads_alike", alike)
    for threads in (None, None, 2):
        with load(files, tmp_path, strict=True, draft_tokens=3, threads=threads) as llm:
            low, high = llm.engine.session.min_width, llm.engine.target.n_batch
    assert asked == [((2, 1), low, high)]


@pytest.mark.parametrize(("alike", "expected"), [((2, 1), [1]), ((2,), [1, 2])])
def test_strict_mode_measures_with_as_many_threads_as_there_is_room_for(
    files, tmp_path, others, monkeypatch, alike, expected
):
    """Else a pass of threads that wait for each other takes ten times as long; with bits of its own the most count."""
    measured, measure = [], strict.measured_classes

    def measuring(weights, options, **rest):
        measured.append(options.threads)
        return measure(weights, options, **rest)

    monkeypatch.setattr("localspec.decoding.threads.LEAST", 0.0)
    monkeypatch.setattr(strict, "measured_classes", measuring)
    monkeypatch.setattr(strict, "threads_alike", lambda *_args, **_options: alike)
    others.processors = 2.0
    with load(files, tmp_path, strict=True, draft_tokens=3, library="llama"):
        assert measured == expected


def test_seats_of_strict_mode_are_compared_with_as_many_threads_as_there_is_room_for(
    files, tmp_path, others, monkeypatch
):
    had, compare = [], strict.same_in_company

    def comparing(alone, shared, *arguments):
        same = compare(alone, shared, *arguments)
        had.append((alone.threads, shared.threads))
        return same

    monkeypatch.setattr("localspec.decoding.threads.LEAST", 0.0)
    monkeypatch.setattr(strict, "same_in_company", comparing)
    others.processors = 2.0
    with load(files, tmp_path, strict=True, draft_tokens=3, library="llama", parallel=2) as llm:
        assert had == [(1, 1)] and llm.parallel == 2
        assert len(llm.engine.threads._contexts) == 4  # those that were compared are governed no more


# The real machine


@contextmanager
def busy_processes(number: int) -> Iterator[list[psutil.Process]]:
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield [psutil.Process(child.pid) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_real_neighbours_that_come_and_go(files, tmp_path, monkeypatch):
    """Seen by what they compute; what else runs on this machine is left out of it."""
    busy: list[psutil.Process] = []

    class Seen(Neighbours):
        done = 0.0

        def _busy(self) -> float:
            now = sum(sum(process.cpu_times()[:2]) for process in busy)
            self.done = max(self.done, now)
            return self.done + time.process_time()

    for name, value in (("Neighbours", Seen), ("processors", lambda: CORES)):
        monkeypatch.setattr(f"localspec.engine.opening.{name}", value)
    monkeypatch.setattr("localspec.ggml.context.physical_cores", lambda: CORES)
    monkeypatch.setattr("localspec.decoding.threads.STALL", 1e9)
    with load(files, tmp_path) as llm:
        llm.generate("abc", max_tokens=40, **GREEDY)
        assert count(llm) == CORES
        with busy_processes(physical_cores()) as busy[:]:
            answer_until(llm, lambda: count(llm) == 1)
        del busy[:]
        answer_until(llm, lambda: count(llm) == CORES)


def test_work_of_others_is_told_from_our_own():
    """Ours grows by what we compute; all of it by that and what anybody does."""
    looks = Neighbours()
    first = looks.look()
    assert looks.look() is first  # within a tick there is nothing new
    while (now := looks.look()).own - first.own < 10 * TICK:
        pass
    assert now.at > first.at
    assert now.busy - first.busy >= now.own - first.own - 4 * TICK


def test_only_processors_that_may_be_used_count(monkeypatch):
    times = psutil.cpu_times()
    each = [times._replace(user=100.0 * index, system=0.0) for index in range(4)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: each if percpu else pytest.fail("all"))
    monkeypatch.setattr(neighbours, "allowed_processors", lambda: (1, 3))
    rest = sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq", "steal"))
    assert Neighbours().look().busy == pytest.approx(400.0 + 2 * rest)


@pytest.mark.parametrize("error", [PermissionError(), RuntimeError(), IndexError(), ValueError()])
def test_where_a_system_shows_nothing_nobody_works(monkeypatch, error):
    def refuse(percpu: bool = False) -> None:
        raise error

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    glance = Neighbours().look()
    assert glance.busy == glance.own
