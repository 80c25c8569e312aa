"""Several answers at a time of models with a running state: each has its own, and is the one given alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from localspec import LLM
from localspec.engine import seats
from localspec.errors import ModelLoadError
from localspec.llama.quantize import requantize

from .coming_and_going import draws, read
from .tinygguf import write_pair
from .tinyhybrid import RECURRENT, REPLAY, SNAPSHOTS, write_running, write_running_pair

OPTIONS = {"n_ctx": 512, "threads": 1, "library": "llama", "draft_tokens": 3}
PROMPTS = [letter * length for letter, length in zip("abcdef", range(20, 140, 20), strict=True)]
ANSWER = {"max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module", params=[SNAPSHOTS, REPLAY, RECURRENT])
def files(request, tmp_path_factory):
    return write_running_pair(tmp_path_factory.mktemp("running"), request.param)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_answers_at_a_time_are_those_given_alone(files, strict, tmp_path):
    """Drafted for or not, beside answers that are cancelled or left."""
    options = OPTIONS | {"strict": strict}
    if strict:  # in F32 passes of one token have bits of their own
        requantize(files[0], tmp_path / "q8_0.gguf", "q8_0")
        files = tmp_path / "q8_0.gguf", files[1]
    with LLM.from_files(*files, **options) as llm:
        alone = {}
        for prompt in PROMPTS:
            llm.forget()
            alone[prompt] = llm.generate(prompt, temperature=0, **ANSWER).ids
    orders = draws(7, 60, PROMPTS, [3, "off", "auto"], ["whole"] * 3 + ["cancel", "leave"])

    def ask(order):
        prompt, draft_tokens, what, chance = order
        options = {"temperature": 0, "draft_tokens": draft_tokens, **ANSWER}
        found = read(lambda: llm.stream(prompt, **options), what, chance)
        return found is None or found.ids == alone[prompt][: len(found.ids)]

    with LLM.from_files(*files, parallel=4, **options) as llm:
        assert llm.parallel == 4
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, orders))


def test_a_conversation_goes_on_from_its_own_state_beside_others(files):
    def talk(llm, start):
        text, found = start * 30, []
        for _ in range(3):
            completion = llm.generate(text, temperature=0, **ANSWER)
            found.append((completion.ids, completion.stats.cached_tokens > 0))
            text += completion.text + start * 5
        return found

    with LLM.from_files(*files, **OPTIONS) as llm:
        alone = [[ids for ids, _ in talk(llm, start)] for start in "abc" if llm.forget() is None]
    with LLM.from_files(*files, parallel=3, **OPTIONS) as llm, ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda start: talk(llm, start), "abc"))
    assert [[ids for ids, _ in one] for one in found] == alone


@pytest.mark.parametrize("architecture", ["plamo2", "arwkv7"])
def test_where_several_states_are_computed_wrongly_there_is_one_seat(tmp_path, architecture):
    file = write_running(tmp_path / "one.gguf", architecture, seed=1)
    with LLM.from_files(file, parallel=2, n_ctx=256, library="llama") as llm:
        assert llm.parallel == 1
        assert any(f"a running state of {architecture}" in warning for warning in llm.warnings)
        assert llm.generate("abc", max_tokens=3).ids


def test_ik_llama_cpp_has_one_seat_for_a_running_state(tmp_path):
    file = write_running(tmp_path / "one.gguf", SNAPSHOTS, seed=1)
    with LLM.from_files(file, parallel=2, n_ctx=256, library="ik") as llm:
        assert llm.parallel == 1 and any("has a running state" in warning for warning in llm.warnings)


@pytest.mark.parametrize(("library", "write"), [("ik", write_pair), ("llama", write_running_pair)])
def test_sequences_that_disturb_each_other_in_one_pass_are_refused(tmp_path, monkeypatch, library, write):
    """As ik_llama.cpp did with gated delta nets, each sequence being right by itself."""
    opened = seats.Opener.context

    def disturbed(self, weights, options):
        context = opened(self, weights, options)
        decode = context.decode

        def mixed(spans):
            found = decode(spans)
            if len(spans) < 2:
                return found
            return [[np.roll(row, 1) for row in rows] for rows in found]

        context.decode = mixed
        return context

    monkeypatch.setattr(seats.Opener, "context", disturbed)
    with pytest.raises(ModelLoadError, match="several sequences"):
        LLM.from_files(*write(tmp_path), parallel=2, n_ctx=256, library=library)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("n_ctx", [8, 20])
def test_a_context_of_a_few_tokens_is_no_end_of_the_process(tmp_path, n_ctx, parallel):
    """With as many snapshots as tokens in a pass llama.cpp ended it."""
    file = write_running(tmp_path / "one.gguf", SNAPSHOTS, seed=1)
    with LLM.from_files(file, parallel=parallel, n_ctx=n_ctx, library="llama") as llm:
        assert llm.parallel == parallel and llm.generate("ab", max_tokens=3).ids


@pytest.mark.parametrize("options", [{"library": "ik"}, {"library": "llama", "strict": True}])
def test_seats_of_a_few_tokens_are_compared_as_far_as_they_reach(tmp_path, options):
    with LLM.from_files(*write_pair(tmp_path), parallel=2, n_ctx=20, home=tmp_path, **options) as llm:
        assert llm.parallel == 2 and llm.generate("ab", max_tokens=3).ids
