"""Bench: plain decoding against localspec on the same prompts, in turn, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.decoding.calibrate import calibrate
from localspec.decoding.params import SamplingParams
from localspec.engine.measured_costs import Costs
from localspec.llm import LLM
from localspec.measure.oracle import oracle_speedup
from localspec.measure.prompts import Prompt
from localspec.measure.timing import Clock, Tally, Timing, timed_answer
from localspec.measure.trace import Trace, record
from localspec.text.prompt import render_prompt

PLAIN, LOCALSPEC = "off", "auto"
WARM_UP = 16
"""Tokens of the answers that come before the first measured one."""

Mode = int | str
Conversation = list[list[dict[str, str]]]
"""The messages of each request, one request a turn."""
Progress = Callable[[str, float], None]
"""Told what is measured, and the share of the whole that is done."""


@dataclass(frozen=True)
class BenchOptions:
    """runs: of every answer in every mode. lengths: fixed draft lengths measured besides.

    params: of every answer; with a seed, run r uses seed + r.
    """

    params: SamplingParams
    runs: int = 5
    lengths: tuple[int, ...] = ()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is compared, as values of `draft_tokens`."""
        return (PLAIN, LOCALSPEC, *self.lengths)

    def order(self, run: int) -> tuple[Mode, ...]:
        """The modes of one run: every run starts with another one, so that none profits from its place."""
        shift = run % len(self.modes)
        return self.modes[shift:] + self.modes[:shift]

    def params_of(self, run: int) -> SamplingParams:
        """The sampling parameters of run `run`, from 0."""
        seed = self.params.seed
        return self.params if seed is None else replace(self.params, seed=seed + run)


@dataclass(frozen=True)
class Measured:
    """One scenario: the oracle's bound, and for each mode a tally of every run."""

    oracle_speedup: float
    tallies: dict[Mode, list[Tally]]


class Bench:
    """Measures scenario by scenario.

    costs:    of passes on this machine, for the oracle; measured on the way where not given.
    progress: told at every answer.
    """

    def __init__(
        self,
        llm: LLM,
        options: BenchOptions,
        *,
        costs: Costs | None = None,
        progress: Progress = lambda label, share: None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._llm = llm
        self._options = options
        self._costs = costs
        self._progress = progress
        self._clock = clock

    def run(self, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Measured]]:
        """Each scenario's name and what was measured, as soon as it is done."""
        groups: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            groups.setdefault(prompt.scenario, []).append(prompt)
        turns = sum(len(prompt.turns) for prompt in prompts)
        self._planned = turns * (1 + self._options.runs * len(self._options.modes))
        self._done = 0
        self._warm_up(prompts[0])
        for name, group in groups.items():
            yield name, self._scenario(name, group)

    def _warm_up(self, prompt: Prompt) -> None:
        self._progress("warm-up", 0.0)
        params = replace(self._options.params, max_tokens=WARM_UP)
        for mode in self._options.modes:
            self._llm.forget()
            timed_answer(self._llm, prompt.messages([]), params, mode, self._clock)

    def _scenario(self, name: str, prompts: Sequence[Prompt]) -> Measured:
        traces: list[Trace] = []
        conversations = [self._rehearse(name, prompt, traces) for prompt in prompts]
        measured = Measured(self._oracle(traces), {mode: [] for mode in self._options.modes})
        for run in range(self._options.runs):
            for tallies in measured.tallies.values():
                tallies.append(Tally())
            for conversation in conversations:
                for mode in self._options.order(run):
                    self._measure(name, conversation, mode, run, measured.tallies[mode][run])
        return measured

    def _rehearse(self, name: str, prompt: Prompt, traces: list[Trace]) -> Conversation:
        """The requests of one prompt, with plain decoding's answers as the history of every later turn.

        So all modes get the same ids to answer, and the oracle's trace is of the text they are about to write.
        """
        engine, params = self._llm.engine, self._options.params_of(0)
        history: list[str] = []
        conversation: Conversation = []
        for _ in prompt.turns:
            messages = prompt.messages(history)
            self._llm.forget()
            completion = self._answer(f"{name}: rehearsal", messages, params, PLAIN).completion
            self._llm.forget()
            ids = render_prompt(engine.vocab, engine.template, messages)
            traces.append(record(engine, params, ids, completion.ids))
            conversation.append(messages)
            history.append(completion.text.replace("\0", ""))  # a prompt may hold no NUL
        return conversation

    def _measure(self, name: str, conversation: Conversation, mode: Mode, run: int, tally: Tally) -> None:
        # Cold at the start of a conversation, warm within it: as its user finds it.
        self._llm.forget()
        label = f"{name}: run {run + 1} of {self._options.runs}"
        for messages in conversation:
            tally.add(self._answer(label, messages, self._options.params_of(run), mode))

    def _answer(
        self, label: str, messages: list[dict[str, str]], params: SamplingParams, mode: Mode
    ) -> Timing:
        self._progress(label, self._done / self._planned)
        self._done += 1
        return timed_answer(self._llm, messages, params, mode, self._clock)

    def _oracle(self, traces: Sequence[Trace]) -> float:
        engine = self._llm.engine
        if engine.no_draft_reason:
            return 1.0
        if self._costs is None:
            # Now and not from disk: a bound of a machine that was busy then says nothing about this one.
            draft = calibrate(engine.draft, verifies=False).table if engine.draft else None
            self._costs = Costs(calibrate(engine.target, verifies=True).table, draft)
        return oracle_speedup(traces, self._costs.target, self._costs.draft, engine.target.n_outputs)
