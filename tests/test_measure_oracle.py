"""The trace agrees with what the real loop does, and the bound with an exhaustive search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import LLM
from localspec.decoding.costs import CostTable
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import distribution
from localspec.decoding.session import Session
from localspec.measure.oracle import model_runs, oracle_seconds, oracle_speedup, plain_seconds
from localspec.measure.trace import Trace, chances, copied_runs, record

from .fakes import FakeContext, blended, random_model
from .tinygguf import write_llama

V = 8
WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0)


# The bound


def exhaustive(trace: Trace, target: CostTable, draft: CostTable | None, max_width: int) -> float:
    """Try every schedule of every round, one by one."""
    count = len(trace.model)

    def rest(done: int) -> float:
        if done >= count:
            return 0.0
        length = trace.num_prompt + done - 1
        options = [target.time(1, length) + rest(done + 1)]
        for copied in range(trace.copied[done] + 1):
            drafted = 0
            while done + copied + drafted < count and copied + drafted < max_width:
                width = copied + drafted + 1
                if width > 1:
                    passes = min(target.time(w, length) for w in range(width, max_width + 1))
                    seconds = passes + (drafted * draft.time(1, length) if drafted and draft else 0.0)
                    options.append(seconds + rest(done + width))
                if draft is None or not trace.model[done + copied + drafted]:
                    break
                drafted += 1
        return min(options)

    return rest(1)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 7))
    model = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    copied = [draw(st.integers(0, count - position)) for position in range(count)]
    return Trace(draw(st.integers(1, 50)), tuple(model), tuple(copied))


@st.composite
def tables(draw: st.DrawFn, width: int) -> CostTable:
    seconds = {n: draw(st.floats(0.5, 9.0)) for n in range(1, width + 1)}
    return CostTable(seconds, draw(st.floats(0, 0.01)), draw(st.floats(0, 0.01)))


@given(traces(), tables(5), st.none() | tables(1))
def test_the_bound_is_what_an_exhaustive_search_finds(
    trace: Trace, target: CostTable, draft: CostTable | None
) -> None:
    found = oracle_seconds(trace, target, draft, max_width=5)
    assert found == pytest.approx(exhaustive(trace, target, draft, 5))
    assert found <= plain_seconds(trace, target) * (1 + 1e-9)
    assert oracle_speedup([trace, trace], target, draft, 5) >= 1 - 1e-9


def test_the_bound_follows_the_steps_of_the_curve() -> None:
    steps = CostTable({1: 1.0, 2: 3.0, 3: 3.0, 4: 1.5, 8: 2.0})
    standing = Trace(10, (True,) * 9, (0,) * 9)
    # 8 tokens after the first: one round of seven drafted tokens, or two of three where eight rows are dear.
    assert oracle_seconds(standing, steps, CostTable({1: 0.1}), 8) == pytest.approx(7 * 0.1 + 2.0)
    dear = CostTable({1: 1.0, 2: 3.0, 3: 3.0, 4: 1.5, 8: 6.0})
    assert oracle_seconds(standing, dear, CostTable({1: 0.1}), 8) == pytest.approx(6 * 0.1 + 2 * 1.5)
    assert oracle_seconds(Trace(10, (False,) * 9, (8,) * 9), steps, None, 8) == pytest.approx(2.0)
    assert oracle_speedup([], steps, None, 8) == 1.0


def test_runs_count_what_stands_in_a_row() -> None:
    assert model_runs([True, True, False, True]) == [2, 1, 0, 1, 0]
    assert model_runs([]) == [0]


# The trace


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1)
    draft = write_llama(folder / "draft.gguf", seed=1, noise=0.1)
    with LLM.from_files(target, draft, n_ctx=256, cache_type_v="bf16", threads=1, draft_tokens=0) as llm:
        yield llm


@pytest.mark.parametrize("prompt", ["abc", "the one then the other then the"])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_greedy_trace_foretells_every_round_of_a_fixed_length(llm: LLM, prompt: str, length: int) -> None:
    settings = {"temperature": 0, "max_tokens": 60}
    ids = llm.engine.vocab.tokenize(prompt, parse_special=False)
    answer = llm.generate(ids, **settings).ids
    llm.forget()
    runs = model_runs(record(llm.engine, GREEDY, ids, answer).model)
    llm.forget()
    measured = llm.generate(ids, draft_tokens=length, **settings)
    assert measured.ids == answer
    done, rounds, accepted = 1, 1, 0
    while done < len(answer):
        stand = min(length, len(answer) - done - 1, runs[done])
        done, rounds, accepted = done + stand + 1, rounds + 1, accepted + stand
    assert (measured.stats.rounds, measured.stats.accepted) == (rounds, accepted)
    assert 0 < accepted < len(answer) - 1


def test_copied_runs_are_what_the_ngram_drafter_gets_right() -> None:
    #           0  1  2  3  4  5  6  7  8  9 10 11
    sequence = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 7]
    # After 1 2 3 came 4 5 9: two stand. From inside that run on, one fewer each time.
    assert copied_runs(sequence, 7, 31) == (0, 0, 2, 1, 0)
    assert copied_runs(sequence, 7, 1) == (0, 0, 1, 1, 0)
    assert copied_runs(sequence[:11], 9, 31) == (2, 1)


@pytest.mark.parametrize("n_outputs", [1, 3, 32])
def test_chances_are_the_models_own_probabilities(n_outputs: int) -> None:
    model = random_model(V, seed=3)
    penalised = SamplingParams(temperature=0.7, top_k=5, repeat_penalty=1.3)
    sequence = [int(token) for token in np.random.default_rng(0).integers(0, V, 40)]
    for params in (WARM, penalised):
        found = list(chances(Session(FakeContext(model, V, n_outputs=n_outputs)), params, sequence, 9))
        expected = [
            float(distribution(model(tuple(sequence[:i])), params, sequence[:i]).prob(sequence[i]))
            for i in range(9, 40)
        ]
        assert found == pytest.approx(expected)


def test_chances_end_where_the_model_cannot_read_on() -> None:
    model, sequence = random_model(V, seed=3), [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]
    assert len(list(chances(Session(FakeContext(model, V, n_ctx=6)), WARM, sequence, 4))) == 3
    assert len(list(chances(Session(FakeContext(model, V, n_ctx=3)), WARM, sequence, 4))) == 0
    # Id 7 is beyond this vocabulary: it can be read by nobody, and has no chance itself.
    small = Session(FakeContext(random_model(7, seed=3), 7))
    assert list(chances(small, WARM, sequence, 4))[2:] == [0.0]
    assert len(list(chances(Session(FakeContext(model, V)), WARM, sequence[:2], 1))) == 1


def test_sampled_tokens_stand_as_often_as_the_rejection_rule_lets_them() -> None:
    target = random_model(V, seed=1, memory=1)
    draft = blended(target, random_model(V, seed=2, memory=1), 0.5)
    rng = np.random.default_rng(5)

    @lru_cache
    def probs(model: object, last: int) -> np.ndarray:
        row = distribution((target if model == "t" else draft)((last,)), WARM)
        return np.array([float(row.prob(token)) for token in range(V)])

    sequence, expected = [0], 0.0
    for _ in range(4000):
        p, q = probs("t", sequence[-1]), probs("d", sequence[-1])
        expected += np.minimum(p, q).sum()
        sequence.append(int(rng.choice(V, p=p)))
    engine = SimpleNamespace(
        no_draft_reason="",
        drafts_itself=False,
        crosses_vocabularies=False,
        target=FakeContext(target, V, n_ctx=5000),
        draft=FakeContext(draft, V, n_ctx=5000, n_outputs=1),
    )
    trace = record(engine, WARM, sequence[:1], sequence[1:])  # type: ignore[arg-type]
    assert np.mean(trace.model) == pytest.approx(expected / 4000, abs=0.03)  # 4 standard deviations


def test_without_a_draft_nothing_of_a_model_stands() -> None:
    target = FakeContext(random_model(V, seed=1), V)
    engine = SimpleNamespace(no_draft_reason="", target=target, draft=None, drafts_itself=False)
    trace = record(engine, GREEDY, [1, 2, 3, 1, 2], [3, 1, 2])  # type: ignore[arg-type]
    assert trace == Trace(5, (False,) * 3, (0, 2, 1))
    engine.no_draft_reason = "recurrent"
    assert record(engine, GREEDY, [1, 2, 3, 1, 2], [3, 1]).copied == (0, 0)  # type: ignore[arg-type]
