"""Conversations: kept ids, undo and regenerate, saved files; consistent after every kind of end."""

from __future__ import annotations

import json
import os
import zipfile

import pytest

from localspec import LLM, Conversation
from localspec.errors import (
    ConversationFileError,
    EngineBusy,
    InvalidRequest,
    PromptTooLong,
    StateError,
    TemplateError,
)

from .tinygguf import CHATML, write_llama

OPTIONS = {"temperature": 0, "max_tokens": 12}
TRIMS_HISTORY = CHATML.replace(
    "message['content']", "(message['content'][:3] if message['role'] == 'assistant' else message['content'])"
)
COUNTS = CHATML.replace("{% for", "{{ messages | length }}{% for", 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conversation")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
        "again": write_llama(folder / "again.gguf", seed=2),
        "other": write_llama(
            folder / "other.gguf", seed=1, changed_tokens={token: f"other{token}" for token in range(40, 200)}
        ),
        "trims": write_llama(folder / "trims.gguf", seed=1, template=TRIMS_HISTORY),
        "counts": write_llama(folder / "counts.gguf", seed=1, template=COUNTS),
        "bare": write_llama(folder / "bare.gguf", seed=1, template=None),
    }


def load(target, draft=None, **options):
    return LLM.from_files(
        target, draft, **{"n_ctx": 512, "draft_tokens": 3, "cache_type_v": "bf16", **options}
    )


@pytest.fixture(scope="module")
def llm(files):
    with load(files["target"], files["draft"]) as llm:
        yield llm


def say(stream):
    return list(stream)[-1].completion


@pytest.fixture
def talk(llm):
    """Three turns."""
    conversation = llm.conversation("be brief", **OPTIONS)
    for question in ("hello", "and <|im_end|> typed", "third"):
        say(conversation.ask(question))
        assert conversation.reread == ""
    return conversation


def test_each_prompt_begins_with_the_very_ids_read_and_written_before(llm, talk):
    for before, after in zip(talk.turns, talk.turns[1:], strict=False):
        kept = (*before.said.prompt, *before.said.ids)
        assert after.said.prompt[: len(kept)] == kept
    assert talk.messages[0] == {"role": "system", "content": "be brief"}
    assert [message["role"] for message in talk.messages[1:]] == ["user", "assistant"] * 3
    spelled = b"".join(llm.engine.vocab.piece(token, special=True) for token in talk.ids)
    expected = CHATML_TEXT.format(*(message["content"] for message in talk.messages))
    assert spelled.decode("utf-8", "replace") == expected


CHATML_TEXT = (
    "<|im_start|>system\n{}<|im_end|>\n"
    + "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n" * 2
    + "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}"
)


def test_a_typed_control_token_stays_text_in_a_kept_history(llm, talk):
    (end,) = llm.engine.vocab.tokenize("<|im_end|>", parse_special=True)
    assert talk.ids.count(end) == 6


def test_the_kept_history_answers_as_a_cold_engine_given_the_same_ids(llm, talk, files):
    last = talk.turns[-1]
    with load(files["target"]) as fresh:
        assert fresh.generate(last.said.prompt, **OPTIONS).ids == last.said.ids
    cached = say(talk.ask("more")).stats
    assert cached.cached_tokens >= len(last.said.prompt) + len(last.said.ids) - 1


def test_ids_are_kept_where_tokenizing_the_text_again_would_give_others(llm):
    """The bias makes the model write letter by letter what the tokenizer would join."""
    model = llm.engine.vocab
    (joined,) = model.tokenize("th", parse_special=False)
    bias = dict.fromkeys((joined - 0,), 100.0) | {joined: float("-inf")}
    conversation = llm.conversation(**OPTIONS)
    t, h = (model.tokenize(letter, parse_special=False)[0] for letter in "th")
    answer = say(conversation.ask("x", grammar='root ::= "thththth"', logit_bias={**bias, t: 5.0, h: 5.0}))
    assert answer.text == "thththth" and len(answer.ids) == 8
    assert len(model.tokenize(answer.text, parse_special=False)) == 4
    say(conversation.ask("y"))
    kept = (*conversation.turns[0].said.prompt, *answer.ids)
    assert conversation.turns[1].said.prompt[: len(kept)] == kept and conversation.reread == ""


