"""Greedy identity: the text with drafts is the text without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.answers.request import Completion
from localspec.decoding.params import SamplingParams
from localspec.llm import LLM
from localspec.measure.audit_part import Part, Tick
from localspec.measure.difference import Answer, Rounding, logits
from localspec.measure.prompts import Prompt
from localspec.measure.timing import timed_answer
from localspec.text.prompt import render_prompt

PLAIN = "off"
DRAFTING: tuple[int | str, ...] = (3, "auto")
RUNS = len(DRAFTING) * 2 + 1
"""Answers to each prompt: plain, and each way of drafting with the prefix cache forgotten and reused."""


class GreedyAudit:
    """Compares plain decoding with drafting on the first turn of each prompt, `num_tokens` each."""

    def __init__(self, llm: LLM, rounding: Rounding, num_tokens: int, tick: Tick) -> None:
        self._llm = llm
        self._rounding = rounding
        self._params = SamplingParams(temperature=0, max_tokens=num_tokens)
        self._tick = tick

    def run(self, prompts: Sequence[Prompt]) -> Part:
        """Every prompt; passed when each difference is explained by rounding, and in strict mode when there is none."""
        answers = [figures for prompt in prompts for figures in self._prompt(prompt)]
        differences = [entry["difference"] for entry in answers if entry["difference"]]
        unexplained = [
            entry for entry in answers if entry["difference"] and not entry["difference"]["explained"]
        ]
        figures: dict[str, Any] = {
            "prompts": len(prompts),
            "max_tokens": self._params.max_tokens,
            "drafted": sum(entry["drafted"] for entry in answers),
            "accepted": sum(entry["accepted"] for entry in answers),
            # Measured for differences alone: it takes a while.
            "tolerance": self._rounding.tolerance if differences else None,
            "answers": answers,
        }
        return Part(not unexplained, self._verdict(figures, differences, unexplained), figures)

    def _prompt(self, prompt: Prompt) -> list[dict[str, Any]]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages.append({"role": "user", "content": prompt.turns[0]})
        engine = self._llm.engine
        ids = render_prompt(engine.vocab, engine.template, messages)
        expected = self._answer(prompt.scenario, messages, PLAIN, reused=False)
        found = [
            (mode, self._answer(prompt.scenario, messages, mode, reused=reused))
            for mode in DRAFTING
            for reused in (False, True)
        ]
        return [
            {
                "scenario": prompt.scenario,
                "draft_tokens": mode,
                "cached_tokens": got.stats.cached_tokens,
                "tokens": len(got.ids),
                "drafted": got.stats.drafted,
                "accepted": got.stats.accepted,
                "difference": self._difference(ids, expected, got),
            }
            for mode, got in found
        ]

    def _answer(
        self, scenario: str, messages: list[dict[str, str]], mode: int | str, *, reused: bool
    ) -> Completion:
        cache = "the prompt in cache" if reused else "cold"
        self._tick(f"greedy: {scenario}, {mode} drafted, {cache}")
        if not reused:
            self._llm.forget()
        return timed_answer(self._llm, messages, self._params, mode).completion

    def _difference(self, ids: list[int], expected: Completion, got: Completion) -> dict[str, object] | None:
        found = self._rounding.difference(ids, answer_of(expected), answer_of(got), logits)
        return found.to_dict() if found else None

    def _verdict(
        self, figures: dict[str, Any], differences: list[dict[str, Any]], unexplained: list[dict[str, Any]]
    ) -> str:
        compared = (
            f"{len(figures['answers'])} greedy answers with drafts, {figures['drafted']} tokens drafted"
        )
        if unexplained:
            first = unexplained[0]
            why = (
                "in strict mode none may differ"
                if self._llm.engine.options.strict
                else f"more than {figures['tolerance']:.3g}, what rounding can do here"
            )
            return (
                f"FAIL: {compared}; {len(unexplained)} differ from plain decoding, the first ({first['scenario']}) at "
                f"token {first['difference']['index']}, {first['difference']['below_best']:.3g} below the best logit: "
                f"{why}."
            )
        if differences:
            return (
                f"{compared}; {len(differences)} differ from plain decoding, only where two logits are closer than the "
                f"kernels' rounding ({figures['tolerance']:.3g})."
            )
        return f"{compared}: all identical to plain decoding."


def answer_of(completion: Completion) -> Answer:
    """The part of a completion by which answers are compared."""
    return Answer(completion.ids, completion.finish_reason == "stop")
