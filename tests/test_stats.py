"""Counters of an answer: they add up, also where it ends in the middle of a draft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedLength
from localspec.decoding.costs import PLAIN_PASSES, CostTable
from localspec.decoding.drafting import NoDrafter
from localspec.decoding.loop import Generation
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.stats import Batch, Stats, Step
from localspec.decoding.verify import RejectionRule
from localspec.server.usage import timings

from .fakes import FakeContext, blended, generate, model_drafter, random_model
from .simulation import CURVES, World

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


def step(tokens, seconds, *, drafted=0, accepted=0, draft_seconds=0.0, length=10):
    return Step(
        drafted + 1, length, tuple(range(tokens)), 0, drafted, accepted, False, None, draft_seconds,
        0.75 * seconds, seconds,
    )  # fmt: skip


def test_what_plain_decoding_would_have_taken():
    """Rounds that drafted nothing are plain decoding; the others are worth a plain pass for each token."""
    controller = AdaptiveController(CostTable({1: 2.0, 4: 3.0}))
    rounds = [step(1, 9.0), step(3, 4.0, drafted=3, accepted=3), step(1, 2.5, draft_seconds=0.4)]
    assert [controller.plain_seconds(found) for found in rounds] == pytest.approx([9.0, 6.0, 2.1])
    controller.plain_share = 0.5  # another library's plain decoding takes half of it
    assert [controller.plain_seconds(found) for found in rounds] == pytest.approx([4.5, 3.0, 1.05])


def test_a_speedup_is_said_of_known_costs_and_enough_tokens():
    stats = Stats()
    stats.add(step(1, 5.0), 4.0)
    assert stats.plain_seconds is None, "the first token is no decoding"
    for count in range(4):
        assert stats.speedup_estimate is None, count
        stats.add(step(4, 2.0, drafted=4, accepted=3), 3.0)
    assert (stats.plain_seconds, stats.speedup_estimate) == (12.0, 1.5)
    assert stats.to_dict()["speedup_estimate"] == 1.5
    unknown = Stats()
    for _ in range(6):
        unknown.add(step(4, 2.0, drafted=4, accepted=3))
    assert (unknown.plain_seconds, unknown.speedup_estimate) == (None, None)


def test_reading_the_prompt_for_drafts_counts_against_them():
    stats = Stats()
    stats.add(step(1, 5.0))
    for index in range(4):
        stats.add(replace(step(4, 2.0, drafted=4, accepted=3), reading_seconds=4.0 * (index == 0)), 3.0)
    assert stats.speedup_estimate == 1.0


LOADS = {
    "idle": lambda now: 1.0,
    "busier than measured": lambda now: 1.7,
    "faster than measured": lambda now: 0.6,
    "a neighbour comes": lambda now: 1.0 + 0.6 * (now > 2.0),
    "a neighbour leaves": lambda now: 1.0 + 0.9 * (now < 2.0),
    "neighbours come and go": lambda now: 1.0 + 0.6 * (now % 0.6 > 0.3),
}


@pytest.mark.parametrize("load", list(LOADS))
@pytest.mark.parametrize("curve", ["BF16", "Q4_0", "Q4_K_M"])
@pytest.mark.parametrize("agrees", [0.95, 0.6])
def test_the_speedup_is_that_against_plain_decoding_on_the_same_machine_at_the_same_time(curve, agrees, load):
    """On a simulated clock, where it is known what plain decoding takes at each moment."""
    text = np.random.default_rng(1).random(400) < agrees
    world = World(CURVES[curve], list(text), [max(agrees, 0.3)] * 400, LOADS[load])
    controller, stats, plain = world.controller(), Stats(), 0.0
    observe = controller.observe

    def observed(found):
        nonlocal plain
        observe(found)
        stats.add(found, controller.plain_seconds(found))
        if stats.first_tokens < stats.tokens:
            busy = LOADS[load](world.clock.now - found.target_seconds)
            plain += len(found.tokens) * CURVES[curve][0] * busy

    controller.observe = observed
    world.run(256, controller)
    assert stats.speedup_estimate == pytest.approx(plain / stats.decode_seconds, rel=0.03)


def test_the_servers_timings_have_the_speedup_of_all_answers_where_it_is_known_of_each():
    first = Stats(tokens=41, first_tokens=1, decode_seconds=2.0, plain_seconds=4.0)
    second = Stats(tokens=41, first_tokens=1, decode_seconds=6.0, plain_seconds=6.0)
    assert timings([first])["speedup_estimate"] == 2.0
    assert timings([first, second])["speedup_estimate"] == 1.25
    for unknown in (
        Stats(tokens=41, decode_seconds=2.0),
        Stats(tokens=3, decode_seconds=1.0, plain_seconds=1.0),
    ):
        assert "speedup_estimate" not in timings([first, unknown])
    assert "speedup_estimate" not in timings([])


def test_plain_decoding_is_known_where_it_was_measured_or_seen():
    assumed = CostTable({1: 1.0, 4: 2.0}, certainty={1: 0.0, 4: 0.0})
    assert not assumed.knows_plain
    for _ in range(PLAIN_PASSES):
        assert not assumed.knows_plain
        assumed.observe(1, 0, 1.3)
    assert assumed.knows_plain
    assert CostTable({1: 1.0, 4: 2.0}, certainty={1: 0.3, 4: 0.0}).knows_plain
    assert not CostTable({1: 1.0, 4: 2.0}, certainty={1: 0.0, 4: 1.0}).knows_plain


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