@pytest.mark.parametrize(
    ("name", "reason"), [("trims", "changes the last answer"), ("counts", "earlier turns differently")]
)
def test_a_template_that_rewrites_history_is_obeyed_and_named(files, name, reason):
    with load(files[name]) as llm:
        conversation = llm.conversation(**OPTIONS)
        say(conversation.ask("one"))
        assert conversation.reread == ""
        messages = [*conversation.messages, {"role": "user", "content": "two"}]
        say(conversation.ask("two"))
        assert reason in conversation.reread
        with llm.using() as engine:
            from localspec.text.prompt import render_prompt

            assert list(conversation.turns[-1].said.prompt) == render_prompt(
                engine.vocab, engine.template, messages
            )


def test_an_answer_cut_at_a_stop_string_is_read_again_without_it(llm):
    conversation = llm.conversation(**OPTIONS)
    whole = say(conversation.ask("x")).text
    conversation.undo()
    say(conversation.ask("x", stop=[whole[4:6]]))
    say(conversation.ask("y"))
    assert "stop string" in conversation.reread
    text = b"".join(llm.engine.vocab.piece(token) for token in conversation.turns[1].said.prompt)
    assert whole[:6] not in text.decode("utf-8", "replace")


def test_undo_and_regenerate(talk):
    assert talk.undo().question == "third"
    before = talk.turns
    say(talk.regenerate(temperature=1.5))
    assert talk.turns[:-1] == before[:-1]
    assert (talk.turns[-1].question, talk.turns[-1].attempt) == (before[-1].question, 1)
    assert talk.undo() and talk.undo() and talk.undo() is None
    assert talk.messages == [{"role": "system", "content": "be brief"}] and talk.ids == ()
    with pytest.raises(InvalidRequest, match="regenerate"):
        talk.regenerate()
    say(talk.ask("anew"))
    assert len(talk.turns) == 1


def test_a_seed_makes_every_attempt_repeatable_and_different(llm):
    def attempts():
        conversation = llm.conversation(seed=5, temperature=1.5, max_tokens=12)
        answers = [say(conversation.ask("x"))]
        answers += [say(conversation.regenerate()) for _ in range(3)]
        return [answer.ids for answer in answers]

    first = attempts()
    assert first == attempts() and len(set(first)) == 4


def test_what_was_cancelled_is_kept_and_the_next_turn_goes_on_from_it(llm):
    conversation = llm.conversation(temperature=0, max_tokens=200)
    stream = conversation.ask("x")
    pieces = [next(stream).text, next(stream).text]
    stream.cancel()
    answer = say(stream)
    assert answer.finish_reason == "cancelled" and answer.text.startswith("".join(pieces))
    assert conversation.turns[-1].answer == answer.text
    say(conversation.ask("y", max_tokens=3))
    assert len(conversation.turns) == 2


def test_what_was_cancelled_before_its_first_word_leaves_nothing(llm, talk):
    before = talk.turns
    for start in (lambda: talk.ask("x"), talk.regenerate):
        stream = start()
        stream.cancel()
        assert say(stream).ids == ()
        assert talk.turns == before


@pytest.mark.parametrize("end", ["close", "drop", "raise", "cancel unread"])
@pytest.mark.parametrize("kind", ["ask", "regenerate"])
def test_an_answer_that_nobody_reads_to_its_end_leaves_no_trace(llm, talk, end, kind):
    before = talk.turns
    stream = talk.ask("x") if kind == "ask" else talk.regenerate()
    try:
        for _ in stream:
            if end == "raise":
                raise KeyError("consumer")
            break
    except KeyError:
        stream.close()
    if end == "close":
        stream.close()
    elif end == "cancel unread":
        stream.cancel()
    else:
        del stream
    assert talk.turns == before
    answer = say(talk.ask("next"))
    assert talk.turns[:-1] == before and talk.turns[-1].answer == answer.text
    with_the_same_ids = llm.generate(talk.turns[-1].said.prompt, **OPTIONS)
    assert with_the_same_ids.ids == answer.ids


