"""What each accept rule keeps: exact against enumeration of every draft, and recorded where it says it was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec import LLM
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.noise import Noise, perturbed
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import Distribution, distribution
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, RejectionRule, acceptance, block, rejection
from localspec.errors import InvalidRequest
from localspec.measure.acceptance import Drafted, Recorder, record
from localspec.measure.acceptance_report import figures, report
from localspec.measure.kept import Kept, agreement, agreement_on, best, block_length, kept, overlap
from localspec.measure.prompts import Prompt

from .fakes import FakeContext, blended, random_model
from .test_verify import V, random_tree
from .tinygguf import write_llama

WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

# The numbers of one draft


def drafts(tree: dict[tuple[int, ...], Distribution], length: int) -> Iterator[tuple[Draft, Fraction]]:
    """Every draft of `length` tokens, and its probability."""
    for tokens in itertools.product(range(V), repeat=length):
        rows = tuple(tree[tokens[:index]] for index in range(length))
        chance = Fraction(1)
        for row, token in zip(rows, tokens, strict=True):
            chance *= row.prob(token)
        if chance > 0:
            yield Draft(tokens, rows), chance


def rows_of(tree: dict[tuple[int, ...], Distribution], draft: Draft) -> list[Distribution]:
    return [tree[draft.tokens[:index]] for index in range(len(draft.tokens) + 1)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("length", [1, 2, 4])
def test_over_all_drafts_the_expectations_are_those_of_the_rules(seed: int, length: int) -> None:
    target = random_tree(seed, length, zeros=seed % 2 == 0)
    source = random_tree(seed + 1000, length, zeros=seed % 3 == 0)
    by_rejection = by_block = drawn = conditional_rejection = conditional_block = Fraction(0)
    for draft, chance in drafts(source, length):
        rows = rows_of(target, draft)
        found = kept(rows, draft)
        conditional_rejection += chance * sum(found.rejection)
        conditional_block += chance * sum(found.block)
        drawn += chance * found.block_drawn
        standing = Fraction(1)
        for index, token in enumerate(draft.tokens):
            standing *= acceptance(rows[index], draft.distribution(index), token)
            by_rejection += chance * standing
        by_block += chance * block_by_enumeration(rows, draft)
        assert sum(found.block) >= sum(found.rejection) >= sum(found.coupled)
    assert conditional_rejection == by_rejection
    assert conditional_block == drawn == by_block >= by_rejection
    if length == 1:
        assert by_block == by_rejection


def block_by_enumeration(rows: list[Distribution], draft: Draft) -> Fraction:
    """E[tau] from the rule itself: every outcome of its draws, found by forcing each of them both ways."""
    expected = Fraction(0)

    class Forced:
        """Answers the rule's questions `uniform < h` as told, and multiplies up the chance of those answers."""

        def __init__(self, answers: tuple[bool, ...]) -> None:
            self.answers, self.chance, self.asked = list(answers), Fraction(1), 0

        def random(self) -> Any:
            return Coin(self)

    class Coin:
        def __init__(self, forced: Forced) -> None:
            self.forced = forced

        def __lt__(self, threshold: Any) -> bool:
            yes = self.forced.answers[self.forced.asked]
            self.forced.asked += 1
            self.forced.chance *= threshold if yes else 1 - threshold
            return yes

        def __mul__(self, other: Any) -> float:
            return 0.5 * float(other)  # the token after it, which does not matter here

    for stops_at in range(len(draft.tokens) + 1):
        forced = Forced((False,) * (stops_at) + (True,))
        try:
            verdict = block(rows, draft, forced)  # type: ignore[arg-type]
        except IndexError:
            continue
        if forced.asked == stops_at + 1:
            expected += forced.chance * verdict.num_accepted
    return expected


@pytest.mark.parametrize("seed", range(30))
def test_agreement_is_exact(seed: int) -> None:
    """Against the sum of its terms; and each token's own chance adds up to the whole."""
    p, q = random_tree(seed, 0, seed % 2 == 0)[()], random_tree(seed + 50, 0, seed % 3 == 0)[()]
    terms = {}
    for i in range(V):
        if p.prob(i) > 0 and q.prob(i) > 0:
            terms[i] = 1 / sum(max(p.prob(j) / p.prob(i), q.prob(j) / q.prob(i)) for j in range(V))
    assert agreement(p, q) == sum(terms.values())
    for token, drawn in zip(q.tokens, q.probs, strict=True):
        assert drawn * agreement_on(p, q, int(token)) == terms.get(int(token), 0)
    assert agreement(p, q) <= overlap(p, q)
    assert agreement(p, q) >= overlap(p, q) / (2 - overlap(p, q))  # Daliri et al., 2408.07978


