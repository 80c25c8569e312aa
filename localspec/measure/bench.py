"""Bench: plain decoding against localspec on the same prompts, a few tokens each in turn, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from localspec.compute.library import Library
from localspec.decoding.calibrate import calibrate
from localspec.decoding.control import FixedLength
from localspec.decoding.params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.measured_costs import Costs
from localspec.engine.options import Notify
from localspec.llm import LLM
from localspec.measure.interleave import interleave
from localspec.measure.interval import Estimate, Place, Segment, ratio
from localspec.measure.lanes import AnswerLane, other_engines
from localspec.measure.oracle import oracle_speedup
from localspec.measure.prompts import Prompt
from localspec.measure.timing import Clock, Tally
from localspec.measure.trace import Trace, record
from localspec.text.prompt import render_prompt

OFF, LOCALSPEC = "off", "auto"
WARM_UP_PROMPT, WARM_UP = 8, 4
"""Tokens of the short answer that comes before the first measured one, and at most of the prompt it is to."""
RUNS, TIME = "runs", "time"
PRECISION = "precision"

Mode = int | str
"""A value of `draft_tokens`."""
Lanes = dict[tuple[str, Mode], AnswerLane]
"""By library and mode."""
Progress = Callable[[str, float], None]
"""Told what is measured, and the share of the whole that is done."""


@dataclass(frozen=True)
class BenchOptions:
    """runs: of every answer in every mode, at most. lengths: fixed draft lengths measured besides.

    precision: half-width of the 95 % interval of a speedup, as a share of it, at which a scenario is done.
    max_seconds: of a scenario, as far as whole runs fit into it. The first run is made in any case.
    params: of every answer; with a seed, run r uses seed + r.
    """

    params: SamplingParams
    runs: int = 10
    lengths: tuple[int, ...] = ()
    precision: float = 0.02
    max_seconds: float = 300.0

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is compared with plain decoding."""
        return (LOCALSPEC, *self.lengths)

    def params_of(self, run: int) -> SamplingParams:
        """The sampling parameters of run `run`, from 0."""
        seed = self.params.seed
        return self.params if seed is None else replace(self.params, seed=seed + run)


@dataclass
class Record:
    """One way of decoding in one scenario.

    segments: behind the first tokens. firsts: the first token of each answer, with the reading of its prompt.
    tallies: each run's answers as one.
    """

    segments: dict[Place, Segment] = field(default_factory=dict)
    firsts: dict[Place, Segment] = field(default_factory=dict)
    tallies: list[Tally] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """One scenario.

    plain: plain decoding by library, first the one that drafted lanes use too. drafted: by mode.
    ended_by: "precision", "runs" or "time", whichever came first.
    """

    oracle_speedup: float
    plain: Mapping[str, Record]
    drafted: Mapping[Mode, Record]
    ended_by: str

    @property
    def own_plain(self) -> str:
        """The library that drafted lanes use too."""
        return next(iter(self.plain))

    def speedup(self, mode: Mode, library: str) -> Estimate:
        """Of a mode against plain decoding by a library."""
        return ratio(self.plain[library].segments, self.drafted[mode].segments)

    def ttft_ratio(self, library: str) -> Estimate:
        """Localspec's time to the first token / that of plain decoding by a library."""
        return ratio(self.drafted[LOCALSPEC].firsts, self.plain[library].firsts)


