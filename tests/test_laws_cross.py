"""Law: a draft of another vocabulary leaves the output the target's own, whatever passes between the two."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedPlan
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import ChainDrafter, Drafter, NgramDrafter, NoDrafter
from localspec.decoding.manners import RETOLD, SHARED, Manners
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule, _BlockRound, _RejectionRound

from .crosskit import LetterVocabulary, between, cross_drafter
from .fake_options import CASES, V
from .fakes import FakeContext, generate, random_model
from .joint import THRESHOLD, p_value
from .loop_joint import answers, case_joint, distance, loop_joint
from .mutation import planted

K = 2
LENGTH = K + 2
ROUNDING, VISIBLE = 1e-9, 1e-3
LAW_TARGET = random_model(V, seed=11, scale=1.2)
FEW = between(LetterVocabulary([b"a", b"b", b"ab"]), LetterVocabulary([b"b", b"a", b"c", b"ba", b"abb"]))
"""For the laws: two of the target's three tokens are the draft's too."""
FEW_DRAFT = random_model(5, seed=12, scale=1.2)
ROUNDS = {"rejection": _RejectionRound, "block": _BlockRound}
MANNERS = (SHARED, RETOLD, None)

LETTERS = [bytes((letter,)) for letter in b"abc \n"]
OURS = LetterVocabulary(
    [*LETTERS, b"ab", b"ca", b" b", b"\xc3", b"\xa4", b"<end>", b"<only>"], control=(10, 11)
)
THEIRS = LetterVocabulary(
    [b"<end>", b" b", *reversed(LETTERS), b"bc", b" a", "ä".encode(), b"\xc3", b"\xa4"], (0,)
)
MANY = between(OURS, THEIRS)
N, M = len(OURS.texts), len(THEIRS.texts)
TARGET = random_model(N, seed=1)
OTHER = random_model(M, seed=2)
EOG = frozenset([10])
GREEDY = SamplingParams(temperature=0, max_tokens=40)


def mapped(prefix: tuple[int, ...]) -> np.ndarray:
    """A draft that knows the target's mind where their tokens are the same."""
    text = THEIRS.text(prefix)
    ids = OURS.tokenize(text.decode("latin-1"), parse_special=False) or [0]
    row = TARGET(tuple(ids))
    own = np.full(M, row.min(), dtype=np.float32)
    for token, its in MANY.shared.items():
        own[token] = row[its]
    return own


@cache
def expected(name: str) -> dict[tuple[int, ...], float]:
    return case_joint(LAW_TARGET, CASES[name], LENGTH)


def drafter_of(manner: str | None, name: str = "temperature 2") -> Drafter:
    return cross_drafter(FEW_DRAFT, FEW, V, manner=manner, eog=CASES[name].eog)


def error(name: str, rule: str, manner: str | None) -> float:
    joint = loop_joint(
        LAW_TARGET,
        lambda: drafter_of(manner, name),
        CASES[name],
        ROUNDS[rule],
        num_draft_tokens=K,
        length=LENGTH,
    )
    assert sum(joint.values()) == pytest.approx(1)
    return distance(joint, expected(name))


@pytest.mark.parametrize("manner", [SHARED, RETOLD])
@pytest.mark.parametrize("rule", list(ROUNDS))
@pytest.mark.parametrize("name", list(CASES))
def test_the_loop_has_the_targets_distribution(name: str, rule: str, manner: str) -> None:
    assert error(name, rule, manner) < ROUNDING


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule])
def test_whole_answers_have_it_where_the_manner_goes_by_what_stood_before(make_rule: type) -> None:
    case = CASES["temperature 2"]
    texts = answers(
        LAW_TARGET, drafter_of(None), case, make_rule, num_draft_tokens=1, length=LENGTH, runs=3000
    )
    assert p_value(expected("temperature 2"), Counter(texts)) > THRESHOLD


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("name", ["temperature 2", "repeat_penalty", "processors", "ends"])
def test_coupled_texts_ignore_the_draft(name: str, manner: str | None) -> None:
    def texts(drafter: Drafter, runs: int) -> list[tuple[int, ...]]:
        return answers(
            LAW_TARGET, drafter, CASES[name], CoupledRule, num_draft_tokens=K, length=LENGTH, runs=runs
        )

    assert texts(drafter_of(manner, name), 200) == texts(NoDrafter(), 200)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        # q is not what the token was drawn from.
        (
            "CrossDrafter._shared",
            "probs.append(draft_probs)",
            "probs.append(Distribution.normalised(draft_probs.tokens, draft_probs.probs**2))",
        ),
        # Ids leave as they are the draft's own: what was drawn is then not what is judged.
        ("CrossDrafter._shared", "tokens.append(token)", "tokens.append(self._to_own[token])"),
        # Whether a token is proposed depends on which one it is.
        (
            "CrossDrafter._shared",
            "token = round_.draw(draft_probs, len(sequence) + len(tokens))",
            "token = round_.draw(draft_probs, len(sequence) + len(tokens))\n        if token == 1: break",
        ),
    ],
)  # fmt: skip
def test_a_planted_fault_is_seen(function: str, right: str, wrong: str) -> None:
    assert error("temperature 2", "rejection", SHARED) < ROUNDING
    with planted("localspec.decoding.cross_drafter", function, right, wrong):
        drafter = cross_drafter(FEW_DRAFT, FEW, V, manner=SHARED)
        joint = loop_joint(
            LAW_TARGET, lambda: drafter, CASES["temperature 2"], _RejectionRound, num_draft_tokens=K, length=LENGTH
        )  # fmt: skip
        seen = distance(joint, expected("temperature 2"))
    assert seen > VISIBLE


