"""Tokens taken back: what a model computes behind them is what it computes where they were never read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.compute.library import Context
from localspec.decoding.rollback import rollback_of
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Session
from localspec.engine.engine import Engine
from localspec.measure.audit_part import Part, Tick
from localspec.measure.difference import Rounding
from localspec.measure.prompts import Prompt

LONGEST = 8
"""Tokens that are taken back at most."""
PREFIX = 48
"""Tokens that stay, about: a text is cut behind so many."""
NOTICED = 0.1
"""A row may be off by this share of what one token left behind would move it, or by what is known of rounding."""


@dataclass(frozen=True)
class Taken:
    """One pass of `drafted` tokens of which `kept` stood: how far a logit of the row behind was off."""

    drafted: int
    kept: int
    distance: float


class RollbackAudit:
    """Takes back drafted tokens at every depth, and compares the row behind with that of a fresh reading."""

    def __init__(self, engine: Engine, rounding: Rounding, tick: Tick) -> None:
        self._engine = engine
        self._rounding = rounding
        self._tick = tick

    def run(self, prompts: Sequence[Prompt]) -> Part:
        """Both models behind every prompt; passed where each row is the fresh one's, up to rounding."""
        tests = [test for prompt in prompts for test in self._prompt(prompt)]
        failed = [test for test in tests if test["distance"] > test["allowed"]]
        return Part(not failed, _verdict(tests, failed), {"longest": LONGEST, "tests": tests})

    def _prompt(self, prompt: Prompt) -> Iterator[dict[str, Any]]:
        text = self._engine.vocab.tokenize(prompt.turns[0], parse_special=False)
        for name, context in contexts(self._engine).items():
            depth = _depth(context)
            self._tick(f"rollback: {prompt.scenario}, {name}")
            self._engine.forget()
            least = self._engine.session.min_width if name == "target" else 1
            place = TakingBack(Session(context, min_width=least), _fitting(text, context.n_vocab))
            taken = list(place.taken(depth))
            worst = max(taken, key=lambda one: one.distance)
            moved = place.moved()
            exact = self._engine.options.strict and name == "target"
            yield {
                "scenario": prompt.scenario,
                "model": name,
                "way": rollback_of(context).kind,
                "prefix_tokens": len(place.prefix),
                "passes": len(taken),
                "distance": worst.distance,
                "drafted": worst.drafted,
                "kept": worst.kept,
                "allowed": 0.0 if exact else max(self._rounding.tolerance, NOTICED * moved),
                "moved": moved,
            }
        self._engine.forget()


class TakingBack:
    """One text: its beginning `prefix` stays, what follows is drafted rightly or wrongly.

    Overwrites the cells of the session.
    """

    def __init__(self, session: Session, text: Sequence[int]) -> None:
        self._session = session
        self.prefix, self._following = list(text[:-LONGEST]), list(text[-LONGEST:])
        self._fresh: dict[int, Logits] = {}

    def taken(self, depth: int) -> Iterator[Taken]:
        """Every number of drafted tokens up to `depth`, and each number of them that stands, but for all of them."""
        for drafted in range(1, depth + 1):
            for kept in range(drafted):
                row = self._behind(drafted, kept)
                yield Taken(drafted, kept, float(np.abs(row - self._expected(kept)).max()))

    def moved(self) -> float:
        """How far a logit moves at least where one wrong token stays in the cells."""
        left = [
            self._row([*self.prefix, *self._following[:kept], self._wrong(kept)], kept) for kept in range(2)
        ]
        return min(float(np.abs(row - self._expected(kept)).max()) for kept, row in enumerate(left))

    def _behind(self, drafted: int, kept: int) -> Logits:
        """The row behind the first token that is read after a draft of which `kept` stood."""
        draft = [*self._following[:kept], *(self._wrong(place) for place in range(kept, drafted))]
        self._read(self.prefix[:-1])
        self._session.forward([self.prefix[-1], *draft], num_logits=1, sure=len(self.prefix))
        self._session.rollback(len(self.prefix) + kept)
        return self._row([*self.prefix, *self._following[:kept]], kept)

    def _row(self, held: Sequence[int], kept: int) -> Logits:
        """The row of the true token behind `held`, of which the cells keep what they can."""
        sequence = [*held, self._following[kept]]
        self._session.align(sequence)
        return self._session.forward(sequence[len(self._session.tokens) :])[0]

    def _expected(self, kept: int) -> Logits:
        """The same row where nothing wrong was ever read."""
        if kept not in self._fresh:
            self._session.rollback(0)
            held = [*self.prefix, *self._following[:kept]]
            self._read(held)
            self._fresh[kept] = self._row(held, kept)
        return self._fresh[kept]

    def _read(self, sequence: Sequence[int]) -> None:
        """So that the cells hold it, and nothing else."""
        self._session.align([*sequence, -1])
        if unread := sequence[len(self._session.tokens) :]:
            self._session.forward(unread, num_logits=0)

    def _wrong(self, place: int) -> int:
        """A token that does not follow there."""
        right = self._following[place]
        return next((token for token in self.prefix[place:] if token != right), right ^ 1)


def contexts(engine: Engine) -> dict[str, Context]:
    """The contexts of the engine that take tokens back, by name."""
    both = {"target": engine.target, "draft": engine.draft}
    used = {name: one for name, one in both.items() if one is not None and not engine.no_draft_reason}
    return {name: one for name, one in used.items() if _depth(one) > 0}


def _depth(context: Context) -> int:
    """Tokens that one pass of the context may draft and take back."""
    way = rollback_of(context)
    return min(LONGEST, context.n_batch - 1, LONGEST if way.limit is None else way.limit)


def _fitting(text: Sequence[int], n_vocab: int) -> list[int]:
    """A beginning of the text that the model can read, long enough; a short one is repeated."""
    known = [token for token in text if token < n_vocab] or [0, 1]
    while len(known) < PREFIX + LONGEST:
        known += known
    return known[: PREFIX + LONGEST]


def _verdict(tests: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    if failed:
        worst = max(failed, key=lambda test: float(test["distance"]))
        return (
            f"FAIL: behind {worst['drafted']} drafted tokens of which {worst['kept']} stood, the {worst['model']} is "
            f"off by {worst['distance']:.3g} in a logit ({worst['scenario']}); {worst['allowed']:.3g} is allowed."
        )
    if not tests:
        return "No tokens are taken back here: nothing is drafted."
    ways = ", ".join(dict.fromkeys(f"{test['model']}: {test['way']}" for test in tests))
    passes = sum(test["passes"] for test in tests)
    off, moved = max(test["distance"] for test in tests), min(test["moved"] for test in tests)
    return (
        f"Tokens taken back {passes} times ({ways}) leave no trace: a logit was off by {off:.3g} at most, and one "
        f"token left behind would have moved it by {moved:.3g}."
    )
