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
    say(conversation.ask("z"))
    assert conversation.reread == "", "what was read again once is kept from then on"


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


@pytest.mark.parametrize("goes_on", ["ask", "regenerate", "undo", "clear", "not"])
def test_the_late_record_of_a_superseded_answer_changes_nothing(talk, monkeypatch, goes_on):
    """Between the end of an answer that was cancelled and its record, the conversation may go on."""
    stream = talk.ask("superseded")
    record = stream.tell

    def go_on_first(completion):
        if goes_on in {"ask", "regenerate"}:
            say(talk.ask("in between") if goes_on == "ask" else talk.regenerate())
        elif goes_on != "not":
            getattr(talk, goes_on)()
        expected.append(talk.turns)
        record(completion)

    expected = []
    monkeypatch.setattr(stream, "tell", go_on_first)
    next(stream)
    stream.cancel()
    list(stream)
    superseded = [turn.question for turn in talk.turns].count("superseded")
    assert superseded == (1 if goes_on == "not" else 0)
    if goes_on != "not":
        assert expected == [talk.turns]


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
        with pytest.raises(ConversationFileError, match="damaged" if cut > 4 else "is no saved conversation"):
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


def test_cells_that_hold_little_of_it_are_left_where_they_are(llm, talk, tmp_path):
    """The conversation that answered last has them, and goes on from them."""
    other = llm.conversation("be brief", **OPTIONS)
    say(other.ask("something quite different"))
    talk.save(tmp_path / "talk")
    other.save(tmp_path / "other")
    with zipfile.ZipFile(tmp_path / "talk") as left, zipfile.ZipFile(tmp_path / "other") as right:
        assert left.namelist() == ["conversation.json"]
        assert right.namelist() == ["conversation.json", "target.kv", "draft.kv"]
    said = other.ids
    assert say(other.ask("more")).stats.cached_tokens >= len(said) - 1


@pytest.mark.parametrize("accident", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["os.fsync", "pathlib.Path.replace", "zipfile.ZipFile.writestr"])
def test_a_file_that_was_not_written_leaves_the_one_before_and_nothing_else(
    talk, tmp_path, monkeypatch, accident, moment
):
    path = tmp_path / "c"
    talk.save(path)
    before = path.read_bytes()

    def fail(*_arguments: object) -> None:
        raise accident

    monkeypatch.setattr(moment, fail)
    with pytest.raises((ConversationFileError, KeyboardInterrupt)):
        talk.save(path)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["c"] and path.read_bytes() == before
    talk.save(path)


@pytest.mark.parametrize("place", ["prompt", "ids"])
@pytest.mark.parametrize("token", [-1, "one too many", True, 5.0, "5", None])
def test_ids_that_the_vocabulary_lacks_are_an_error_wherever_they_stand(llm, talk, tmp_path, place, token):
    """Also the last of a list, and of any turn: llama.cpp would read beyond its table."""
    n_vocab = llm.engine.vocab.n_vocab
    for turn in range(3) if place == "ids" else [2]:  # the others' prompts begin the last one
        for at in (0, -1):
            header = saved_header(talk, tmp_path)
            header["turns"][turn][place][at] = n_vocab if token == "one too many" else token
            with pytest.raises(ConversationFileError, match="outside the vocabulary"):
                Conversation.load(llm, with_header(tmp_path, header))


def test_the_first_and_the_last_id_of_the_vocabulary_are_taken(llm, talk, tmp_path):
    header = saved_header(talk, tmp_path)
    header["turns"][2]["ids"] = ids = [0, llm.engine.vocab.n_vocab - 1]
    assert Conversation.load(llm, with_header(tmp_path, header)).ids[-2:] == tuple(ids)


def saved_header(conversation, folder):
    conversation.save(folder / "c")
    with zipfile.ZipFile(folder / "c") as archive:
        return json.loads(archive.read("conversation.json"))


def with_header(folder, header):
    """The saved conversation without its cells, and with this header."""
    with zipfile.ZipFile(folder / "c", "w") as archive:
        archive.writestr("conversation.json", json.dumps({**header, "cells": {}}))
    return folder / "c"


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


# A context that is full