@pytest.fixture(scope="module")
def plain() -> list[int]:
    sequence = [0, 1]
    for _ in range(40):
        sequence.append(int(TARGET(tuple(sequence)).argmax()))
    return sequence[2:]


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("num_draft_tokens", range(9))
def test_greedy_equals_plain(num_draft_tokens: int, manner: str | None, plain: list[int]) -> None:
    for model in (OTHER, mapped):
        tokens, steps = generate(
            TARGET, cross_drafter(model, MANY, N, manner=manner), n_vocab=N, params=GREEDY,
            num_draft_tokens=num_draft_tokens,
        )  # fmt: skip
        assert tokens == plain
        assert bool(sum(step.num_drafted for step in steps)) == bool(num_draft_tokens)


@pytest.mark.parametrize("manner", MANNERS)
def test_greedy_equals_plain_behind_copied_text_and_with_measured_costs(
    manner: str | None, plain: list[int]
) -> None:
    costs = [CostTable({1: 0.01, 2: 0.011, 4: 0.012, 8: 0.014, 32: 0.03}), CostTable({1: 1e-4, 32: 1e-3})]
    drafted = 0
    for controller in (None, AdaptiveController(*costs)):
        chain = ChainDrafter([NgramDrafter(1, 2), cross_drafter(OTHER, MANY, N, manner=manner)])
        tokens, steps = generate(TARGET, chain, n_vocab=N, params=GREEDY, controller=controller)
        assert tokens == plain
        drafted += sum(step.num_drafted for step in steps)
    assert drafted


@pytest.mark.parametrize("manner", MANNERS)
def test_a_hundred_random_conversations_are_those_of_a_fresh_engine(manner: str | None) -> None:
    """Turns, undo, half-done rounds and refused drafts leave nothing behind that another answer could see."""
    rng = random.Random(5)
    drafter = cross_drafter(OTHER, MANY, N, manner=manner, eog=EOG, n_ctx=200)
    session = Session(FakeContext(TARGET, N, n_ctx=200))
    history: list[int] = [0]
    for _ in range(100):
        if rng.random() < 0.2:
            history = history[: rng.randrange(1, len(history) + 1)]
        elif rng.random() < 0.1 or len(history) > 120:
            history = [rng.randrange(N)]
        history += [rng.randrange(N) for _ in range(rng.randrange(1, 9))]
        options = {"num_draft_tokens": rng.randrange(9), "seed": rng.randrange(99)}
        params = SamplingParams(
            temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randrange(1, 16), repeat_penalty=1.1
        )
        make_rule = rng.choice([RejectionRule, BlockRule, CoupledRule])
        given = {"n_vocab": N, "params": params, "eog": EOG, "make_rule": make_rule, "prompt": list(history)}
        if rng.random() < 0.2:  # a pass of the draft that fails in mid-answer
            drafter.session.context.fail_with = RuntimeError("stopped")  # type: ignore[attr-defined]
            with pytest.raises(RuntimeError):
                generate(TARGET, drafter, session=session, **{**given, "params": GREEDY}, num_draft_tokens=3)
                raise RuntimeError("nothing was drafted")
            drafter.session.context.fail_with = None  # type: ignore[attr-defined]
        again, _ = generate(TARGET, drafter, session=session, **given, **options)  # type: ignore[arg-type]
        fresh, _ = generate(  # type: ignore[arg-type]
            TARGET, cross_drafter(OTHER, MANY, N, manner=manner, eog=EOG, n_ctx=200), n_ctx=200, **given, **options
        )  # fmt: skip
        assert again == fresh
        history += again


@pytest.mark.parametrize("manner", MANNERS)
def test_a_draft_with_a_shorter_context_ends_and_says_so(manner: str | None, plain: list[int]) -> None:
    drafter = cross_drafter(OTHER, MANY, N, manner=manner, n_ctx=12)
    tokens, steps = generate(TARGET, drafter, n_vocab=N, params=GREEDY)
    assert tokens == plain
    assert drafter.stop is not None and "12 tokens of its own" in str(drafter.stop)
    assert steps[1].num_drafted and not steps[-2].num_drafted


