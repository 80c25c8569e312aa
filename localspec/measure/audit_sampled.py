"""The sampled distribution at fixed prefixes: what the loop emits against what the target's rows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import Drafter, NgramDrafter, NoDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session
from localspec.decoding.verify import choose_rule
from localspec.engine.engine import Engine
from localspec.measure.audit_part import Part, Tick
from localspec.measure.chisquare import Cell, Fit, detectable, fit
from localspec.measure.prompts import Prompt
from localspec.measure.replay import ReplayContext, ReplaySampler, RowBook

NUM_DRAFT_TOKENS = 2
LENGTH = NUM_DRAFT_TOKENS + 2
"""One token before the draft, the draft, and the bonus behind it: a wrong bonus cannot hide."""
THRESHOLD = 1e-6
TOP_K = 3
PREFIX = 64
"""Tokens of a prompt's text; the prefix ends behind one of them."""
MOST_FAVOUR = 50.0
"""Twice this is the largest penalty that `SamplingParams` takes."""
MODEL, COPY, NONE = "draft model", "repeated text", "no draft"


@dataclass(frozen=True)
class Subject:
    """An accept rule, and who drafts."""

    rule: str
    drafter: str


def subjects(engine: Engine) -> list[Subject]:
    """The target alone, and each accept rule with a drafter that this engine has."""
    alone = [Subject("rejection", NONE)]
    if engine.no_draft_reason:
        return alone
    source = MODEL if engine.draft else COPY
    extra = [Subject("block", COPY)] if engine.draft else []
    return [*alone, *(Subject(rule, source) for rule in ("rejection", "block", "coupled")), *extra]


class SampledAudit:
    """Runs the real loop `runs` times for each subject and prefix, on rows computed once."""

    def __init__(self, engine: Engine, runs: int, tick: Tick) -> None:
        self._engine = engine
        self._runs = runs
        self._tick = tick

    def run(self, prompts: Sequence[Prompt]) -> Part:
        """Passed when every p-value is above THRESHOLD."""
        tests = [test for prompt in prompts for test in self._prefix(prompt)]
        failed = [test for test in tests if test["p_value"] < THRESHOLD]
        figures: dict[str, Any] = {
            "statistic": "Pearson's chi-square, cells expected fewer than 5 times pooled",
            "threshold": THRESHOLD,
            "power": 0.99,
            "runs": self._runs,
            "tokens": LENGTH,
            "draft_tokens": NUM_DRAFT_TOKENS,
            "tests": tests,
        }
        return Part(not failed, _verdict(tests, failed), figures)

    def _prefix(self, prompt: Prompt) -> Iterator[dict[str, Any]]:
        self._tick(f"sampled: {prompt.scenario}, the target's rows")
        self._engine.forget()
        ids = self._engine.vocab.tokenize(prompt.turns[0], parse_special=False)[:PREFIX]
        replay = Replay(self._engine, ids)
        joint = replay.joint()
        for subject in subjects(self._engine):
            self._tick(f"sampled: {prompt.scenario}, {subject.rule}, {subject.drafter}")
            tally = replay.count(subject, self._runs)
            result = fit(joint, tally.counts)
            yield {
                "scenario": prompt.scenario,
                "prefix_tokens": replay.num_prompt,
                **asdict(subject),
                **_fit_figures(result),
                "cells": len(joint),
                "drafted": tally.drafted,
                "accepted": tally.accepted,
            }
        self._engine.forget()


@dataclass
class Tally:
    """Texts that came out, and what was drafted for them."""

    counts: Counter[Cell]
    drafted: int = 0
    accepted: int = 0


