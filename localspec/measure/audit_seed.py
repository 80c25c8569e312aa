"""Seed stability: a seed gives the same text whoever drafts, and however far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.answers.answering import make_request, sampler_of
from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import NgramDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.noise import gumbel
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import Logits
from localspec.decoding.stats import Stats
from localspec.decoding.verify import choose_rule
from localspec.llm import LLM
from localspec.measure.audit_greedy import PLAIN, answer_of
from localspec.measure.audit_part import Part, Tick
from localspec.measure.difference import Answer, Rounding
from localspec.measure.prompts import Prompt
from localspec.measure.timing import timed_answer
from localspec.text.answer import AnswerText
from localspec.text.prompt import render_prompt

SEED = 20
TEMPERATURE = 0.8
NGRAM = "repeated text"
MODES: tuple[int | str, ...] = (1, 3, 7, NGRAM, "auto")
RUNS = len(MODES) + 1
"""Answers to each prompt: plain, and each way of drafting."""


class SeedAudit:
    """Compares answers of one seed.

    No filter is on, so that an emitted token is the one with the largest logit / T + noise of all: what rounding may
    do to it is then as clear as for a greedy one.
    """

    def __init__(self, llm: LLM, rounding: Rounding, num_tokens: int, tick: Tick) -> None:
        self._llm = llm
        self._rounding = rounding
        self._params = SamplingParams(
            temperature=TEMPERATURE, top_k=0, top_p=1, min_p=0, seed=SEED, max_tokens=num_tokens
        )
        self._tick = tick

    def run(self, prompts: Sequence[Prompt]) -> Part:
        """Every prompt; passed when each difference is explained by rounding, and in strict mode when there is none."""
        answers = [figures for prompt in prompts for figures in self._prompt(prompt)]
        differences = [entry["difference"] for entry in answers if entry["difference"]]
        unexplained = [entry for entry in differences if not entry["explained"]]
        figures: dict[str, Any] = {
            "seed": SEED,
            "temperature": TEMPERATURE,
            "prompts": len(prompts),
            "tolerance": self._rounding.tolerance if differences else None,
            "answers": answers,
        }
        drafted = sum(entry["drafted"] for entry in answers)
        compared = f"{len(answers)} answers with seed {SEED}, {drafted} tokens drafted"
        verdict = f"{compared}: the same text with every draft and without."
        if unexplained:
            verdict = (
                f"FAIL: {compared}; {len(unexplained)} differ from the one without a draft by more than rounding can "
                f"explain, the first at token {unexplained[0]['index']}."
            )
        elif differences:
            verdict = (
                f"{compared}; {len(differences)} differ from the one without a draft, only where two logits and their "
                f"noise are closer than the kernels' rounding ({figures['tolerance']:.3g})."
            )
        return Part(not unexplained, verdict, figures)

    def _prompt(self, prompt: Prompt) -> list[dict[str, Any]]:
        messages = [{"role": "user", "content": prompt.turns[0]}]
        engine = self._llm.engine
        ids = render_prompt(engine.vocab, engine.template, messages)
        self._llm.forget()
        expected, _ = self._answer(prompt.scenario, messages, ids, PLAIN)
        found = {mode: self._answer(prompt.scenario, messages, ids, mode) for mode in MODES}
        return [
            {
                "scenario": prompt.scenario,
                "draft_tokens": mode,
                "tokens": len(got.ids),
                "drafted": stats.drafted,
                "accepted": stats.accepted,
                "difference": self._difference(ids, expected, got),
            }
            for mode, (got, stats) in found.items()
        ]

    def _answer(
        self, scenario: str, messages: list[dict[str, str]], ids: list[int], mode: int | str
    ) -> tuple[Answer, Stats]:
        self._tick(f"seed: {scenario}, {mode} drafted")
        if mode == NGRAM:
            return self._copying_answer(ids)
        completion = timed_answer(self._llm, messages, self._params, mode).completion
        return answer_of(completion), completion.stats

    def _copying_answer(self, ids: list[int]) -> tuple[Answer, Stats]:
        """An answer drafted from repeated text alone, at every opportunity."""
        engine = self._llm.engine
        request = make_request(engine, ids, 3, {"params": self._params})
        text = AnswerText(engine.vocab.piece, engine.vocab.eog_tokens, ())
        generation = Generation(
            engine.session,
            NgramDrafter(min_match=1, max_match=3),
            FixedLength(0 if engine.no_draft_reason else 3),
            sampler_of(engine, request),
            ids,
            rule=choose_rule(request.verify, self._params.seed),
            check=text.check,
        )
        stats = Stats()
        for step in run(generation):
            stats.add(step)
        return Answer(tuple(text.ids), generation.finish_reason == "stop"), stats

    def _difference(self, ids: list[int], expected: Answer, got: Answer) -> dict[str, object] | None:
        found = self._rounding.difference(ids, expected, got, noisy)
        return found.to_dict() if found else None


def noisy(row: Logits, position: int) -> NDArray[np.float64]:
    """Scores (V,): logits plus T times this seed's noise at the position. The emitted token has the largest."""
    noise = gumbel(SEED, position, np.arange(len(row)))
    scores: NDArray[np.float64] = row.astype(np.float64) + TEMPERATURE * noise
    return scores