class Bench:
    """Measures scenario by scenario.

    In each run every lane answers every prompt: it starts a conversation with empty cells and goes on with its own. The
    answers of plain decoding in the first run are the history of every later turn, so all lanes get the same ids.

    costs:    of passes on this machine, for the oracle; measured on the way where not given.
    libraries: all whose plain decoding is measured, besides the one that drafts, as far as they can compute the target
              and there is room. notify: told in a sentence of one that is left out.
    progress: told at every round of turns.
    """

    def __init__(
        self,
        llm: LLM,
        options: BenchOptions,
        *,
        costs: Costs | None = None,
        libraries: Sequence[Library] = (),
        notify: Notify = lambda sentence: None,
        progress: Progress = lambda label, share: None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._llm = llm
        self._options = options
        self._costs = costs
        self._libraries, self._notify = libraries, notify
        self._progress = progress
        self._clock = clock

    def run(self, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Measured]]:
        """Each scenario's name and what was measured, as soon as it is done. The engine is taken until the end."""
        groups: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            groups.setdefault(prompt.scenario, []).append(prompt)
        with self._llm.exclusive() as engine, ExitStack() as opened:
            engine.forget()  # its own cells are for the oracle's traces
            lanes = self._open(engine, opened)
            self._progress("warm-up", 0.0)
            self._warm_up(engine, lanes, prompts[0])
            for index, (name, group) in enumerate(groups.items()):
                scenario = _Scenario(engine, lanes, group, self._options)

                def tell(label: str, share: float, index: int = index, name: str = name) -> None:
                    self._progress(f"{name}: {label}", (index + share) / len(groups))

                ended_by = self._repeat(scenario, tell)
                yield name, scenario.measured(self._oracle(engine, scenario.traces), ended_by)

    def _open(self, engine: Engine, opened: ExitStack) -> Lanes:
        """Each lane on contexts of its own, on weights that are there once for a library; plain decoding first.

        Raises `MemoryShort` where the lanes of the engine's own library do not fit.
        """
        own = engine.library.name
        plain = opened.enter_context(closing(engine.branch(with_draft=False)))
        lanes: Lanes = {(own, OFF): AnswerLane(plain, self._llm.controller(OFF), OFF, self._clock)}
        for mode in self._options.modes:
            branch = opened.enter_context(closing(engine.branch()))
            lanes[own, mode] = AnswerLane(branch, self._llm.controller(mode), mode, self._clock)
        for other in opened.enter_context(other_engines(engine, self._libraries, self._notify)):
            lanes[other.library.name, OFF] = AnswerLane(other, FixedLength(0), OFF, self._clock)
        return lanes

    def _warm_up(self, engine: Engine, lanes: Lanes, prompt: Prompt) -> None:
        """The first passes of a context are slower."""
        ids = render_prompt(engine.vocab, engine.template, prompt.messages([]))[-WARM_UP_PROMPT:]
        for lane in lanes.values():
            lane.ask(ids, replace(self._options.params, max_tokens=WARM_UP, min_tokens=0))
        interleave(lanes)

    def _repeat(self, scenario: _Scenario, tell: Progress) -> str:
        """Run after run; returns what ended it."""
        options, started, longest = self._options, self._clock(), 0.0
        for run in range(options.runs):
            begun = self._clock()

            def tick(share: float, run: int = run) -> None:
                gone = (self._clock() - started) / options.max_seconds if options.max_seconds else 0.0
                done = max((run + share) / options.runs, gone)
                tell(f"run {run + 1} of at most {options.runs}", min(done, 1.0))

            scenario.run(run, tick)
            longest = max(longest, self._clock() - begun)
            if scenario.half_width <= options.precision:
                return PRECISION
            if run + 1 < options.runs and self._clock() - started + longest > options.max_seconds:
                return TIME
        return RUNS

    def _oracle(self, engine: Engine, traces: Sequence[Trace]) -> float:
        if engine.no_draft_reason:
            return 1.0
        if self._costs is None:
            draft = calibrate(engine.draft, verifies=False).table if engine.draft else None
            self._costs = Costs(calibrate(engine.target, verifies=True).table, draft)
        return oracle_speedup(traces, self._costs.target, self._costs.draft, engine.target.n_outputs)


class _Scenario:
    """The runs of one scenario."""

    def __init__(
        self, engine: Engine, lanes: Lanes, prompts: Sequence[Prompt], options: BenchOptions
    ) -> None:
        self._engine, self._lanes, self._prompts, self._options = engine, lanes, prompts, options
        self._records = {name: Record() for name in lanes}
        self._histories: list[list[str]] = [[] for _ in prompts]
        self._texts = sum(len(prompt.turns) for prompt in prompts)
        self.traces: list[Trace] = []

    @property
    def half_width(self) -> float:
        """The widest of the intervals of speedups."""
        measured = self.measured(1.0, "")
        return max(
            measured.speedup(mode, library).half_width
            for mode in measured.drafted
            for library in measured.plain
        )

    def run(self, run: int, tick: Callable[[float], None]) -> None:
        """Every prompt once in every lane."""
        for found in self._records.values():
            found.tallies.append(Tally())
        text = 0
        for prompt, history in zip(self._prompts, self._histories, strict=True):
            for lane in self._lanes.values():
                lane.forget()
            for turn in range(len(prompt.turns)):
                self._text(prompt, history, turn, Place(text, run, 0), tick)
                text += 1

    def _text(
        self, prompt: Prompt, history: list[str], turn: int, place: Place, tick: Callable[[float], None]
    ) -> None:
        engine, params = self._engine, self._options.params_of(place.run)
        ids = render_prompt(engine.vocab, engine.template, prompt.messages(history[:turn]))
        for lane in self._lanes.values():
            lane.ask(ids, params)
        most = params.max_tokens or engine.target.n_ctx
        found = interleave(
            self._lanes,
            place.text + place.run,
            lambda tokens: tick((place.text + min(tokens / most, 1.0)) / self._texts),
        )
        for name, segments in found.items():
            kept = self._records[name]
            kept.segments |= {place._replace(number=number): one for number, one in segments.items()}
            timing = self._lanes[name].timing()
            kept.firsts[place] = Segment(1, timing.ttft)
            kept.tallies[place.run].add(timing)
        if place.run == 0:
            completion = self._lanes[engine.library.name, OFF].timing().completion
            history.append(completion.text.replace("\0", ""))  # a prompt may hold no NUL
            self.traces.append(record(engine, params, ids, completion.ids))

    def measured(self, oracle: float, ended_by: str) -> Measured:
        """What there is by now."""
        plain = {library: found for (library, mode), found in self._records.items() if mode == OFF}
        drafted = {mode: found for (_, mode), found in self._records.items() if mode != OFF}
        return Measured(oracle, plain, drafted, ended_by)
