"""Models with prediction layers on the real llama.cpp: what their heads draft, and when they may not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from localspec import LLM, SamplingParams
from localspec.cli import main
from localspec.compute.context_options import ContextOptions
from localspec.compute.probe import Probe
from localspec.decoding.head_drafter import HeadDrafter
from localspec.decoding.session import Span
from localspec.doctor.finding import Status
from localspec.doctor.library import _findings
from localspec.engine.assumed_costs import assumed_costs
from localspec.engine.heads import may_draft
from localspec.engine.libraries import reference
from localspec.engine.measured_costs import roles
from localspec.engine.memory import memory_estimate, pair_loads
from localspec.engine.options import EngineOptions
from localspec.errors import (
    BackendError,
    DecodeError,
    InvalidRequest,
    ModelFileError,
    ModelLoadError,
    PairingError,
)
from localspec.gguf.heads import layers_in, prediction_layers
from localspec.gguf.metadata import read_metadata
from localspec.ik.library import IkLlama
from localspec.llama import head_calls, heads
from localspec.llama.hidden_states import HiddenStates
from localspec.measure.acceptance import record

from .tinyarch import header_only, tiny
from .tinygguf import write_llama
from .tinyheads import FIRST, following, says, write_headed

GREEDY = SamplingParams(temperature=0, max_tokens=40)
PROMPT = [40, 41, 47, 60, 90, 33]
FORMS = {
    "attention": {"architecture": "step35"},
    "two layers": {"architecture": "step35", "heads": 2},
    "three layers": {"architecture": "step35", "heads": 3},
    "hybrid": {"architecture": "qwen35"},
}


def load(path: Path, home: Path, **options) -> LLM:
    given = {"draft_tokens": 3, "n_ctx": 256, "threads": 1, "check_memory": False, "home": home, **options}
    return LLM.from_files(path, **given)


def answer(llm: LLM, prompt=tuple(PROMPT), params=GREEDY, **options):
    completion = list(llm.stream(list(prompt), params=params, **options))[-1].completion
    assert completion is not None
    return completion


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def form(request) -> dict:
    return request.param


@pytest.fixture(scope="module")
def noisy(form, tmp_path_factory) -> Path:
    """A target whose tokens depend on all before them, and a head that mostly knows them."""
    path = tmp_path_factory.mktemp("noisy") / "target.gguf"
    return write_headed(path, **form, noise=0.15, head_noise=0.05)


@pytest.fixture(scope="module")
def plain(noisy, home) -> tuple[int, ...]:
    with load(noisy, home, head="off") as llm:
        return tuple(answer(llm, draft_tokens=0).ids)


def drafted_by_hand(stands: str, depth: int | None, count: int, length: int) -> tuple[int, int]:
    """Drafted and accepted, for a target that goes round through the letters behind PROMPT's last one."""
    text = [PROMPT[-2], PROMPT[-1]]
    while len(text) < length + 2:
        text.append(following(text[-1]))
    committed, drafted, accepted = 1, 0, 0
    while committed < length:
        room = min(count, length - committed - 1)
        if depth is not None:
            room = min(room, depth)
        # The state at the last token but one says which the last one is; from there on it follows its own guesses.
        guess = says(text[committed], stands)
        kept, right = 0, guess == text[committed + 1]
        for index in range(room):
            guess = says_next(guess, stands, index)
            right = right and guess == text[committed + 2 + index]
            kept += right
        drafted, accepted = drafted + room, accepted + kept
        committed += kept + 1
    return drafted, accepted


def says_next(guess: int, stands: str, index: int) -> int:
    """The output is the target's own: it makes the next letter of the one that the head has in mind."""
    return following(guess) if index == 0 else following(says(FIRST + (before(guess) - FIRST), stands))


def before(token: int) -> int:
    return next(one for one in range(FIRST, FIRST + 64) if following(one) == token)


@pytest.mark.parametrize("count", range(9))
def test_greedy_text_is_the_same_with_a_head_and_without(noisy, plain, home, count):
    with load(noisy, home, head="on", draft_tokens=count) as llm:
        completion = answer(llm, draft_tokens=count)
    assert tuple(completion.ids) == plain
    assert completion.stats.accepted > 0 or count == 0


