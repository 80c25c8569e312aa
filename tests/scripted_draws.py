"""Draws from a list, and two small distributions: an accept rule beside its paper, number by number."""

from __future__ import annotations

import numpy as np

from localspec.decoding.sampling import Distribution


class Scripted:
    """Uniform numbers from a list; running out is an error."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def dist(**probs: float) -> Distribution:
    return Distribution(
        np.array([int(name[1:]) for name in probs]), np.array([float(value) for value in probs.values()])
    )


P, Q = dist(t0=0.5, t1=0.3, t2=0.2), dist(t0=0.1, t1=0.9)
