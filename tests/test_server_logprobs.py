"""Log-probabilities over HTTP: whose they are, where their tokens stand, and those of an echoed prompt."""

from __future__ import annotations

import codecs
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import LLM
from localspec.errors import InvalidRequest
from localspec.server.logprobs import Places, prompt_tokens

from .serverkit import QUESTION, ready, running
from .tinygguf import END, START, byte_vocab, sentencepiece_vocab, write_gemma, write_pair

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SIZES = {"n_ctx": 256, "threads": 1, "draft_tokens": 3, "cache_type_v": "bf16"}
LETTERS = "root ::= [a\u00e9\u2603\U0001f600]{12}"
SHOWN = ("a", "th", "\u00e9", "\u2603", "\U0001f600")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(files):
    with running(lambda: LLM.from_files(*files, **SIZES)) as started:
        yield ready(started)


@pytest.fixture(scope="module")
def alone(files):
    with LLM.from_files(*files, **SIZES) as llm:
        yield llm


def as_bytes(name: str) -> bytes:
    """The bytes of a token as OpenAI writes it."""
    if not name.startswith("bytes:"):
        return name.encode()
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), name[6:].encode())


def streamed(server, body):
    """The text and the log-probabilities of a stream's choices, joined."""
    found: dict[int, dict] = {}
    for line in server.post(TEXT, body | {"stream": True}).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                so_far = found.setdefault(choice["index"], {"text": "", "logprobs": {}})
                so_far["text"] += choice["text"]
                for name, values in (choice["logprobs"] or {}).items():
                    so_far["logprobs"].setdefault(name, []).extend(values)
    return [found[index] for index in sorted(found)]


def completed(server, body):
    """The choices of a completion, after its stream said the same."""
    choices = server.post(TEXT, body).json()["choices"]
    for choice, other in zip(choices, streamed(server, body), strict=True):
        expected = choice["logprobs"] or {}
        assert (other["text"], set(other["logprobs"])) == (choice["text"], set(expected))
        for name, values in other["logprobs"].items():
            known = expected[name]
            assert len(values) == len(known)
            if name in ("tokens", "text_offset"):
                assert values == known
            elif name == "token_logprobs":  # how much of the prompt was kept moves the last digits
                assert values == pytest.approx(known, abs=1e-3)
    return choices


def stands(choice, hidden=frozenset()):
    """Every token is where its first byte is in the text. hidden: those that are not shown."""
    text, logprobs = choice["text"], choice["logprobs"]
    owners = [index for index, letter in enumerate(text) for _ in letter.encode()]
    at = 0
    for name, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert offset == (owners[at] if at < len(owners) else len(text)), (name, at)
        at += 0 if name in hidden else len(as_bytes(name))
    assert b"".join(as_bytes(name) for name in logprobs["tokens"] if name not in hidden) == text.encode()


def test_offsets_are_places_in_the_text_where_letters_are_several_tokens(server):
    (choice,) = completed(server, {"prompt": "abc", "max_tokens": 60, "logprobs": 5, "grammar": LETTERS})
    assert len(choice["text"]) == 12 < len(choice["logprobs"]["tokens"])
    stands(choice)
    assert any(name.startswith("bytes:") for name in choice["logprobs"]["tokens"])


def test_parts_of_letters_are_told_apart(server):
    body = {"prompt": "abc", "max_tokens": 30, "logprobs": 5}
    (choice,) = completed(server, body)
    for name, best, logprob in zip(
        *(choice["logprobs"][key] for key in ("tokens", "top_logprobs", "token_logprobs")), strict=True
    ):
        assert len(best) == 5, "no two of them fell together"
        assert best[name] == logprob == max(best.values()), "greedy takes the likeliest"
        assert "\ufffd" not in "".join(best)
        assert all(re.fullmatch(r"bytes:[\x20-\x5b\x5d-\x7e]*(\\x[0-9a-f]{2}[\x20-\x5b\x5d-\x7e]*)+", key)
                   for key in best if key.startswith("bytes:"))  # fmt: skip