@pytest.mark.parametrize("stands", ["always", "half", "never"])
def test_its_tokens_stand_as_often_as_its_weights_say(form, stands, tmp_path, home):
    path = write_headed(tmp_path / "target.gguf", **form, stands=stands)
    depth = form.get("heads", 1) if form.get("heads", 1) > 1 else None
    with load(path, home) as llm:
        for count in (1, 2, 4):
            completion = answer(llm, draft_tokens=count)
            assert completion.ids[0] == following(PROMPT[-1])
            stats = completion.stats
            assert (stats.drafted, stats.accepted) == drafted_by_hand(
                stands, depth, count, len(completion.ids)
            )
            assert stats.accepted == {"always": stats.drafted, "never": 0}.get(stands, stats.accepted)


def test_what_it_says_does_not_depend_on_what_was_drafted_before(form, tmp_path):
    """Cells left over from guesses, or of one layer alone, would show: here its attention counts."""
    path = write_headed(tmp_path / "target.gguf", **form, noise=0.3, head_noise=0.5)
    facts = read_metadata(path)
    weights = reference().open_weights(facts, heads=True)
    options = ContextOptions(n_ctx=128, threads=1, hidden_states=True)
    text = [int(token) for token in np.random.default_rng(1).integers(FIRST, FIRST + 64, 40)]
    guesses = 1 if weights.num_heads == 1 else weights.num_heads - 1
    found = {}
    for name in ("in rounds", "at once"):
        target = weights.open_context(options)
        head = weights.open_head(target, replace(options, hidden_states=False, n_outputs=1))
        read = 0
        for end in (*(range(3, 40, 4) if name == "in rounds" else ()), 40):
            target.decode([Span(0, tuple(text[target.length(0) : end - 1]), target.length(0), 0)])
            (rows,) = head.decode([Span(0, tuple(text[read:end]), read, 1)])
            for index in range(guesses):
                rows += head.decode([Span(0, (50 + index,), end + index, 1)])[0]
            read = head.truncate(0, end)
        found[name] = np.stack(rows)
        head.close()
        target.close()
    weights.close()
    assert len(found["at once"]) == guesses + 1
    np.testing.assert_allclose(found["in rounds"], found["at once"], atol=2e-2)


def test_hidden_states_are_those_of_the_tokens_that_stand():
    kept = HiddenStates(10, 2)
    states = np.arange(1, 13, dtype=np.float32).reshape(6, 2)
    kept.take([Span(0, (1, 2, 3, 4), 0, 0), Span(1, (5, 6), 0, 0)], states)
    assert (kept.known(0), kept.known(1), kept.known(2)) == (4, 2, 0)
    np.testing.assert_array_equal(kept.before(0, 0, 3), [[0, 0], [1, 2], [3, 4]])
    np.testing.assert_array_equal(kept.before(1, 1, 3), [[9, 10], [11, 12], [0, 0]])
    kept.cut(0, 2)
    np.testing.assert_array_equal(kept.before(0, 2, 2), [[3, 4], [0, 0]])
    kept.cut(0, 3)  # nothing comes back
    assert kept.known(0) == 2
    kept.take([Span(0, (7,), 4, 0)], states[:1])  # behind cells that were never seen
    np.testing.assert_array_equal(kept.before(0, 2, 4), [[3, 4], [0, 0], [0, 0], [1, 2]])
    kept.forget(0, 3)
    assert kept.known(0) == 3
    assert not kept.before(0, 0, 4).any()
    third = np.full((1, 2), 1 / 3, np.float32)
    kept.take([Span(2, (1,), 0, 0)], third)
    np.testing.assert_allclose(kept.before(2, 1, 1), third, rtol=2**-7)


def test_whoever_asks_for_more_guesses_than_there_are_layers_does_not_end_the_process(tmp_path):
    path = write_headed(tmp_path / "target.gguf", heads=2)
    weights = reference().open_weights(read_metadata(path), heads=True)
    options = ContextOptions(n_ctx=64, threads=1, hidden_states=True)
    target = weights.open_context(options)
    head = weights.open_head(target, replace(options, hidden_states=False, n_outputs=1))
    assert head.depth == 2
    target.decode([Span(0, (40, 41), 0, 0)])
    head.decode([Span(0, (40, 41, 42), 0, 1)])
    for position in range(3, 9):
        ((row,),) = head.decode([Span(0, (50,), position, 1)])
        assert np.isfinite(row).all()
    with pytest.raises(DecodeError, match="one row"):
        head.decode([Span(0, (50, 51), 9, 1, 1)])
    head.close()
    target.close()
    weights.close()


