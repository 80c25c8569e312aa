"""A saved conversation keeps the options it was made with; what is given at its load goes before them."""

from __future__ import annotations

import json
import math
import zipfile
from types import MappingProxyType

import click
import numpy as np
import pytest

from localspec import LLM, Conversation, SamplingParams
from localspec.cli.options import model_options
from localspec.errors import ConversationFileError, InvalidRequest

from .tinygguf import write_pair

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    target, draft = write_pair(tmp_path_factory.mktemp("options"))
    with LLM.from_files(target, draft, n_ctx=256, draft_tokens=3) as llm:
        yield llm


def again(llm, talk, path, **options):
    talk.save(path)
    return Conversation.load(llm, path, **options)


def say(stream):
    return list(stream)[-1].completion


def typed(*flags):
    """The options of a command that was given these."""
    found = []
    click.command("any")(model_options(lambda options: found.append(options))).main(
        flags, standalone_mode=False
    )
    return found[0]


def header_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("conversation.json"))


def write_header(path, header):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversation.json", json.dumps({**header, "cells": {}}))


def test_every_option_comes_back(llm, tmp_path):
    given = {
        "params": SamplingParams(top_k=3, logit_bias={5: -math.inf, 7: 1.5}, stop=("x",)),
        "draft_tokens": np.int64(2),
        "verify": "rejection",
        "prediction": "a\ud800b",
        "json_schema": MappingProxyType(SCHEMA),
        "shown_tokens": ("<|im_end|>",),
        "prompt_logprobs": True,
        "temperature": np.float32(0.5),
        "seed": 2**64 - 1,
        "max_tokens": np.int32(9),
        "min_tokens": 2,
        "logprobs": 0,
        "logit_bias": {np.int64(3): -math.inf},
        "stop": "end",
        "grammar": None,
    }
    talk = llm.conversation("be brief", when_full="drop_oldest", **given)
    loaded = again(llm, talk, tmp_path / "c")
    assert (loaded.system, loaded.when_full) == ("be brief", "drop_oldest")
    assert loaded.defaults == {
        **given,
        "json_schema": SCHEMA,
        "shown_tokens": ["<|im_end|>"],
        "stop": ["end"],
    }
    assert all(type(loaded.defaults[name]) is int for name in ("draft_tokens", "max_tokens"))


def test_it_answers_as_if_it_had_never_been_away(llm, tmp_path):
    talk = llm.conversation(temperature=1.5, seed=11, max_tokens=20)
    say(talk.ask("hello"))
    loaded = again(llm, talk, tmp_path / "c")
    expected, answer = say(talk.ask("more")), say(loaded.ask("more"))
    assert (answer.ids, answer.seed, answer.finish_reason) == (expected.ids, 11, "length")
    assert say(loaded.regenerate()).ids == say(talk.regenerate()).ids != answer.ids


def test_what_was_changed_since_it_was_made_is_saved(llm, tmp_path):
    talk = llm.conversation(temperature=1.5)
    talk.defaults["temperature"], talk.when_full = 0.25, "drop_oldest"
    loaded = again(llm, talk, tmp_path / "c")
    assert (loaded.defaults, loaded.when_full) == ({"temperature": 0.25}, "drop_oldest")


def test_what_is_given_at_the_load_goes_before(llm, tmp_path):
    talk = llm.conversation(
        temperature=1.5, seed=3, max_tokens=5, json_schema=SCHEMA, when_full="drop_oldest"
    )
    loaded = again(llm, talk, tmp_path / "c", seed=4, when_full="error", grammar='root ::= "a"')
    assert loaded.defaults == {"temperature": 1.5, "seed": 4, "max_tokens": 5, "grammar": 'root ::= "a"'}
    assert loaded.when_full == "error"
    params = SamplingParams(temperature=0.5)
    assert again(llm, talk, tmp_path / "c", params=params, seed=5).defaults == {
        "params": params,
        "seed": 5,
        "json_schema": SCHEMA,
    }
    with pytest.raises(InvalidRequest, match="colour"):
        Conversation.load(llm, tmp_path / "c", colour=3)


def test_in_the_terminal_the_options_of_the_command_hold_and_none_that_were_saved(llm, tmp_path):
    talk = llm.conversation(grammar='root ::= "a"', seed=3, stop="x", verify="rejection", draft_tokens=1)
    for flags in ([], ["--json-schema", '{"type": "integer"}', "-n", "5"]):
        options = typed(*flags).conversation()
        loaded = again(llm, talk, tmp_path / "c", **options)
        assert loaded.defaults == options
    assert say(loaded.ask("hello")).text.lstrip("-").isdigit()


def test_functions_are_not_saved_and_that_is_said(llm, tmp_path):
    asked = []

    def processor(ids, logits):
        asked.append(len(ids))

    talk = llm.conversation(logits_processors=[processor], max_tokens=3)
    loaded = again(llm, talk, tmp_path / "c")
    assert loaded.defaults == {"max_tokens": 3} and "logits_processors" in loaded.restored
    again_given = Conversation.load(llm, tmp_path / "c", logits_processors=[processor])
    assert "logits_processors" not in again_given.restored
    say(again_given.ask("hello"))
    assert asked
    without = again(llm, llm.conversation(logits_processors=[]), tmp_path / "c")
    assert "logits_processors" not in without.restored


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_from_before_has_no_options(llm, tmp_path, number):
    talk = llm.conversation("be brief", temperature=1.5, max_tokens=4)
    say(talk.ask("hello"))
    talk.save(tmp_path / "c")
    header = {**header_of(tmp_path / "c"), "format": number}
    del header["options"], header["when_full"]
    write_header(tmp_path / "c", header)
    loaded = Conversation.load(llm, tmp_path / "c", max_tokens=6)
    assert (loaded.defaults, loaded.when_full, loaded.messages) == ({"max_tokens": 6}, "error", talk.messages)


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"temperature": "hot"}},
        {"options": {"colour": 3}},
        {"options": {"logit_bias": [[1]]}},
        {"options": {"logit_bias": {"1": 2.0}}},
        {"options": {"params": [1]}},
        {"options": {"params": {"top_k": -1}}},
        {"options": ["seed"]},
        {"options": None},
        {"when_full": "never"},
    ],
)
def test_options_that_make_no_sense_are_damage(llm, tmp_path, change):
    llm.conversation(seed=1).save(tmp_path / "c")
    write_header(tmp_path / "c", {**header_of(tmp_path / "c"), **change})
    with pytest.raises(ConversationFileError, match="damaged"):
        Conversation.load(llm, tmp_path / "c")


@pytest.mark.parametrize("name", ["json_schema", "prediction", "temperature", "colour"])
def test_an_option_that_no_answer_could_have_is_refused_before_anything_is_written(llm, tmp_path, name):
    talk = llm.conversation()
    talk.save(tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    talk.defaults[name] = object()
    with pytest.raises(InvalidRequest, match=name):
        talk.save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before
