"""Law: passes padded to a least width give the same tokens, and what pads them never stays."""

from __future__ import annotations

import pytest

from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import NgramDrafter, NoDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule
from localspec.errors import DecodeCancelled

from .fakes import FakeContext, RefusingContext, blended, generate, model_drafter, random_model
from .mutation import planted
from .simulation import CURVES, World

V = 12
TARGET = random_model(V, seed=1)
OTHER = random_model(V, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
DRAFTERS = {
    "perfect": lambda: model_drafter(TARGET, V),
    "mediocre": lambda: model_drafter(blended(TARGET, OTHER, 0.45), V),
    "ngram": lambda: NgramDrafter(1, 3),
    "none": NoDrafter,
}


def padded(min_width, drafter="mediocre", context=None, **arguments):
    """Tokens, steps and the widths of all passes of the target."""
    sizes = {name: arguments.pop(name) for name in ("n_ctx", "n_batch") if name in arguments}
    context = context or FakeContext(TARGET, V, spare=min_width - 1, **sizes)
    arguments = {"params": GREEDY, **arguments}
    session = Session(context, min_width=min_width)
    tokens, steps = generate(TARGET, DRAFTERS[drafter](), n_vocab=V, session=session, **arguments)
    return tokens, steps, context.passes


@pytest.fixture(scope="module")
def plain():
    return generate(TARGET, NoDrafter(), n_vocab=V, params=GREEDY)[0]


@pytest.mark.parametrize("drafter", list(DRAFTERS))
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 5])
@pytest.mark.parametrize("min_width", [2, 3])
def test_greedy_equals_plain(min_width, num_draft_tokens, drafter, plain):
    """`generate` compares cells and tokens after every round."""
    tokens, steps, passes = padded(min_width, drafter, num_draft_tokens=num_draft_tokens)
    assert tokens == plain
    assert min(passes) == min_width
    assert passes == [step.width for step in steps]
    assert all(step.width == max(min_width, 1 + step.num_drafted) for step in steps[1:])


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule, CoupledRule])
@pytest.mark.parametrize("min_width", [2, 3])
def test_sampled_texts_are_the_same_too(min_width, make_rule):
    params = SamplingParams(temperature=1.2, repeat_penalty=1.2, max_tokens=40)
    for seed in range(5):
        usual, _, _ = padded(1, params=params, make_rule=make_rule, seed=seed)
        assert padded(min_width, params=params, make_rule=make_rule, seed=seed)[0] == usual


@pytest.mark.parametrize("drafter", ["perfect", "mediocre", "none"])
@pytest.mark.parametrize("n_ctx", [4, 5, 7, 8])
@pytest.mark.parametrize("min_width", [2, 3])
def test_the_last_cells_of_a_context_need_the_spare_ones(min_width, n_ctx, drafter, plain):
    tokens, steps, passes = padded(min_width, drafter, n_ctx=n_ctx)
    assert tokens == plain[: n_ctx - 2 + 1]
    assert steps[-1].finish_reason == "length"
    assert min(passes) == min_width


def test_without_spare_cells_the_fake_context_refuses():
    with pytest.raises(AssertionError, match="more cells than the context has"):
        padded(2, context=FakeContext(TARGET, V, n_ctx=6))


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 9, 10, 11])
@pytest.mark.parametrize("min_width", [2, 3])
def test_prompts_in_pieces_of_which_the_last_is_narrow(min_width, length):
    prompt = [(3 * index + 1) % V for index in range(length)]
    expected, _ = generate(TARGET, NoDrafter(), n_vocab=V, params=GREEDY, prompt=prompt)
    tokens, steps, passes = padded(min_width, prompt=prompt, n_batch=5)
    assert tokens == expected
    assert min(passes) >= min_width
    prefilled = [step.num_prefilled for step in steps if step.num_prefilled]
    assert sum(prefilled) == (length if length % 5 != 1 else length - 1)  # one token is no prefill