def talk_until_dropped(llm, **options):
    """A conversation that has just dropped turns, and what was said of it."""
    conversation = llm.conversation("be brief", when_full="drop_oldest", **{**OPTIONS, **options})
    for index in range(60):
        answer = say(conversation.ask(f"question {index} " + "word " * (5 + index % 4)))
        if conversation.dropped:
            return conversation, answer
        assert answer.notice == "" and conversation.reread == ""
    raise AssertionError("nothing was dropped")


def prompt_text(llm, turn):
    return llm.detokenize(turn.said.prompt)


def test_a_full_context_is_an_error_that_names_the_way_on_unless_turns_may_be_dropped(llm):
    conversation = llm.conversation(**OPTIONS)
    with pytest.raises(PromptTooLong) as caught:
        for index in range(60):
            say(conversation.ask(f"question {index}"))
    assert 'when_full = "drop_oldest"' in caught.value.remedy
    before = conversation.turns
    assert conversation.dropped == 0 and conversation.seen == conversation.messages
    conversation.when_full = "drop_oldest"
    answer = say(conversation.ask("and now"))
    assert conversation.turns[:-1] == before and conversation.dropped > 0
    assert answer.notice.startswith("The context of 512 tokens is full: the model no longer sees turns 1 to ")
    with pytest.raises(
        PromptTooLong
    ) as caught:  # the question alone is too long: nothing helps, nothing is dropped
        conversation.ask("x" * 3000)
    assert "when_full" not in caught.value.remedy and conversation.turns[:-1] == before


def test_whole_turns_go_from_the_oldest_on_and_what_the_model_sees_is_what_is_said(llm):
    conversation, answer = talk_until_dropped(llm)
    dropped, turns = conversation.dropped, conversation.turns
    assert 0 < dropped < len(turns) - 1
    assert answer.notice == (
        f"The context of 512 tokens is full: the model no longer sees turns 1 to {dropped} of {len(turns) - 1}."
    )
    assert conversation.reread == answer.notice
    assert [turn.dropped for turn in turns] == [0] * (len(turns) - 1) + [dropped]
    assert conversation.messages[1::2] == [{"role": "user", "content": turn.question} for turn in turns]
    assert conversation.seen == [conversation.messages[0], *conversation.messages[1 + 2 * dropped :]]
    assert list(turns[-1].said.prompt) == llm.render(conversation.seen[:-1])
    assert conversation.ids == (*turns[-1].said.prompt, *answer.ids)
    # Half of the context is free, and no turn more than that takes is dropped.
    assert len(turns[-1].said.prompt) <= 256
    one_more = [conversation.messages[0], *conversation.messages[2 * dropped - 1 : -1]]
    assert len(llm.render(one_more)) > 256
    # The next turn goes on from there, with the very ids, and without a word.
    following = say(conversation.ask("go on"))
    assert conversation.dropped == dropped and following.notice == conversation.reread == ""
    assert conversation.turns[-1].said.prompt[: len(turns[-1].said.prompt)] == turns[-1].said.prompt
    assert following.stats.cached_tokens >= len(turns[-1].said.prompt)


def test_after_turns_were_dropped_the_answer_is_that_of_a_cold_engine(llm, files):
    conversation, answer = talk_until_dropped(llm)
    with load(files["target"]) as fresh:
        assert fresh.chat(conversation.seen[:-1], **OPTIONS) and conversation.dropped
        assert fresh.generate(conversation.seen[:-1], **OPTIONS).ids == answer.ids


def test_the_stream_says_before_the_answer_what_was_dropped(llm):
    conversation, _ = talk_until_dropped(llm)
    stream = conversation.ask(conversation.undo().question)
    assert "no longer sees" in stream.notice
    assert say(stream).notice == stream.notice and conversation.dropped


def test_undo_shows_the_model_what_was_dropped_for_the_turn_that_is_taken_back(llm):
    conversation, _ = talk_until_dropped(llm)
    conversation.undo()
    assert conversation.dropped == 0 and conversation.seen == conversation.messages
    conversation.undo()
    answer = say(conversation.ask("short", max_tokens=1))  # for which there is room
    assert conversation.dropped == 0 and answer.notice == ""
    kept = (*conversation.turns[-2].said.prompt, *conversation.turns[-2].said.ids)
    assert conversation.turns[-1].said.prompt[: len(kept)] == kept