def test_a_seed_gives_the_same_text_with_any_number_of_its_tokens(noisy, home):
    params = SamplingParams(temperature=0.8, max_tokens=30, seed=5)
    with load(noisy, home) as llm:
        texts = {tuple(answer(llm, params=params, draft_tokens=count).ids) for count in (0, 1, 4, 8)}
    assert len(texts) == 1


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_sampled_rounds_draft_and_accept(noisy, home, verify):
    params = SamplingParams(temperature=1.0, max_tokens=30, seed=5)
    with load(noisy, home) as llm:
        stats = answer(llm, params=params, verify=verify).stats
    assert 0 < stats.accepted <= stats.drafted


def test_a_second_turn_and_one_after_a_cancel_are_as_in_a_fresh_engine(noisy, home):
    with load(noisy, home) as llm:
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
        with load(noisy, home) as fresh:
            expected = answer(fresh, prompt)
        assert got.ids == expected.ids
        # What the target keeps of a prompt it shares with the last one, the head keeps too.
        assert abs(got.stats.accepted - expected.stats.accepted) <= 1


def test_conversations_that_alternate_keep_the_heads_cells_too(form, tmp_path, home):
    path = write_headed(tmp_path / "target.gguf", **form, noise=0.15)
    one, two = ([FIRST + (index * step) % 64 for index in range(90)] for step in (3, 5))
    with load(path, home, keep_prefixes=2) as llm:
        first = answer(llm, one)
        answer(llm, two)
        longer = [*one, *first.ids, 70, 71]
        back = answer(llm, longer)
        assert back.stats.cached_tokens >= len(one)
        again = answer(llm, longer, draft_tokens=0)
    assert back.ids == again.ids
    assert back.stats.accepted > 0.8 * back.stats.drafted


def test_a_full_context_and_one_token_to_go(noisy, home):
    with load(noisy, home, n_ctx=48) as llm:
        assert answer(llm, params=replace(GREEDY, max_tokens=1)).stats.drafted == 0
        full = answer(llm, params=replace(GREEDY, max_tokens=None), draft_tokens=8)
        alone = answer(llm, params=replace(GREEDY, max_tokens=None), draft_tokens=0)
    assert full.ids == alone.ids
    assert full.finish_reason == "length"


def test_another_engine_on_the_same_weights_drafts_too(noisy, plain, home):
    with load(noisy, home) as llm:
        other = llm.engine.branch()
        assert other.drafts_itself
        assert other.draft is not llm.engine.draft
        other.close()
        alone = llm.engine.branch(with_draft=False)
        assert alone.draft is None
        alone.close()
        assert tuple(answer(llm).ids) == plain


def test_it_is_measured_named_and_kept_apart_from_a_draft_of_that_file(noisy, home):
    told: list[str] = []
    with load(noisy, home, draft_tokens="auto", calibrate=True, notify=told.append) as llm:
        assert "prediction layers" in llm.drafting
        assert any(f"{noisy.name}'s prediction layers" in sentence for sentence in told)
        settings = llm.settings["draft"]
        assert settings["head"] is True
        assert settings["prepared_from"] is None
        assert settings["file"] == str(noisy)
        costs = llm.calibrate()
        assert [role.context for role in roles(llm.engine, costs)] == [llm.engine.target, llm.engine.draft]
        assert tuple(answer(llm, draft_tokens="auto").ids)


def test_recorded_acceptance_sees_no_more_than_an_answer_does(tmp_path, home, monkeypatch):
    """The target has read the whole text by then: a head must not draft from what comes later."""
    path = write_headed(tmp_path / "target.gguf", stands="never")
    known: list[bool] = []

    def propose(self, sequence, *others):
        known.append(self._head.known(0) == len(sequence) - 1)
        return original(self, sequence, *others)

    original = HeadDrafter.propose
    monkeypatch.setattr(HeadDrafter, "propose", propose)
    with load(path, home) as llm:
        completion = answer(llm, draft_tokens=0)
        params = replace(GREEDY, temperature=1.0, seed=1)
        places = list(record(llm.engine, params, PROMPT, completion.ids, 3))
    assert len(places) > 5
    assert all(known)
    assert all(max(place.best) < 0.1 for place in places)