@pytest.mark.parametrize("min_width", [2, 3])
def test_an_end_in_a_padded_pass_and_the_next_answer(min_width, plain):
    session = Session(FakeContext(TARGET, V, spare=2), min_width=min_width)
    drafter = DRAFTERS["mediocre"]()
    for end in plain[4:12]:
        tokens, _ = generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session, eog=frozenset([end]))
        assert tokens == plain[: plain.index(end) + 1]
        assert generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session)[0] == plain


def test_a_failed_padded_pass_heals(plain):
    context = FakeContext(TARGET, V, spare=1)
    session = Session(context, min_width=2)
    drafter = DRAFTERS["mediocre"]()
    context.fail_with = DecodeCancelled("stopped", code=2)
    with pytest.raises(DecodeCancelled):
        generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session)
    context.cells.setdefault(0, []).extend([9, 9, 9])  # written before it failed
    assert generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session)[0] == plain


def test_refused_rollbacks_of_padding_are_honoured(plain):
    """What pads is removed by reading everything again."""
    assert padded(2, context=RefusingContext(TARGET, V, spare=1))[0] == plain


def test_padding_for_speed_goes_beyond_the_least_width():
    """A controller that pads to a cheaper width, on a session that pads to a least one."""
    world = World(CURVES["Q4_0"], [True] * 200, [0.9] * 200)
    usual = world.run(60)
    steps = World(CURVES["Q4_0"], [True] * 200, [0.9] * 200, min_width=2).run(60)
    assert min(step.width for step in steps) == 2
    assert max(step.width for step in steps) > 3
    texts = [[token for step in run for token in step.tokens] for run in (usual, steps)]
    assert texts[0] == texts[1]


class AsWideAsAllowed(FixedLength):
    def width(self, width, limit, length):
        return max(width, limit)


@pytest.mark.parametrize("drafter", ["mediocre", "none"])
@pytest.mark.parametrize("n_batch", [4, 32])
@pytest.mark.parametrize("n_ctx", [5, 8, 21])
def test_padding_for_speed_ends_where_the_batch_or_the_context_does(n_ctx, n_batch, drafter, plain):
    """The fake context refuses a pass beyond either."""
    context = FakeContext(TARGET, V, n_ctx=n_ctx, n_batch=n_batch)
    tokens, steps = generate(
        TARGET, DRAFTERS[drafter](), n_vocab=V, params=GREEDY, controller=AsWideAsAllowed(2),
        session=Session(context),
    )  # fmt: skip
    assert tokens == plain[: n_ctx - 1] and steps[-1].finish_reason == "length"
    assert max(context.passes) == min(n_batch, n_ctx - 2)


def leaves_only_what_was_asked_for(min_width):
    """Whether a pass leaves the tokens asked for, and their rows are the right ones."""
    session = Session(FakeContext(TARGET, V), min_width=min_width)
    texts = ([1], [2, 3], [4], [5, 6, 7, 8])
    so_far: list[int] = []
    for text in texts:
        rows = session.forward(text)
        so_far += text
        if not (
            session.tokens == session.context.cells[0] == so_far and (rows[0] == TARGET(tuple(so_far))).all()
        ):
            return False
    return True


@pytest.mark.parametrize("min_width", [1, 2, 3, 8])
def test_what_pads_a_pass_is_gone_with_it(min_width):
    assert leaves_only_what_was_asked_for(min_width)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if span.num_padding:", "if False:"),
        ("len(self.tokens) - span.num_padding", "len(self.tokens) - span.num_padding + 1"),
        ("len(self.tokens) - span.num_padding", "len(self.tokens) - span.num_padding - 1"),
    ],
)
def test_padding_that_stays_is_seen(right, wrong):
    with planted("localspec.decoding.session", "Session.extend", right, wrong):
        assert not leaves_only_what_was_asked_for(2)
