"""A second compute library, made up, behind the ordinary loaders: all laws hold, and what is its own stays its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM
from localspec.answers.conversation import Conversation
from localspec.compute.context_options import CACHE_TYPES
from localspec.compute.library import Library
from localspec.decoding.calibrate import Calibration
from localspec.decoding.costs import CostTable
from localspec.decoding.loop import Generation
from localspec.decoding.params import SamplingParams
from localspec.engine import draft_copy, strict
from localspec.engine.engine import Engine
from localspec.engine.libraries import library_for, preferred
from localspec.engine.measured_costs import Costs, kept_costs
from localspec.engine.options import EngineOptions
from localspec.errors import (
    BackendError,
    ContextFull,
    DecodeError,
    InvalidRequest,
    LoadCancelled,
    LocalspecError,
    ModelLoadError,
)
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.llama.library import LlamaCpp
from localspec.measure.audit import Audit, AuditOptions
from localspec.measure.machine import versions
from localspec.measure.prompts import builtin_prompts
from localspec.store.prepared import ORIGINAL
from localspec.system.progress import Stage

from .fake_library import FakeContext, FakeLibrary
from .joint import PROMPT, THRESHOLD, exact_joint, p_value
from .tinygguf import NORMAL, Vocab, write_llama, write_mamba, write_pair, write_tokenizer_only

V, RUNS, DRAFTED = 3, 800, 2
"""Of the joint distribution."""
UNSHAPED: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
CHEAP_DRAFT = Costs(CostTable({1: 1.0, 32: 1.2}), CostTable({1: 0.01, 32: 0.02}))
FIRST, SECOND = ([letter + 7 * index % 26 for index in range(80)] for letter in (65, 97))
"""Prompts long enough to be kept."""

Files = tuple[Path, Path]
Use = Callable[..., FakeLibrary]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_pair(tmp_path_factory.mktemp("library"))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let these libraries be all there are; returns the first one."""

    def use(*libraries: Library) -> Library:
        monkeypatch.setattr("localspec.engine.libraries.libraries", lambda: libraries)
        return libraries[0]

    return use  # type: ignore[return-value]


def load(files: Sequence[Path], **options: Any) -> LLM:
    return LLM.from_files(*files, **{"draft_tokens": 3, "n_ctx": 256, **options})


def plain(library: FakeLibrary, target: Path, prompt: Sequence[int], length: int) -> tuple[int, ...]:
    """The target's greedy ids, computed without an engine."""
    weights = library.open_weights(read_metadata(target))
    weights.close()
    sequence = list(prompt)
    for _ in range(length):
        sequence.append(int(weights.expected(sequence).argmax()))
    return tuple(sequence[len(prompt) :])


# The laws


