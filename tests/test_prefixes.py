"""Conversations that alternate keep their prefixes, and get the answers of a fresh engine."""

from __future__ import annotations

import json

import pytest

from localspec import LLM
from localspec.decoding.drafting import NoDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.session import Session
from localspec.engine.prefixes import MIN_TOKENS, KeptPrefixes
from localspec.errors import InvalidRequest, LocalspecError, StateError
from localspec.ggml.context import NativeContext

from .fakes import FakeContext, generate, random_model
from .tinygguf import write_gemma, write_llama, write_mamba

N_VOCAB = 7
BIG = 1 << 20
GREEDY = {"temperature": 0, "max_tokens": 24}


class SavingContext(FakeContext):
    """A fake whose saved cells are their ids as JSON."""

    def state_bytes(self, sequence_id: int) -> int:
        return len(self.save_state(sequence_id))

    def save_state(self, sequence_id: int) -> bytes:
        return json.dumps(self.cells.get(sequence_id, [])).encode()

    def load_state(self, data: bytes, sequence_id: int) -> int:
        self.cells[sequence_id] = json.loads(data)
        return self.length(sequence_id)


def conversation(first: int, length: int = 80) -> list[int]:
    """Ids that no other `first` begins with."""
    return [first] + [(first * 3 + index) % N_VOCAB for index in range(length - 1)]


def fake(count: int = 4, max_bytes: int = BIG, *, whole: bool = False) -> tuple[KeptPrefixes, Session]:
    session = Session(SavingContext(random_model(N_VOCAB, 1), N_VOCAB))
    prefixes = KeptPrefixes(count, max_bytes)
    prefixes.keep_cells_of(session, whole=whole)
    return prefixes, session


def ask(prefixes: KeptPrefixes, session: Session, prompt: list[int]) -> int:
    """How many tokens of the prompt were not read again. Fails unless the cells hold what the session says."""
    prefixes.switch(prompt)
    assert isinstance(session.context, FakeContext)
    assert session.tokens == session.context.cells.get(0, [])
    kept = session.align(prompt)
    session.forward(prompt[kept:])
    return kept


def test_two_conversations_that_alternate_are_read_once():
    prefixes, session = fake()
    a, b = conversation(1), conversation(2)
    assert (ask(prefixes, session, a), ask(prefixes, session, b)) == (0, 0)
    for turn in range(3):
        a, b = [*a, *[turn] * 9], [*b, *[turn] * 9]
        assert ask(prefixes, session, a) == len(a) - 9
        assert ask(prefixes, session, b) == len(b) - 9
    assert len(prefixes) == 1, "the running one is not kept as well"


def test_none_are_kept_when_none_are_wanted():
    prefixes, session = fake(0)
    for first in (1, 2, 1, 2):
        assert ask(prefixes, session, conversation(first)) == 0
    assert len(prefixes) == 0


def test_the_least_recently_used_goes_first():
    prefixes, session = fake(2)
    for first in (1, 2, 3, 4):  # 4 runs, 2 and 3 are kept
        ask(prefixes, session, conversation(first))
    assert ask(prefixes, session, conversation(2)) == 79
    assert ask(prefixes, session, conversation(1)) == 0
    assert ask(prefixes, session, conversation(3)) == 0, "pushed out: 4 and 2 were used after it"
    assert len(prefixes) == 2


def test_each_session_keeps_as_many_of_its_own():
    prefixes, target = fake(2)
    draft = Session(SavingContext(random_model(N_VOCAB, 2), N_VOCAB))
    prefixes.keep_cells_of(draft)
    for first in (1, 2, 3, 4):
        prompt = conversation(first)
        prefixes.switch(prompt)
        for session in (target, draft):
            session.forward(prompt[session.align(prompt) :])
    assert [(kept.owner, kept.tokens[0]) for kept in prefixes._kept] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    prefixes.switch(conversation(2))
    assert target.tokens == draft.tokens == conversation(2)


