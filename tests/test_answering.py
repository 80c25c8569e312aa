"""From steps to chunks: ids, flags and log-probabilities stay together wherever an answer ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.answers.answering import answer_chunks, make_request, sampler_of
from localspec.answers.ticket import Ticket
from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import NoDrafter
from localspec.decoding.logprobs import token_logprob
from localspec.decoding.session import Session
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule, choose_rule
from localspec.engine.prefixes import KeptPrefixes
from localspec.errors import InvalidRequest

from .fakes import FakeContext, blended, model_drafter, random_model

V = 16
TARGET = random_model(V, seed=3)
DRAFTERS = {
    "perfect": lambda: model_drafter(TARGET, V),
    "mediocre": lambda: model_drafter(blended(TARGET, random_model(V, seed=4), 0.45), V),
    "none": NoDrafter,
}
PROMPT = [0, 1]


class FakeEngine:
    """A target whose token i is the letter of that place in the alphabet."""

    no_draft_reason = ""
    most_draft_tokens = 31
    draft_stop = None
    draft = None
    drafts_itself = False

    def __init__(
        self, drafter: str = "mediocre", eog: frozenset[int] = frozenset(), n_ctx: int = 256
    ) -> None:
        context = FakeContext(TARGET, V, n_ctx=n_ctx)
        self.vocab = SimpleNamespace(
            piece=lambda token, special=False: bytes([97 + token]),
            eog_tokens=eog,
            tokenize=lambda text, **_options: [ord(letter) - 97 for letter in text],
        )
        self.target = SimpleNamespace(n_vocab=V, n_ctx=n_ctx, threads=1)
        self.session = Session(context)
        self.prefixes = KeptPrefixes(0, 0)
        self._drafter = DRAFTERS[drafter]()

    def drafter(self, **_options: Any) -> Any:
        return self._drafter


def chunks_of(engine, num_draft_tokens=3, stop_after=None, **options):
    """Chunks of an answer, cancelled behind `stop_after` of them."""
    options = {"temperature": 0, "max_tokens": 40, "logprobs": 2, **options}
    request = make_request(engine, PROMPT, num_draft_tokens, options)
    ticket = Ticket()
    for index, chunk in enumerate(answer_chunks(engine, FixedLength(num_draft_tokens), request, ticket)):
        yield chunk
        ticket.cancelled |= index + 1 == stop_after


def checked(engine, **options):
    """A whole answer; everything that belongs together is compared."""
    chunks = list(chunks_of(engine, **options))
    completion = chunks[-1].completion
    for chunk in chunks:
        assert len(chunk.drafted) == len(chunk.tokens)
        assert tuple(entry.token for entry in chunk.logprobs) == chunk.tokens
    for name, whole in (
        ("tokens", completion.ids),
        ("drafted", completion.drafted),
        ("logprobs", completion.logprobs),
    ):
        assert tuple(item for chunk in chunks for item in getattr(chunk, name)) == whole
    for index, entry in enumerate(completion.logprobs):
        assert entry == token_logprob(TARGET((*PROMPT, *completion.ids[:index])), completion.ids[index], 2)
    stats = completion.stats
    end = stats.tokens - len(completion.ids)
    own = stats.recovered + stats.bonus + stats.plain
    assert end in (0, 1)
    # A last round without a token of the target's own ended among the drafted ones.
    end_was_drafted = end and own == stats.rounds - 1
    assert sum(completion.drafted) == stats.accepted - end_was_drafted
    return completion, end_was_drafted


@pytest.fixture(scope="module")
def plain():
    return list(chunks_of(FakeEngine("none")))[-1].completion


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 6])
@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_a_capped_answer(drafter, num_draft_tokens, plain):
    for max_tokens in (0, 1, 2, 5, 40):
        completion, _ = checked(FakeEngine(drafter), num_draft_tokens=num_draft_tokens, max_tokens=max_tokens)
        assert completion.ids == plain.ids[:max_tokens]
        assert completion.logprobs == plain.logprobs[:max_tokens]
        assert (completion.finish_reason, completion.notice) == ("length", "")


@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_an_answer_that_ends_by_itself(drafter, plain):
    drafted = []
    for end in sorted(set(plain.ids)):
        completion, end_was_drafted = checked(FakeEngine(drafter, frozenset([end])), num_draft_tokens=4)
        count = plain.ids.index(end)
        assert (completion.ids, completion.logprobs) == (plain.ids[:count], plain.logprobs[:count])
        assert completion.finish_reason == "stop"
        drafted.append(bool(end_was_drafted))
    assert any(drafted) is (drafter != "none")


@pytest.mark.parametrize("drafter", list(DRAFTERS))
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_in_mid_draft(drafter, length, plain):
    for start in range(1, 20, 2):
        stop = plain.text[start : start + length]
        completion, _ = checked(FakeEngine(drafter), num_draft_tokens=5, stop=stop)
        count = plain.text.index(stop) + length
        assert completion.text == plain.text[: count - length]
        assert completion.ids == plain.ids[:count]
        assert completion.finish_reason == "stop"


@pytest.mark.parametrize("end", [{"max_tokens": 11}, {"stop_after": 4}])
@pytest.mark.parametrize("beginning", [1, 2, 3])
def test_what_a_stop_string_only_began_with_is_shown_at_the_end(end, beginning, plain):
    whole, _ = checked(FakeEngine("none"), **end)
    stop = whole.text[-beginning:] + "?"  # which no token spells
    completion, _ = checked(FakeEngine("none"), stop=stop, **end)
    assert (completion.text, completion.ids) == (whole.text, whole.ids)
    chunks = list(chunks_of(FakeEngine("none"), stop=stop, **end))
    assert "".join(chunk.text for chunk in chunks) == whole.text


@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_a_cancelled_answer(stop_after, plain):
    completion, _ = checked(FakeEngine("mediocre"), stop_after=stop_after)
    assert completion.finish_reason == "cancelled"
    assert 0 < len(completion.ids) < 40
    assert completion.ids == plain.ids[: len(completion.ids)]


def test_a_full_context(plain):
    completion, _ = checked(FakeEngine("mediocre", n_ctx=12))
    assert completion.ids == plain.ids[:11]
    assert "12 tokens is full" in completion.notice
    completion, _ = checked(FakeEngine("mediocre", n_ctx=12), max_tokens=10)
    assert (completion.finish_reason, completion.notice) == ("length", ""), "one more would have fitted"


def test_which_tokens_came_from_the_draft():
    """A perfect draft of three: the first token and every fourth behind it are the target's own."""
    completion, _ = checked(FakeEngine("perfect"), num_draft_tokens=3, max_tokens=14)
    assert completion.drafted == (False, *(True, True, True, False) * 3, False)
    assert not any(checked(FakeEngine("none"))[0].drafted)