@pytest.mark.parametrize("number", [0, 1, 5])
def test_the_token_itself_is_always_among_the_best(server, number):
    """As OpenAI has it: one more than was asked for where it was not among them."""
    body = {
        "prompt": "abc",
        "max_tokens": 20,
        "logprobs": number,
        "temperature": 2,
        "seed": 3,
        "top_k": 0,
        "min_p": 0,
    }
    (choice,) = completed(server, body | {"top_p": 1})
    logprobs = choice["logprobs"]
    sizes = set()
    for name, best, logprob in zip(
        logprobs["tokens"], logprobs["top_logprobs"], logprobs["token_logprobs"], strict=True
    ):
        assert best[name] == logprob
        sizes.add(len(best))
    assert sizes <= {number, number + 1}
    assert number + 1 in sizes


def test_what_is_not_shown_takes_no_place(server, alone):
    control = alone.tokenize(START)[0]
    body = {"prompt": "abc", "max_tokens": 24, "logprobs": 1, "temperature": 1.5, "seed": 1}
    letters = [[token, 20] for text in SHOWN for token in alone.tokenize(text)]
    (choice,) = completed(server, body | {"logit_bias": [[control, 20], *letters], "frequency_penalty": 2})
    names = choice["logprobs"]["tokens"]
    assert START in names[:-1] and set(names) != {START}
    offsets = choice["logprobs"]["text_offset"]
    assert max(offsets) <= len(choice["text"])
    for (name, before), (_, after) in pairwise(zip(names, offsets, strict=True)):
        assert name != START or before == after


@pytest.mark.parametrize("stop", ["\u2603", "\u00e9a", "a\U0001f600", "\u2603\u2603\u2603"])
def test_what_a_stop_string_takes_back_has_no_place_behind_the_text(server, stop):
    for seed in range(4):
        body = {
            "prompt": "abc",
            "max_tokens": 60,
            "logprobs": 1,
            "grammar": LETTERS,
            "stop": stop,
            "seed": seed,
        }
        (choice,) = completed(server, body | {"temperature": 2, "top_k": 0})
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert max(offsets) <= len(choice["text"])


def marked(data: bytes) -> list[int]:
    """For each byte the number of the character that it became a part of."""
    bad: dict[int, int] = {}

    def note(error):
        bad[error.start] = error.end
        return "\ufffd", error.end

    codecs.register_error("localspec-test-marks", note)
    data.decode("utf-8", "localspec-test-marks")
    owners: list[int] = []
    while len(owners) < len(data):
        start = len(owners)
        length = (
            bad[start] - start
            if start in bad
            else next(n for n in (1, 2, 3, 4) if whole(data[start : start + n]))
        )
        owners += [owners[-1] + 1 if owners else 0] * length
    return owners


def whole(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


PARTS = (b"\xf0\x9f\x98", b"\x80", b"a", b"\xe2\x98", b"\x83", b"\xc3", b"\xed\xa0")
BYTES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(str.encode),
    st.lists(st.sampled_from(PARTS), max_size=6).map(b"".join),
)


@given(BYTES, st.data())
def test_a_token_stands_where_its_first_byte_does_however_bytes_are_cut(data, draw):
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    places, owners = Places(5), marked(data)
    for start, end in pairwise([0, *cuts, len(data)]):
        offset = places.push(data[start:end])
        if start < end:
            assert offset == 5 + owners[start]


def test_chats_bytes_are_those_of_the_text(server):
    body = {"messages": QUESTION, "max_tokens": 60, "logprobs": True, "top_logprobs": 20, "grammar": LETTERS}
    choice = server.post(CHAT, body).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(item["bytes"]) for item in content).decode() == choice["message"]["content"]
    for item in content:
        for entry in (item, *item["top_logprobs"]):
            assert (
                entry["bytes"] is None or bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
            )


def test_chats_bytes_leave_out_what_is_not_shown(server, alone):
    control = alone.tokenize(START)[0]
    body = {"messages": QUESTION, "max_tokens": 6, "logprobs": True, "logit_bias": [[control, 1000]]}
    choice = server.post(CHAT, body).json()["choices"][0]
    assert [(item["token"], item["bytes"]) for item in choice["logprobs"]["content"]] == [(START, None)] * 6
    assert choice["message"]["content"] == ""


# --- an echoed prompt


def reference(llm, ids):
    """What the target finds of each id behind those before it, one pass for each."""
    return [
        llm.generate(ids[:at], logit_bias={ids[at]: 1e4}, max_tokens=1, logprobs=0).logprobs[0].logprob
        for at in range(1, len(ids))
    ]


def likeliest(llm, ids):
    """The bytes of the token that the target finds likeliest."""
    (entry,) = llm.generate(ids, temperature=0, max_tokens=1, logprobs=1).logprobs or (None,)
    return llm.token_bytes([entry.top[0][0]])