def test_the_copies_of_one_session_are_of_no_use_to_another(monkeypatch):
    prefixes, target = fake()
    draft = Session(SavingContext(random_model(N_VOCAB, 2), N_VOCAB))
    prefixes.keep_cells_of(draft)
    monkeypatch.setattr(target.context, "state_bytes", lambda sequence_id: 2 * BIG)  # too large to be kept
    for first in (1, 2):
        prompt = conversation(first)
        prefixes.switch(prompt)
        for session in (target, draft):
            session.forward(prompt[session.align(prompt) :])
    prefixes.switch(conversation(1))
    assert (target.tokens, draft.tokens) == (conversation(2), conversation(1))


def test_the_bytes_are_bounded():
    room = len(json.dumps(conversation(1)).encode())
    prefixes, session = fake(4, 2 * room)
    for first in (1, 2, 3, 4, 5):
        ask(prefixes, session, conversation(first))
        assert prefixes.num_bytes <= 2 * room
    assert len(prefixes) == 2
    prefixes, session = fake(4, room - 1)
    for first in (1, 2, 1):
        assert ask(prefixes, session, conversation(first)) == 0
    assert len(prefixes) == 0


def test_short_ones_and_small_changes_are_not_worth_a_copy():
    prefixes, session = fake()
    for first in (1, 2, 1):
        assert ask(prefixes, session, conversation(first, MIN_TOKENS - 1)) == 0
    assert len(prefixes) == 0
    long = conversation(3, 240)
    ask(prefixes, session, long)
    for last in (1, 2, 1):  # another answer to the same history
        ask(prefixes, session, [*long[:200], *[last] * 40])
    assert len(prefixes) == 0


def test_a_longer_copy_takes_the_place_of_one_that_it_covers():
    prefixes, session = fake()
    system = conversation(1, 70)
    for first in (1, 2, 3):
        ask(prefixes, session, [*system, *[first] * 30])
        ask(prefixes, session, conversation(5, 70))
    assert len(prefixes) <= 4
    ask(prefixes, session, [*system, *[3] * 40])
    ask(prefixes, session, conversation(6))
    covered = [kept for kept in prefixes._kept if kept.tokens[:100] == (*system, *[3] * 30)]
    assert len(covered) == 1


@pytest.mark.parametrize(
    ("rest", "both"), [(MIN_TOKENS - 1, False), (MIN_TOKENS, True), (100, True), (140, True)]
)
def test_two_that_only_begin_alike_are_both_kept(rest, both):
    """However large the share that they have in common: what counts is what would have to be read again."""
    prefixes, session = fake()
    system = conversation(1, 100)
    left, right = ([*system, *[last] * rest] for last in (2, 3))
    for prompt in (left, right, conversation(6)):
        ask(prefixes, session, prompt)
    assert sum(kept.tokens[0] == 1 for kept in prefixes._kept) == (2 if both else 1)
    assert ask(prefixes, session, left) == (len(left) - 1 if both else len(system))
    if both:
        ask(prefixes, session, conversation(6))
        assert ask(prefixes, session, right) == len(right) - 1


@pytest.mark.parametrize("rest", [MIN_TOKENS - 1, MIN_TOKENS + 1, 100])
def test_who_only_begins_as_a_kept_one_does_not_use_it_up(rest):
    prefixes, session = fake()
    system = conversation(1, 100)
    kept, other = [*system, *[2] * rest], [*system, *[3] * 120]
    for prompt in (kept, conversation(6)):
        ask(prefixes, session, prompt)
    assert ask(prefixes, session, other) == len(system)
    assert ask(prefixes, session, kept) == (len(kept) - 1 if rest >= MIN_TOKENS else len(system))


def test_what_is_set_aside_leaves_the_cells_and_is_found_again(monkeypatch):
    prefixes, session = fake()
    a = conversation(1)
    ask(prefixes, session, a)
    prefixes.set_aside()
    assert session.tokens == session.context.cells[0] == [] and len(prefixes) == 1
    assert ask(prefixes, session, a) == len(a) - 1
    assert len(prefixes) == 0
    # Not what would be lost, nor what is read again as soon.
    monkeypatch.setattr("localspec.engine.prefixes.free_memory", lambda: 0)
    prefixes.set_aside()
    assert session.tokens == a
    monkeypatch.undo()
    ask(prefixes, session, a[:20])
    prefixes.set_aside()
    assert session.tokens == a[:20]
    for keeping in (fake(0), fake(4, 10)):
        ask(*keeping, a)
        keeping[0].set_aside()
        assert keeping[1].tokens == a


