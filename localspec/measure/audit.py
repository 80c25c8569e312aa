"""Audit: is what comes out the target's own, on this pair and this machine?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.checks import checked_prompt
from localspec.llm import LLM
from localspec.measure import audit_greedy, audit_seed
from localspec.measure.audit_classes import audit_classes
from localspec.measure.audit_greedy import GreedyAudit
from localspec.measure.audit_part import Part
from localspec.measure.audit_rollback import RollbackAudit, contexts
from localspec.measure.audit_sampled import SampledAudit, subjects
from localspec.measure.audit_seed import SeedAudit
from localspec.measure.difference import Rounding
from localspec.measure.machine import machine, versions
from localspec.measure.prompts import Prompt

PARTS = ("classes", "rollback", "greedy", "sampled", "seed")
Progress = Callable[[str, float], None]
"""Told what is done next, and the share of the whole that is done."""


@dataclass(frozen=True)
class AuditOptions:
    """parts: names out of PARTS. num_tokens: of each greedy and seeded answer.
    runs: of each sampled test. prefixes, seeded: how many prompts for the sampled tests and the seeded answers.
    """

    parts: tuple[str, ...] = PARTS
    num_tokens: int = 32
    runs: int = 2000
    prefixes: int = 3
    seeded: int = 2


class Audit:
    """Checks part by part. Whatever the engine's cells held is forgotten."""

    def __init__(
        self, llm: LLM, options: AuditOptions, progress: Progress = lambda label, share: None
    ) -> None:
        self._llm = llm
        self._options = options
        self._progress = progress

    def run(self, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Part]]:
        """Each part's name and what it found, as soon as it is done. prompts: at least one.

        Raises `PromptTooLong` at once for one that the context cannot hold.
        """
        options, engine = self._options, self._llm.engine
        for prompt in prompts:  # before anything is measured
            checked_prompt(self._llm.render(prompt.messages([])), engine.target.n_vocab, engine.target.n_ctx)
        # One of each kind: their texts differ most.
        kinds: dict[str, Prompt] = {}
        for prompt in prompts:
            kinds.setdefault(prompt.scenario, prompt)
        sampled, seeded = [*kinds.values()][: options.prefixes], [*kinds.values()][: options.seeded]
        rounding = Rounding(engine)
        parts: dict[str, tuple[int, Callable[[], Part]]] = {
            "classes": (1, lambda: self._classes(rounding)),
            "rollback": (
                len(seeded) * len(contexts(engine)),
                lambda: RollbackAudit(engine, rounding, self._tick).run(seeded),
            ),
            "greedy": (
                len(prompts) * audit_greedy.RUNS,
                lambda: GreedyAudit(self._llm, rounding, options.num_tokens, self._tick).run(prompts),
            ),
            "sampled": (
                len(sampled) * (1 + len(subjects(engine))),
                lambda: SampledAudit(engine, options.runs, self._tick).run(sampled),
            ),
            "seed": (
                len(seeded) * audit_seed.RUNS,
                lambda: SeedAudit(self._llm, rounding, options.num_tokens, self._tick).run(seeded),
            ),
        }
        chosen = {name: parts[name] for name in PARTS if name in options.parts}
        self._planned = sum(steps for steps, _ in chosen.values())
        self._done = 0
        for name, (_, check) in chosen.items():
            yield name, check()

    def _classes(self, rounding: Rounding) -> Part:
        self._tick("classes: passes of different widths")
        return audit_classes(self._llm.engine, rounding)

    def _tick(self, label: str) -> None:
        self._progress(label, self._done / self._planned)
        self._done += 1


def audit_report(pair: str, llm: LLM, parts: Mapping[str, Part]) -> dict[str, Any]:
    """The whole result, ready for JSON."""
    failed = [name for name, part in parts.items() if not part.passed]
    checked = ", ".join(parts)
    return {
        "pair": pair,
        "machine": machine(llm),
        "versions": versions(),
        "strict": llm.engine.options.strict,
        "settings": llm.settings,
        "passed": not failed,
        "verdict": f"FAIL: {', '.join(failed)}." if failed else f"PASS: {checked}.",
        "parts": {name: part.to_dict() for name, part in parts.items()},
    }
