"""Strict mode with several answers at a time: to the last bit each is the one given alone, whatever the others do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from localspec import LLM
from localspec.decoding.classes import same_in_company
from localspec.engine import strict
from localspec.errors import ModelLoadError

from .coming_and_going import draws, read
from .tinygguf import write_gemma, write_llama, write_pair

OPTIONS = {"n_ctx": 512, "strict": True, "threads": 1, "library": "llama"}
PROMPTS = [letter * length for letter, length in zip("abcdefgh", range(20, 340, 40), strict=True)]
ANSWER = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2}
KINDS = [
    {"temperature": 0},
    {"seed": 4},
    {"seed": 9, "draft_tokens": "off"},
    {"seed": 4, "draft_tokens": "auto"},
]


def bits(completion):
    """Ids with the exact numbers they were drawn by."""
    return [(token.token, token.logprob, token.top) for token in completion.logprobs]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="module")
def alone(files):
    """From an engine with one seat that has forgotten everything else; drafting changes no bit."""
    answers = {}
    with LLM.from_files(*files, draft_tokens=3, **OPTIONS) as llm:
        for prompt in PROMPTS:
            for kind in ({"temperature": 0}, {"seed": 4}, {"seed": 9}):
                llm.forget()
                answers[prompt, *kind.items()] = bits(llm.generate(prompt, **kind, **ANSWER))
    return answers


def test_each_of_400_answers_is_the_one_given_alone_to_the_last_bit(files, alone):
    """Beside cancels, deadlines and readers that leave, from kept cells and without, drafted for or not."""
    orders = draws(11, 640, PROMPTS, KINDS, ["whole"] * 6 + ["cancel", "deadline", "leave"])

    def ask(order):
        prompt, kind, what, chance = order
        found = read(lambda: llm.stream(prompt, **kind, **ANSWER), what, chance)
        if found is None:
            return None
        rule = next((name, value) for name, value in kind.items() if name != "draft_tokens")
        expected, cut = alone[prompt, rule], found.finish_reason == "cancelled"
        assert bits(found) == (expected[: len(found.logprobs)] if cut else expected)
        return not cut

    with LLM.from_files(*files, draft_tokens=3, parallel=4, **OPTIONS) as llm:
        assert llm.parallel == 4
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(ask, orders))
    assert results.count(True) >= 400 and results.count(True) < len(orders)


@pytest.mark.parametrize("write", [write_llama, write_gemma])
def test_answers_beside_each_other_share_passes_and_keep_their_bits(tmp_path, write):
    target = write(tmp_path / "target.gguf", seed=3)
    with LLM.from_files(target, **OPTIONS) as llm:
        expected = [bits(llm.generate(prompt, temperature=0, **ANSWER)) for prompt in PROMPTS]
    with LLM.from_files(target, parallel=4, **OPTIONS) as llm:
        whole = llm._keeper.seats.passes.contexts[-1]
        decode, made = whole.decode, []
        whole.decode = lambda spans: made.append([len(span.tokens) for span in spans]) or decode(spans)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda prompt: llm.generate(prompt, temperature=0, **ANSWER), PROMPTS))
    assert list(map(bits, found)) == expected
    assert max(map(len, made)) > 1
    assert all(len(set(lengths)) == 1 for lengths in made)


def test_a_common_beginning_is_copied_and_not_read_again(files):
    prompt = "abcdefgh" * 20
    with LLM.from_files(*files, parallel=2, **OPTIONS) as llm:
        expected = bits(llm.generate(prompt + "x", temperature=0, **ANSWER))
        llm.forget()
        stream = llm.stream(prompt + "y", max_tokens=300, ignore_eos=True)
        next(stream)  # has one seat until it is closed
        found = llm.generate(prompt + "x", temperature=0, **ANSWER)
        stream.close()
    assert found.stats.cached_tokens >= len(prompt) and bits(found) == expected


def test_what_the_library_computes_otherwise_beside_others_is_refused_or_has_one_seat(
    files, tmp_path, monkeypatch
):
    monkeypatch.setattr(strict, "same_in_company", lambda *arguments: False)
    with pytest.raises(ModelLoadError, match="other bits beside others"):
        LLM.from_files(*files, parallel=3, home=tmp_path, **OPTIONS)
    monkeypatch.undo()
    # What was measured holds: nothing is measured again.
    with LLM.from_files(*files, parallel="auto", home=tmp_path / "other", **OPTIONS) as llm:
        assert llm.parallel > 1
    monkeypatch.setattr(strict, "same_in_company", lambda *arguments: False)
    with LLM.from_files(*files, parallel="auto", home=tmp_path / "other", **OPTIONS) as llm:
        assert llm.parallel > 1
    with LLM.from_files(*files, parallel="auto", home=tmp_path, **{**OPTIONS, "n_ctx": 256}) as llm:
        assert llm.parallel == 1 and llm.generate("abc", max_tokens=3).ids


def test_ik_llama_cpp_has_one_seat_in_strict_mode_and_says_so(files):
    with LLM.from_files(*files, parallel=4, **{**OPTIONS, "library": "ik"}) as llm:
        assert llm.parallel == 1
        assert any("one answer runs at a time: in strict mode ik_llama.cpp" in line for line in llm.warnings)


class Company:
    """A context whose rows are their place and, where it leaks, how many sequences were in the pass."""

    n_ctx, n_batch, n_outputs, n_vocab = 512, 16, 16, 50

    def __init__(self, leaks=False):
        self.leaks, self.cells = leaks, {}

    def truncate(self, sequence_id, length):
        self.cells[sequence_id] = self.cells.get(sequence_id, [])[:length]
        return len(self.cells[sequence_id])

    def length(self, sequence_id):
        return len(self.cells.get(sequence_id, []))

    def decode(self, spans):
        found = []
        for span in spans:
            cells = self.cells.setdefault(span.sequence_id, [])
            assert span.start == len(cells), "spans go on where the cells end"
            rows = []
            for token in span.tokens:
                cells.append(token)
                seen = sum((place + 1) * cell for place, cell in enumerate(cells))
                rows.append(np.full(self.n_vocab, seen + (self.leaks and len(spans)), np.float32))
            found.append(rows[len(rows) - span.num_logits :])
        return found


def test_a_leak_between_sequences_is_seen():
    assert same_in_company(Company(), Company(), 4, (1, 2, 4, 16), 40)
    assert not same_in_company(Company(), Company(leaks=True), 4, (1, 2, 4, 16), 40)
