"""Constraints: masks as a function of the answer's ids, and what they make of an answer in the real loop."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import threading
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from localspec import LLM
from localspec.decoding.drafting import ChainDrafter, ForcedDrafter, NgramDrafter, NoDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule
from localspec.errors import InvalidRequest, LocalspecError, NoTokenLeft
from localspec.grammar import notation
from localspec.grammar.constraint import constraint_on, token_constraint
from localspec.grammar.matching import KEPT_MASKS, GrammarConstraint
from localspec.grammar.notation import notations_of_grammar, notations_of_schema
from localspec.grammar.token_table import TokenTable
from localspec.llama.weights import Weights

from .fakes import blended, generate, model_drafter, random_model
from .grammars import (
    CONTROL,
    END,
    EOG,
    PADDING,
    PIECES,
    STOP,
    TABLE,
    byte_table,
    on_grammar,
    on_schema,
    text_of,
)
from .joint import PROMPT, THRESHOLD, p_value
from .mutation import planted
from .tinygguf import write_llama

V = len(PIECES)
A, B, C, AB, BA, ABC, AA = range(7)
GRAMMAR = 'root ::= ("ab" | "b" "a"{1,2} | "c") root?'
WHOLE = re.compile(b"(ab|ba{1,2}|c)+")
BYTES = byte_table(b"ab", b'{"', b'": ', b"true")

TARGET = random_model(V, seed=21, scale=1.2)
OTHER = random_model(V, seed=22, scale=1.2)
MEDIOCRE = blended(TARGET, OTHER, 0.5)
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@cache
def may_become(text: bytes) -> bool:
    """Whether GRAMMAR has a text that begins so: two more characters always finish one."""
    return any(
        WHOLE.fullmatch(text + bytes(more))
        for size in range(3)
        for more in itertools.product(b"abc", repeat=size)
    )


def expected_mask(answer) -> set[int]:
    """What GRAMMAR allows behind `answer`, without any matcher."""
    count = next((index for index, token in enumerate(answer) if token in EOG), len(answer))
    tokens = [*answer[:count]]
    text = text_of(tokens)
    if not all(TABLE.pieces[token] for token in tokens) or not may_become(text):
        return set()
    ends = EOG if WHOLE.fullmatch(text) else frozenset()
    if count < len(answer):
        return set(ends) if set(answer[count:]) <= EOG else set()
    return ends | {
        token for token in range(V) if TABLE.pieces[token] and may_become(text + TABLE.pieces[token])
    }


def allowed(constraint, answer) -> set[int]:
    return {int(token) for token in constraint.allowed(answer).nonzero()[0]}


class Watched:
    """A matcher that counts the masks it computes, and bears no question once it is at its end."""

    def __init__(self, matcher, masks=None, fail_at=None):
        self._matcher, self.masks, self.fail_at, self.failed = matcher, masks or [], fail_at, False

    def deep_copy(self):
        copy = Watched(self._matcher.deep_copy(), fail_at=self.fail_at)
        copy.masks = self.masks
        return copy

    def compute_bitmask(self):
        assert not self._matcher.is_stopped(), "a finished matcher was asked"
        self.masks.append(1)
        self.failed = len(self.masks) == self.fail_at
        return self._matcher.compute_bitmask()

    def try_consume_tokens(self, tokens):
        assert not self._matcher.is_stopped(), "a finished matcher was asked"
        return self._matcher.try_consume_tokens(tokens)

    def is_error(self):
        return self.failed or self._matcher.is_error()

    def get_error(self):
        return "Parser is too complex: 2001 items\n<state>\nlong and private\n</state>"

    def __getattr__(self, name):
        return getattr(self._matcher, name)


def watched(grammar=GRAMMAR, **options) -> tuple[GrammarConstraint, Watched]:
    matcher = Watched(LLMatcher(TABLE.tokenizer, notations_of_grammar(grammar)[0], log_level=0), **options)
    return GrammarConstraint(matcher, TABLE, "grammar"), matcher


# The mask


def test_masks_of_a_small_vocabulary():
    constraint = on_grammar(GRAMMAR)
    for size in range(4):
        for answer in itertools.product(range(V), repeat=size):
            assert allowed(constraint, answer) == expected_mask(answer), answer


ids = st.lists(st.sampled_from([A, B, C, AB, BA, AA, ABC, END, STOP, PADDING]), max_size=7)
steps = st.lists(st.sampled_from([A, B, C, AB, BA]), max_size=7)  # legal more often


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["allowed", "forced", "count"]), st.one_of(ids, steps), ids), max_size=12
    )
)
def test_any_questions_in_any_order(questions):
    """What was asked before leaves no trace: the same as a new constraint, and as the plain reading of the grammar."""
    old = on_grammar(GRAMMAR)
    for kind, answer, tokens in questions:
        new = on_grammar(GRAMMAR)
        if kind == "allowed":
            assert allowed(old, answer) == allowed(new, answer) == expected_mask(answer)
        elif kind == "forced":
            assert old.forced(answer, 4) == new.forced(answer, 4) == expected_forced(answer, 4)
        else:
            expected = 0
            while expected < len(tokens) and tokens[expected] in expected_mask([*answer, *tokens[:expected]]):
                expected += 1
            assert old.count_legal(answer, tokens) == new.count_legal(answer, tokens) == expected


def expected_forced(answer, limit) -> tuple[int, ...]:
    span: list[int] = []
    while len(span) < limit and len(only := expected_mask([*answer, *span])) == 1 and not only & EOG:
        span += only
    return tuple(span)


def test_a_forgotten_rollback_is_seen():
    with planted(
        "localspec.grammar.matching", "GrammarConstraint._move_to", "self._matcher.rollback(back)", "None"
    ):
        constraint = on_grammar(GRAMMAR)
        constraint.allowed([AB, B])
        assert allowed(constraint, [C]) != expected_mask([C])


def test_a_mask_of_another_path_of_the_same_length_is_seen():
    """llguidance 1.9.1 gives it out again after a rollback, unless another mask was computed in between."""
    with planted(
        "localspec.grammar.matching", "GrammarConstraint._forget_stale_mask", "self._compute()", "None"
    ):
        constraint = on_grammar(GRAMMAR)
        assert allowed(constraint, [AB]) == expected_mask([AB])
        assert allowed(constraint, [BA]) != expected_mask([BA])
    constraint = on_grammar(GRAMMAR)
    assert allowed(constraint, [AB]) == expected_mask([AB])
    assert allowed(constraint, [BA]) == expected_mask([BA])


def test_a_finished_answer_allows_every_end_and_nothing_else():
    constraint = on_grammar('root ::= "ab" | "c"')
    for answer in ([AB], [A, B], [C], [C, END], [A, B, STOP, END]):
        assert allowed(constraint, answer) == EOG
        assert constraint.forced(answer, 3) == ()
        assert constraint.count_legal(answer, [STOP, END, A]) == 2
    assert allowed(constraint, [A, END]) == set()
    assert allowed(constraint, [C, END, C]) == set()


def test_a_finished_matcher_is_never_asked_again():
    def all_questions():
        constraint, _ = watched('root ::= "ab" | "c"')
        for answer in ([], [A], [A, B], [A, B, END], [C], [C, A], [AB, AB]):
            constraint.allowed(answer)
            constraint.forced(answer, 3)
            constraint.count_legal(answer, [A, B, END])

    all_questions()
    for function, right, wrong in (
        (
            "GrammarConstraint._mask_behind",
            "if may_end and self._ask(self._matcher.is_stopped):",
            "if False:",
        ),
        (
            "GrammarConstraint._move_to",
            "if not further or self._ask(self._matcher.is_stopped):",
            "if not further:",
        ),
    ):
        with (
            planted("localspec.grammar.matching", function, right, wrong),
            pytest.raises(AssertionError, match="asked"),
        ):
            all_questions()


def test_text_that_is_certain_is_cut_into_its_longest_pieces():
    """The key of a record must follow whole, in whatever tokens: all but the piece that may yet grow are proposed."""
    schema = {"type": "object", "properties": {"city": {"type": "integer"}}, "required": ["city"]}
    table = TokenTable(
        [b"{", b'"', b"c", b"ci", b"ty", b"city", b":", b" ", b"1", b"}", b""], frozenset([10])
    )
    constraint = constraint_on(table, notations_of_schema(schema), "json_schema")
    assert constraint.forced([0, 1], 8) == ()  # c, ci and city may follow
    assert constraint.likely([0, 1], 8) == (5,)
    assert constraint.likely([0, 1], 0) == ()
    assert constraint.likely([0, 1, 3], 8) == (4,)
    assert constraint.likely([0, 1, 5, 1, 6], 8) == ()  # a number, or a blank
    assert constraint.likely([8, 8], 8) == constraint.likely([10], 8) == ()


def test_forced_spans_end_where_there_is_a_choice():
    constraint = on_grammar('root ::= "céc" ("é" | "a") "c"')
    c3, a9 = PIECES.index(b"\xc3"), PIECES.index(b"\xa9")
    assert constraint.forced([], 10) == (C, c3, a9, C)
    assert constraint.forced([], 2) == (C, c3)
    assert constraint.forced([C, c3], 10) == (a9, C)
    assert constraint.forced([C, c3, a9, C, A], 10) == (C,)
    assert constraint.forced([B], 10) == constraint.forced([], 0) == ()
    for count in range(4):
        assert constraint.allowed([C, c3, a9, C][:count]).sum() == 1


def test_of_several_ids_with_one_text_the_lowest_is_meant_and_an_end_is_never_forced():
    """Also where there is one end only, and nothing but it may follow."""
    table = TokenTable([b"a", b"b", b"a", b"ab", b"ab", b"", b"end"], frozenset([6]))
    assert table.longest_pieces(b"abaab") == [3, 0, 3] and table.longest_pieces(b"ba?b") == [1, 0]
    constraint = constraint_on(table, notations_of_grammar('root ::= "b"'), "grammar")
    assert constraint.forced([], 4) == (1,)
    assert constraint.forced([1], 4) == () and constraint.allowed([1]).nonzero()[0].tolist() == [6]


def test_ids_without_text_are_never_allowed():
    anything = on_grammar("root ::= [^z]*")
    assert allowed(anything, [A]) == set(range(V)) - {CONTROL, PADDING, PIECES.index(b"\xa9")}
    assert anything.count_legal([], [A, CONTROL]) == anything.count_legal([], [A, PADDING]) == 1
    assert anything.count_legal([], [A, V]) == anything.count_legal([], [A, -1]) == 1
    # Bytes that are the text of an end, or that no UTF-8 has, are no text either.
    assert on_grammar('root ::= "<end>"', BYTES).count_legal([], [len(BYTES) - 1]) == 0
    assert not on_grammar("root ::= [^z]*", BYTES).allowed([])[0xFF]


def test_masks_are_kept_read_only_and_bounded():
    constraint, matcher = watched()
    first = constraint.allowed([AB])
    with pytest.raises(ValueError, match="read-only"):
        first[0] = True
    assert constraint.allowed([AB, C]) is constraint.allowed((AB, C))
    assert constraint.allowed([AB]) is first
    assert len(matcher.masks) == 2
    long = [C] * (2 * KEPT_MASKS)
    for size in range(len(long)):
        constraint.allowed(long[:size])
    assert len(constraint._masks) <= KEPT_MASKS
    assert allowed(constraint, [AB]) == expected_mask([AB])


def test_two_threads_ask_one_constraint():
    constraint = on_grammar(GRAMMAR)
    answers = [[AB, C], [B], [C, B, A], [BA, C], [AB, AB, AB]]
    wrong = []

    def ask(offset):
        for index in range(300):
            answer = answers[(index + offset) % len(answers)]
            if allowed(constraint, answer) != expected_mask(answer):
                wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Errors


def test_an_error_in_mid_answer_is_an_error_and_not_an_answer():
    constraint, matcher = watched(fail_at=3)
    constraint.allowed([])
    constraint.allowed([AB])
    with pytest.raises(LocalspecError) as caught:
        constraint.allowed([AB, C])
    assert caught.value.message == (
        "The grammar cannot be followed behind token 2 of the answer: Parser is too complex: 2001 items."
    )
    assert caught.value.name == "grammar"
    assert allowed(constraint, [AB, C]) == expected_mask([AB, C])  # a new matcher is at work
    matcher.masks.clear()
    constraint, _ = watched(fail_at=2)
    assert constraint.forced([B], 5) == ()  # a draft ends there: the target may never get to that point


def test_the_librarys_own_limit_is_an_error(monkeypatch):
    monkeypatch.setattr(notation, "MOST_LEXER_STATES", 40)
    constraint = on_grammar('root ::= [ab]* "a" [ab]{12} "c"')
    with pytest.raises(NoTokenLeft, match="states"):
        for size in range(60):
            constraint.allowed([A, B, A, A, B] * size)


def test_words_of_a_large_vocabulary_read_by_characters(monkeypatch):
    """Each takes steps of the parser; their limit, where it is met, is an error."""
    words = (bytes(letters) for letters in itertools.product(b"abcdefgh", repeat=4))
    table = byte_table(*words)
    grammar = 'root ::= "(" root ")" | word (" " word)*\nword ::= [a-z]+ | "the" [a-z]* root'
    assert on_grammar(grammar, table).allowed([ord("(")]).sum() > 4000
    monkeypatch.setattr(notation, "MOST_ITEMS", 5)
    with pytest.raises(NoTokenLeft, match="Too many items"):
        on_grammar(grammar, table).allowed([ord("(")])


def test_text_that_the_vocabulary_cannot_write():
    constraint = on_grammar('root ::= "aü"')
    c3 = PIECES.index(b"\xc3")
    assert allowed(constraint, [A]) == {c3}
    with pytest.raises(NoTokenLeft, match="no token of the vocabulary may come next"):
        constraint.allowed([A, c3])
    assert constraint.forced([], 5) == (A, c3)
    assert constraint.count_legal([A], [c3, A]) == 1
    with pytest.raises(NoTokenLeft, match="no token of the vocabulary"):
        generate(TARGET, NoDrafter(), n_vocab=V, params=SamplingParams(max_tokens=5), constraint=constraint)


SCHEMA_FAULTS = {
    "is false": False,
    "is no JSON (Expecting value": "nope",
    "is '[1]'": "[1]",
    "is 5": 5,
    "Invalid type: nope": {"type": "nope"},
    "not present": {"$ref": "http://nowhere.example/schema"},
    "is not JSON serializable": {"enum": {1, 2}},
    "minLength (5) is greater than maxLength (2)": {"type": "string", "minLength": 5, "maxLength": 2},
    "Out of range float": {"minimum": math.nan},
    "look-around": {"type": "string", "pattern": "(?=a)b"},
    "Unimplemented keys": {"not": {}},
    "unexpected end of hex escape": {"const": "\ud800"},
    "recursion": '{"items":' * 50_000,
    "recursion limit": '{"items":' * 300 + "{}" + "}" * 300,
    "characters": {"enum": ["long" * 300_000]},
}


@pytest.mark.parametrize("reason", list(SCHEMA_FAULTS))
def test_what_is_no_schema_is_refused_with_the_reason(reason):
    with pytest.raises(InvalidRequest) as caught:
        on_schema(SCHEMA_FAULTS[reason], BYTES)
    assert reason in caught.value.message and caught.value.name == "json_schema"
    assert "\n" not in caught.value.message and len(caught.value.message) < 500


def test_a_schema_that_refers_to_itself_alone_has_no_answer():
    constraint = on_schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, BYTES)
    with pytest.raises(NoTokenLeft):
        constraint.allowed([])


# JSON schemas


def accepts(constraint, text: str) -> bool:
    tokens = list(text.encode())
    return constraint.count_legal([], tokens) == len(tokens) and bool(
        constraint.allowed(tokens)[len(BYTES) - 1]
    )


@pytest.mark.parametrize("schema", [{}, True, "{}", "true", ' {"type": ["object", "array", "string"]} '])
def test_any_json(schema):
    constraint = on_schema(schema, BYTES)
    for text in ('{"a": [1, {"b": "x"}], "é": null}', "[]", '"\\u00e9"', '{\n  "a": true\n}'):
        assert accepts(constraint, text), text
    for text in ("{", "[1,]", "{a: 1}", ""):
        assert not accepts(constraint, text), text


def test_a_schema_with_required_properties():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer", "minimum": 10}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for given_as in (schema, json.dumps(schema)):
        constraint = on_schema(given_as, BYTES)
        assert accepts(constraint, '{"name": "Ada", "age": 36}')
        for text in ('{"name": "Adam", "age": 36}', '{"name": "Ada"}', '{"name": "Ada", "age": 9}'):
            assert not accepts(constraint, text), text


def test_space_comes_to_an_end():
    constraint = on_schema({"type": "array"}, BYTES)
    assert accepts(constraint, "[\r\n\t\t1,\n" + " " * 100 + "2]")
    assert not accepts(constraint, "[ " * 3 + "  1]]]")
    assert constraint.count_legal([], list(b"[\n" + b" " * 300)) < 110
    wide = {"type": "array", "x-guidance": {"whitespace_pattern": r" {0,400}"}}
    assert accepts(on_schema(wide, BYTES), "[" + " " * 300 + "1]")


# The loop


def exact_joint(length: int) -> dict[tuple[int, ...], float]:
    """Probability of each beginning of an answer, from the target and the plain reading of the grammar."""
    joint: dict[tuple[int, ...], float] = {}

    def follow(answer: tuple[int, ...], probability: float) -> None:
        if len(answer) == length or (answer and answer[-1] in EOG):
            joint[answer] = probability
            return
        tokens = sorted(expected_mask(answer))
        logits = TARGET((*PROMPT, *answer))[tokens].astype(float)
        weights = np.exp(logits - logits.max())
        for token, weight in zip(tokens, weights / weights.sum(), strict=True):
            follow((*answer, token), probability * weight)

    follow((), 1.0)
    return joint


def law(make_rule, make_drafter, runs=1500) -> float:
    """p-value of: the first K + 2 = 4 tokens of the real loop are distributed as the masked target says."""
    params = SamplingParams(temperature=1.0, max_tokens=5, **OFF)
    constraint, drafter = on_grammar(GRAMMAR), make_drafter()
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        tokens, _ = generate(
            TARGET, drafter, n_vocab=V, params=params, prompt=PROMPT, num_draft_tokens=2, seed=seed,
            make_rule=make_rule, eog=EOG, constraint=constraint, enough=4,
        )  # fmt: skip
        counts[tuple(tokens[:4])] += 1
    return p_value(exact_joint(4), counts)


def mediocre():
    return model_drafter(MEDIOCRE, V)


def everyone():
    return ChainDrafter([ForcedDrafter(), NgramDrafter(1, 2), mediocre()])


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule, CoupledRule])
@pytest.mark.parametrize("make_drafter", [mediocre, everyone])
def test_the_distribution_is_the_masked_targets(make_rule, make_drafter):
    assert law(make_rule, make_drafter) > THRESHOLD


FAULTS = {
    "a mask on the first row only": (
        "localspec.decoding.sampler", "Sampler.__call__",
        "if self.constraint is not None:", "if self.constraint is not None and len(history) == self.num_prompt:",
    ),
    "every row masked as the first of its round": (
        "localspec.decoding.loop", "TargetRows.__getitem__", "self._committed + index", "self._committed",
    ),
    "the prompt taken for a part of the answer": (
        "localspec.decoding.sampler", "Sampler.__call__", "history[self.num_prompt :]", "history",
    ),
    "an end allowed at any time": (
        "localspec.grammar.matching", "GrammarConstraint._mask_behind", "mask | self._ends if may_end else mask",
        "mask | self._ends",
    ),
    "one end of several": (
        "localspec.grammar.matching", "GrammarConstraint._mask_behind", "mask | self._ends if may_end else mask",
        "mask | self._ends & (np.arange(len(mask)) == 9) if may_end else mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_planted_fault_breaks_the_law(fault):
    def broken() -> bool:
        try:
            return law(RejectionRule, mediocre, runs=800) < THRESHOLD
        except LocalspecError:
            return True

    if fault == "none":
        assert not broken()
        return
    with planted(*FAULTS[fault]):
        assert broken()


@pytest.mark.parametrize("make_drafter", [mediocre, everyone, lambda: model_drafter(OTHER, V)])
def test_greedy_answers_do_not_depend_on_the_draft(make_drafter):
    params = SamplingParams(temperature=0, max_tokens=40)
    sizes = {"n_vocab": V, "params": params, "eog": EOG}
    for first in range(6):
        constraint = on_grammar(GRAMMAR)
        prompt = (first, 1)
        plain, _ = generate(TARGET, NoDrafter(), prompt=prompt, constraint=constraint, **sizes)
        assert may_become(text_of(plain))
        for count in range(9):
            drafted, _ = generate(
                TARGET, make_drafter(), prompt=prompt, num_draft_tokens=count, constraint=constraint, **sizes
            )
            assert drafted == plain


def test_coupled_answers_do_not_depend_on_the_draft():
    params = SamplingParams(temperature=1.0, max_tokens=30, **OFF)
    for seed in range(8):
        texts = {
            tuple(generate(
                TARGET, make_drafter(), n_vocab=V, params=params, num_draft_tokens=count, seed=seed,
                make_rule=CoupledRule, eog=EOG, constraint=on_grammar(GRAMMAR),
            )[0])
            for make_drafter, count in ((NoDrafter, 0), (mediocre, 1), (mediocre, 5), (everyone, 4))
        }  # fmt: skip
        assert len(texts) == 1


def test_what_is_certain_is_drafted_and_stands():
    """Five times c, é: the first token comes with the prompt, each round then drafts seven that all stand."""
    constraint = on_grammar('root ::= "cé"{5} ("a" | "b")')
    params = SamplingParams(temperature=1.0, max_tokens=30)
    for make_rule in (RejectionRule, BlockRule, CoupledRule):
        tokens, steps = generate(
            TARGET, ForcedDrafter(), n_vocab=V, params=params, num_draft_tokens=7, eog=EOG, make_rule=make_rule,
            constraint=constraint,
        )  # fmt: skip
        assert text_of(tokens).startswith("cé".encode() * 5) and tokens[-1] in EOG
        assert [step.num_drafted for step in steps[:3]] == [0, 7, 6]
        assert all(step.num_accepted == step.num_drafted for step in steps)


def test_draft_and_target_share_their_masks():
    constraint, matcher = watched()
    asked, rounds = [], 0

    class Recorded:
        def allowed(self, answer):
            asked.append((seed, *answer))
            return constraint.allowed(answer)

        forced, count_legal = constraint.forced, constraint.count_legal

    params = SamplingParams(temperature=1.0, max_tokens=40, **OFF)
    for seed in range(12):
        _, steps = generate(
            TARGET, mediocre(), n_vocab=V, params=params, seed=seed, eog=EOG, constraint=Recorded()
        )
        rounds += len(steps)
    assert len(asked) > 1.3 * len(set(asked))
    assert len(matcher.masks) <= len(set(asked)) + rounds + 5  # and one more after each rollback


# Models


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "target": write_llama(folder / "target.gguf", seed=1, n_vocab=310),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05, n_vocab=310),
    }


def test_the_vocabulary_of_a_model(files):
    weights = Weights(files["target"])
    model = weights.vocabulary
    try:
        constraint = token_constraint(model, grammar="root ::= [^z]*")
        mask = constraint.allowed([])
        assert mask.shape == (model.n_vocab,) == (310,)
        assert {int(token) for token in mask.nonzero()[0] if not model.piece(int(token))} == model.eog_tokens
        assert mask[model.tokenize("th", parse_special=False)[0]]
        tokens = model.tokenize("the other ant", parse_special=False)
        assert len(tokens) < 13 and constraint.count_legal([], tokens) == len(tokens)
        assert constraint.count_legal([], model.tokenize("az", parse_special=False)) == 1
        assert token_constraint(model) is None
    finally:
        weights.close()


def test_one_vocabulary_for_two_requests_at_once(files, monkeypatch):
    built = []
    original = TokenTable.__init__
    monkeypatch.setattr(TokenTable, "__init__", lambda self, *args: built.append(1) or original(self, *args))
    weights = Weights(files["target"])
    model = weights.vocabulary
    try:
        threads = [
            threading.Thread(target=token_constraint, args=(model,), kwargs={"json_schema": {}})
            for _ in "four"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert built == [1]
    finally:
        weights.close()


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({"grammar": "root ::= x"}, "grammar", "does not define"),
        ({"grammar": b"root"}, "grammar", "is b'root'"),
        ({"json_schema": {"type": "nope"}}, "json_schema", "Invalid type"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar", "both say"),
    ],
)
def test_bad_requests_name_their_field(files, options, name, reason):
    weights = Weights(files["target"])
    model = weights.vocabulary
    try:
        with pytest.raises(InvalidRequest, match=reason) as caught:
            token_constraint(model, **options)
        assert caught.value.name == name
    finally:
        weights.close()


def test_answers_of_a_model_follow_the_schema(files):
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["ant", "otter"]},
            "count": {"type": "integer", "maximum": 99, "minimum": 0},
        },
        "required": ["kind", "count"],
        "additionalProperties": False,
        "x-guidance": {
            "whitespace_flexible": False,
            "whitespace_pattern": None,
        },  # a model of noise would use it
    }
    sizes = {"n_ctx": 512, "cache_type_v": "bf16", "draft_tokens": 3}
    with LLM.from_files(files["target"], files["draft"], **sizes) as llm:
        for seed in range(4):
            for options in ({"temperature": 0}, {"temperature": 1.0, "seed": seed}):
                asked = {"json_schema": schema, "max_tokens": 100, **options}
                drafted = llm.generate(f"abc{seed}", **asked)
                value = json.loads(drafted.text)
                assert value["kind"] in ("ant", "otter") and 0 <= value["count"] <= 99
                assert drafted.finish_reason == "stop" and drafted.stats.drafted > 0
                assert llm.generate(f"abc{seed}", draft_tokens="off", **asked).ids == drafted.ids
        with pytest.raises(InvalidRequest, match="min_tokens"):
            llm.generate("abc", json_schema=schema, min_tokens=3)


def test_the_library_is_loaded_for_a_grammar_only():
    code = "import sys, localspec.answers.answering; assert 'llguidance' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
