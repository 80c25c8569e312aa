"""The engine and `LLM` on real libraries with models of a few kilobytes: limits, ends, life cycle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from localspec import LLM, AnswerOptions, Conversation, LoadOptions, memory_needed
from localspec.errors import (
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    ModelFileError,
    PairingError,
    PromptTooLong,
    TemplateError,
)
from localspec.system.cores import processors

from .tinygguf import write_gemma, write_llama, write_mamba

GREEDY = {"temperature": 0}


def load(target, draft=None, **options):
    """With a fixed draft length: whether drafting pays on a model of a few kilobytes is no question here."""
    return LLM.from_files(target, draft, **{"draft_tokens": 3, **options})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
        "padded": write_llama(folder / "padded.gguf", seed=1, noise=0.05, n_vocab=320),
        "other": write_llama(
            folder / "other.gguf", seed=1, changed_tokens={token: f"other{token}" for token in range(40, 200)}
        ),
        "bare": write_llama(folder / "bare.gguf", seed=1, template=None),
        "ends": write_llama(folder / "ends.gguf", seed=1, ends=True),
        "mamba": write_mamba(folder / "mamba.gguf", seed=1),
        "gemma": write_gemma(folder / "gemma.gguf", seed=1),
    }


@pytest.fixture(scope="module")
def plain(files, computed_by):
    """200 greedy ids after `abc`, decoded one by one."""
    with load(files["target"], no_draft=True, n_ctx=512, **computed_by) as llm:
        return llm.generate("abc", max_tokens=200, **GREEDY).ids


@pytest.fixture(scope="module")
def llm(files, computed_by):
    with load(files["target"], files["draft"], n_ctx=512, **computed_by) as llm:
        yield llm


@pytest.mark.parametrize("draft_tokens", ["off", "auto", 0, 1, 3, 7, 31, 500])
def test_greedy_is_the_targets_own_at_every_length(llm, plain, draft_tokens):
    answer = llm.generate("abc", max_tokens=200, draft_tokens=draft_tokens, **GREEDY)
    assert answer.ids == plain
    stats = answer.stats
    assert stats.tokens == len(answer.ids) == stats.rounds + stats.accepted
    assert 0 <= stats.bonus <= stats.rounds and stats.accepted <= stats.drafted
    if draft_tokens != "auto":  # which drafts only where it pays
        assert (stats.drafted > 0) == (draft_tokens not in ("off", 0))


def test_a_padded_draft_and_a_padded_target_pair(files, computed_by, plain):
    for target, draft in (("target", "padded"), ("padded", "target")):
        with load(files[target], files[draft], n_ctx=512, **computed_by) as llm:
            answer = llm.generate("abc", max_tokens=60, **GREEDY)
            assert answer.stats.accepted > 0
            llm.generate("abc", max_tokens=60, temperature=2.0, top_k=0, seed=1)
    with load(files["target"], files["padded"], n_ctx=512, **computed_by) as llm:
        assert llm.generate("abc", max_tokens=60, **GREEDY).ids == plain[:60]


def test_ngram_drafts_leave_greedy_alone(files, computed_by, plain):
    with load(files["target"], n_ctx=512, **computed_by) as llm:
        assert "repeated text" in llm.drafting
        assert llm.generate("abc", max_tokens=200, **GREEDY).ids == plain


def test_a_seed_gives_the_same_text_with_any_draft(llm, computed_by, files):
    first = llm.generate("abc", max_tokens=50, seed=7)
    llm.generate("something else", max_tokens=20)
    for draft_tokens in ("auto", "off", 1, 4, 9):
        assert llm.generate("abc", max_tokens=50, seed=7, draft_tokens=draft_tokens).ids == first.ids
    with load(files["target"], n_ctx=512, **computed_by) as without:
        assert without.generate("abc", max_tokens=50, seed=7).ids == first.ids
    assert first.seed == 7
    assert llm.generate("abc", max_tokens=50, seed=8).ids != first.ids


def test_no_seed_no_repetition(llm):
    answers = {llm.generate("abc", max_tokens=20, temperature=1.5).ids for _ in range(4)}
    assert len(answers) > 1
    assert llm.generate("abc", max_tokens=2).seed is None


def test_streamed_text_joined_is_the_whole_text(llm):
    chunks = list(llm.stream("abc", max_tokens=80, seed=3, temperature=1.5, top_k=0, top_p=1, min_p=0))
    completion = chunks[-1].completion
    assert "".join(chunk.text for chunk in chunks) == completion.text
    raw = b"".join(llm.engine.vocab.piece(token) for token in completion.ids)
    assert completion.text == raw.decode("utf-8", "replace")
    assert [token for chunk in chunks for token in chunk.tokens] == list(completion.ids)
    assert all(chunk.completion is None for chunk in chunks[:-1])


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5])
def test_the_token_budget(llm, plain, max_tokens):
    answer = llm.generate("abc", max_tokens=max_tokens, **GREEDY)
    assert (answer.ids, answer.finish_reason) == (plain[:max_tokens], "length")


def test_stop_strings_cut_text_in_mid_draft(llm, plain):
    whole = llm.generate("abc", max_tokens=60, **GREEDY).text
    stop = whole[20:23]
    answer = llm.generate("abc", max_tokens=60, stop=stop, **GREEDY)
    assert answer.finish_reason == "stop"
    assert answer.text == whole[: whole.index(stop)]
    assert answer.ids == plain[: len(answer.ids)] and answer.stats.tokens == len(answer.ids)
    assert llm.generate("abc", max_tokens=60, **GREEDY).text == whole


@pytest.mark.parametrize("draft_tokens", ["off", 1, 4])
def test_every_end_of_generation_token_ends_an_answer(files, computed_by, draft_tokens):
    with load(files["ends"], files["draft"], n_ctx=512, **computed_by) as llm:
        answers = [
            llm.generate(text, max_tokens=300, draft_tokens=draft_tokens, temperature=0)
            for text in ("abc", "x", "hello")
        ]
        expected = [
            llm.generate(text, max_tokens=300, draft_tokens=0, temperature=0)
            for text in ("abc", "x", "hello")
        ]
    assert [a.ids for a in answers] == [e.ids for e in expected]
    assert "stop" in {answer.finish_reason for answer in answers}
    eog = llm_eog(files["ends"])
    assert not any(eog & set(answer.ids) for answer in answers)


def llm_eog(path):
    from localspec.llama.weights import Weights

    model = Weights(path)
    try:
        return model.vocabulary.eog_tokens
    finally:
        model.close()


@pytest.mark.parametrize("draft", [None, "draft"])
def test_a_full_context_ends_with_one_sentence(files, library, draft):
    with load(files["target"], files.get(draft), n_ctx=48, library=library.key) as llm:
        prompt = list(range(65, 65 + 20))
        answer = llm.generate(prompt, **GREEDY)
        assert answer.finish_reason == "length"
        assert len(prompt) + len(answer.ids) == 49  # the last token needs no cell
        assert "48 tokens is full" in answer.notice
        full = llm.generate(list(range(65, 65 + 48)), **GREEDY)
        assert (len(full.ids), full.finish_reason) == (1, "length")
        with pytest.raises(PromptTooLong, match="49 tokens and the context holds 48"):
            llm.generate(list(range(65, 65 + 49)))


def test_a_prompt_longer_than_the_batch(files, computed_by):
    with load(files["target"], files["draft"], n_ctx=512, **computed_by) as llm:
        llm.engine.target.n_batch = 7
        prompt = [65 + i % 26 for i in range(100)]
        narrow = llm.generate(prompt, max_tokens=30, **GREEDY)
        llm.engine.target.n_batch = 500
        llm.generate("z", max_tokens=1, **GREEDY)
        assert llm.generate(prompt, max_tokens=30, **GREEDY).ids == narrow.ids


def test_the_context_is_cut_to_the_trained_length_and_said_once(files):
    with load(files["target"], files["draft"]) as llm:
        assert llm.engine.target.n_ctx == 512
        assert any("trained for no more" in warning for warning in llm.warnings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_ctx", 0), ("n_ctx", -5), ("n_ctx", "many"), ("n_ctx", 2**40), ("threads", 0), ("threads", 10**6),
        ("gpu_layers", -1), ("gpu_layers", "some"), ("draft_gpu_layers", 1.5), ("cache_type_k", "q3"),
        ("cache_type_v", None), ("draft_tokens", -1), ("draft_tokens", "many"), ("draft_tokens", True), ("n_cxt", 5),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(files, name, value):
    with pytest.raises(InvalidRequest, match=name):
        load(files["target"], files["draft"], **{name: value})


@pytest.mark.parametrize(
    "prompt", ["", [], [10**9], [-1], [1.5], [True], ["a"], "a\0b", "\ud800", [{"role": "user"}], [{}]]
)
def test_bad_prompts_are_refused_and_nothing_is_lost(llm, plain, prompt):
    with pytest.raises(InvalidRequest):
        llm.generate(prompt)
    assert llm.generate("abc", max_tokens=10, **GREEDY).ids == plain[:10]


def test_more_threads_than_processors_are_cut_to_them_and_it_is_said(files):
    most = processors()
    with load(files["target"], files["draft"], threads=most + 1) as llm:
        assert llm.settings["target"]["threads"] == llm.settings["draft"]["threads"] == most
        assert [f"threads is {most + 1}, and" in warning for warning in llm.warnings].count(True) == 1
    with load(files["target"], threads=most) as llm:
        assert not any("threads" in warning for warning in llm.warnings)


@pytest.mark.parametrize("asked", [31, 32, 999999])
def test_more_draft_tokens_than_a_pass_checks_are_cut_and_it_is_said(files, asked):
    with load(files["target"], files["draft"], draft_tokens=asked) as llm:
        expected = "31" if asked == 31 else f"31 (not {asked}: a pass checks no more)"
        assert llm.drafting.startswith(f"on, {expected} tokens a round")
        assert any("a pass here checks no more than 31: 31 are" in each for each in llm.warnings) == (
            asked > 31
        )
        answer = llm.generate("abc", max_tokens=40, **GREEDY)
        assert answer.drafting == llm.drafting
        answer = llm.generate("abc", max_tokens=4, draft_tokens=asked + 7, **GREEDY)
        assert f"31 (not {asked + 7}: a pass checks no more)" in answer.drafting


@pytest.mark.parametrize(
    ("use", "near", "known"),
    [
        (lambda llm, path: LLM.from_files(path, n_cxt=512), "n_ctx", LoadOptions),
        (lambda llm, path: LLM.load_in_background(path, draft_token=3).result(), "draft_tokens", LoadOptions),
        (lambda llm, path: LLM.from_files(path, hoem="x"), "home", LoadOptions),
        (lambda llm, path: llm.stream("abc", draft_token=1), "draft_tokens", AnswerOptions),
        (lambda llm, path: llm.generate("abc", temprature=1), "temperature", AnswerOptions),
        (lambda llm, path: llm.conversation(gramar="x"), "grammar", AnswerOptions),
        (lambda llm, path: llm.conversation().ask("x", max_token=3), "max_tokens", AnswerOptions),
    ],
)
def test_an_unknown_option_is_refused_with_all_that_there_are_the_nearest_first(files, llm, use, near, known):
    with pytest.raises(InvalidRequest, match="There is no option") as caught:
        use(llm, files["target"])
    first, listed = caught.value.remedy.split("? Known ones are ")
    assert first == f"Did you mean {near}"
    assert set(listed.removesuffix(".").split(", ")) == set(known.__annotations__)
    assert caught.value.name in caught.value.message


def test_a_path_may_begin_with_the_users_folder(files, monkeypatch):
    monkeypatch.setenv("HOME", str(files["target"].parent))
    monkeypatch.setenv("USERPROFILE", str(files["target"].parent))
    target, draft = f"~/{files['target'].name}", f"~/{files['draft'].name}"
    with LLM.load(target, draft, draft_tokens=3) as llm:
        assert llm.settings["target"]["file"] == str(files["target"])
        talk = llm.conversation()
        list(talk.ask("x", max_tokens=3))
        talk.save("~/talk.localspec")
        assert (files["target"].parent / "talk.localspec").is_file()
        assert Conversation.load(llm, "~/talk.localspec").turns == talk.turns
    assert memory_needed(target).total > 0
    with pytest.raises(ModelFileError, match="~nobody-here"):
        LLM.load("~nobody-here/x.gguf")


def test_unknown_parameters_are_refused_by_name(llm):
    with pytest.raises(InvalidRequest, match="temprature"):
        llm.stream("abc", temprature=1)


def test_a_foreign_draft_is_refused_before_weights_are_loaded(files):
    with pytest.raises(PairingError) as caught:
        load(files["target"], files["other"])
    assert "no_draft=True" in caught.value.remedy and "--no-draft" in caught.value.command
    with load(files["target"], files["other"], no_draft=True) as llm:
        assert llm.drafting == "off: asked for"


def test_a_broken_draft_frees_the_target(files, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(files["draft"].read_bytes()[:-100])
    for _ in range(3):
        with pytest.raises(ModelFileError, match=r"broken\.gguf"):
            load(files["target"], broken)


def test_a_recurrent_target_drafts_and_answers_as_before(files):
    with load(files["mamba"], files["draft"], n_ctx=256) as llm:
        assert llm.drafting.startswith("on, ")
        first = llm.generate("abc", max_tokens=20, **GREEDY)
        assert first.stats.drafted > 0
        llm.generate("abd", max_tokens=5, **GREEDY)
        assert llm.generate("abc", max_tokens=20, **GREEDY).ids == first.ids
        assert llm.generate("abc", max_tokens=20, draft_tokens=0, **GREEDY).ids == first.ids


def test_a_sliding_window_rewinds_to_an_earlier_turn(files):
    """Window 16: a request that goes back past it answers like a fresh engine."""
    prompts = ["abcdefgh" * 8, "abcdefgh" * 4 + "x", "abcdefgh" * 8]
    with load(files["gemma"], n_ctx=256, cache_type_v="bf16") as llm:
        used = [llm.generate(prompt, max_tokens=30, **GREEDY).ids for prompt in prompts]
    fresh = []
    for prompt in prompts:
        with load(files["gemma"], n_ctx=256, cache_type_v="bf16", no_draft=True) as llm:
            fresh.append(llm.generate(prompt, max_tokens=30, **GREEDY).ids)
    assert used == fresh


def test_no_template_says_so_and_raw_prompts_work(files):
    with load(files["bare"], n_ctx=128) as llm:
        with pytest.raises(TemplateError, match="no chat template"):
            llm.chat([{"role": "user", "content": "hi"}])
        assert llm.generate("abc", max_tokens=3).ids


def test_control_tokens_typed_by_a_user_stay_text(llm):
    model = llm.engine.vocab
    typed = sorted(model.control_literals)[0]
    from localspec.text.prompt import render_prompt

    plain = render_prompt(model, llm.engine.template, [{"role": "user", "content": "x"}])
    ids = render_prompt(model, llm.engine.template, [{"role": "user", "content": f"x{typed}"}])
    (control,) = model.tokenize(typed, parse_special=True)
    assert ids.count(control) == plain.count(control)
    assert typed.encode() in b"".join(model.piece(token) for token in ids)


def test_a_next_turn_is_cheap_and_right(llm, computed_by, files):
    messages = [{"role": "user", "content": "abc"}]
    first = llm.generate(messages, max_tokens=20, **GREEDY)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    second = llm.generate(messages, max_tokens=20, **GREEDY)
    assert second.stats.cached_tokens > 0
    with load(files["target"], no_draft=True, n_ctx=512, **computed_by) as fresh:
        assert fresh.generate(messages, max_tokens=20, **GREEDY).ids == second.ids


def test_a_dropped_generator_leaves_a_right_engine(llm, plain):
    chunks = llm.stream("abc", max_tokens=200, **GREEDY)
    next(chunks)
    with pytest.raises(EngineBusy, match="still being read"):
        llm.generate("abc")
    del chunks
    assert llm.generate("abc", max_tokens=50, **GREEDY).ids == plain[:50]


def test_a_raising_consumer_leaves_a_right_engine(llm, plain):
    with pytest.raises(ZeroDivisionError):
        for _ in llm.stream("abc", max_tokens=200, **GREEDY):
            _ = 1 / 0
    assert llm.generate("abc", max_tokens=50, **GREEDY).ids == plain[:50]


def test_cancel_from_another_thread_keeps_what_was_said(llm, plain):
    seen, cancelled = [], threading.Event()

    def cancel() -> None:
        llm.cancel()
        cancelled.set()

    for chunk in llm.stream("abc", max_tokens=400, **GREEDY):
        seen.extend(chunk.tokens)
        if len(seen) > 10 and not cancelled.is_set():
            thread = threading.Thread(target=cancel)
            thread.start()
            thread.join()
        completion = chunk.completion
    assert completion.finish_reason == "cancelled"
    assert completion.ids == tuple(seen) and len(seen) < 100
    assert llm.generate("abc", max_tokens=50, **GREEDY).ids == plain[:50]


def test_cancel_without_an_answer_does_not_spoil_the_next(llm, plain):
    llm.cancel()
    assert llm.generate("abc", max_tokens=20, **GREEDY).ids == plain[:20]


def test_two_threads_take_turns(llm, plain):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(llm.generate("abc", max_tokens=60, **GREEDY).ids))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [plain[:60]] * 4


def test_close_is_idempotent_and_final(files):
    llm = load(files["target"], files["draft"])
    llm.close()
    llm.close()
    for call in (lambda: llm.stream("abc"), lambda: llm.settings, lambda: llm.generate("abc")):
        with pytest.raises(EngineClosed, match="closed"):
            call()


def test_settings_name_both_models(llm):
    settings = llm.settings
    assert settings["target"]["file"].endswith("target.gguf") and settings["draft"]["file"].endswith(
        "draft.gguf"
    )
    assert settings["target"]["n_ctx"] == settings["draft"]["n_ctx"] == 512


def test_gpu_layers_without_gpu_support_warn_once(files, monkeypatch):
    monkeypatch.setattr("localspec.llama.backend.supports_gpu", lambda: False)
    with load(files["target"], gpu_layers=5) as llm:
        assert sum("GPU" in warning for warning in llm.warnings) == 1


def test_a_context_that_cannot_fit_is_refused_with_figures(files, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    from localspec.errors import ModelLoadError

    with pytest.raises(ModelLoadError, match=r"[\d.]+ MB .* and 1 kB are free"):
        load(files["target"], n_ctx=512)


EXITS = {
    "left open": "",
    "closed": "llm.close()",
    "generator in the middle": "chunks = llm.stream('abc', temperature=0); next(chunks)",
    "generator kept in a cycle": "chunks = llm.stream('abc'); next(chunks); box = [chunks]; box.append(box)",
    "deleted": "del llm",
}


@pytest.mark.parametrize("how", list(EXITS))
def test_the_interpreter_exits_in_silence(files, library, how, tmp_path):
    code = (
        "import sys; from localspec import LLM\n"
        "llm = LLM.from_files(sys.argv[1], sys.argv[2], n_ctx=128, library=sys.argv[3])\n"
        f"{EXITS[how]}\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(files["target"]), str(files["draft"]), library.key],
        capture_output=True,
        text=True,
        env={**os.environ, "LOCALSPEC_HOME": str(tmp_path)},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("prompt", [None, 5, b"abc", {"role": "user", "content": "x"}, {65, 66}])
def test_what_is_no_prompt_is_refused(llm, prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate(prompt)


def test_ids_may_come_in_any_form(llm):
    import numpy as np

    expected = llm.generate([65, 66, 67], max_tokens=5, **GREEDY).ids
    for ids in ((65, 66, 67), np.array([65, 66, 67]), iter([65, 66, 67]), range(65, 68)):
        assert llm.generate(ids, max_tokens=np.int64(5), **GREEDY).ids == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("params", "x"),
        ("logit_bias", {10**6: 1.0}),
        ("logit_bias", {5: 1e39}),
        ("prediction", 5),
        ("prediction", "a\0"),
    ],
)
def test_bad_arguments_of_a_request_are_named(llm, name, value):
    with pytest.raises(InvalidRequest, match=rf"(?i){name}"):
        llm.stream("abc", **{name: value})


@pytest.mark.parametrize("target", [None, b"x", 5, ""])
def test_what_is_no_path_is_refused(target):
    with pytest.raises(InvalidRequest, match="target"):
        LLM.from_files(target)


def test_a_prediction_is_followed_and_leaves_greedy_alone(llm, plain, monkeypatch):
    from localspec.decoding.adaptive import AdaptiveController
    from localspec.decoding.costs import CostTable

    cheap = CostTable({1: 1.0, 32: 1.1})
    # What rounds really take must change no decision.
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)
    monkeypatch.setattr(CostTable, "rescale", lambda *_: None)
    monkeypatch.setattr(AdaptiveController, "rate", lambda *_: 1.0)
    before, llm._keeper.adaptive = llm._keeper.adaptive, AdaptiveController(cheap, cheap)
    try:
        text = b"".join(llm.engine.vocab.piece(token) for token in plain).decode("latin-1").replace("\0", "")
        answer = llm.generate("abc", max_tokens=200, draft_tokens="auto", prediction=text, **GREEDY)
    finally:
        llm._keeper.adaptive = before
    assert answer.ids == plain and answer.stats.accepted > 0