PROMPTS = ("a", "the \u2603 \u00e9 other \U0001f600 one", f"a{START}b", "x" * 70)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("form", ["text", "ids"])
def test_an_echo_has_the_log_probabilities_of_the_prompt(server, alone, prompt, form):
    ids = alone.tokenize(prompt)
    body = {"prompt": prompt if form == "text" else ids, "max_tokens": 0, "echo": True, "logprobs": 2}
    (choice,) = completed(server, body)
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(reference(alone, ids), abs=1e-3)
    assert len(logprobs["tokens"]) == len(ids)
    stands(choice)
    for name, best, value in zip(
        logprobs["tokens"][1:], logprobs["top_logprobs"][1:], logprobs["token_logprobs"][1:], strict=True
    ):
        assert best[name] == value and 2 <= len(best) <= 3


def test_behind_the_prompt_come_the_answers_tokens(server, alone):
    ids = alone.tokenize("the other")
    body = {"prompt": "the other", "max_tokens": 10, "logprobs": 1, "n": 2, "seed": 1, "temperature": 1}
    plain = completed(server, body | {"grammar": LETTERS})
    echoed = completed(server, body | {"grammar": LETTERS, "echo": True})
    for choice, without in zip(echoed, plain, strict=True):
        assert choice["text"] == "the other" + without["text"]
        assert choice["logprobs"]["tokens"][len(ids) :] == without["logprobs"]["tokens"]
        assert (
            choice["logprobs"]["token_logprobs"][: len(ids)]
            == echoed[0]["logprobs"]["token_logprobs"][: len(ids)]
        )
        offsets = [offset - len("the other") for offset in choice["logprobs"]["text_offset"][len(ids) :]]
        assert offsets == without["logprobs"]["text_offset"]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("number", [1, 5])
def test_evaluation_harnesses_can_score_continuations(server, alone, number, last):
    """Ids in a list, one token drawn at most; the score of a continuation is cut out by lengths."""
    pairs = [("the other", " one"), ("a", "b"), ("he", "re and there")]
    ids = [(alone.tokenize(context), alone.tokenize(rest)) for context, rest in pairs]
    body = {"prompt": [context + rest for context, rest in ids], "temperature": 0, "seed": 1234, "echo": True}
    body |= {"max_tokens": last, "logprobs": number}
    for end in ({}, {"logit_bias": [[alone.tokenize(END)[0], 1000]]}):  # a drawn end counts as a token
        choices = server.post(TEXT, body | end).json()["choices"]
        for choice, (context, rest) in zip(choices, ids, strict=True):
            logprobs = choice["logprobs"]
            assert len(logprobs["tokens"]) == len(context) + len(rest) + last
            until = len(logprobs["tokens"]) - last
            expected = reference(alone, context + rest)[len(context) - 1 :]
            assert logprobs["token_logprobs"][len(context) : until] == pytest.approx(expected, abs=1e-3)
            greedy = [max(best, key=best.get) for best in logprobs["top_logprobs"][len(context) : until]]
            drawn = [likeliest(alone, (context + rest)[:at]) for at in range(len(context), until)]
            assert [as_bytes(name) for name in greedy] == drawn


def test_an_echo_costs_the_prompt_and_nothing_of_it_is_called_cached(server):
    body = {"prompt": "the other " * 5, "max_tokens": 1, "echo": True, "logprobs": 1}
    for _ in range(2):
        answer = server.post(TEXT, body).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"]
        assert answer["timings"]["prompt_ms"] > 0


def test_an_echo_that_is_too_long_is_refused_and_one_that_just_fits_is_not(server):
    body = {"max_tokens": 0, "echo": True, "logprobs": 1}
    assert (
        server.post(TEXT, body | {"prompt": [5] * 257}).json()["error"]["code"] == "context_length_exceeded"
    )
    (choice,) = server.post(TEXT, body | {"prompt": [5] * 256}).json()["choices"]
    assert len(choice["logprobs"]["tokens"]) == 256


def test_an_echo_without_an_answer_needs_no_logprobs(server):
    (choice,) = completed(server, {"prompt": "abc", "max_tokens": 0, "echo": True})
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("abc", None, "length")