def test_memory_that_cannot_be_cut_is_used_whole_or_not_at_all():
    prefixes, session = fake(whole=True)
    a, b = conversation(1), conversation(2)
    ask(prefixes, session, a)
    ask(prefixes, session, b)
    prefixes.switch([*a[:-1], (a[-1] + 1) % N_VOCAB, 1])
    assert session.tokens == b, "what differs in its last token is of no use"
    assert ask(prefixes, session, [*a, 1]) == len(a)


def test_a_copy_that_cannot_be_taken_back_is_read_again(monkeypatch):
    prefixes, session = fake()
    a, b = conversation(1), conversation(2)
    ask(prefixes, session, a)
    ask(prefixes, session, b)

    def refuse(self, data, sequence_id):
        self.cells[sequence_id] = []
        raise StateError("No.")

    monkeypatch.setattr(SavingContext, "load_state", refuse)
    assert ask(prefixes, session, a) == 0
    assert session.tokens == a


@pytest.mark.parametrize("error", [StateError("No."), MemoryError()])
def test_a_copy_that_cannot_be_made_is_done_without(monkeypatch, error):
    prefixes, session = fake()

    def fail(self, sequence_id):
        raise error

    monkeypatch.setattr(SavingContext, "state_bytes", lambda self, sequence_id: 100)
    monkeypatch.setattr(SavingContext, "save_state", fail)
    for first in (1, 2, 1):
        assert ask(prefixes, session, conversation(first)) == 0


def test_nothing_is_kept_when_memory_is_short(monkeypatch):
    monkeypatch.setattr("localspec.engine.prefixes.free_memory", lambda: 100)
    prefixes, session = fake()
    for first in (1, 2, 1):
        assert ask(prefixes, session, conversation(first)) == 0


def test_cells_that_a_failed_pass_took_are_not_kept():
    prefixes, session = fake()
    ask(prefixes, session, conversation(1))
    session.context.cells[0] = []  # type: ignore[attr-defined]
    prefixes.switch(conversation(2))
    assert len(prefixes) == 0 and session.tokens == []


def test_a_context_that_cannot_be_saved_goes_on_as_before():
    prefixes = KeptPrefixes(4, BIG)
    session = Session(FakeContext(random_model(N_VOCAB, 1), N_VOCAB))
    prefixes.keep_cells_of(session)
    for first in (1, 2, 1):
        assert ask(prefixes, session, conversation(first)) == 0


def test_the_loop_says_the_same_on_restored_cells():
    model, params = random_model(N_VOCAB, 5), SamplingParams(temperature=0, max_tokens=12)
    prefixes, session = fake()
    session.context.model = model  # type: ignore[attr-defined]
    for first in (1, 2, 1, 3, 2, 1):
        prompt = conversation(first)
        prefixes.switch(prompt)
        ids, _ = generate(
            model, NoDrafter(), n_vocab=N_VOCAB, params=params, prompt=prompt, session=session, n_ctx=256
        )
        alone, _ = generate(model, NoDrafter(), n_vocab=N_VOCAB, params=params, prompt=prompt, n_ctx=256)
        assert ids == alone


# On real libraries


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefixes")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
        "gemma": write_gemma(folder / "gemma.gguf", seed=1),
        "mamba": write_mamba(folder / "mamba.gguf", seed=1),
    }


def load(target, draft=None, **options):
    return LLM.from_files(target, draft, **{"draft_tokens": 3, "n_ctx": 512, **options})


PROMPTS = ["abc" * 40, "xyz" * 45, "the other one " * 9]


@pytest.mark.parametrize("target", ["gemma", "mamba"])
def test_alternating_conversations_of_other_memories_answer_as_a_fresh_engine(files, target):
    alternating([files[target]], {"cache_type_v": "bf16"})


@pytest.mark.parametrize("names", [("target", "draft"), ("target",)])
def test_alternating_conversations_answer_as_a_fresh_engine(files, computed_by, names):
    alternating([files[name] for name in names], computed_by)