def test_without_log_probabilities_the_flags_are_there():
    chunks = list(chunks_of(FakeEngine("perfect"), logprobs=None))
    completion = chunks[-1].completion
    assert completion.logprobs is None
    assert len(completion.drafted) == len(completion.ids)
    assert all(chunk.logprobs == () for chunk in chunks)


def test_zero_of_the_likeliest_are_no_log_probabilities_too_few():
    completion = list(chunks_of(FakeEngine(), logprobs=0))[-1].completion
    assert len(completion.logprobs) == 40
    assert all(entry.top == () and entry.logprob <= 0 for entry in completion.logprobs)


# --- what a request may ask for


@pytest.mark.parametrize(
    ("verify", "seed", "expected"),
    [
        ("auto", None, BlockRule),
        ("auto", 7, CoupledRule),
        ("block", 7, BlockRule),
        ("block", None, BlockRule),
        ("rejection", 7, RejectionRule),
        ("rejection", None, RejectionRule),
        ("coupled", 7, CoupledRule),
        ("coupled", None, CoupledRule),
    ],
)
def test_the_rule_of_a_request(verify, seed, expected):
    rule = choose_rule(verify, seed)
    assert type(rule) is expected
    assert seed is None or rule.seed == seed
    assert seed is not None or rule != choose_rule(verify, seed)


@pytest.mark.parametrize("verify", ["block", "rejection", "coupled", "auto"])
def test_every_rule_answers_and_greedy_is_the_same_under_each(verify, plain):
    completion, _ = checked(FakeEngine("mediocre"), verify=verify)
    assert completion.ids == plain.ids