def test_agreement_is_what_the_coupled_draws_do() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2, 40)).astype(np.float32) * 2
    params = SamplingParams(temperature=1.2, top_k=25, top_p=1.0, min_p=0.0)
    p, q = (distribution(row, params) for row in rows)
    same = [perturbed(p, Noise(seed), 7) == perturbed(q, Noise(seed), 7) for seed in range(5_000)]
    assert np.mean(same) == pytest.approx(agreement(p, q), abs=0.028)  # 4 standard deviations


def test_equal_and_disjoint_distributions() -> None:
    p = Distribution(np.array([1, 3]), np.array([0.25, 0.75]))
    other = Distribution(np.array([0, 2]), np.array([0.5, 0.5]))
    assert agreement(p, p) == pytest.approx(1) and overlap(p, p) == 1
    assert agreement(p, other) == overlap(p, other) == agreement_on(p, other, 2) == 0
    assert best(p) == 3 and best(other) == 0


def test_a_token_that_was_not_drawn_stands_with_the_targets_chance() -> None:
    p = Distribution(np.array([1, 3]), np.array([0.25, 0.75]))
    found = kept([p, p, p], Draft((3, 1)))
    assert found.rejection == found.block == found.coupled == (0.75, 0.75 * 0.25)


def test_behind_a_token_that_the_target_rules_out_nothing_stands() -> None:
    p = Distribution(np.array([1, 3]), np.array([0.25, 0.75]))
    q = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    found = kept([p, p, p], Draft((0, 1), (q, q)))
    assert found.overlap == (0.25, 0.25)
    assert found.rejection == found.block == (0.25, 0.0)
    assert found.block_drawn == 0 and found.coupled[1] == 0


def test_rows_of_floats_agree_with_trials_of_the_rules() -> None:
    """Floats, as recorded: rejection and block on one draft of 3 tokens, against 2000 verdicts each."""
    rng = np.random.default_rng(8)
    rows = [distribution(row.astype(np.float32), WARM) for row in rng.normal(size=(4, 500))]
    source = [distribution(row.astype(np.float32), WARM) for row in rng.normal(size=(3, 500))]
    draft = Draft(tuple(int(row.tokens[np.argmax(row.probs)]) for row in source), tuple(source))
    uniforms = np.random.default_rng(1)
    lengths = [block(rows, draft, uniforms).num_accepted for _ in range(2000)]
    assert np.mean(lengths) == pytest.approx(kept(rows, draft).block_drawn, abs=0.1)
    standing = np.cumprod([acceptance(rows[i], source[i], draft.tokens[i]) for i in range(3)])
    lengths = [rejection(rows, draft, uniforms).num_accepted for _ in range(2000)]
    assert np.mean(lengths) == pytest.approx(standing.sum(), abs=0.1)
    assert kept(rows, draft).overlap[0] == pytest.approx(np.minimum(rows[0].probs, source[0].probs).sum())


# Recording


class Recorded(FakeContext):
    """Writes down the cells behind which rows were asked for."""

    def __init__(self, *arguments: Any, **sizes: int) -> None:
        super().__init__(*arguments, **sizes)
        self.asked: list[tuple[int, ...]] = []

    def decode(self, spans):  # type: ignore[no-untyped-def]
        rows = super().decode(spans)
        if spans[0].num_logits:
            self.asked.append(tuple(self.cells[0]))
        return rows


N = 12
TARGET = random_model(N, seed=1)
DRAFT = blended(TARGET, random_model(N, seed=2), 0.5)
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, N, 30)]


def fake_engine(n_ctx: int = 64, draft_ctx: int = 64, draft_vocab: int = N) -> Any:
    target = Recorded(TARGET, N, n_ctx=n_ctx)
    draft = Recorded(lambda prefix: DRAFT(prefix)[:draft_vocab], draft_vocab, n_ctx=draft_ctx, n_outputs=1)
    engine = SimpleNamespace(
        target=SimpleNamespace(), draft=draft, session=Session(target), no_draft_reason=""
    )
    engine.vocab = SimpleNamespace(eog_tokens=frozenset())
    engine.target = SimpleNamespace(n_ctx=n_ctx, n_vocab=N, n_outputs=32, n_batch=32)
    engine.context = target
    engine.model_drafter = lambda session: ModelDrafter(session, N)
    return engine