@pytest.mark.parametrize("draft_tokens", [*range(9), "auto"])
def test_greedy_ids_are_the_targets_own(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft_tokens: int | str
) -> None:
    library = use(FakeLibrary())
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_, **__: CHEAP_DRAFT)
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)
    monkeypatch.setitem(
        Generation.__init__.__kwdefaults__, "clock", lambda: 0.0
    )  # what really takes time here
    with load(files, draft_tokens=draft_tokens, home=tmp_path) as llm:
        answer = llm.generate(SECOND, temperature=0, max_tokens=60)
    assert answer.ids == plain(library, files[0], SECOND, 60)
    assert (answer.stats.accepted > 0) == (draft_tokens != 0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A pair of three ids, of which none ends an answer."""
    folder = tmp_path_factory.mktemp("tiny")
    vocab = Vocab(["a", "b", "c"], [NORMAL] * V, {})
    return tuple(write_tokenizer_only(folder / name, vocab) for name in ("target.gguf", "draft-of-it.gguf"))  # type: ignore[return-value]


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_the_first_tokens_have_the_targets_joint_distribution(tiny: Files, use: Use, verify: str) -> None:
    library = use(FakeLibrary(scale=1.2))
    length = DRAFTED + 2
    counts: Counter[tuple[int, ...]] = Counter()
    with load(tiny) as llm:
        for seed in range(RUNS):
            answer = llm.generate(
                list(PROMPT), seed=seed, verify=verify, draft_tokens=DRAFTED, max_tokens=length + 1, **UNSHAPED
            )  # fmt: skip
            counts[answer.ids[:length]] += 1
    weights = library.opened[0]
    joint = exact_joint(weights.expected, SamplingParams(**UNSHAPED), V, length)
    assert p_value(joint, counts) > THRESHOLD


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_answers_side_by_side_have_it_too(tiny: Files, use: Use, verify: str) -> None:
    """Two seats, whose passes are made together, on both models."""
    library = use(FakeLibrary(scale=1.2))
    length = DRAFTED + 2
    counts: Counter[tuple[int, ...]] = Counter()
    options = {"verify": verify, "draft_tokens": DRAFTED, "max_tokens": length + 1, **UNSHAPED}
    with load(tiny, parallel=2) as llm, ThreadPoolExecutor(2) as pool:

        def ids(seed: int) -> tuple[int, ...]:
            return llm.generate(list(PROMPT), seed=seed, **options).ids[:length]

        counts.update(pool.map(ids, range(RUNS)))
    weights = library.opened[0]
    joint = exact_joint(weights.expected, SamplingParams(**UNSHAPED), V, length)
    assert p_value(joint, counts) > THRESHOLD


def answers_as_fresh(llm: LLM, library: FakeLibrary, target: Path) -> None:
    """Whatever was asked before, an answer is that of an engine which was just loaded."""
    for prompt in (FIRST[:-1], FIRST, SECOND, [*FIRST, 70]):
        assert llm.generate(prompt, **GREEDY).ids == plain(library, target, prompt, GREEDY["max_tokens"])


def at_token(count: int, act: Callable[[], None]) -> Callable[[], None]:
    """Does `act` before the token of that number, once."""
    seen = 0

    def during() -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            act()

    return during


IN_THE_PROMPT, IN_A_ROUND = 30, len(FIRST) + 10


@pytest.mark.parametrize(
    ("victim", "count", "half_done"),
    [("target", IN_THE_PROMPT, 29), ("draft", IN_THE_PROMPT, 29), ("target", IN_A_ROUND, 1), ("draft", IN_A_ROUND, 0)],
)  # fmt: skip
def test_an_answer_cancelled_in_mid_pass_leaves_a_right_engine(
    files: Files, use: Use, victim: str, count: int, half_done: int
) -> None:
    library = use(FakeLibrary())
    with load(files) as llm:
        context = getattr(llm.engine, victim)
        context.during = at_token(count, llm.cancel)
        assert llm.generate(FIRST, **GREEDY).finish_reason == "cancelled"
        assert context.length() - len(llm.engine.sessions[victim].tokens) == half_done
        answers_as_fresh(llm, library, files[0])


@pytest.mark.parametrize("victim", ["target", "draft"])
@pytest.mark.parametrize("count", [IN_THE_PROMPT, IN_A_ROUND])
@pytest.mark.parametrize("error", [DecodeError("No.", code=-1), ContextFull("No room.", code=1)])
def test_a_failed_pass_is_raised_and_leaves_a_right_engine(
    files: Files, use: Use, victim: str, count: int, error: LocalspecError
) -> None:
    def fail() -> None:
        raise error

    library = use(FakeLibrary())
    with load(files) as llm:
        getattr(llm.engine, victim).during = at_token(count, fail)
        with pytest.raises(type(error)):
            llm.generate(FIRST, **GREEDY)
        answers_as_fresh(llm, library, files[0])


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_closed_stream_leaves_a_right_engine(files: Files, use: Use, chunks: int) -> None:
    library = use(FakeLibrary())
    with load(files) as llm:
        stream = llm.stream(FIRST, **GREEDY)
        for _ in range(chunks):
            next(stream)
        stream.close()
        answers_as_fresh(llm, library, files[0])


def test_an_answer_that_fills_the_context_leaves_a_right_engine(files: Files, use: Use) -> None:
    library = use(FakeLibrary())
    n_ctx = len(FIRST) + GREEDY["max_tokens"] + 1
    with load(files, n_ctx=n_ctx) as llm:
        answer = llm.generate(SECOND, temperature=0)
        assert (answer.finish_reason, len(answer.ids)) == ("length", n_ctx - len(SECOND) + 1)
        answers_as_fresh(llm, library, files[0])


def test_all_is_closed_with_the_engine_contexts_first(files: Files, use: Use, tmp_path: Path) -> None:
    library = use(FakeLibrary(kernels=(9,)))
    for options in ({}, {"strict": True, "home": tmp_path}):
        load(files, **options).close()
    assert len(library.opened) == 4 and library.all_closed


# What is measured, and made, for one build


def test_calibration_times_its_passes_and_leaves_no_cells(files: Files, use: Use, tmp_path: Path) -> None:
    library = use(FakeLibrary())
    with load(files, home=tmp_path) as llm:
        costs = llm.calibrate()
        target, draft = (weights.contexts[0] for weights in library.opened)
        assert costs.draft is not None and costs.target.time(32) > costs.target.time(1) > 0
        assert {*range(1, 7), 32} <= {*target.passes} and {1, 2, 4, 8, 32} <= {*draft.passes}
        assert target.length() == draft.length() == 0


def test_calibration_is_kept_under_the_build(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated: list[str] = []

    def calibrate(context: FakeContext, *, verifies: bool, **_options: object) -> Calibration:
        calibrated.append(context.weights.build)
        return Calibration(CHEAP_DRAFT.target, True)

    monkeypatch.setattr("localspec.engine.measured_costs.calibrate", calibrate)
    target, options = read_metadata(files[0]), EngineOptions(n_ctx=256)
    for build in ("fake 1", "fake 1", "fake 2"):
        use(FakeLibrary(build))
        load(files, draft_tokens="auto", calibrate=True, home=tmp_path).close()
        assert kept_costs(target, options, tmp_path, verifies=True) is not None
    assert calibrated == ["fake 1"] * 2 + ["fake 2"] * 2
    use(FakeLibrary("fake 3"))
    assert kept_costs(target, options, tmp_path, verifies=True) is None


def test_strict_widths_are_kept_under_the_build(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = [], strict.measured_classes

    def measuring(*args, **options):
        measured.append(args)
        return measure(*args, **options)

    monkeypatch.setattr(strict, "measured_classes", measuring)
    for build, kernels in (("fake 1", (9,)), ("fake 1", ()), ("fake 2", (6,))):
        use(FakeLibrary(build, kernels=kernels))
        with load(files, strict=True, home=tmp_path) as llm:
            assert llm.engine.target.n_batch == {"fake 1": 8, "fake 2": 5}[build]
    assert len(measured) == 2


def test_a_prepared_draft_is_kept_under_the_build(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_token(contexts: dict[str, FakeContext]) -> dict[str, list[float]]:
        tried.extend(context.weights.build for context in contexts.values())
        return {name: [2.0 if name == ORIGINAL else 1.0] for name in contexts}

    tried: list[str] = []
    monkeypatch.setattr(draft_copy, "MIN_BYTES", 0)
    monkeypatch.setattr(draft_copy, "busy_share", lambda: 0.0)
    monkeypatch.setattr(draft_copy, "time_token", time_token)
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_, **__: CHEAP_DRAFT)

    def draft_of(build: str, draft_tokens: str | int) -> str:
        use(FakeLibrary(build))
        with load(files, draft_tokens=draft_tokens, home=tmp_path) as llm:
            assert llm.engine.draft is not None
            return llm.engine.draft.weights.path.name

    for _ in range(2):
        assert draft_of("fake 1", "auto") == "draft.q4_0.gguf"
    assert draft_of("fake 1", 3) == "draft.q4_0.gguf"
    assert draft_of("fake 2", 3) == "draft.gguf"
    assert draft_of("fake 2", "auto") == "draft.q4_0.gguf"
    assert tried == ["fake 1"] * 2 + ["fake 2"] * 2


def test_the_cells_of_a_saved_conversation_are_those_of_one_build(
    files: Files, use: Use, tmp_path: Path
) -> None:
    def ask(conversation: Conversation, text: str) -> tuple[tuple[int, ...], int]:
        completion = [chunk.completion for chunk in conversation.ask(text, **GREEDY)][-1]
        assert completion is not None
        return completion.ids, completion.stats.cached_tokens

    path = tmp_path / "conversation"
    use(FakeLibrary("fake 1"))
    with load(files) as llm:
        conversation = llm.conversation()
        ask(conversation, "What is it?")
        conversation.save(path)
        said, ids = len(conversation.ids), ask(conversation, "And then?")[0]
    for build, cached in (("fake 1", said - 1), ("fake 2", 0)):
        use(FakeLibrary(build))
        with load(files) as llm:
            again = Conversation.load(llm, path)
            became = "is restored" if build == "fake 1" else "are not those it was saved with"
            assert again.restored.count(became) == 2
            assert ask(again, "And then?") == (ids, cached)


# Which library


def refusing(reason: str) -> Callable[[Metadata], str]:
    return lambda metadata: f"{metadata.path.name} {reason}."


def test_the_first_that_does_not_refuse_computes(files: Files, use: Use) -> None:
    first, second = FakeLibrary("fake 1", refuses=refusing("is not for it")), FakeLibrary("fake 2")
    use(first, second, FakeLibrary("fake 3"))
    with load(files) as llm:
        assert llm.engine.library is second is library_for(read_metadata(files[0]))
        assert {weights.metadata.path for weights in second.opened} == set(files)
    assert preferred() is first and first.opened == []


def test_where_all_refuse_all_reasons_are_said(files: Files, use: Use) -> None:
    use(*(FakeLibrary(refuses=refusing(f"is {what}")) for what in ("too odd", "too new")))
    with pytest.raises(ModelLoadError) as caught:
        load(files)
    assert all(f"target.gguf is {what}." in caught.value.message for what in ("too odd", "too new"))


def test_an_engine_may_be_told_which_library(files: Files, use: Use) -> None:
    use(FakeLibrary(refuses=refusing("is not for it")))
    library = FakeLibrary()
    engine = Engine(*files, EngineOptions(n_ctx=256), library=library)
    assert engine.library is library and len(library.opened) == 2
    engine.close()
    assert library.all_closed


# What it can


def test_the_reference_reads_a_vocabulary_that_the_library_does_not(
    files: Files, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCpp, "open_weights", lambda *_, **__: pytest.fail("weights were loaded"))
    opened, open_vocabulary = [], LlamaCpp.open_vocabulary
    monkeypatch.setattr(
        LlamaCpp, "open_vocabulary", lambda *args: opened.append(open_vocabulary(*args)) or opened[-1]
    )
    library = use(FakeLibrary(own_vocabulary=False))
    llm = load(files)
    vocab = llm.engine.vocab
    assert opened == [vocab]
    ids = llm.tokenize("the end")
    assert llm.generate("the end", **GREEDY).ids == plain(library, files[0], ids, GREEDY["max_tokens"])
    llm.close()
    with pytest.raises(ModelLoadError, match="closed"):
        vocab.tokenize("the end", parse_special=False)


def test_a_vocabulary_of_its_own_is_used(files: Files, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaCpp, "open_vocabulary", lambda *_: pytest.fail("the reference was asked"))
    library = use(FakeLibrary())
    with load(files) as llm:
        assert llm.engine.vocab is library.opened[0].vocabulary
        messages = [{"role": "user", "content": "the end"}]
        assert llm.detokenize(llm.tokenize(messages)) == (
            "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n"
        )


def cached(llm: LLM, library: FakeLibrary, target: Path, prompt: list[int]) -> int:
    """How many tokens of the prompt were not read again; the answer is right in any case."""
    answer = llm.generate(prompt, **GREEDY)
    assert answer.ids == plain(library, target, prompt, GREEDY["max_tokens"])
    return answer.stats.cached_tokens


def whole(library: FakeLibrary, target: Path, prompt: list[int]) -> list[int]:
    """The prompt and the answer to it."""
    return [*prompt, *plain(library, target, prompt, GREEDY["max_tokens"])]


@pytest.mark.parametrize("kind", ["recurrent", "windowed"])
def test_copies_of_cells_that_are_only_of_use_whole_are_used_whole(
    tmp_path: Path, use: Use, kind: str
) -> None:
    library = use(FakeLibrary(recurrent=kind == "recurrent", window=16 * (kind == "windowed")))
    write = write_mamba if kind == "recurrent" else write_llama
    target = write(tmp_path / "target.gguf")
    first, second = (whole(library, target, prompt) for prompt in (FIRST, SECOND))
    with load([target]) as llm:
        assert cached(llm, library, target, FIRST) == 0
        assert cached(llm, library, target, SECOND) == 0
        assert cached(llm, library, target, [*first, 65]) == len(first) - 1
        assert cached(llm, library, target, [*SECOND[:-1], 65]) == 0, "it leaves what is kept half-way"
        cached(llm, library, target, FIRST)
        assert cached(llm, library, target, [*second, 65]) == len(second) - 1, "which stayed where it was"


def test_cells_that_cannot_be_cut_are_kept_where_a_prompt_leaves_them(tmp_path: Path, use: Use) -> None:
    library, target = use(FakeLibrary(recurrent=True)), write_mamba(tmp_path / "target.gguf")
    with load([target]) as llm:
        for prompt in (FIRST, [*FIRST[:-1], 65]):
            assert cached(llm, library, target, prompt) == 0
        assert cached(llm, library, target, [*(first := whole(library, target, FIRST)), 65]) == len(first) - 1


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_cells_that_cannot_be_cut_are_read_again(files: Files, use: Use, draft_tokens: int) -> None:
    library = use(FakeLibrary(recurrent=True))
    with load(files, draft_tokens=draft_tokens) as llm:
        answers_as_fresh(llm, library, files[0])


def test_strict_mode_takes_the_librarys_own_form(files: Files, use: Use, tmp_path: Path) -> None:
    library = use(FakeLibrary(kernels=(2, 7)))
    with load(files, home=tmp_path, draft_tokens=4, strict=True) as llm:
        target = llm.engine.target
        assert (target.options.cache_type_k, target.options.cache_type_v) == ("f32", "f32")
        assert (target.weights.repack, library.opened[1].repack) == (False, True)
        assert isinstance(target, FakeContext)
        target.passes.clear()
        drafted = llm.generate(FIRST, **GREEDY)
        assert drafted.ids == llm.generate(FIRST, draft_tokens=0, **GREEDY).ids
        assert drafted.stats.accepted > 0 and {*target.passes} <= {*range(2, 7)}


def test_the_audit_of_classes_sees_its_kernels(files: Files, use: Use, tmp_path: Path) -> None:
    use(FakeLibrary(kernels=(9,)))
    with load(files, home=tmp_path, strict=True, n_ctx=512) as llm:
        ((_, part),) = Audit(llm, AuditOptions(parts=("classes",))).run(builtin_prompts()[:1])
    assert part.passed and "{1, 2, 3, 4, 5, 6, 7, 8} {9, 12, 16, 17, 32, 33, 64} off by" in str(part)


# What a second library tripped over


def test_a_draft_is_prepared_and_found_for_the_library_that_computes(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the first one: what was prepared once is used at the next load, under that library's build."""
    monkeypatch.setattr(draft_copy, "MIN_BYTES", 0)
    monkeypatch.setattr(draft_copy, "busy_share", lambda: 0.0)
    tried: list[int] = []

    def time_token(contexts: dict[str, Any]) -> dict[str, list[float]]:
        tried.append(len(contexts))
        return {name: [2.0 if name == ORIGINAL else 1.0] for name in contexts}

    monkeypatch.setattr(draft_copy, "time_token", time_token)
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_, **__: CHEAP_DRAFT)
    use(FakeLibrary("fake 1", refuses=refusing("is not for it")), FakeLibrary("fake 2"))
    for _ in range(2):
        with load(files, draft_tokens="auto", home=tmp_path) as llm:
            assert llm.engine.draft is not None
            assert llm.engine.draft.weights.path.name == "draft.q4_0.gguf"
    assert tried == [2]


