"""A draft of another vocabulary in a whole engine: tiny files of two kinds of tokenizers, computed for real."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM
from localspec.answers.conversation import Conversation
from localspec.decoding.cross_drafter import CrossDrafter
from localspec.decoding.manners import RETOLD, SHARED, Manners
from localspec.decoding.params import SamplingParams
from localspec.measure.acceptance import record
from localspec.measure.trace import record as trace
from localspec.pairs.judgement import judge_files

from .tinygguf import byte_vocab, sentencepiece_vocab, write_gemma, write_llama, write_mamba

GREEDY = {"temperature": 0}
PROMPT = "the thing and one\nother, ä 日本 end "


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Byte-level and SentencePiece vocabularies, and one with other ids for the same bytes."""
    folder = tmp_path_factory.mktemp("two")
    letters, pieces = byte_vocab().tokens, sentencepiece_vocab()
    pieces.tokens[-1] = "▁"  # as all real ones have it
    moved = {token: letters[(token + 1) % 256] for token in range(256)}
    return {
        "bytes": write_llama(folder / "bytes.gguf", seed=1),
        "pieces": write_gemma(folder / "pieces.gguf", seed=1, vocab=pieces, n_swa=512),
        "moved": write_llama(folder / "moved.gguf", seed=1, changed_tokens=moved),
    }


def load(target: Path, draft: Path, **options: Any) -> LLM:
    given = {"draft_tokens": 3, "n_ctx": 512, "threads": 1, "library": "llama", "cache_type_v": "bf16"}
    return LLM.from_files(target, draft, **{**given, **options})


