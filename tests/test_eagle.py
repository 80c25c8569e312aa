"""EAGLE-3 heads on the real llama.cpp: what they draft for tiny targets, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from localspec import LLM, SamplingParams
from localspec.cli import main
from localspec.compute.context_options import ContextOptions
from localspec.decoding.session import Span
from localspec.engine.assumed_costs import assumed_costs
from localspec.engine.choice import known_choice
from localspec.engine.libraries import libraries, reference
from localspec.engine.measured_costs import roles
from localspec.engine.memory import memory_estimate, pair_loads
from localspec.engine.options import EngineOptions
from localspec.errors import BackendError, ModelFileError, ModelLoadError, PairingError
from localspec.gguf.metadata import read_metadata
from localspec.llama import head_calls, heads
from localspec.pairs.judgement import judge

from .test_heads import GREEDY, PROMPT, answer, drafted_by_hand
from .tinyarch import tiny
from .tinygguf import N_VOCAB, write_llama
from .tinyheads import FIRST, LETTERS, following, write_eagle, write_headed

FORMS = {"attention": "llama", "hybrid": "qwen35"}
LETTER_IDS = tuple(range(FIRST + LETTERS - 1, FIRST - 1, -1))
SHAPES = {
    "whole": {},
    "the target's embeddings and output": {"own_ends": False},
    "some tokens": {"drafted": LETTER_IDS},
}


def load(target: Path, head: Path | None, home: Path, **options) -> LLM:
    given = {"draft_tokens": 3, "n_ctx": 256, "threads": 1, "check_memory": False, "home": home, **options}
    return LLM.from_files(target, draft=head, **given)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def architecture(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def noisy(architecture, tmp_path_factory) -> tuple[Path, Path]:
    """A target whose tokens depend on all before them, and a head that mostly knows them."""
    folder = tmp_path_factory.mktemp("noisy")
    target = write_headed(folder / "target.gguf", architecture=architecture, heads=0, noise=0.15)
    return target, write_eagle(folder / "head.gguf", head_noise=0.02, drafted=LETTER_IDS)


@pytest.fixture(scope="module")
def plain(noisy, home) -> tuple[int, ...]:
    with load(noisy[0], None, home, no_draft=True) as llm:
        return tuple(answer(llm).ids)


@pytest.mark.parametrize("count", range(9))
def test_greedy_text_is_the_same_with_a_head_and_without(noisy, plain, home, count):
    with load(*noisy, home) as llm:
        assert llm.engine.drafts_itself
        completion = answer(llm, draft_tokens=count)
    assert tuple(completion.ids) == plain
    assert completion.stats.accepted > 0 or count == 0


@pytest.mark.parametrize("stands", ["always", "half", "never"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_its_tokens_stand_as_often_as_its_weights_say(architecture, shape, stands, tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture=architecture, heads=0)
    head = write_eagle(tmp_path / "head.gguf", stands=stands, **shape)
    with load(target, head, home) as llm:
        for count in (1, 2, 4):
            completion = answer(llm, draft_tokens=count)
            stats = completion.stats
            assert completion.ids[0] == following(PROMPT[-1])
            assert (stats.drafted, stats.accepted) == drafted_by_hand(
                stands, None, count, len(completion.ids)
            )
            assert stats.accepted == {"always": stats.drafted, "never": 0}.get(stands, stats.accepted)


def contexts(target: Path, head: Path, **options):
    """Both weights, and a function that opens a context on each."""
    facts = read_metadata(target)
    weights = reference().open_weights(facts)
    head_weights = reference().open_weights(read_metadata(head), heads=True)
    layers = tuple(head_weights.metadata.numbers["eagle3.target_layers"])
    given = ContextOptions(**{"n_ctx": 128, "threads": 1, "layer_inputs": layers, **options})

    def opened():
        context = weights.open_context(given)
        return context, head_weights.open_head(context, replace(given, layer_inputs=(), n_outputs=1))

    return (weights, head_weights), opened


@pytest.mark.parametrize("first", [1, 2, 3])
def test_what_it_says_does_not_depend_on_what_was_drafted_before(architecture, first, tmp_path):
    """Cells left over from guesses, or of the first token, would show: here its attention counts."""
    target = write_headed(tmp_path / "target.gguf", architecture=architecture, heads=0, noise=0.3)
    head = write_eagle(tmp_path / "head.gguf", head_noise=0.5)
    files, opened = contexts(target, head)
    text = [int(token) for token in np.random.default_rng(1).integers(FIRST, FIRST + LETTERS, 40)]
    found = {}
    for name in ("in rounds", "at once"):
        target_context, head_context = opened()
        read = 0
        for end in (*(range(first, 40, 4) if name == "in rounds" else ()), 40):
            if end - 1 > target_context.length(0):
                start = target_context.length(0)
                target_context.decode([Span(0, tuple(text[start : end - 1]), start, 0)])
            (rows,) = head_context.decode([Span(0, tuple(text[read:end]), read, 1)])
            assert head_context.length(0) == end
            for index in range(3):
                rows += head_context.decode([Span(0, (50 + index,), end + index, 1)])[0]
            assert head_context.truncate(0, end) == end
            read = end
        found[name] = np.stack(rows)
        assert head_context.truncate(0, 1) == 1
        assert head_context.truncate(0, 0) == 0 == head_context.length(0)
        head_context.close()
        target_context.close()
    for file in files:
        file.close()
    np.testing.assert_allclose(found["in rounds"], found["at once"], atol=2e-2)


def test_its_first_cell_is_of_the_second_token(tmp_path):
    """What it makes of the others does not depend on the first token but by what the target computed there."""
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0)
    head = write_eagle(tmp_path / "head.gguf", head_noise=0.5)
    files, opened = contexts(target, head)
    rows = []
    for first in (40, 41):
        target_context, head_context = opened()
        target_context.decode([Span(0, (45, 46, 47), 0, 0)])
        rows.append(head_context.decode([Span(0, (first, 46, 47, 48), 0, 1)])[0][0])
        saved = head_context.save_state()
        assert head_context.load_state(saved) == 4
        head_context.truncate(0, 1)
        assert head_context.load_state(head_context.save_state()) == 1
        head_context.close()
        target_context.close()
    for file in files:
        file.close()
    np.testing.assert_array_equal(*rows)


def test_it_is_given_what_the_layers_read(tmp_path):
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0, noise=0.3)
    head = write_eagle(tmp_path / "head.gguf")
    files, opened = contexts(target, head)
    target_context, head_context = opened()
    text = (40, 51, 62)
    target_context.decode([Span(0, text, 0, 1)])
    found = target_context.hidden.before(0, 1, 3).reshape(3, 3, LETTERS)
    for token, features in zip(text, found, strict=True):
        embedding = np.zeros(LETTERS)
        embedding[token - FIRST] = 1.0
        np.testing.assert_array_equal(features[0], embedding)
        assert np.abs(features[1] - embedding).max() > 0.01
        np.testing.assert_array_equal(features[1], features[2])
    head_context.close()
    target_context.close()
    for file in files:
        file.close()


def test_a_seed_gives_the_same_text_with_any_number_of_its_tokens(noisy, home):
    params = SamplingParams(temperature=0.8, max_tokens=30, seed=5)
    with load(*noisy, home) as llm:
        texts = {tuple(answer(llm, params=params, draft_tokens=count).ids) for count in (0, 1, 4, 8)}
    assert len(texts) == 1


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_sampled_rounds_draft_and_accept(noisy, home, verify):
    params = SamplingParams(temperature=1.0, max_tokens=30, seed=5)
    with load(*noisy, home) as llm:
        stats = answer(llm, params=params, verify=verify).stats
    assert 0 < stats.accepted <= stats.drafted


def test_a_grammar_that_leaves_none_of_its_tokens_ends_a_draft(tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0)
    head = write_eagle(tmp_path / "head.gguf", drafted=LETTER_IDS[:20])
    with load(target, head, home) as llm:
        given = {"params": replace(GREEDY, max_tokens=12), "grammar": "root ::= [!-&]*"}
        completion = answer(llm, **given)
        again = answer(llm, draft_tokens=0, **given)
    assert completion.ids == again.ids


def test_a_second_turn_and_one_after_a_cancel_are_as_in_a_fresh_engine(noisy, home):
    with load(*noisy, home) as llm:
        first = answer(llm)
        stream = llm.stream(PROMPT, params=GREEDY)
        next(stream)
        stream.cancel()
        for _ in stream:
            pass
        longer = [*PROMPT, *first.ids[:20], 70, 71, 72]
        second = answer(llm, longer)
        shorter = answer(llm, longer[:15])
    for prompt, got in ((longer, second), (longer[:15], shorter)):
        with load(*noisy, home) as fresh:
            expected = answer(fresh, prompt)
        assert got.ids == expected.ids
        assert abs(got.stats.accepted - expected.stats.accepted) <= 1


def test_conversations_that_alternate_keep_the_heads_cells_too(architecture, tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture=architecture, heads=0, noise=0.1)
    head = write_eagle(tmp_path / "head.gguf")
    one, two = ([FIRST + (index * step) % 64 for index in range(90)] for step in (3, 5))
    with load(target, head, home, keep_prefixes=2) as llm:
        first = answer(llm, one)
        answer(llm, two)
        longer = [*one, *first.ids, 70, 71]
        back = answer(llm, longer)
        assert back.stats.cached_tokens >= len(one)
        again = answer(llm, longer, draft_tokens=0)
    assert back.ids == again.ids
    assert back.stats.accepted > 0.5 * back.stats.drafted


def test_one_token_of_prompt_a_full_context_and_one_token_to_go(noisy, home):
    with load(*noisy, home, n_ctx=48) as llm:
        alone = answer(llm, [FIRST], draft_tokens=0)
        for count in (1, 8):
            assert answer(llm, [FIRST], draft_tokens=count).ids == alone.ids
            llm.engine.forget()
        assert answer(llm, params=replace(GREEDY, max_tokens=1)).stats.drafted == 0
        full = answer(llm, params=replace(GREEDY, max_tokens=None), draft_tokens=8)
        alone = answer(llm, params=replace(GREEDY, max_tokens=None), draft_tokens=0)
    assert full.ids == alone.ids
    assert full.finish_reason == "length"


def test_a_long_prompt_is_read_in_passes(architecture, tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture=architecture, heads=0, n_ctx_train=2048)
    head = write_eagle(tmp_path / "head.gguf")
    prompt = [FIRST + (index * 7) % LETTERS for index in range(700)]
    with load(target, head, home, n_ctx=1024) as llm:
        stats = answer(llm, prompt).stats
    assert stats.accepted == stats.drafted > 0


def test_another_engine_on_the_same_weights_drafts_too(noisy, plain, home):
    with load(*noisy, home) as llm:
        other = llm.engine.branch()
        assert other.drafts_itself
        assert other.draft is not llm.engine.draft
        other.close()
        assert tuple(answer(llm).ids) == plain


def test_it_is_measured_named_and_left_as_it_is(noisy, tmp_path):
    told: list[str] = []
    with load(*noisy, tmp_path, draft_tokens="auto", calibrate=True, notify=told.append) as llm:
        assert "an EAGLE-3 head" in llm.drafting
        assert any(noisy[1].name in sentence for sentence in told)
        assert not any("prediction layers" in sentence for sentence in told)
        settings = llm.settings["draft"]
        assert (settings["file"], settings["prepared_from"]) == (str(noisy[1]), None)
        costs = llm.calibrate()
        assert [role.context for role in roles(llm.engine, costs)] == [llm.engine.target, llm.engine.draft]
        assert assumed_costs(llm.engine.draft).time(1) > 0
        assert tuple(answer(llm, draft_tokens="auto").ids)


def test_strict_mode_computes_the_same_bits_with_it_and_without(tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0, noise=0.15)
    texts = set()
    for head in (write_eagle(tmp_path / "head.gguf"), None):
        with load(target, head, home, strict=True) as llm:
            assert llm.engine.drafts_itself == (head is not None)
            texts.add(tuple(answer(llm).ids))
    assert len(texts) == 1


def test_the_memory_of_what_it_reads_is_reckoned_with(noisy):
    target, head = map(read_metadata, noisy)
    options = EngineOptions(n_ctx=512)
    with_head, without = (
        memory_estimate(pair_loads(target, draft, replace(options, no_draft=draft is None)))
        for draft in (head, None)
    )
    assert with_head.weights - without.weights == head.size_bytes
    snapshots = pair_loads(target, head, options)[0].options.snapshots
    if not snapshots:
        own = 2 * 2 * LETTERS * 512  # keys and values of its one layer, in 16 bits
        assert with_head.kv_cache - without.kv_cache == 3 * 2 * LETTERS * 512 + own


@pytest.mark.parametrize("target", sorted(heads.EAGLE_TARGETS))
def test_each_target_that_is_listed_gives_out_what_its_layers_read(target, tmp_path):
    path = tiny(target, tmp_path, experts=True).write(tmp_path / "target.gguf")
    facts = read_metadata(path)
    layers = [0, min(1, facts.n_layer - 1), facts.n_layer - 1]
    rng = np.random.default_rng(1)
    head = write_eagle(
        tmp_path / "head.gguf",
        head_noise=0.5,
        extra={"target_layers": layers, "target_hidden_size": facts.n_embd},
        changed={"fc.weight": rng.standard_normal((LETTERS, 3 * facts.n_embd)).astype(np.float32)},
    )
    assert reference().why_no_head(read_metadata(head), facts) == ""
    files, opened = contexts(path, head, n_ctx=64)
    found = []
    for others in ((), (9, 8, 7)):
        target_context, head_context = opened()
        if others:
            target_context.decode([Span(0, others, 0, 0)])
            head_context.decode([Span(0, (*others, 6), 0, 1)])
            head_context.decode([Span(0, (5,), 4, 1)])
            assert head_context.truncate(0, 0) == target_context.truncate(0, 0) == 0
        target_context.decode([Span(0, (5, 7, 9, 11, 40), 0, 0)])
        assert target_context.hidden.before(0, 1, 5).any(axis=1).all()
        (first,) = head_context.decode([Span(0, (5, 7, 9, 11, 40, 77), 0, 1)])
        (second,) = head_context.decode([Span(0, (88,), 6, 1)])
        found.append(np.stack([*first, *second]))
        head_context.close()
        target_context.close()
    for file in files:
        file.close()
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


# -- refused

_EMBEDDING = np.zeros((N_VOCAB - 1, LETTERS), dtype=np.float32)
_NONE = np.zeros(0, dtype=np.float32)
UNFIT = {
    "no layers named": ({"extra": {"target_layers": [0, 1]}}, "does not name the 3 layers"),
    "a layer too many": ({"extra": {"target_layers": [0, 1, 2]}}, "reads the layers 0, 1, 2"),
    "another width": ({"extra": {"target_hidden_size": 32}}, "reads 32 numbers of a layer"),
    "two layers": ({"extra": {"block_count": 2}}, "has 2 layers"),
    "too few embeddings": ({"changed": {"token_embd.weight": _EMBEDDING}}, "has embeddings of"),
    "twice a token": ({"drafted": (40, 41, 40)}, "names tokens twice"),
    "a token too many": ({"drafted": (40, 41), "changed": {"d2t": np.array([40, N_VOCAB])}}, "names tokens"),
    "a token below": ({"drafted": (40, 41), "changed": {"d2t": np.array([40, -1])}}, "names tokens"),
    "a list too long": ({"drafted": (40, 41), "changed": {"d2t": np.array([40, 41, 42])}}, "does not fit"),
    "a list of floats": (
        {"drafted": (40, 41), "changed": {"d2t": np.array([40, 41], dtype=np.float32)}},
        "does not fit",
    ),
    "a list without output": ({"drafted": (40, 41), "changed": {"output.weight": _NONE}}, "does not fit"),
    "narrower, without ends": (
        {"own_ends": False, "extra": {"embedding_length": 32}},
        "no embeddings of its own",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), UNFIT.values(), ids=UNFIT)
def test_a_head_that_does_not_fit_is_refused_before_it_ends_the_process(changes, reason, tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0)
    head = write_eagle(tmp_path / "head.gguf", **changes)
    with pytest.raises(PairingError, match="is an EAGLE-3 head that cannot draft for") as refused:
        load(target, head, home)
    assert reason in str(refused.value)
    assert "trained for this target" in refused.value.remedy


def test_keys_and_values_of_two_lengths_are_refused(tmp_path):
    head = write_eagle(
        tmp_path / "head.gguf", extra={"attention.key_length": 32, "attention.value_length": 16}
    )
    with pytest.raises(ModelFileError, match="value_length"):
        read_metadata(head)


def test_targets_whose_layers_are_not_given_out_are_refused(tmp_path, home):
    target = write_headed(tmp_path / "target.gguf", architecture="step35", heads=0)
    head = write_eagle(tmp_path / "head.gguf")
    with pytest.raises(PairingError, match="does not give out what layers of step35 models read"):
        load(target, head, home)


def test_a_target_of_another_vocabulary_is_refused(tmp_path, home):
    extra = {"embedding_length": 64}
    target = write_llama(tmp_path / "target.gguf", changed_tokens={n: f"~{n}~" for n in range(60, 280)})
    width = read_metadata(target).n_embd
    head = write_eagle(
        tmp_path / "head.gguf",
        extra={**extra, "target_hidden_size": width},
        changed={"fc.weight": np.zeros((LETTERS, 3 * width), dtype=np.float32)},
    )
    with pytest.raises(PairingError, match="vocabular"):
        load(target, head, home)


def test_a_head_is_no_target(tmp_path, home):
    head = write_eagle(tmp_path / "head.gguf")
    with pytest.raises(ModelLoadError, match="is an EAGLE-3 head, not a model of its own"):
        load(head, None, home)


def test_a_build_that_lacks_a_call_is_refused_by_its_name(noisy, monkeypatch, home):
    def lacking():
        raise BackendError("This build of llama-cpp-python lacks llama_set_embeddings_layer_inp.", "Another.")

    head_calls.layer_inputs_missing.cache_clear()
    monkeypatch.setattr(head_calls, "layer_inputs", lacking)
    try:
        with pytest.raises(PairingError, match="lacks llama_set_embeddings_layer_inp"):
            load(*noisy, home)
    finally:
        head_calls.layer_inputs_missing.cache_clear()


def test_the_calls_are_found_under_each_compilers_names():
    class Library:
        def __init__(self, only: str) -> None:
            self.only = only

        def __getattr__(self, name: str):
            if name != self.only:
                raise AttributeError(name)
            return type("Function", (), {})()

    for name, arguments, restype in (
        ("?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z", "jb", None),
        ("?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z", "j", 1),
    ):
        head_calls._call(Library(name), name[1:].split("@")[0], arguments, [], restype)


def test_no_context_is_opened_on_it_alone(tmp_path):
    weights = reference().open_weights(read_metadata(write_eagle(tmp_path / "head.gguf")))
    with pytest.raises(ModelLoadError, match="computes nothing without its target"):
        weights.open_context(ContextOptions(n_ctx=64, threads=1))
    weights.close()


def test_other_libraries_refuse_it(noisy, tmp_path, home):
    target, head = map(read_metadata, noisy)
    for library in libraries():
        if library.key != reference().key:
            assert library.refusal(head) and library.why_no_head(head, target)
    assert known_choice(target, head, EngineOptions(), home).library.key == reference().key


def test_drafts_that_are_suggested_fit(tmp_path):
    """Judged by key-values alone, as those of a file elsewhere are."""
    target = read_metadata(write_headed(tmp_path / "target.gguf", architecture="llama", heads=0))
    head = read_metadata(write_eagle(tmp_path / "head.gguf"))
    deep = read_metadata(write_eagle(tmp_path / "deep.gguf", extra={"target_layers": [2, 16, 29]}))
    fits = judge(target, head)
    assert (fits.verdict, fits.reservations) == ("fits", ())  # its file has no template, and needs none
    refused = judge(target, deep)
    assert "reads the layers 2, 16, 29, and the target has 2" in refused.sentence


# -- on the command line


def test_show_check_and_the_start_line_say_what_becomes_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    target = write_headed(tmp_path / "target.gguf", architecture="llama", heads=0)
    head = write_eagle(tmp_path / "head.gguf")
    other = write_headed(tmp_path / "other.gguf", architecture="step35", heads=0)
    for arguments, sentence in (
        (("show", str(head)), "head.gguf is an EAGLE-3 head, which drafts for the model it was trained for."),
        (("check", str(target), str(head)), "head.gguf is an EAGLE-3 head, which drafts for target.gguf."),
        (("check", str(other), str(head)), "which cannot draft for other.gguf: llama.cpp does not give out"),
    ):
        result = CliRunner().invoke(main, [*arguments])
        assert sentence in " ".join(result.output.split()), result.output
    result = CliRunner().invoke(
        main,
        ["chat", str(target), "-md", str(head), "--draft-tokens", "3", "-p", "hi", "-t", "1", "-n", "8"],
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "drafting on, 3 tokens a round from an EAGLE-3 head" in said
