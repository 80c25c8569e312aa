"""What a draft of another vocabulary reads: its own spelling of the text, however the text came."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.compute.vocabulary import Vocabulary
from localspec.engine.libraries import reference
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.pairs.shared_vocabulary import shared_vocabulary
from localspec.text.spelling import Speller
from localspec.text.translation import LONGEST, Side, Translation, _whole_characters

from . import tinygguf
from .crosskit import LetterVocabulary, between

CONTROL = "\x00"
TEXTS = [b"a", b"b", b" ", b"\n", b" a", b"ab", b"<s>", b"<x>", b"<", b">", b"s", b"x"]
OURS = LetterVocabulary(TEXTS, control=(6, 7))
THEIRS = LetterVocabulary([*reversed(TEXTS), b"b a", b"<p>"], control=(5, 13))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Metadata, Vocabulary]]]:
    folder = tmp_path_factory.mktemp("vocabularies")
    pieces = tinygguf.sentencepiece_vocab()
    pieces.tokens[-1] = "▁"  # as all real ones have it
    names = {270: "</s>", 271: "<|eot_id|>", 272: "日"}
    paths = [
        tinygguf.write_llama(folder / "bytes.gguf", n_vocab=320, changed_tokens=names),
        tinygguf.write_gemma(folder / "pieces.gguf", vocab=pieces),
    ]
    found = {path.stem: read_metadata(path) for path in paths}
    vocabularies = {name: reference().open_vocabulary(model) for name, model in found.items()}
    yield {name: (model, vocabularies[name]) for name, model in found.items()}
    for vocabulary in vocabularies.values():
        vocabulary.close()


def side(model: Metadata, vocabulary: Vocabulary) -> Side:
    known = model.token_texts
    assert known is not None
    return Side(Speller(vocabulary, known.texts, known.control), known.texts, known.control)


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_bytes_of_tokens_are_those_of_llama_cpp(models, name: str) -> None:
    model, vocabulary = models[name]
    known = model.token_texts
    for token in range(model.n_vocab):
        if token == 272 and name == "bytes":  # letters that stand for no byte: llama.cpp spells its complaint
            assert known.texts[token] == b""
            continue
        assert known.texts[token] == vocabulary.piece(token, special=True)
        assert (b"" if known.control[token] else known.texts[token]) == vocabulary.piece(token)


@pytest.mark.real
def test_bytes_of_the_real_tokens_are_those_of_llama_cpp(real_paths, smollm_path: Path) -> None:
    for path in (real_paths[1], smollm_path):
        model = read_metadata(path)
        vocabulary, known = reference().open_vocabulary(model), model.token_texts
        try:
            assert known is not None
            for token in range(model.n_vocab):
                assert known.texts[token] == vocabulary.piece(token, special=True)
                assert (b"" if known.control[token] else known.texts[token]) == vocabulary.piece(token)
        finally:
            vocabulary.close()


def test_kinds_whose_bytes_are_not_known_share_nothing(tmp_path: Path) -> None:
    vocab = tinygguf.Vocab(["a", "b"], [tinygguf.NORMAL] * 2, {}, model="t5")
    other = read_metadata(tinygguf.write_tokenizer_only(tmp_path / "t5.gguf", vocab))
    usual = read_metadata(tinygguf.write_llama(tmp_path / "usual.gguf"))
    assert other.token_texts is None
    assert shared_vocabulary(usual, other) is None and shared_vocabulary(other, usual) is None


def test_what_is_shared_has_the_same_bytes_and_kind_in_both(models) -> None:
    (ours, _), (theirs, _) = models["bytes"], models["pieces"]
    for target, draft in ((ours, theirs), (theirs, ours)):
        shared = shared_vocabulary(target, draft)
        mine, its = target.token_texts, draft.token_texts
        assert len(shared.ids) > 250 and len(set(shared.ids.values())) == len(shared.ids)
        for own, token in shared.ids.items():
            assert its.texts[own] == mine.texts[token] != b""
            assert its.control[own] == mine.control[token]
        assert shared.share == len(shared.ids) / sum(map(bool, mine.texts))


def test_a_control_token_is_no_text_of_the_same_spelling() -> None:
    text, control = LetterVocabulary([b"a", b"<s>"]), LetterVocabulary([b"a", b"<s>"], control=(1,))
    assert between(text, control).shared == {0: 0}


def test_a_usual_token_goes_before_a_byte_of_the_same_text(tmp_path: Path) -> None:
    usual = read_metadata(tinygguf.write_gemma(tmp_path / "g.gguf", vocab=tinygguf.sentencepiece_vocab()))
    letters = read_metadata(tinygguf.write_llama(tmp_path / "t.gguf"))
    shared = shared_vocabulary(letters, usual)
    assert shared is not None
    own = {token: own for own, token in shared.ids.items()}[ord("a")]
    assert usual.tokens[own] == b"a" and usual.token_types[own] == tinygguf.NORMAL


@pytest.mark.parametrize("name", ["bytes", "pieces"])
@pytest.mark.parametrize(
    "text",
    [
        "the one",
        " the one",
        "  x",
        "Zeile\n\n",
        "ä ö 日本 🙂",
        "\x00\x01",
        "<|im_end|>",
        "<bos> ▁",
        "a" * 300,
    ],
)
def test_ids_stand_for_just_the_text(models, name: str, text: str) -> None:
    model, vocabulary = models[name]
    own = side(model, vocabulary)
    for data in (
        text.encode(),
        text.encode()[:-1],
        text.encode()[1:],
        b"\xe6\x97" + text.encode(),
        b"\xff\xfe",
    ):
        ids = own.speller.spelled(data)
        assert ids is not None
        assert b"".join(own.texts[token] for token in ids) == data
        assert not any(own.control[token] for token in ids)


def test_text_is_spelled_as_the_tokenizer_spells_it(models) -> None:
    """Not letter by letter: a draft guesses badly behind tokens that it never saw side by side."""
    for name, text in (("bytes", "the on"), ("pieces", " the on")):
        model, vocabulary = models[name]
        ids = side(model, vocabulary).speller.spelled(text.encode())
        assert list(ids) == vocabulary.tokenize(text.removeprefix(" "), parse_special=False)


def read(translation: Translation, sequence: list[int]) -> tuple[list[int], list[int], bool]:
    reading = translation.reading()
    reading.follow(sequence)
    return reading.ids, reading.ends, reading.whole


@pytest.mark.parametrize("bos", [-1, 6, 7])
@pytest.mark.parametrize("add_bos", [False, True])
def test_the_reading_is_a_function_of_the_sequence_alone(bos: int, add_bos: bool) -> None:
    """Grown by any steps and cut anywhere, it is what reading the whole at once gives."""
    rng = random.Random(1)
    translation = between(OURS, THEIRS, OURS.side(bos), THEIRS.side(13, add_bos=add_bos))
    reading, sequence = translation.reading(), []
    for _ in range(1500):
        if rng.random() < 0.4:
            length = rng.randrange(len(sequence) + 1)
            if rng.random() < 0.8:
                length = max(length, len(sequence) - 4)
            reading.cut(length)
            del sequence[length:]
            if rng.random() < 0.3:
                continue  # cut again
        count = rng.choice([1, 1, 2, 5, 400] if len(sequence) < 300 else [1, 2])
        sequence += rng.choices(range(len(TEXTS)), [9, 9, 5, 2, 5, 5, 1, 1, 1, 1, 1, 1], k=count)
        reading.follow(sequence)
        assert (reading.ids, reading.ends, reading.whole) == read(translation, sequence)
        assert [reading.size(n) for n in (0, 1)] == [0, len(OURS.texts[sequence[0]]) * (reading.size(1) > 0)]
        skipped = sequence[0] == bos and bos not in translation.to_draft
        head = add_bos
        assert THEIRS.text(reading.ids[head:]) == OURS.text(sequence[skipped:])
        assert reading.ids[:head] == [13] * head


def test_a_bos_is_the_drafts_own() -> None:
    """The target's says nothing to a draft that does not know it; one that both have is not read twice."""
    ours = LetterVocabulary([b"a", b"<s>", b"<t>"], control=(1, 2))
    theirs = LetterVocabulary([b"a", b"<s>", b"<p>"], control=(1, 2))

    def ids(sequence: list[int], target_bos: int, own: int, add: bool) -> list[int]:
        sides = ours.side(target_bos), theirs.side(own, add_bos=add)
        return read(between(ours, theirs, *sides), sequence)[0]

    assert ids([2, 0], 2, 2, True) == [2, 0]
    assert ids([2, 0], 2, 2, False) == [0]
    assert ids([1, 0], 1, 1, True) == [1, 0]
    assert ids([0, 0], 2, 2, True) == [2, 0, 0]
    assert ids([2], 2, 2, False) == []