class Replay:
    """One prefix, a beginning of `text`: the rows behind it, and the loop on them.

    Overwrites the cells of both models.
    """

    def __init__(self, engine: Engine, text: Sequence[int]) -> None:
        self._engine, self._eog = engine, engine.vocab.eog_tokens
        self._target = RowBook(Session(engine.target, min_width=engine.session.min_width))
        behind = self._target if engine.drafts_itself else None
        self._draft = RowBook(Session(engine.draft), behind) if engine.draft else None
        self._session = Session(ReplayContext(self._target), min_width=engine.session.min_width)
        self._prompt, params = revealing_place(self._target, text)
        self._sampler = ReplaySampler(params, num_prompt=len(self._prompt), eog=self._eog)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prefix."""
        return len(self._prompt)

    def joint(self) -> dict[Cell, float]:
        """The probability of every text of LENGTH tokens, from the target's rows alone."""
        cells: dict[Cell, float] = {}
        self._walk((), 1.0, cells)
        return cells

    def _walk(self, text: Cell, probability: float, cells: dict[Cell, float]) -> None:
        if len(text) == LENGTH or (text and text[-1] in self._eog):
            cells[text] = probability
            return
        prefix = [*self._prompt, *text]
        following = self._sampler(self._target.row(prefix), prefix)
        for token, share in zip(following.tokens, following.probs, strict=True):
            self._walk((*text, int(token)), probability * float(share), cells)

    def count(self, subject: Subject, runs: int) -> Tally:
        """What the loop gives for the seeds 0 to `runs` - 1."""
        drafter = self._drafter(subject.drafter)
        controller = FixedLength(0 if subject.drafter == NONE else NUM_DRAFT_TOKENS)
        tally = Tally(Counter())
        for seed in range(runs):
            generation = Generation(
                self._session,
                drafter,
                controller,
                self._sampler,
                self._prompt,
                rule=choose_rule(subject.rule, seed),
                check=lambda token: "stop" if token in self._eog else None,
            )
            for step in run(generation):
                tally.drafted += step.num_drafted
                tally.accepted += step.num_accepted
            tally.counts[tuple(generation.sequence[generation.num_prompt :])] += 1
        return tally

    def _drafter(self, name: str) -> Drafter:
        if name == MODEL:
            assert self._draft is not None
            session = Session(ReplayContext(self._draft))
            return self._engine.model_drafter(session)
        # A match of one token is nearly always there.
        return NgramDrafter(min_match=1, max_match=3) if name == COPY else NoDrafter()


def revealing_place(target: RowBook, text: Sequence[int]) -> tuple[list[int], SamplingParams]:
    """A beginning of `text` behind which faults show, and options that let them.

    Three tokens a row, a bias against the first choice, and penalties that favour what was said once in the last few
    tokens, but not what was said twice. The favour is the median of what the token just said lacks to be the likeliest.
    So a row that is shaped by another row's history, or by none, gives other tokens. The place taken is the one, past
    the first quarter of the text, where these options leave the choice most open.
    """
    rows = _rows_along(target, text)
    favour = max(
        float(np.median([row.max() - row[token] for row, token in zip(rows, text, strict=True)])), 1.0
    )
    favour = min(favour, MOST_FAVOUR)
    params = SamplingParams(
        temperature=1.0,
        top_k=TOP_K,
        top_p=1.0,
        min_p=0.0,
        presence_penalty=-2 * favour,
        frequency_penalty=favour,
        repeat_last_n=LENGTH,
        max_tokens=LENGTH,
    )
    sampler = Sampler(params)
    openness = [_entropy(sampler(row, text[: index + 1])) for index, row in enumerate(rows)]
    place = max(range(len(rows) // 4, len(rows)), key=openness.__getitem__)
    second, first = (int(token) for token in np.argsort(rows[place], kind="stable")[-2:])
    return list(text[: place + 1]), replace(params, logit_bias={first: -0.5, second: 0.5})


def _rows_along(target: RowBook, text: Sequence[int]) -> list[Logits]:
    """The row behind each id of `text`, each of shape (V,)."""
    size = min(target.context.n_batch, target.context.n_outputs)
    ends = [*range(size, len(text), size), len(text)]
    return [row for end in ends for row in target.rows(text[:end], (end - 1) % size + 1)]


def _entropy(probs: Distribution) -> float:
    chances = probs.probs[probs.probs > 0]
    return float(-(chances * np.log(chances)).sum())


def _fit_figures(result: Fit) -> dict[str, Any]:
    return {
        "statistic": round(result.statistic, 2),
        "degrees": result.degrees,
        "p_value": result.p_value,
        "impossible": result.impossible,
        "detectable": round(detectable(THRESHOLD, result.degrees, result.runs), 4),
    }


def _verdict(tests: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    if failed:
        names = dict.fromkeys(
            f"{test['rule']} with {test['drafter']} ({test['scenario']})" for test in failed
        )
        return f"FAIL: sampled texts are not distributed as the target's under {', '.join(names)}."
    least = min(test["p_value"] for test in tests)
    seen = max(test["detectable"] for test in tests)
    return (
        f"Sampled texts are distributed as the target's in {len(tests)} tests, least p {least:.2g} (threshold "
        f"{THRESHOLD:g}); a total variation distance of {seen:.2g} would have been seen with probability .99."
    )