def test_beside_its_target_it_is_assumed_to_cost_its_own_layers(tmp_path, home):
    path = write_headed(tmp_path / "target.gguf")
    layers = layers_in(read_metadata(path))
    assert layers.has_trunk
    assert 0 < layers.num_bytes < path.stat().st_size / 2
    with load(path, home) as llm:
        assert llm.engine.draft is not None
        head, target = assumed_costs(llm.engine.draft), assumed_costs(llm.engine.target)
    assert head.time(1) < target.time(1)


def test_the_memory_of_hidden_states_is_reckoned_with(tmp_path):
    facts = read_metadata(write_headed(tmp_path / "target.gguf"))
    options = EngineOptions(n_ctx=512)
    with_head, without = (
        memory_estimate(pair_loads(facts, None, one)) for one in (options, replace(options, head="off"))
    )
    assert with_head.weights == without.weights
    assert with_head.kv_cache - without.kv_cache == 2 * 64 * 512
    assert may_draft(facts, False, options)
    assert not may_draft(facts, True, options)
    assert not may_draft(facts, False, replace(options, no_draft=True))


@pytest.mark.parametrize("architecture", sorted(heads.FORMS))
def test_each_form_that_is_listed_runs(architecture, tmp_path):
    """With random weights: the process goes on, and what the head says is a function of the text alone."""
    path = tiny(architecture, tmp_path, experts=True, heads=1).write(tmp_path / "model.gguf")
    facts = read_metadata(path)
    assert reference().why_no_head(facts) == ""
    assert prediction_layers(facts) == 1
    weights = reference().open_weights(facts, heads=True)
    options = ContextOptions(n_ctx=64, threads=1, hidden_states=True)
    found = []
    for others in ((), (9, 8, 7)):
        target = weights.open_context(options)
        head = weights.open_head(target, replace(options, hidden_states=False, n_outputs=1))
        if others:
            target.decode([Span(0, others, 0, 0)])
            head.decode([Span(0, (*others, 6), 0, 1)])
            head.decode([Span(0, (5,), 4, 1)])
            assert head.truncate(0, 0) == target.truncate(0, 0) == 0
        target.decode([Span(0, (5, 7, 9, 11, 40), 0, 0)])
        (first,) = head.decode([Span(0, (5, 7, 9, 11, 40, 77), 0, 1)])
        (second,) = head.decode([Span(0, (88,), 6, 1)])
        found.append(np.stack([*first, *second]))
        head.close()
        target.close()
    weights.close()
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


# -- in a file of its own


@pytest.mark.parametrize("target_parts", ["trunk", "all"])
def test_a_file_with_the_heads_alone_drafts_for_its_target(form, target_parts, tmp_path, home):
    trunk = {**form, "heads": 0} if form["architecture"] == "qwen35" and target_parts == "trunk" else form
    target = write_headed(tmp_path / "target.gguf", **trunk, parts=target_parts, noise=0.1)
    head = write_headed(tmp_path / "head.gguf", **form, parts="heads")
    with load(target, home, no_draft=True) as llm:
        plain = answer(llm).ids
    with load(target, home, draft=head) as llm:
        assert llm.engine.drafts_itself
        assert llm.settings["draft"]["file"] == str(head)
        completion = answer(llm)
        branch = llm.engine.branch()
        assert branch.drafts_itself
        branch.close()
    assert completion.ids == plain
    assert completion.stats.accepted > 0.5 * completion.stats.drafted


def test_a_file_with_heads_alone_is_no_target_and_fits_its_own_alone(tmp_path, home):
    head = write_headed(tmp_path / "head.gguf", parts="heads")
    with pytest.raises(ModelLoadError, match="holds prediction layers alone"):
        load(head, home)
    other = write_headed(tmp_path / "other.gguf", architecture="qwen35")
    with pytest.raises(PairingError, match="its architecture is step35, and the target's qwen35"):
        load(other, home, draft=head)
    facts = read_metadata(head)
    assert memory_estimate(pair_loads(facts, None, EngineOptions(n_ctx=64))).weights == facts.size_bytes