def alternating(paths, computed_by):
    with load(*paths, **computed_by) as llm, load(*paths, keep_prefixes=0, **computed_by) as fresh:
        model = llm.engine.vocab
        histories = [model.tokenize(text, parse_special=False, add_bos=True) for text in PROMPTS]
        for turn in range(3):
            for index, history in enumerate(histories):
                answer = llm.generate(history, **GREEDY)
                fresh.forget()
                alone = fresh.generate(history, **GREEDY)
                assert answer.ids == alone.ids and alone.stats.cached_tokens == 0
                if turn:
                    assert answer.stats.cached_tokens == len(history) - 4
                histories[index] = [*history, *answer.ids, 65, 66, 67 + turn]


def test_a_recurrent_model_finds_its_whole_state_again(files):
    with load(files["mamba"]) as llm:
        model = llm.engine.vocab
        a, b = (model.tokenize(text, parse_special=False) for text in PROMPTS[:2])
        first = llm.generate(a, **GREEDY)
        llm.generate(b, **GREEDY)
        again = llm.generate([*a, *first.ids, 65, 66], **GREEDY)
        assert again.stats.cached_tokens == len(a) + len(first.ids) - 1


def test_the_draft_finds_its_cells_again_too(files, computed_by):
    with load(files["target"], files["draft"], **computed_by) as llm:
        first = llm.generate(PROMPTS[0], **GREEDY)
        llm.generate(PROMPTS[1], **GREEDY)
        passes = []
        draft = llm.engine.draft
        assert isinstance(draft, NativeContext)
        original = draft.decode
        draft.decode = lambda spans: passes.append(len(spans[0].tokens)) or original(spans)  # type: ignore[method-assign]
        again = llm.generate(PROMPTS[0], **GREEDY)
        assert again.ids == first.ids and again.stats.accepted == first.stats.accepted
        assert passes and max(passes) < MIN_TOKENS, "its prompt was not read a second time"


def test_a_cancelled_answer_in_between_changes_nothing(files, computed_by):
    with load(files["target"], files["draft"], **computed_by) as llm:
        first = [llm.generate(prompt, **GREEDY).ids for prompt in PROMPTS]
        for _ in range(2):
            for prompt, ids in zip(PROMPTS, first, strict=True):
                stream = llm.stream(PROMPTS[0] + "?" * 70, **GREEDY)
                next(stream)
                stream.close()
                stream = llm.stream(PROMPTS[1] + "!" * 70, **GREEDY)
                stream.cancel()
                list(stream)
                assert llm.generate(prompt, **GREEDY).ids == ids


def test_a_seeded_answer_is_the_same_from_restored_cells(files, computed_by):
    options = {"seed": 5, "max_tokens": 24}
    with load(files["target"], files["draft"], **computed_by) as llm:
        first = [llm.generate(prompt, **options).ids for prompt in PROMPTS]
        assert [llm.generate(prompt, **options).ids for prompt in PROMPTS] == first


def test_forget_forgets_what_is_kept_and_close_frees_it(files):
    llm = load(files["target"])
    for prompt in PROMPTS:
        llm.generate(prompt, **GREEDY)
    prefixes = llm.engine.prefixes
    assert len(prefixes) == 2 and llm.settings["kept_prefixes"]["bytes"] == prefixes.num_bytes > 0
    llm.forget()
    assert len(prefixes) == 0
    assert llm.generate(PROMPTS[0], **GREEDY).stats.cached_tokens == 0
    llm.generate(PROMPTS[1], **GREEDY)
    llm.close()
    assert len(prefixes) == 0


@pytest.mark.parametrize("options", [{"keep_prefixes": -1}, {"prefix_bytes": "1G"}, {"keep_prefixes": True}])
def test_settings_that_make_no_sense_are_refused_before_anything_is_loaded(files, options, monkeypatch):
    monkeypatch.setattr(
        "localspec.llama.weights.Weights", lambda *_args, **_kwargs: pytest.fail("loaded weights")
    )
    with pytest.raises(InvalidRequest, match=next(iter(options))) as caught:
        load(files["target"], **options)
    assert isinstance(caught.value, LocalspecError)