def test_weights_come_back_with_the_library_and_the_flag_of_before(files: Files, use: Use) -> None:
    first, second = FakeLibrary("fake 1"), FakeLibrary("fake 2")
    use(first, second)
    with load(files) as llm:
        before = llm.generate(FIRST, **GREEDY).ids
        assert llm.unload()
        use(second, first)
        assert llm.generate(FIRST, **GREEDY).ids == before
        assert llm.engine.library is first and second.opened == []


@pytest.mark.parametrize("draft_tokens", ["auto", 3])
def test_a_context_that_cannot_be_cut_drafts_nothing_and_says_so(
    files: Files, use: Use, tmp_path: Path, draft_tokens: str | int
) -> None:
    library = use(FakeLibrary(recurrent=True))
    with load(files, draft_tokens=draft_tokens, home=tmp_path) as llm:
        assert llm.drafting == f"off: {library.name} cannot forget single tokens of target.gguf here"
        assert llm.generate(FIRST, **GREEDY).stats.drafted == 0


@pytest.mark.parametrize("options", [{"strict": True}, {"draft_tokens": "auto", "calibrate": True}])
def test_a_cancelled_load_ends_what_it_measures(
    files: Files, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    library, read = use(FakeLibrary(kernels=(2,))), []
    begun = threading.Event()

    def during() -> None:
        assert begun.wait(10)
        assert loading.progress.stage == Stage.MEASURE
        read.append(loading.cancel())

    monkeypatch.setattr("tests.fake_library.nothing", during)
    loading = LLM.load_in_background(files[0], files[1], n_ctx=256, home=tmp_path, **options)
    begun.set()
    with pytest.raises(LoadCancelled):
        loading.result(30)
    assert read == [True] and library.all_closed


def test_a_library_must_take_the_draft_too(files: Files, use: Use) -> None:
    first = FakeLibrary("fake 1", refuses=lambda facts: "No." if facts.path == files[1] else "")
    second = FakeLibrary("fake 2")
    use(first, second)
    with load(files) as llm:
        assert llm.engine.library is second
    with load(files[:1]) as llm:
        assert llm.engine.library is first


def test_a_library_that_is_not_installed_has_no_version(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_self: object) -> str:
        raise BackendError("It is not installed.", "Install it.")

    use(FakeLibrary())
    monkeypatch.setattr(FakeLibrary, "version", property(missing))
    monkeypatch.setattr("localspec.measure.machine.libraries", lambda: (FakeLibrary(), LlamaCpp()))
    assert set(versions()) == {"localspec", "python", "llama-cpp-python", "numpy"}


def test_a_cache_type_that_it_lacks_is_refused_before_weights_are_read(files: Files, use: Use) -> None:
    library = use(FakeLibrary())
    lacking = next(name for name in CACHE_TYPES if name not in library.cache_types)
    with pytest.raises(InvalidRequest, match=f"cache_type_k is {lacking}") as caught:
        load(files, cache_type_k=lacking)
    assert library.opened == [] and all(name in caught.value.remedy for name in library.cache_types)