def test_check_show_and_add_refuse_them_as_a_load_does(tmp_path, home, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    head = write_headed(tmp_path / "head.gguf", parts="heads")
    other = write_headed(tmp_path / "other.gguf", architecture="qwen35")
    alone = "head.gguf holds prediction layers alone, without the model that they belong to."
    another = (
        "head.gguf cannot draft for other.gguf: it holds prediction layers, and its architecture is step35"
    )
    for arguments, code, sentence in (
        (("check", head), 1, alone),
        (("check", head, other), 1, alone),
        (("show", head), 0, alone),
        (("add", "mine", "-m", head), 1, alone),
        (("check", other, head), 1, another),
        (("add", "mine", "-m", other, "-md", head), 1, another),
    ):
        result = CliRunner().invoke(main, [*map(str, arguments)])
        assert result.exit_code == code, result.output
        said = " ".join(result.output.split())
        assert sentence in said
        assert "can be drafted" not in said
        assert "head.gguf has" not in said


# -- refused


def why_not(path: Path) -> str:
    return reference().why_no_head(read_metadata(path))


def test_a_file_without_the_layers_is_refused_and_drafts_from_repetitions(tmp_path, home):
    path = write_llama(tmp_path / "plain.gguf")
    assert prediction_layers(read_metadata(path)) == 0
    with pytest.raises(InvalidRequest, match="has no prediction layers"):
        load(path, home, head="on")
    with load(path, home) as llm:
        assert llm.engine.draft is None


def test_layers_without_their_tensors_are_refused_before_the_library_ends_the_process(tmp_path, home):
    path = write_headed(tmp_path / "trunk.gguf", parts="trunk")
    assert "without their tensors" in why_not(path)
    with pytest.raises(InvalidRequest, match="without their tensors"):
        load(path, home, head="on")
    with load(path, home) as llm:
        assert not llm.engine.drafts_itself
        assert answer(llm).ids[0] == following(PROMPT[-1])


def test_forms_that_the_library_does_not_run_are_refused(tmp_path, monkeypatch):
    path = write_headed(tmp_path / "two.gguf", architecture="qwen35", heads=2)
    assert "runs one prediction layer of qwen35 models" in why_not(path)
    path = write_headed(tmp_path / "one.gguf")
    monkeypatch.setitem(heads.FORMS, "step35", heads.Form(needs=("ffn_gate_inp",)))
    assert "lack ffn_gate_inp.weight" in why_not(path)
    monkeypatch.delitem(heads.FORMS, "step35")
    assert "does not run the prediction layers of step35 models" in why_not(path)


def test_a_build_that_lacks_a_call_is_refused_by_its_name(tmp_path, monkeypatch, home):
    path = write_headed(tmp_path / "one.gguf")

    def lacking():
        raise BackendError(
            "This build of llama-cpp-python lacks llama_get_embeddings_nextn.", "Install another."
        )

    head_calls.missing.cache_clear()
    monkeypatch.setattr(head_calls, "calls", lacking)
    try:
        assert "lacks llama_get_embeddings_nextn" in why_not(path)
        with load(path, home) as llm:
            assert not llm.engine.drafts_itself
    finally:
        head_calls.missing.cache_clear()
    with pytest.raises(BackendError, match="lacks llama_no_such_call"):
        head_calls._call(object(), "llama_no_such_call", "", [], None)


def test_the_calls_are_found_under_each_compilers_names():
    class Library:
        def __getattr__(self, name: str):
            if name != self.only:
                raise AttributeError(name)
            return type("Function", (), {})()

    for name in (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ):
        library = Library()
        library.only = name
        assert head_calls._call(library, "llama_set_embeddings_nextn", "bb", [], None).restype is None
    for name, arguments, restype in (
        ("?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z", "", 1),
        ("?llama_get_embeddings_nextn_ith@@YAPEAMPEAUllama_context@@H@Z", "i", 1),
        ("?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z", "i", None),
    ):
        library = Library()
        library.only = name
        head_calls._call(library, name[1:].split("@")[0], arguments, [], restype)


def test_a_head_beside_a_draft_model_is_refused_and_never_taken_by_itself(tmp_path, home):
    path = write_headed(tmp_path / "target.gguf")
    draft = write_headed(tmp_path / "draft.gguf", heads=0)
    with pytest.raises(InvalidRequest, match="a draft model was given"):
        load(path, home, draft=draft, head="on")
    with load(path, home, draft=draft) as llm:
        assert not llm.engine.drafts_itself
        assert llm.engine.draft is not None
    with load(path, home, no_draft=True) as llm:
        assert llm.engine.draft is None
    with pytest.raises(InvalidRequest, match="head is 'maybe'"):
        load(path, home, head="maybe")


def test_strict_mode_computes_the_same_bits_with_it_and_without(tmp_path, home):
    path = write_headed(tmp_path / "target.gguf", noise=0.15)
    texts = set()
    for head in ("on", "off"):
        with load(path, home, strict=True, head=head) as llm:
            assert llm.engine.target.options.hidden_states
            texts.add(tuple(answer(llm).ids))
    assert len(texts) == 1


@pytest.mark.parametrize("architecture", ["dflash", "gemma4-assistant"])
def test_heads_of_other_kinds_are_refused_with_what_to_do_instead(architecture, tmp_path, home):
    target = write_headed(tmp_path / "target.gguf")
    head = header_only(architecture).write(tmp_path / "head.gguf")
    with pytest.raises(ModelFileError, match="a drafting head") as refused:
        load(target, home, draft=head)
    assert "give a small model of its family as the draft" in refused.value.remedy


# -- on the command line


def run(*arguments: str):
    return CliRunner().invoke(main, [*arguments, "-t", "1", "-n", "8", "--temp", "0"])


def test_show_check_and_doctor_say_what_becomes_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    path = write_headed(tmp_path / "target.gguf", heads=2)
    trunk = write_headed(tmp_path / "trunk.gguf", heads=2, parts="trunk")
    head = write_headed(tmp_path / "head.gguf", heads=2, parts="heads")
    drafts = "target.gguf has 2 prediction layers, which draft for it where no draft model is given."
    single = write_headed(tmp_path / "single.gguf")
    bare = write_headed(tmp_path / "bare.gguf", parts="trunk")
    for arguments, sentence in (
        (("show", str(path)), drafts),
        (("check", str(path)), drafts),
        (
            ("show", str(single)),
            "memory 3 MB, with a context of 512 tokens",
        ),
        (("show", str(single)), "single.gguf has one prediction layer, which drafts for it where no draft"),
        (("show", str(bare)), "bare.gguf has one prediction layer, which does not draft here: bare.gguf"),
        (
            ("check", str(trunk)),
            "which do not draft here: trunk.gguf names 2 prediction layers without their",
        ),
        (
            ("check", str(trunk), str(head)),
            "head.gguf holds prediction layers, which draft from what the target",
        ),
    ):
        result = CliRunner().invoke(main, [*arguments])
        assert sentence in " ".join(result.output.split()), result.output
    shown = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).stdout)
    assert shown["head"] == drafts
    found = {finding.topic: finding for finding in _findings(reference(), Probe(stage="done"), 1.0)}
    assert found["prediction layers"].status is Status.OK
    lacking = Probe(stage="done", lacks="This build lacks llama_set_nextn_layer_offset")
    found = {finding.topic: finding for finding in _findings(reference(), lacking, 1.0)}
    assert found["prediction layers"].status is Status.NOTE
    assert "llama_set_nextn_layer_offset" in found["prediction layers"].fact


def test_draft_mtp_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    path = write_headed(tmp_path / "target.gguf")
    result = run("chat", str(path), "--draft", "mtp", "--draft-tokens", "3", "-p", "hi")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "target.gguf, computed by llama.cpp, drafting on, 3 tokens a round from the model's own" in said
    plain = write_llama(tmp_path / "plain.gguf")
    result = run("chat", str(plain), "--draft", "mtp", "-p", "hi")
    assert result.exit_code != 0
    said = " ".join(result.stderr.split())
    assert "plain.gguf cannot draft for itself: plain.gguf has no prediction layers." in said
    assert "or leave --draft mtp out" in said
    assert IkLlama().why_no_head(read_metadata(plain)) == "plain.gguf has no prediction layers"
