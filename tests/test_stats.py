"""Counters of an answer: they add up, also where it ends in the middle of a draft."""

from __future__ import annotations

import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedLength
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import NoDrafter
from localspec.decoding.loop import Generation
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.stats import Batch, Stats, Step
from localspec.decoding.verify import RejectionRule

from .fakes import FakeContext, blended, generate, model_drafter, random_model

V = 16
TARGET = random_model(V, seed=3)
GREEDY = SamplingParams(temperature=0, max_tokens=60)
DRAFTERS = {
    "perfect": lambda: model_drafter(TARGET, V),
    "mediocre": lambda: model_drafter(blended(TARGET, random_model(V, seed=4), 0.45), V),
    "none": NoDrafter,
}


def folded(kind, **arguments):
    tokens, steps = generate(TARGET, DRAFTERS[kind](), n_vocab=V, params=GREEDY, **arguments)
    stats = Stats()
    for step in steps:
        stats.add(step)
    return tokens, steps, stats


def adds_up(stats):
    return stats.tokens == stats.accepted + stats.recovered + stats.bonus + stats.plain


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("end", range(1, 40, 3))
def test_they_add_up_wherever_the_answer_ends(kind, end):
    """Of five accepted tokens the first, the last or none may end it: what follows was never committed."""
    plain, _, _ = folded("none")
    tokens, steps, stats = folded(kind, num_draft_tokens=5, eog=frozenset([plain[end]]))
    assert tokens == plain[: plain.index(plain[end]) + 1]
    assert stats.tokens == len(tokens)
    assert adds_up(stats)
    assert 0 <= stats.accepted <= stats.drafted
    for step in steps:
        assert len(step.tokens) - step.num_accepted == step.recovered + step.bonus + step.plain <= 1


def test_what_each_counter_means():
    _, steps, stats = folded("mediocre", num_draft_tokens=2)
    assert adds_up(stats)
    assert stats.accepted and stats.recovered and stats.bonus and stats.plain
    whole = [step for step in steps if step.num_drafted and step.num_accepted == step.num_drafted]
    assert stats.bonus == len(whole)
    assert stats.plain == sum(step.num_drafted == 0 for step in steps if step.tokens)
    assert stats.recovered == stats.rounds - stats.bonus - stats.plain


def test_a_cut_in_mid_draft_has_no_token_of_the_targets_own():
    plain, _, _ = folded("none")
    end = next(token for index, token in enumerate(plain) if plain.index(token) == index and index % 6 == 3)
    _, steps, stats = folded("perfect", num_draft_tokens=5, eog=frozenset([end]))
    last = steps[-1]
    assert last.num_accepted == len(last.tokens) < last.num_drafted
    assert not (last.recovered or last.bonus or last.plain)
    assert stats.tokens == stats.accepted + stats.rounds - 1
    assert adds_up(stats)


def test_plain_decoding_has_only_plain_tokens():
    _, _, stats = folded("none")
    assert (stats.tokens, stats.plain) == (60, 60)
    assert stats.to_dict()["recovered"] == stats.to_dict()["bonus"] == 0


def test_a_round_in_a_shared_batch_tells_its_share_and_the_whole():
    context = FakeContext(TARGET, V)
    clock = iter(range(1000)).__next__
    one, two = (
        Generation(
            Session(context, sequence),
            NoDrafter(),
            FixedLength(0),
            Sampler(GREEDY, len(prompt)),
            prompt,
            rule=RejectionRule(0),
            check=lambda token: None,
            clock=lambda: float(clock()),
        )
        for sequence, prompt in enumerate(([1, 2, 3], [4]))
    )
    spans = [one.propose(), two.propose()]
    batch = Batch(width=4, seconds=8.0)
    rows = context.decode(spans)
    steps = [each.commit(span, row, batch) for each, span, row in zip((one, two), spans, rows, strict=True)]
    assert [(step.width, step.target_seconds) for step in steps] == [(3, 6.0), (1, 2.0)]
    assert {(step.batch_width, step.batch_seconds) for step in steps} == {(4, 8.0)}
    span = one.propose()
    (row,) = context.decode([span])
    alone = one.commit(span, row)
    assert (alone.batch_width, alone.batch_seconds) == (alone.width, alone.target_seconds) == (1, 1.0)


def test_costs_are_learned_from_the_whole_pass():
    table = CostTable({1: 1.0, 2: 2.0, 4: 4.0})
    controller = AdaptiveController(table)
    step = Step(1, 0, (5,), 0, 0, 0, False, None, 0.0, 2.0, 9.0, batch=Batch(4, 8.0))
    controller.observe(step)
    assert table.time(4) > 4.0  # the pass over four took twice as long as expected


@pytest.mark.parametrize("num_prefilled", [0, 2])
def test_the_first_round_is_the_time_to_the_first_token_whatever_was_cached(num_prefilled):
    """Of a prompt that is in the cells to its last id, nothing is read ahead of it."""
    stats = Stats()
    stats.add(Step(1, 9, (5, 6), num_prefilled, 0, 0, False, None, 0.0, 2.0, 2.0))
    assert (stats.prefill_seconds, stats.decode_seconds, stats.first_tokens) == (2.0, 0.0, 2)
    stats.add(Step(1, 10, (7,), 0, 0, 0, False, None, 0.0, 0.5, 0.5))
    assert (stats.prefill_seconds, stats.decode_seconds, stats.tokens_per_second) == (2.0, 0.5, 2.0)