def expected_place(place: int, length: int, seed: int, params: SamplingParams = WARM) -> Drafted:
    """By calling both models on prefixes."""
    uniforms = RejectionRule(seed).round(place)
    prefix, rows, probs = list(TEXT[:place]), [], []
    for index in range(length):
        rows.append(distribution(TARGET(tuple(prefix)), params, prefix))
        probs.append(distribution(DRAFT(tuple(prefix)), params, prefix))
        prefix.append(uniforms.draw(probs[-1], place + index))
    rows.append(distribution(TARGET(tuple(prefix)), params, prefix))
    chances = tuple(float(row.prob(best(q))) for row, q in zip(rows, probs, strict=False))
    greedy, together, product = list(TEXT[:place]), [], 1.0
    for _ in range(length):
        token = best(distribution(DRAFT(tuple(greedy)), params, greedy))
        product *= float(distribution(TARGET(tuple(greedy)), params, greedy).prob(token))
        together.append(product)
        greedy.append(token)
    return Drafted(kept(rows, Draft(tuple(prefix[place:]), tuple(probs))), chances, tuple(together))


def numbers(place: Drafted) -> np.ndarray:
    drawn = place.drawn
    parts = (drawn.overlap, drawn.agreement, drawn.rejection, drawn.block, drawn.coupled, place.best)
    return np.array([*itertools.chain(*parts, place.best_kept), drawn.block_drawn], dtype=float)


@pytest.mark.parametrize("params", [WARM, SamplingParams(temperature=0.7, top_k=5, repeat_penalty=1.3)])
@pytest.mark.parametrize("length", [1, 3])
def test_every_place_is_behind_the_true_text(params: SamplingParams, length: int) -> None:
    engine = fake_engine()
    seeded = SamplingParams(**{**vars(params), "seed": 5})
    found = list(record(engine, seeded, TEXT[:10], TEXT[10:], length))
    places = list(range(11, 30, length + 1))[::-1]
    assert len(found) == len(places)
    for place, drafted in zip(places, found, strict=True):
        np.testing.assert_allclose(numbers(drafted), numbers(expected_place(place, length, 5, params)))
    # One pass a draft, with the text and the draft in the cells; the text is read once and never again.
    assert [len(cells) - length for cells in engine.context.asked[::2]] == places
    assert all(
        cells[: len(cells) - length] == tuple(TEXT[: len(cells) - length]) for cells in engine.context.asked
    )
    assert max(engine.context.passes[1:]) == length + 1
    assert set(engine.draft.passes[1:]) == {1}


def test_where_contexts_end_drafts_are_shorter_or_absent() -> None:
    lengths = [len(place.best) for place in record(fake_engine(n_ctx=28), WARM, TEXT[:10], TEXT[10:28], 3)]
    assert lengths == [1, 3, 3, 3, 3]  # places 27, 23, 19, 15, 11
    few = list(record(fake_engine(draft_ctx=16), WARM, TEXT[:10], TEXT[10:], 3))
    assert [len(place.best) for place in few] == [2, 3]  # places 15 and 11
    assert list(record(fake_engine(), WARM, TEXT[:10], TEXT[10:11], 3)) == []


def test_ids_that_the_draft_lacks_end_the_text_it_can_read() -> None:
    first = next(place for place in range(12, 30) if TEXT[place] == N - 1)
    found = list(record(fake_engine(draft_vocab=N - 1), WARM, TEXT[:10], TEXT[10:], 1))
    assert len(found) == len(range(11, first + 1, 2))


# Figures


def place(*chances: float) -> Drafted:
    halves = tuple(chance / 2 for chance in chances)
    return Drafted(Kept(chances, halves, halves, chances, halves, block_drawn=1.0), chances, halves)


def test_figures_are_means_with_standard_errors() -> None:
    found = figures([place(0.5, 0.25), place(0.7), place(0.9, 0.75)])
    assert found["places"] == 3
    assert found["acceptance"]["rejection"] == {"mean": 0.7, "error": round(0.2 / 3**0.5, 4)}
    assert found["acceptance"]["coupled"]["mean"] == 0.35
    assert [entry["mean"] for entry in found["by_position"]["argmax"]] == [0.7, 0.5]
    assert found["tokens_per_round"]["block"]["mean"] == round(1 + (0.75 + 0.7 + 1.65) / 3, 4)
    assert found["block_drawn"] == {"mean": 2.0, "error": 0.0}
    assert found["block_gain"]["mean"] == round((0.375 + 0.35 + 0.825) / 3, 4)