def test_regenerate_drops_the_same_turns_again_and_no_more(llm):
    conversation, answer = talk_until_dropped(llm)
    dropped, prompt = conversation.dropped, conversation.turns[-1].said.prompt
    for _ in range(2):
        again = say(conversation.regenerate())
        assert again.notice == answer.notice and again.ids == answer.ids
        assert (conversation.dropped, conversation.turns[-1].said.prompt) == (dropped, prompt)
    say(conversation.ask("next"))
    say(conversation.regenerate())
    assert conversation.dropped == dropped


def test_clear_drops_nothing(llm):
    conversation, _ = talk_until_dropped(llm)
    conversation.clear()
    assert (conversation.dropped, conversation.seen) == (0, [{"role": "system", "content": "be brief"}])


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_an_answer_that_leaves_no_trace_drops_nothing(llm, end):
    conversation, _ = talk_until_dropped(llm)
    stream = conversation.ask(conversation.undo().question)
    assert stream.notice
    if end == "cancel":
        stream.cancel()
        assert say(stream).ids == ()
    else:
        stream.close()
    assert conversation.dropped == 0


def test_dropped_turns_are_saved_as_such(llm, tmp_path):
    conversation, _ = talk_until_dropped(llm)
    path = tmp_path / "c"
    conversation.save(path)
    expected = say(conversation.ask("more"))
    loaded = Conversation.load(llm, path, when_full="drop_oldest", **OPTIONS)
    assert loaded.turns == conversation.turns[:-1] and loaded.when_full == "drop_oldest"
    assert loaded.dropped == conversation.dropped > 0
    assert say(loaded.ask("more")).ids == expected.ids
    loaded.undo()
    loaded.undo()
    assert loaded.dropped == 0
    assert Conversation.load(llm, path, when_full="error").when_full == "error"
    change_header(path, lambda header: header["turns"][-1].update(dropped=len(header["turns"])))
    with pytest.raises(ConversationFileError, match="more turns are dropped"):
        Conversation.load(llm, path)


def test_files_of_the_first_format_are_read(llm, talk, tmp_path):
    path = tmp_path / "c"
    talk.save(path)

    def as_it_was(header):
        header["format"] = 1
        for turn in header["turns"]:
            assert turn.pop("dropped") == 0

    change_header(path, as_it_was)
    assert Conversation.load(llm, path).turns == talk.turns


def change_header(path, change):
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(contents["conversation.json"])
    change(header)
    contents["conversation.json"] = json.dumps(header)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def test_a_conversation_of_a_larger_context_goes_on_in_a_smaller_one(llm, talk, tmp_path, files):
    talk.save(tmp_path / "c")
    with load(files["target"], n_ctx=len(talk.ids)) as small:
        loaded = Conversation.load(small, tmp_path / "c", when_full="drop_oldest", **OPTIONS)
        assert "no longer sees turn" in say(loaded.ask("more")).notice
        assert loaded.dropped and len(loaded.turns) == 4


def test_the_newest_turn_stays_where_it_leaves_room_and_goes_where_not(llm):
    def told(words):
        conversation = llm.conversation(when_full="drop_oldest", **{**OPTIONS, "max_tokens": 40})
        for question in ("one", "two", "x " * words, "last"):
            say(conversation.ask(question))
        return conversation.dropped, len(conversation.turns[-1].said.prompt)

    size = len(llm.tokenize("x " * 100)) / 100
    dropped, length = told(int(300 / size))
    assert dropped == 2 and 256 < length <= 512 - 40
    dropped, length = told(int(430 / size))
    assert dropped == 3 and length < 100


@pytest.mark.parametrize("use", ["new", "load", "set"])
def test_what_to_do_when_full_is_checked(llm, talk, tmp_path, use):
    talk.save(tmp_path / "c")
    with pytest.raises(InvalidRequest, match="when_full is 'summarize'"):
        if use == "new":
            llm.conversation(when_full="summarize")
        elif use == "load":
            Conversation.load(llm, tmp_path / "c", when_full="summarize")
        else:
            talk.when_full = "summarize"
            talk.ask("x")