@pytest.mark.parametrize("vocab", [byte_vocab, sentencepiece_vocab])
def test_what_the_tokenizer_puts_before_a_prompt_takes_no_place(tmp_path, vocab):
    """A BOS, and with SentencePiece a blank."""
    file = write_gemma(tmp_path / "bos.gguf", vocab=vocab())
    with running(lambda: LLM.from_files(file, n_ctx=128, threads=1, draft_tokens="off")) as server:
        ready(server)
        for prompt in ("there is", "\u2603a", "a"):
            (choice,) = completed(server, {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1})
            assert choice["text"] == prompt
            offsets = choice["logprobs"]["text_offset"]
            assert offsets[:2] == [0, 0] and offsets == sorted(offsets) and max(offsets) < len(prompt)


# --- the engine's side


def test_scores_do_not_depend_on_what_was_kept_and_spoil_nothing(alone):
    ids = alone.tokenize("the other one and the rest of it is here in the end")
    options = {"temperature": 0, "max_tokens": 8, "logprobs": 2}
    expected = alone.generate(ids, **options)
    cold = alone.generate(ids, **options, prompt_logprobs=True)
    warm = alone.generate(ids, **options, prompt_logprobs=True)
    assert cold.prompt_logprobs == warm.prompt_logprobs
    assert len(cold.prompt_logprobs) == len(ids)
    assert [item.token for item in cold.prompt_logprobs[1:]] == ids[1:]
    assert cold.text == warm.text == expected.text == alone.generate(ids, **options).text
    assert expected.prompt_logprobs is None


def test_a_first_chunk_has_the_scores(alone):
    chunks = list(alone.stream("abc", logprobs=0, prompt_logprobs=True, max_tokens=2, temperature=0))
    assert [bool(chunk.prompt_logprobs) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    assert (chunks[0].text, chunks[0].tokens) == ("", ())
    assert chunks[-1].completion.prompt_logprobs == chunks[0].prompt_logprobs


def test_an_end_of_generation_has_its_own(alone):
    end = alone.tokenize(END)[0]
    answer = alone.generate("abc", logprobs=1, logit_bias={end: 1e4})
    assert (answer.ids, answer.logprobs, answer.end_logprob.token) == ((), (), end)
    assert alone.generate("abc", logprobs=1, max_tokens=2).end_logprob is None
    assert alone.generate("abc", logit_bias={end: 1e4}).end_logprob is None


@pytest.mark.parametrize("after", [1, 40])
def test_scoring_can_be_cancelled(alone, after, monkeypatch):
    from localspec.answers import answering

    scored = answering.prompt_logprobs

    def cancelling(*arguments):
        for count, entry in enumerate(scored(*arguments), 1):
            if count == after:
                alone.cancel()
            yield entry

    ids = alone.tokenize("x" * 100)
    expected = alone.generate(ids, temperature=0, max_tokens=4).text
    with monkeypatch.context() as patch:
        patch.setattr(answering, "prompt_logprobs", cancelling)
        answer = alone.generate(ids, logprobs=0, prompt_logprobs=True, max_tokens=0)
    assert (answer.finish_reason, answer.prompt_logprobs) == ("cancelled", None)
    assert alone.generate(ids, temperature=0, max_tokens=4).text == expected


@pytest.mark.parametrize("options", [{"prompt_logprobs": True}, {"prompt_logprobs": 1, "logprobs": 1}])
def test_scores_need_logprobs(alone, options):
    with pytest.raises(InvalidRequest) as caught:
        alone.stream("abc", **options)
    assert caught.value.name == "prompt_logprobs"


@pytest.mark.parametrize(
    ("text", "pieces", "offsets"),
    [
        ("ab", ["<s>", " a", "b"], [0, 0, 1]),
        ("<s>a b", ["<s>", "<s>", " a", " b"], [0, 0, 3, 4]),
        ("a<s>b<s>", ["<s>", " a", "<s>", " ", "b", "<s>"], [0, 0, 1, 4, 4, 5]),
        ("<s> a", ["<s>", "  ", "a"], [0, 3, 4]),
        (" a", ["<s>", " ", " a"], [0, 0, 0]),
        ("é", ["<s>", " ", b"\xc3", b"\xa9"], [0, 0, 0, 0]),
        ("", ["<s>"], [0]),
    ],
)
def test_blanks_that_the_tokenizer_puts_in_take_no_place(text, pieces, offsets):
    data = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    placed = prompt_tokens(range(len(data)), [None] * len(data), text, data.__getitem__)
    assert [token.offset for token in placed] == offsets