def test_an_unfinished_answer_is_in_the_way(talk, tmp_path):
    stream = talk.ask("x")
    next(stream)
    for use in (lambda: talk.ask("y"), talk.undo, talk.regenerate, lambda: talk.save(tmp_path / "c")):
        with pytest.raises(EngineBusy, match="unfinished"):
            use()
    say(stream)
    assert talk.undo().question == "x"


def test_conversations_that_alternate_do_not_disturb_each_other(llm):
    def ask_all(conversations):
        for question in ("one", "two", "three"):
            for conversation in conversations:
                say(conversation.ask(question))
        return [conversation.ids for conversation in conversations]

    def start(system):
        return llm.conversation(system, **OPTIONS)

    together = ask_all([start("a"), start("b")])
    assert together == [*ask_all([start("a")]), *ask_all([start("b")])]


def test_bad_requests_leave_it_alone(llm, talk, files):
    before = talk.turns
    for use, error in (
        (lambda: talk.ask("x" * 3000), PromptTooLong),
        (lambda: talk.ask("x", colour=1), InvalidRequest),
        (lambda: talk.ask("\0"), InvalidRequest),
        (lambda: talk.ask(None), InvalidRequest),
        (lambda: llm.conversation(colour=1), InvalidRequest),
        (lambda: llm.conversation(7), InvalidRequest),
    ):
        with pytest.raises(error):
            use()
    assert talk.turns == before
    with load(files["bare"]) as bare, pytest.raises(TemplateError):
        bare.conversation().ask("x")


# Saved files


def test_a_saved_conversation_goes_on_where_it_was_without_reading_it_again(llm, talk, tmp_path, files):
    path = tmp_path / "chat.localspec"
    talk.save(path)
    expected = say(talk.ask("more"))
    with load(files["target"], files["draft"]) as fresh:
        loaded = Conversation.load(fresh, path, **OPTIONS)
        assert loaded.messages == talk.messages[:-2] and loaded.turns == talk.turns[:-1]
        assert "is restored" in loaded.restored and "again" not in loaded.restored
        answer = say(loaded.ask("more"))
        assert answer.ids == expected.ids
        assert answer.stats.cached_tokens >= len(talk.turns[-2].said.prompt)
        assert answer.stats.cached_tokens == expected.stats.cached_tokens
        assert answer.stats.accepted == expected.stats.accepted
        loaded.undo()
        loaded.undo()
        assert loaded.ids == (*talk.turns[1].said.prompt, *talk.turns[1].said.ids)
    if os.name != "nt":
        assert path.stat().st_mode & 0o77 == 0
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_cells_that_another_conversation_took_are_read_again(llm, talk, tmp_path):
    llm.generate("something else entirely", max_tokens=30, temperature=0)
    talk.save(tmp_path / "c")
    loaded = Conversation.load(llm, tmp_path / "c", **OPTIONS)
    assert "not saved" in loaded.restored
    assert say(loaded.ask("more")).ids == say(talk.ask("more")).ids


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("again", {}),
        ("target", {"n_ctx": 400}),
        ("target", {"cache_type_k": "bf16"}),
        ("target", {"strict": True}),
    ],
)
def test_saved_under_other_settings_it_is_read_again(talk, tmp_path, files, target, options):
    talk.save(tmp_path / "c")
    with load(files[target], **options) as other:
        loaded = Conversation.load(other, tmp_path / "c", **OPTIONS)
        assert "not those it was saved with" in loaded.restored
        assert loaded.ids == talk.ids
        answer = say(loaded.ask("more"))
        assert answer.stats.cached_tokens == 0
        assert other.generate(loaded.turns[-1].said.prompt, **OPTIONS).ids == answer.ids


