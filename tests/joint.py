"""The joint distribution of the first tokens: counted from the real loop, and computed from the target alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy.stats import chi2

from localspec.decoding.drafting import Drafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import distribution
from localspec.decoding.verify import RejectionRule, Rule

from .fake_options import RememberingSampler
from .fakes import LogitModel, generate

PROMPT = (0, 1)
THRESHOLD = 1e-6
"""A law holds when its p-value is above this; seeds are fixed, so it never fails by chance later."""


def exact_joint(
    target: LogitModel, params: SamplingParams, n_vocab: int, length: int
) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of `length` tokens under the target alone: V**length cells."""
    joint = {}
    for tokens in itertools.product(range(n_vocab), repeat=length):
        prefix, probability = list(PROMPT), 1.0
        for token in tokens:
            probability *= float(distribution(target(tuple(prefix)), params, prefix).prob(token))
            prefix.append(token)
        joint[tokens] = probability
    return joint


def count_joint(
    target: LogitModel,
    make_drafter: Callable[[], Drafter],
    params: SamplingParams,
    *,
    n_vocab: int,
    num_draft_tokens: int,
    length: int,
    runs: int,
    make_controller: Callable[[], object] | None = None,
    make_rule: Callable[[int], Rule] = RejectionRule,
) -> Counter[tuple[int, ...]]:
    """How often the real loop emits each sequence of `length` tokens."""
    drafter = make_drafter()
    sampler = RememberingSampler(params, len(PROMPT))
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        tokens, _ = generate(
            target,
            drafter,
            n_vocab=n_vocab,
            params=params,
            sampler=sampler,
            prompt=PROMPT,
            num_draft_tokens=num_draft_tokens,
            seed=seed,
            make_rule=make_rule,
            controller=make_controller() if make_controller else None,
            enough=length,
        )
        counts[tuple(tokens[:length])] += 1
    return counts


def p_value(joint: dict[tuple[int, ...], float], counts: Counter[tuple[int, ...]]) -> float:
    """Pearson's chi-square test; cells expected fewer than 5 times are pooled. 0 if an impossible cell was seen."""
    runs = sum(counts.values())
    expected = np.array([joint[cell] * runs for cell in joint])
    observed = np.array([counts[cell] for cell in joint], dtype=float)
    if observed.sum() < runs or observed[expected == 0].any():
        return 0.0
    small = expected < 5
    pooled_expected = np.append(expected[~small], expected[small].sum())
    pooled_observed = np.append(observed[~small], observed[small].sum())
    kept = pooled_expected > 0
    statistic = ((pooled_observed[kept] - pooled_expected[kept]) ** 2 / pooled_expected[kept]).sum()
    return float(chi2.sf(statistic, max(int(kept.sum()) - 1, 1)))