def test_a_control_token_that_the_draft_lacks_is_text_to_it_and_one_it_cannot_spell_ends_it() -> None:
    ours = LetterVocabulary([b"a", b"<s>", b"<<>>"], control=(1, 2))
    theirs = LetterVocabulary([b"a", b"<", b">", b"s"])
    translation = between(ours, theirs)
    assert read(translation, [0, 1, 0]) == ([0, 1, 3, 2, 0], [1, 2, 3, 4, 5], True)
    poor = between(ours, LetterVocabulary([b"a", b"<", b"s"]))
    assert read(poor, [0, 0, 1, 0]) == ([0, 0], [1, 2], False)
    reading = poor.reading()
    reading.follow([0, 0, 1, 0])
    reading.cut(2)
    assert reading.whole


def test_long_text_without_blanks_is_not_spelled_anew_for_every_letter() -> None:
    letters = LetterVocabulary(["ä".encode(), b"b"])
    translation = between(letters, letters)
    reading, sequence = translation.reading(), []
    for _ in range(500):
        sequence.append(0)
        reading.follow(sequence)
    assert max(len(text.encode()) for text in letters.asked) <= LONGEST


def test_drafted_text_ends_with_a_whole_character() -> None:
    for text, kept in (("aä", 3), ("日", 3), ("🙂", 4), ("a", 1)):
        data = text.encode()
        assert _whole_characters(data) == data[:kept] == data
        for cut in range(1, len(text[-1].encode())):
            assert _whole_characters(data[:-cut]) == text[:-1].encode()
    assert _whole_characters(b"") == b"" and _whole_characters(b"\x80\x80\x80\x80") == b"\x80\x80\x80\x80"