@pytest.mark.parametrize("seed", [None, 0, 5])
def test_a_seed_repeats_under_each_rule(seed):
    for verify in ("block", "rejection", "coupled"):
        texts = {
            list(chunks_of(FakeEngine(), temperature=1.5, seed=seed, verify=verify))[-1].completion.text
            for _ in range(4)
        }
        assert (len(texts) == 1) is (seed is not None)


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("verify", "fast", "verify is 'fast'."),
        ("verify", None, "verify is None."),
        ("verify", 3, "verify is 3."),
        ("logits_processors", 5, "logits_processors is 5."),
        ("logits_processors", None, "logits_processors is None."),
        ("logits_processors", [print, "x"], "logits_processors is "),
        ("logits_processors", "print", "logits_processors is 'print'."),
        ("logprobs", 101, "logprobs is 101."),
        ("logprobs", -1, "logprobs is -1."),
        ("logprobs", True, "logprobs is True."),
        ("min_tokens", 41, "min_tokens is 41."),
        ("min_tokens", -1, "min_tokens is -1."),
        ("ignore_eos", 1, "ignore_eos is 1."),
        ("typical_p", 0, "typical_p is 0."),
        ("typical_p", 1.1, "typical_p is 1.1."),
        ("top_n_sigma", -0.5, "top_n_sigma is -0.5."),
    ],
)
def test_bad_values_are_refused_at_the_call(option, value, what):
    with pytest.raises(InvalidRequest) as caught:
        make_request(FakeEngine(), PROMPT, 3, {"max_tokens": 40, option: value})
    assert caught.value.message.startswith(what)
    assert caught.value.remedy
    assert caught.value.name == option


def test_callbacks_see_the_whole_sequence_for_every_row():
    seen = []

    def watch(ids, logits):
        seen.append(tuple(ids))
        assert logits.shape == (V,)

    completion = list(chunks_of(FakeEngine("mediocre"), logits_processors=[watch]))[-1].completion
    whole = (*PROMPT, *completion.ids)
    assert {ids[:2] for ids in seen} == {(0, 1)}
    assert {whole[:index] for index in range(2, 42)} <= set(seen)


def test_one_callback_needs_no_list():
    def only_c(_ids, logits):
        logits[[token for token in range(V) if token != 2]] = -1e9

    completion = list(chunks_of(FakeEngine(), logits_processors=only_c))[-1].completion
    assert completion.text == "c" * 40


def test_a_failing_callback_is_the_callers_own_and_the_engine_goes_on(plain):
    engine = FakeEngine("mediocre")

    def fail(ids, _logits):
        if len(ids) > 9:
            raise ZeroDivisionError("the caller's")

    with pytest.raises(ZeroDivisionError, match="the caller's"):
        list(chunks_of(engine, logits_processors=[fail]))
    assert checked(engine)[0].ids == plain.ids


@pytest.mark.parametrize("returned", ["a text", ["x"] * V, {"a": 1}, object()])
def test_what_a_processor_returns_is_checked(returned):
    with pytest.raises(InvalidRequest, match="A logits processor returned"):
        list(chunks_of(FakeEngine(), logits_processors=[lambda ids, logits: returned]))


def test_a_processor_that_spoils_its_ids_spoils_nothing_else():
    seen = []

    def spoil(ids, logits):
        ids.clear()

    def watch(ids, logits):
        seen.append(tuple(ids))

    plain = list(chunks_of(FakeEngine("perfect")))[-1].completion
    spoilt = list(chunks_of(FakeEngine("perfect"), logits_processors=[spoil, watch]))[-1].completion
    assert (spoilt.ids, spoilt.drafted) == (plain.ids, plain.drafted)
    sequence = (*PROMPT, *plain.ids)
    assert {ids for ids in seen if len(ids) < len(sequence)} <= {
        sequence[:length] for length in range(len(PROMPT), len(sequence))
    }


def test_a_processor_sees_rows_of_the_targets_width_whatever_the_draft_lacks():
    """A callback that names any id of the target works with a draft as it does without one."""
    widths = set()

    def favour_last(ids, logits):
        widths.add(logits.shape)
        logits[V - 1] += 0.5
        return logits * 0.5

    engine = FakeEngine()
    request = make_request(engine, PROMPT, 3, {"logits_processors": [favour_last], "temperature": 1.0})
    shape = sampler_of(engine, request)
    shorter = shape(np.linspace(0, 1, V - 4, dtype=np.float32), PROMPT)
    shape(np.linspace(0, 1, V, dtype=np.float32), PROMPT)
    assert widths == {(V,)}
    assert shorter.tokens.max() < V - 4