def test_few_places_have_no_error_and_none_no_mean() -> None:
    assert figures([place(0.5)])["acceptance"]["rejection"] == {"mean": 0.5, "error": None}
    none = figures([])
    assert none["acceptance"]["argmax"] == {"mean": None, "error": None}
    assert none["by_position"]["rejection"] == [] and none["places"] == 0


def test_a_report_joins_the_prompts_of_a_scenario() -> None:
    result = report("a + b", {"seed": 3}, [("code", [place(0.5)]), ("talk", []), ("code", [place(0.7)])])
    assert (result["pair"], result["seed"]) == ("a + b", 3)
    assert {name: entry["places"] for name, entry in result["scenarios"].items()} == {"code": 2, "talk": 0}
    assert result["all"]["places"] == 2


# On models


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1)
    draft = write_llama(folder / "draft.gguf", seed=1, noise=0.3)
    with LLM.from_files(target, draft, n_ctx=512, cache_type_v="bf16", threads=1, draft_tokens=3) as llm:
        yield llm


PARAMS = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=4, max_tokens=21)
PROMPTS = [Prompt("talk", ("one the other", "then the next")), Prompt("code", ("a b c",))]


def test_recording_a_pair_repeats_with_its_seed_and_leaves_it_usable(llm: LLM) -> None:
    before = llm.generate("a b c", temperature=0, max_tokens=8).ids
    told: list[tuple[str, float]] = []
    first = list(Recorder(llm, PARAMS, 4).run(PROMPTS, lambda label, share: told.append((label, share))))
    assert told == [("talk: prompt 1 of 2", 0.0), ("code: prompt 2 of 2", 0.5)]
    assert [(name, len(places)) for name, places in first] == [("talk", 8), ("code", 4)]
    again = list(Recorder(llm, PARAMS, 4).run(PROMPTS))
    for (_, left), (_, right) in zip(first, again, strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(numbers(one), numbers(other))
    assert llm.generate("a b c", temperature=0, max_tokens=8).ids == before


def test_on_every_recorded_draft_the_rules_are_in_order(llm: LLM) -> None:
    places = [place for _, found in Recorder(llm, PARAMS, 4).run(PROMPTS) for place in found]
    for drawn in (place.drawn for place in places):
        for block_, rejection_, coupled_ in zip(drawn.block, drawn.rejection, drawn.coupled, strict=True):
            assert 1 + 1e-9 >= block_ >= rejection_ - 1e-9 and rejection_ >= coupled_ - 1e-9 >= -1e-9
    assert 0.2 < figures(places)["acceptance"]["rejection"]["mean"] < 0.99
    assert figures(places)["block_gain"]["mean"] > 0


def test_greedy_rules_all_keep_the_same(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=21, seed=1)
    for _, places in Recorder(llm, greedy, 3).run(PROMPTS):
        for drafted in places:
            assert (
                drafted.drawn.rejection == drafted.drawn.block == drafted.drawn.coupled == drafted.best_kept
            )
            assert set(drafted.best) <= {0.0, 1.0}


def test_a_draft_too_long_or_no_draft_model_is_refused(llm: LLM) -> None:
    for length in (0, 32):
        with pytest.raises(InvalidRequest, match=f"{length} drafted tokens"):
            Recorder(llm, PARAMS, length)
    file = llm.engine.target.weights.path
    complaint = pytest.raises(InvalidRequest, match="no draft model to record: none was given")
    with LLM.from_files(file, n_ctx=256, threads=1, draft_tokens=0) as alone, complaint:
        Recorder(alone, PARAMS, 2)


def test_block_length_follows_its_formula_by_hand() -> None:
    p = Distribution(np.array([0, 1]), np.array([Fraction(1, 2), Fraction(1, 2)], dtype=object))
    q = Distribution(np.array([0, 1]), np.array([Fraction(3, 4), Fraction(1, 4)], dtype=object))
    draft = Draft((0, 1), (q, q))
    # w = 1, 2/3, 1; Z_1 = max(1/3 - 3/4, 0) + (1/3 - 1/4) = 1/12; h_1 = (1/12) / (1/12 + 1/3) = 1/5; h_2 = 1.
    assert kept([p, p, p], draft).block_drawn == 2
    # w = 1, 2/3, 4/9: h_2 = 4/9, so 2 * 4/9 + 1 * 1/5 * 5/9 = 1.
    twice = Draft((0, 0), (q, q))
    assert block_length([p, p, p], twice, [1, Fraction(2, 3), Fraction(4, 9)]) == 1