def test_the_manner_whose_tokens_stand_is_kept_to_and_the_other_is_tried_now_and_then() -> None:
    for good in (SHARED, RETOLD):
        manners, used = Manners(0.9), Counter()
        for _ in range(200):
            manner = manners.next()
            used[manner] += 1
            manners.used(manner, 3)
            manners.learn(3 if manner == good else 0)
        assert used[good] > 180 and 200 - used[good] > 8
    assert {Manners(0.0).next() for _ in range(9)} == {RETOLD}


def test_nothing_of_a_draft_that_may_not_come_is_drawn() -> None:
    """Every drafted token is one that both have, or text spelled by the target: never the draft's own id."""
    drawn: set[int] = set()

    class Watching:
        def __init__(self, drafter):
            self.drafter = drafter

        def __getattr__(self, name):
            return getattr(self.drafter, name)

        def propose(self, sequence, plan, sampler, round_):
            draft = self.drafter.propose(sequence, plan, sampler, round_)
            drawn.update(draft.tokens)
            return draft

    hot = SamplingParams(temperature=2.0, max_tokens=60, top_k=0, top_p=1.0, min_p=0.0)
    for seed in range(10):
        generate(
            TARGET, Watching(cross_drafter(OTHER, MANY, N, manner=SHARED)), n_vocab=N, params=hot, seed=seed
        )
    assert drawn <= set(MANY.shared.values()) and len(drawn) > 5


def scripted(text: bytes, letters: LetterVocabulary, end: int | None = None):
    """A draft that says this text behind one letter, id by id, and then `end`."""
    ids = [*letters.tokenize(text.decode(), parse_special=False), *([] if end is None else [end])]

    def model(prefix: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(len(letters.texts), dtype=np.float32)
        row[ids[min(len(prefix) - 1, len(ids) - 1)]] = 9.0
        return row

    return model


@pytest.mark.parametrize(
    ("said", "end", "limit", "told"),
    [
        ("ab ab", None, 2, [2, 3]),  # what "a" alone would be is not said before more text follows
        ("ab ab", None, 8, [2, 3, 2]),  # the last token is left out: "b" goes on and on behind it
        ("ab ab", 3, 8, [2, 3, 2, 4]),  # and is there where the draft ends, with the end that both have
        ("ab ab", 4, 8, [2, 3, 2]),  # but without one that the target does not have
        ("ab ab", 3, 3, [2, 3, 2]),
    ],
)
def test_drafted_text_is_spelled_by_the_target_but_for_what_may_still_change(
    said: str, end: int | None, limit: int, told: list[int]
) -> None:
    ours = LetterVocabulary(
        [b"a", b"b", b"ab", b" ", b"<end>", *(b"b" * n for n in range(2, 40))], control=(4,)
    )
    theirs = LetterVocabulary([b"a", b"b", b" ", b"<end>", b"<other>"], control=(3, 4))
    n_ours = len(ours.texts)
    drafter = cross_drafter(
        scripted(said.encode(), theirs, end), between(ours, theirs), n_ours, manner=RETOLD
    )
    drafter.begin([1])
    draft = drafter.propose([1], FixedPlan(limit), Sampler(GREEDY), RejectionRule(0).round(1))
    assert list(draft.tokens) == told and draft.probs is None
    assert len(drafter.session.context.passes) < 20, "a token that never ends is given up"  # type: ignore[attr-defined]


def test_cells_of_refused_text_that_stay_are_seen() -> None:
    for right, wrong in (("if end > size:", "if end > size + 1:"), ("size += sum", "size += 1 + sum")):
        with (
            planted("localspec.decoding.cross_drafter", "CrossDrafter.rollback", right, wrong),
            pytest.raises(AssertionError),
        ):
            generate(TARGET, cross_drafter(OTHER, MANY, N, manner=SHARED), n_vocab=N, params=GREEDY)


def test_a_draft_that_stands_is_not_read_again() -> None:
    """Nothing but the last drafted token and the bonus is new to the draft where all of its tokens stand."""
    letters = LetterVocabulary([bytes((letter,)) for letter in range(97, 109)])
    model, moved = random_model(12, seed=1), between(letters, LetterVocabulary(letters.texts[::-1]))
    drafter = cross_drafter(
        lambda prefix: model(tuple(11 - token for token in prefix))[::-1].copy(), moved, 12, manner=SHARED
    )
    _, steps = generate(model, drafter, n_vocab=12, params=GREEDY)
    assert sum(step.num_accepted for step in steps) == sum(step.num_drafted for step in steps) > 20
    passes = drafter.session.context.passes  # type: ignore[attr-defined]
    assert set(passes) <= {1, 2, 3} and passes.count(3) <= 1