@pytest.fixture(scope="module", params=[("bytes", "pieces"), ("pieces", "bytes"), ("bytes", "moved")])
def llm(files: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[LLM]:
    target, draft = (files[name] for name in request.param)
    with load(target, draft) as llm:
        assert llm.engine.crosses_vocabularies and isinstance(llm.engine._model_drafter, CrossDrafter)
        assert judge_files(target, draft).reservations[0].sentence in llm.warnings
        yield llm


@pytest.fixture(params=[SHARED, RETOLD, None])
def manner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The only manner to draft in, or what is chosen."""
    if request.param:
        monkeypatch.setattr(Manners, "next", lambda self: request.param)
    return request.param


def test_greedy_ids_are_the_targets_own(llm: LLM, manner: str | None) -> None:
    plain = llm.generate(PROMPT, max_tokens=40, draft_tokens=0, **GREEDY).ids
    for draft_tokens in (1, 2, 3, 8):
        answer = llm.generate(PROMPT, max_tokens=40, draft_tokens=draft_tokens, **GREEDY)
        assert answer.ids == plain and answer.stats.drafted > 0
    assert llm.generate(PROMPT, max_tokens=40, draft_tokens="auto", **GREEDY).ids == plain


def test_a_seed_gives_the_text_of_the_target_alone(llm: LLM, manner: str | None) -> None:
    options = {"max_tokens": 30, "seed": 3, "temperature": 1.0, "repeat_penalty": 1.2}
    plain = llm.generate(PROMPT, draft_tokens=0, **options)
    assert llm.generate(PROMPT, **options).ids == plain.ids


def test_a_grammar_holds(llm: LLM, manner: str | None) -> None:
    grammar = 'root ::= "a" [a-d]+ "."'
    answer = llm.generate(PROMPT, grammar=grammar, max_tokens=20, temperature=1.0)
    assert set(answer.text) <= set("abcd.") and (answer.stats.drafted or manner != SHARED)
    assert (
        llm.generate(PROMPT, grammar=grammar, max_tokens=20, **GREEDY).ids
        == llm.generate(PROMPT, grammar=grammar, max_tokens=20, draft_tokens=0, **GREEDY).ids
    )


def test_the_draft_reads_its_own_spelling_of_the_text(llm: LLM) -> None:
    engine = llm.engine
    ids = llm.tokenize(PROMPT)
    own = list(engine.read_by("draft", ids))
    vocabulary = engine.draft.weights.vocabulary
    text = b"".join(vocabulary.piece(token, special=True) for token in own)
    assert text.removeprefix(b"<bos>") == llm.token_bytes(ids).removeprefix(b"<bos>")
    assert (own[0] == 2) == (engine.draft.weights.path.stem == "pieces"), (
        "a BOS where the draft is used to one"
    )
    assert engine.read_by("target", ids) == ids


def test_random_conversations_are_those_of_a_fresh_engine(llm: LLM, files: dict[str, Path]) -> None:
    """Kept prefixes, undo, cancel and other conversations in between: each answer and each draft as on a cold start."""
    rng = random.Random(7)
    talks: list[list[int]] = [[], [], []]
    words = ["the ", "thing", " and\n", "ä", "日本", "one, two", "\n\n  x", " end. "]
    for turn in range(33):
        talk = rng.choice(talks)
        if rng.random() < 0.2:
            del talk[rng.randrange(len(talk) + 1) :]
        talk += llm.engine.vocab.tokenize(
            "".join(rng.choices(words, k=rng.randrange(1, 30))), parse_special=False
        )
        if len(talk) > 300:
            del talk[rng.randrange(1, 60) :]
        if rng.random() < 0.2:
            stream = llm.stream(talk, max_tokens=20, **GREEDY)
            next(iter(stream))
            stream.close()
        options: dict[str, Any] = {
            "max_tokens": rng.randrange(1, 12),
            "seed": turn,
            "draft_tokens": rng.randrange(1, 6),
        }
        options |= rng.choice(
            [GREEDY, {"temperature": 1.0, "verify": rng.choice(["block", "rejection", "coupled"])}]
        )
        again = llm.generate(talk, **options)
        llm.forget()
        fresh = llm.generate(talk, **options)
        assert (again.ids, again.stats.drafted, again.stats.accepted) == (
            fresh.ids, fresh.stats.drafted, fresh.stats.accepted,
        )  # fmt: skip
        talk += again.ids


def test_alternating_conversations_keep_the_drafts_cells_too(llm: LLM) -> None:
    first, second = "the one and the other " * 8, "in the end, of all things " * 8
    for prompt in (first, second, first):
        llm.generate(prompt, max_tokens=4, **GREEDY)
    engine = llm.engine
    engine.prefixes.switch(llm.tokenize(second))
    own = engine.read_by("draft", llm.tokenize(second))
    assert len(own) > 64
    if not engine.draft.whole_states:  # copies of sliding windows are no start for a shorter prompt
        assert engine.sessions["draft"].tokens[: len(own) - 1] == list(own)[: len(own) - 1]


def test_a_saved_conversation_goes_on_with_the_drafts_cells(llm: LLM, tmp_path: Path) -> None:
    talk = Conversation(llm, max_tokens=12, **GREEDY)
    for question in ("the one", "and another thing"):
        for _ in talk.ask(question):
            pass
    talk.save(tmp_path / "talk")
    expected = "".join(chunk.text for chunk in talk.ask("go on"))
    llm.forget()
    again = Conversation.load(llm, tmp_path / "talk", max_tokens=12, **GREEDY)
    assert "The draft's state of" in again.restored
    assert "".join(chunk.text for chunk in again.ask("go on")) == expected


def test_a_draft_with_a_shorter_context(files: dict[str, Path], tmp_path: Path) -> None:
    short = write_llama(
        tmp_path / "short.gguf",
        seed=1,
        n_ctx_train=64,
        changed_tokens={token: f"o{token}" for token in range(9)},
    )
    with load(files["pieces"], short) as llm:
        answer = llm.generate(PROMPT, max_tokens=80, **GREEDY)
        assert answer.ids == llm.generate(PROMPT, max_tokens=80, draft_tokens=0, **GREEDY).ids
        assert "its context holds 64 tokens of its own" in answer.drafting
        assert answer.stats.draft_ended_at is not None and answer.stats.draft_ended_at < 80


def test_strict(files: dict[str, Path]) -> None:
    with load(files["bytes"], files["pieces"], strict=True, cache_type_v="f16") as llm:
        options = {"max_tokens": 40, "seed": 5, "temperature": 1.0}
        assert llm.generate(PROMPT, **options).ids == llm.generate(PROMPT, draft_tokens=0, **options).ids


def test_another_context_on_the_same_weights_drafts_too(llm: LLM) -> None:
    other = llm.engine.branch()
    try:
        assert other.crosses_vocabularies and other._model_drafter is not llm.engine._model_drafter
    finally:
        other.close()


def test_what_is_recorded_of_drafts_is_theirs(llm: LLM) -> None:
    """Measurements that ask the draft model go through its own vocabulary as well."""
    engine, params = llm.engine, SamplingParams(temperature=0.0, max_tokens=24)
    prompt = llm.tokenize(PROMPT)
    answer = llm.generate(prompt, params=params).ids
    engine.forget()
    found = trace(engine, params, prompt, answer)
    assert len(found.model) == len(answer)
    engine.forget()
    assert list(record(engine, SamplingParams(temperature=1.0, seed=1), prompt, answer, 3))
    engine.forget()


def test_the_ends_of_both_are_heard(tmp_path: Path) -> None:
    """The target's end ends the answer; the draft's own name for it is no token of the target's."""
    target = write_llama(tmp_path / "ends.gguf", seed=1, ends=True)
    vocab = sentencepiece_vocab()
    draft = write_gemma(tmp_path / "pieces.gguf", seed=1, vocab=vocab)
    with load(target, draft) as llm:
        plain = llm.generate(PROMPT, max_tokens=200, draft_tokens=0, **GREEDY)
        assert plain.finish_reason == "stop"
        answer = llm.generate(PROMPT, max_tokens=200, **GREEDY)
        assert (answer.ids, answer.finish_reason) == (plain.ids, "stop")


def test_the_command_line_refuses_where_it_is_told_to(files: dict[str, Path]) -> None:
    from click.testing import CliRunner

    from localspec.cli.app import main

    arguments = [
        "chat",
        "-m",
        str(files["bytes"]),
        "-md",
        str(files["pieces"]),
        "-c",
        "256",
        "-n",
        "4",
        "-p",
        "the",
    ]
    refused = CliRunner().invoke(main, [*arguments, "--no-cross-vocabulary"])
    assert (
        refused.exit_code == 1
        and "their tokenizers are of different kinds, 'gpt2' and 'llama'" in refused.stderr
    )
    assert CliRunner().invoke(main, [*arguments, "--draft-tokens", "2"]).exit_code == 0


def test_a_recurrent_draft_goes_back_to_what_it_had_read(
    files: dict[str, Path], tmp_path: Path, manner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a copy of its state from before each draft: else a refused token would cost reading all anew."""
    mamba = write_mamba(tmp_path / "mamba.gguf", seed=1)
    with load(files["moved"], mamba) as llm:
        assert llm.engine.crosses_vocabularies and llm.engine.draft is not None
        plain = llm.generate(PROMPT, draft_tokens="off", max_tokens=40, **GREEDY)
        spans: list[int] = []
        decode = type(llm.engine.draft).decode

        def counted(context: Any, given: Any) -> Any:
            if context is llm.engine.draft:
                spans.extend(len(span.tokens) for span in given)
            return decode(context, given)

        monkeypatch.setattr(type(llm.engine.draft), "decode", counted)
        drafted = llm.generate(PROMPT, draft_tokens=3, max_tokens=40, **GREEDY)
        assert drafted.ids == plain.ids and drafted.stats.drafted > 0
        size = len(llm.tokenize(PROMPT))
        assert sum(span >= size for span in spans) <= 1, "the prompt is read once"
