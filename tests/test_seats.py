"""Several answers at a time on the real libraries with tiny models: each is the one given alone."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from localspec import LLM, memory_needed
from localspec.engine import memory
from localspec.engine.memory import memory_estimate
from localspec.engine.seats import shared_loads
from localspec.errors import EngineClosed, InvalidRequest, MemoryShort
from localspec.llama.library import LlamaCpp

from .tinygguf import write_llama, write_pair

GREEDY = {"temperature": 0, "max_tokens": 20}
OPTIONS = {"n_ctx": 512, "draft_tokens": 3, "threads": 1}
ROUNDING = 0.1
"""In a log-probability."""
PROMPTS = [letter * length for letter, length in zip("abcdefgh", range(30, 190, 20), strict=True)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("seats"))


@pytest.fixture(scope="module")
def alone(files, computed_by):
    """Each prompt's greedy answer, and one with a seed, from an engine that knows nothing else.

    With seats too: how ik_llama.cpp rounds depends on where cells are.
    """
    with LLM.from_files(*files, parallel=4, **OPTIONS, **computed_by) as llm:
        answers = {}
        for prompt in PROMPTS:
            for settings in ({"temperature": 0}, {"seed": 4}):
                llm.forget()
                answers[prompt, *settings] = llm.generate(prompt, max_tokens=20, logprobs=3, **settings)
        return answers


@pytest.fixture(scope="module")
def same(library, alone):
    """Whether an answer, or the beginning of one, is the one given alone: by its ids.

    Of ik_llama.cpp rows depend a little on where their cells are: another token may follow where two are about as
    likely.
    """

    def same(completion, prompt, setting="temperature"):
        expected = alone[prompt, setting]
        places = range(min(len(completion.ids), len(expected.ids)))
        differs = next((place for place in places if completion.ids[place] != expected.ids[place]), None)
        if differs is None:
            return len(completion.ids) == len(expected.ids) or completion.finish_reason == "cancelled"
        if library.key != "ik":
            return False
        close = dict(expected.logprobs[differs].top)
        return max(close.values()) - close.get(completion.ids[differs], -99.0) < ROUNDING

    return same


@pytest.fixture
def llm(files, computed_by):
    with LLM.from_files(*files, parallel=4, **OPTIONS, **computed_by) as llm:
        yield llm


def all_at_once(llm, prompts, **options):
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: llm.generate(prompt, **options), prompts))


@pytest.mark.parametrize("drafting", [3, "off", "auto"])
def test_eight_answers_in_four_seats_are_those_given_alone(llm, same, drafting):
    for _ in range(2):  # the second time from kept cells
        found = all_at_once(llm, PROMPTS, draft_tokens=drafting, **GREEDY)
        assert all(map(same, found, PROMPTS))


@pytest.mark.parametrize("library", [LlamaCpp], ids=["llama"], indirect=True)
@pytest.mark.parametrize("drafting", [3, "off", "auto"])
def test_a_seed_gives_the_same_text_whatever_the_neighbours_do(llm, same, drafting):
    found = all_at_once(llm, PROMPTS, draft_tokens=drafting, max_tokens=20, seed=4)
    assert all(same(one, prompt, "seed") for one, prompt in zip(found, PROMPTS, strict=True))


def test_passes_are_shared(llm):
    passes = []
    whole = llm._keeper.seats.passes.contexts[-1]
    decode = whole.decode
    whole.decode = lambda spans: passes.append(len(spans)) or decode(spans)
    found = all_at_once(llm, PROMPTS[:4], draft_tokens="off", **GREEDY)
    assert max(passes) == 4
    assert len(passes) < sum(one.stats.tokens for one in found) / 2


def test_a_cancel_ends_its_own_answer_and_no_other(llm, same):
    streams = [llm.stream(prompt, max_tokens=200, ignore_eos=True, temperature=0) for prompt in PROMPTS[:4]]
    for stream in streams:
        next(stream)
    streams[1].cancel()
    reasons = [[chunk.completion for chunk in stream][-1] for stream in streams]
    assert [one.finish_reason for one in reasons] == ["length", "cancelled", "length", "length"]
    assert same(llm.generate(PROMPTS[1], **GREEDY), PROMPTS[1])


def test_a_closed_stream_leaves_the_others(llm, same):
    kept = llm.stream(PROMPTS[0], **GREEDY)
    left = llm.stream(PROMPTS[1], max_tokens=300, ignore_eos=True)
    next(left)
    left.close()
    assert same([chunk.completion for chunk in kept][-1], PROMPTS[0])
    assert same(llm.generate(PROMPTS[1], **GREEDY), PROMPTS[1])


ASIDE = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.mark.parametrize("draft", [True, False], ids=["drafted", "plain"])
def test_what_idle_seats_hold_costs_no_pass_anything(files, library, draft):
    """A library that looks through all cells gets rid of them meanwhile, and they are not read again."""
    options = {**OPTIONS, "library": library.key, "draft_tokens": 3 if draft else "off"}
    with LLM.from_files(*files[: 1 + draft], parallel=3, **options) as llm:
        conversations = [letter * 150 for letter in "ab"]
        expected = [llm.generate(text, **ASIDE) for text in conversations]
        held = sorted(seat.tokens for seat in llm.seats)
        assert held[2] > 150 and (held[1] == 0) == (library.key == "ik")
        if library.key == "ik" and draft:
            drafts = [engine.sessions["draft"].tokens for engine in llm.engine.seats.engines]
            assert sorted(map(bool, drafts)) == [False, False, True]
        for text, before in zip(conversations, expected, strict=True):
            again = llm.generate(text, **ASIDE)
            assert again.stats.cached_tokens >= 149
            assert library.key == "ik" or again.ids == before.ids


def test_nothing_is_taken_from_idle_seats_while_others_answer(files, library):
    """They would wait for it."""
    with LLM.from_files(*files, parallel=3, **OPTIONS, library=library.key) as llm:
        llm.generate("a" * 150, **ASIDE)
        slow = {"logits_processors": [lambda ids, logits: time.sleep(0.01) or logits]}
        with closing(llm.stream("b" * 50, max_tokens=400, ignore_eos=True, draft_tokens=0, **slow)) as stream:
            next(stream)
            assert (llm.seats[0].tokens == 0) == (library.key == "ik")
            llm.generate("c" * 150, **ASIDE)
            before = [seat.tokens for seat in llm.seats if not seat.busy]
            llm.generate("d" * 150, **ASIDE)
            after = [seat.tokens for seat in llm.seats if not seat.busy]
            assert stream.completion is None and llm.seats[1].busy
        assert min(after) > 150 and sorted(before)[-1] > 150


def test_idle_seats_keep_what_nothing_else_would_keep(files, library):
    with LLM.from_files(*files, parallel=3, keep_prefixes=0, **OPTIONS, library=library.key) as llm:
        for letter in "ab":
            llm.generate(letter * 150, **ASIDE)
        assert sorted(seat.tokens > 150 for seat in llm.seats) == [False, True, True]


def test_random_coming_and_going(llm, same):
    """Answers, cancels and readers that leave, at random moments: what comes whole is what is given alone."""
    draw = random.Random(5)

    def ask(number):
        prompt = draw.choice(PROMPTS)
        stream = llm.stream(prompt, temperature=0, max_tokens=20)
        what = draw.choice(["all", "all", "cancel", "leave"])
        time.sleep(draw.random() * 0.01)
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            if what == "cancel" and draw.random() < 0.3:
                stream.cancel()
            if what == "leave" and draw.random() < 0.3:
                stream.close()
                return True
        return same(chunks[-1].completion, prompt)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(120)))


def test_cancel_of_all_ends_what_waits_too(llm, same):
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(llm.generate, prompt, max_tokens=400, ignore_eos=True) for prompt in PROMPTS]
        time.sleep(0.1)
        llm.cancel()
        assert {one.result().finish_reason for one in asked} == {"cancelled"}
    assert same(llm.generate(PROMPTS[2], **GREEDY), PROMPTS[2])


def test_close_ends_all_of_them(files, computed_by):
    llm = LLM.from_files(*files, parallel=3, **OPTIONS, **computed_by)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(llm.generate, prompt, max_tokens=450, ignore_eos=True) for prompt in PROMPTS[:5]]
        time.sleep(0.2)
        llm.close()
        assert {one.result().finish_reason for one in asked} <= {"cancelled", "length"}
    with pytest.raises(EngineClosed):
        llm.generate("a")


def test_two_answers_read_in_one_thread_in_turns(llm, same):
    """With one seat the second would wait for ever for the first."""
    streams = [llm.stream(prompt, **GREEDY) for prompt in PROMPTS[:2]]
    chunks = [[], []]
    for _ in range(40):
        for stream, found in zip(streams, chunks, strict=True):
            found.extend([chunk] if (chunk := next(stream, None)) else [])
    for found, prompt in zip(chunks, PROMPTS, strict=False):
        assert same(found[-1].completion, prompt)


def test_an_error_of_one_is_no_error_of_the_others(llm, same):
    def fail(ids, logits):
        raise RuntimeError("a processor of the caller's")

    with ThreadPoolExecutor(3) as pool:
        good = [pool.submit(llm.generate, prompt, **GREEDY) for prompt in PROMPTS[:2]]
        bad = pool.submit(llm.generate, "abc", logits_processors=[fail])
        with pytest.raises(RuntimeError):
            bad.result()
        assert all(same(one.result(), prompt) for one, prompt in zip(good, PROMPTS, strict=False))


def test_a_prompt_that_another_seat_holds_is_not_read_again(llm, library):
    text = "".join(PROMPTS)[:300]
    first = llm.stream(text, max_tokens=60, ignore_eos=True, temperature=0)
    next(first)
    second = llm.generate(text, logprobs=1, **GREEDY)
    assert second.stats.cached_tokens > 250
    ids = [chunk.completion for chunk in first][-1].ids
    llm.forget()
    fresh = llm.generate(text, logprobs=1, **GREEDY)
    assert abs(second.logprobs[0].logprob - fresh.logprobs[0].logprob) < ROUNDING
    assert library.key == "ik" or second.ids == fresh.ids == ids[: len(second.ids)]


def test_who_wants_the_engine_alone_waits_for_all(llm):
    running = [llm.stream(prompt, max_tokens=100, ignore_eos=True) for prompt in PROMPTS[:3]]
    threads = [threading.Thread(target=lambda stream=stream: list(stream)) for stream in running]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    with llm.exclusive() as engine:
        assert engine.seats.passes.num_inside == 0
    for thread in threads:
        thread.join()


def test_a_conversation_goes_on_where_its_seat_is_and_saves_its_state(llm, tmp_path):
    first, second = llm.conversation(), llm.conversation()
    for conversation in (first, second, first, second):
        answer = [c.completion for c in conversation.ask("abcabc", max_tokens=12, temperature=0)][-1]
    assert answer.stats.cached_tokens > 12
    first.save(tmp_path / "one")
    llm.forget()
    again = type(first).load(llm, tmp_path / "one")
    assert "is restored" in again.restored
    answer = [c.completion for c in again.ask("abc", max_tokens=4)][-1]
    assert answer.stats.cached_tokens > 20


def test_a_v_cache_that_needs_fused_attention_has_one_seat_in_ik_llama_cpp(tmp_path):
    wide = {
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
    }  # of 32 numbers, a block of its own
    with LLM.from_files(
        write_llama(tmp_path / "wide.gguf", extra=wide),
        parallel=2,
        library="ik",
        cache_type_v="q8_0",
        n_ctx=128,
    ) as llm:
        assert llm.parallel == 1 and any("V cache of f16" in warning for warning in llm.warnings)
        assert llm.generate("abc", max_tokens=3).ids


@pytest.mark.parametrize("value", [0, -1, 65, 1.5, True, "many", None])
def test_what_is_no_number_of_seats_is_refused(files, value):
    with pytest.raises(InvalidRequest, match=r"parallel is .*whole number from 1 to 64"):
        LLM.from_files(*files, parallel=value, n_ctx=128)


def test_the_memory_of_seats_is_foretold(files):
    with LLM.from_files(*files, parallel=3, n_ctx=256, library="llama") as llm:
        engine = llm._keeper.engine
        seats = memory_estimate(shared_loads(engine, 3))
    alone, needed = (memory_needed(*files, n_ctx=256, parallel=count) for count in (1, 3))
    assert needed.weights == alone.weights
    assert needed.kv_cache == alone.kv_cache + seats.kv_cache > 3 * alone.kv_cache
    assert needed.compute == alone.compute + seats.compute
    assert memory_needed(*files, n_ctx=256, parallel="auto").kv_cache == alone.kv_cache
    with pytest.raises(InvalidRequest, match="parallel is 0"):
        memory_needed(*files, n_ctx=256, parallel=0)


def test_what_the_seats_hold_is_told_without_a_load(files, computed_by):
    with LLM.from_files(*files, parallel=2, **OPTIONS, **computed_by) as llm:
        assert [(seat.busy, seat.tokens) for seat in llm.seats] == [(False, 0)] * 2
        llm.generate(PROMPTS[0], max_tokens=3)
        assert [seat.busy for seat in llm.seats] == [False, False] and max(s.tokens for s in llm.seats) > 20
        assert llm.unload() and llm.seats == () and not llm.loaded
        assert llm.generate(PROMPTS[0], max_tokens=3).ids and len(llm.seats) == 2


def test_seats_without_room_are_refused_by_their_number_and_what_each_holds(files, monkeypatch):
    real = memory.memory_estimate

    def little(loads):
        estimate = real(loads)
        return replace(estimate, available=0) if loads[0].options.n_sequences > 1 else estimate

    monkeypatch.setattr(memory, "memory_estimate", little)
    with pytest.raises(
        MemoryShort, match="a context of 256 tokens for each of 3 answers at a time"
    ) as refused:
        LLM.from_files(*files, parallel=3, n_ctx=256, threads=1, library="llama")
    assert "(parallel)" in refused.value.remedy and "(--parallel)" in refused.value.command


def test_auto_opens_as_many_as_memory_has_room_for(files, computed_by):
    with LLM.from_files(*files, parallel="auto", n_ctx=256, **computed_by) as llm:
        assert len(llm._keeper.seats) == 4


def test_conversations_with_a_common_beginning_keep_a_seat_each(files, computed_by):
    common = "You answer in one sentence. " * 4
    with LLM.from_files(*files, parallel=3, keep_prefixes=0, **OPTIONS, **computed_by) as llm:
        talks = [common + letter * 40 for letter in "abc"]
        read = [0, 60, 60]  # of the beginning
        for _ in range(3):
            for index, talk in enumerate(talks):
                stats = llm.generate(talk, **GREEDY).stats
                assert stats.cached_tokens >= read[index]
                talks[index], read[index] = talk + "?" * 20, stats.prompt_tokens - 4
        assert min(seat.tokens for seat in llm.seats) > 100