def test_the_draft_alone_may_be_another(talk, tmp_path, files):
    talk.save(tmp_path / "c")
    with load(files["target"], files["again"]) as other:
        loaded = Conversation.load(other, tmp_path / "c", **OPTIONS)
        assert "target's state of" in loaded.restored and "The draft or its settings" in loaded.restored
        assert say(loaded.ask("more")).ids == say(talk.ask("more")).ids


def test_another_vocabulary_is_refused(talk, tmp_path, files):
    talk.save(tmp_path / "c")
    with load(files["other"]) as other, pytest.raises(ConversationFileError, match="vocabulary"):
        Conversation.load(other, tmp_path / "c")


def test_an_empty_conversation_can_be_saved(llm, tmp_path):
    llm.conversation("only this").save(tmp_path / "c")
    loaded = Conversation.load(llm, tmp_path / "c", **OPTIONS)
    assert loaded.system == "only this" and loaded.turns == ()
    say(loaded.ask("x"))


def test_a_failed_save_leaves_the_old_file(llm, talk, tmp_path, monkeypatch):
    path = tmp_path / "c"
    talk.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("localspec.answers.saved.os.fsync", lambda _handle: _full_disk())
    with pytest.raises(ConversationFileError, match="No space"):
        talk.save(path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["c"]
    with pytest.raises(ConversationFileError, match="cannot be written"):
        talk.save(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_save_leaves_the_old_file_alone(talk, tmp_path, monkeypatch, error):
    path = tmp_path / "c"
    talk.save(path)
    before = path.read_bytes()

    def interrupt(_handle):
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr("localspec.answers.saved.os.fsync", interrupt)
        talk.save(path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["c"]
    talk.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def _full_disk():
    raise OSError(28, "No space left on device")


def test_no_damage_crashes_it(llm, talk, tmp_path):
    path = tmp_path / "c"
    talk.save(path)
    whole = path.read_bytes()
    turns = talk.turns
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConversationFileError, match="damaged"):
            Conversation.load(llm, path)
    undamaged = 0
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            assert Conversation.load(llm, path).turns == turns  # a byte that means nothing, such as a date
            undamaged += 1
        except ConversationFileError:
            continue
    assert undamaged < 40
    with pytest.raises(ConversationFileError, match="no file"):
        Conversation.load(llm, tmp_path / "none")
    with pytest.raises(ConversationFileError, match="directory"):
        Conversation.load(llm, tmp_path)


def test_a_device_is_not_read(llm):
    """Some never end."""
    with pytest.raises(ConversationFileError, match="regular"):
        Conversation.load(llm, os.devnull)


@pytest.mark.parametrize(
    "change",
    [
        {"turns": 7},
        {"turns": [{}]},
        {"system": None},
        {"format": 99},
        {"cells": {"target": {}}},
        {"cells": {"target": {"length": 10**9, "facts": {}}}},
        "ids",
        "beyond",
    ],
)
def test_contents_that_make_no_sense_are_an_error(llm, talk, tmp_path, change):
    path = tmp_path / "c"
    talk.save(path)
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("conversation.json"))
    if change == "ids":
        header["turns"][0]["ids"] = ["a"]
    elif change == "beyond":
        header["turns"][0]["prompt"] = [10**6]
    else:
        header.update(change)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversation.json", json.dumps(header))
    with pytest.raises(ConversationFileError):
        Conversation.load(llm, path)


def test_a_state_that_llama_cpp_refuses_is_read_again(llm, talk, tmp_path, monkeypatch):
    talk.save(tmp_path / "c")
    expected = say(talk.ask("more")).ids

    def refuse(*_: object) -> int:
        raise StateError("It is refused.")

    monkeypatch.setattr("localspec.llama.context.Context.load_state", refuse)
    loaded = Conversation.load(llm, tmp_path / "c", **OPTIONS)
    assert "The saved state of the target was refused" in loaded.restored
    assert say(loaded.ask("more")).ids == expected


def test_the_ids_outlive_unloaded_weights(llm, talk):
    ids = talk.ids
    assert llm.unload()
    answer = say(talk.ask("more"))
    assert answer.stats.cached_tokens == 0 and talk.turns[-1].said.prompt[: len(ids)] == ids
