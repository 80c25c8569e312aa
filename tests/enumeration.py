"""Every outcome of a piece of random code with its probability, and trees of exact distributions to run it on.

The code is run again and again with uniform numbers of which nothing is known but an interval. A comparison that this
leaves open is decided both ways, in two runs. In rational arithmetic the probabilities are exact.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from localspec.decoding.sampling import Distribution

Result = TypeVar("Result")
Tokens = tuple[int, ...]
Tree = dict[Tokens, Distribution]
NEGLIGIBLE = 1e-12
"""A branch of float probability below this is rounding."""


class Uniform:
    """A number in [0, 1) that is as unknown as the comparisons so far leave it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._low: Any = 0
        self._high: Any = 1

    def __lt__(self, other: Any) -> bool:
        if other is self:  # numpy compares a key with itself
            return False
        if other <= self._low or other >= self._high:
            return bool(other >= self._high)
        below = self._path.decide((other - self._low) / (self._high - self._low))
        self._low, self._high = (self._low, other) if below else (other, self._high)
        return below

    __le__ = __lt__

    def __ge__(self, other: Any) -> bool:
        return not self < other

    __gt__ = __ge__

    def __mul__(self, total: Any) -> Uniform:
        assert abs(total - 1) < NEGLIGIBLE, "a distribution sums to 1"
        return self


class Path:
    """One run: a source of uniform numbers that follows a script of decisions, and then always says yes."""

    def __init__(self, script: list[bool]) -> None:
        self._script = script
        self.taken: list[bool] = []
        self.probability: Any = 1

    def random(self) -> Uniform:
        return Uniform(self)

    def decide(self, chance: Any) -> bool:
        if isinstance(chance, float) and not NEGLIGIBLE < chance < 1 - NEGLIGIBLE:
            return chance > 0.5
        index = len(self.taken)
        choice = self._script[index] if index < len(self._script) else True
        self.taken.append(choice)
        self.probability *= chance if choice else 1 - chance
        return choice


def explore(run: Callable[[Path], Result]) -> Iterator[tuple[Result, Any]]:
    """What `run` returns on every path, and that path's probability. It must depend on nothing but its path."""
    scripts: list[list[bool]] = [[]]
    while scripts:
        script = scripts.pop()
        path = Path(script)
        yield run(path), path.probability
        scripts += [[*path.taken[:index], False] for index in range(len(script), len(path.taken))]


def outcomes(run: Callable[[Path], Result]) -> dict[Result, Any]:
    """Probability of each result."""
    found: dict[Result, Any] = defaultdict(int)
    for result, probability in explore(run):
        found[result] += probability
    return dict(found)


def random_tree(seed: int, depth: int, zeros: bool, n_vocab: int = 3) -> Tree:
    """A distribution of Fractions for every prefix up to `depth` tokens; with `zeros` some tokens are impossible."""
    rng = random.Random(seed)
    tree = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(n_vocab), repeat=length):
            weights = [rng.randint(0 if zeros else 1, 6) for _ in range(n_vocab)]
            weights[rng.randrange(n_vocab)] += 1
            tokens = np.array([t for t in range(n_vocab) if weights[t]], dtype=np.int64)
            mass = np.array([Fraction(weights[t]) for t in tokens], dtype=object)
            tree[prefix] = Distribution.normalised(tokens, mass)
    return tree


def exact_point(token: int) -> Distribution:
    """A point mass that stays rational."""
    return Distribution(np.array([token], dtype=np.int64), np.array([Fraction(1)], dtype=object))


def completed(emitted: dict[Tokens, Any], target: Tree, length: int) -> dict[Tokens, Any]:
    """What was emitted, continued by the target alone up to `length` tokens."""
    joint: dict[Tokens, Any] = defaultdict(int)
    open_ones = list(emitted.items())
    while open_ones:
        tokens, probability = open_ones.pop()
        if len(tokens) == length:
            joint[tokens] += probability
        else:
            row = target[tokens]
            open_ones += [
                ((*tokens, int(t)), probability * p) for t, p in zip(row.tokens, row.probs, strict=True)
            ]
    return dict(joint)


def alone(target: Tree, length: int) -> dict[Tokens, Any]:
    """Probability of every sequence of `length` tokens under the target alone."""
    return completed({(): Fraction(1)}, target, length)
