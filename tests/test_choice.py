"""Which library computes a pair: asked for, or chosen by cost once its logits were compared with the reference's."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from localspec import LLM
from localspec.answers.conversation import Conversation
from localspec.checks import LIBRARIES
from localspec.cli import main as cli
from localspec.compute.library import Library
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.decoding.sampling import kl_divergence
from localspec.decoding.session import Session
from localspec.engine import choice, comparing, contest, measured_costs, trust
from localspec.engine.choice import known_choice
from localspec.engine.comparing import Reading
from localspec.engine.contest import ACCEPTANCE, MARGIN, Contest
from localspec.engine.draft_copy import _useful_formats
from localspec.engine.libraries import library_for, named
from localspec.engine.measured_costs import Costs, strict_sentence
from localspec.engine.options import EngineOptions
from localspec.engine.trust import Comparison, Subject, known_comparison
from localspec.errors import (
    BackendError,
    InvalidRequest,
    LoadCancelled,
    MemoryShort,
    ModelLoadError,
    PairingError,
)
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.measure.prospect import prospect
from localspec.system.child import Ended
from localspec.system.progress import Stage

from .fake_library import FakeLibrary, FakeWeights
from .storekit import Shelf
from .test_library import FIRST, GREEDY, plain, refusing
from .tinygguf import NORMAL, Vocab, write_llama, write_pair, write_tokenizer_only

Files = tuple[Path, Path]
Compare = Callable[[Comparison], list[str]]

LLAMA = {1: 0.059, 4: 0.171}
IK = {1: 0.0536, 4: 0.081}
"""Seconds of passes of the default target as they were measured with both libraries (2 cores, AVX2)."""


def agreeing(**changes: Any) -> Comparison:
    """What a comparison finds of a library that is trusted, and faster."""
    found = {"divergence": 0.003, "largest": 0.01, "rows": 24, "seconds": {"fake": LLAMA, "ik": IK}}
    return Comparison(**{**found, **changes})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_pair(tmp_path_factory.mktemp("choice"))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeLibrary, FakeLibrary]:
    """The reference and a library that `auto` takes into account."""
    return use(monkeypatch, FakeLibrary("fake 1"), FakeLibrary("fake 2", name="the other one", key="ik"))


def use(monkeypatch: pytest.MonkeyPatch, *libraries: FakeLibrary) -> tuple[FakeLibrary, ...]:
    monkeypatch.setattr("localspec.engine.libraries.libraries", lambda: libraries)
    for module in (choice, measured_costs):
        monkeypatch.setattr(module, "libraries", lambda: libraries)
    monkeypatch.setattr(contest, "LEAST_BYTES", 0)
    monkeypatch.setattr(choice, "why_not_together", lambda *_: "")
    for module in (trust, comparing, measured_costs):
        monkeypatch.setattr(module, "reference", lambda: libraries[0])
    return libraries


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Let comparisons of a target find this, and of a draft nothing wrong; returns the names of the targets."""

    def finding(found: Comparison, of_draft: Comparison | None = None) -> list[str]:
        def compare(subjects: Sequence[Subject], library: Library, home: Path, _notify: object):
            for subject in subjects:
                assert subject.alone == ("draft" in subject.model.path.name)
                if not subject.alone:
                    compared.append(subject.model.path.name)
                trust._keep(subject, (of_draft or Comparison()) if subject.alone else found, library, home)
            return (of_draft or Comparison()) if subjects[0].alone else found

        compared: list[str] = []
        monkeypatch.setattr(choice, "compare", compare)
        return compared

    return finding


def load(files: Sequence[Path], home: Path, **options: Any) -> LLM:
    return LLM.from_files(*files, **{"draft_tokens": 3, "n_ctx": 256, "home": home, **options})


def cheap_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass of the draft take 0.3 of the target's, whatever the sizes of these tiny files are."""

    def timed(contest: Contest, found: Comparison, library: Library) -> Costs:
        table = found.costs(library)
        assert table is not None
        return Costs(table, CostTable({1: 0.3 * table.time(1)}) if contest.draft else None)

    monkeypatch.setattr(Contest, "_timed", timed)


def computing(files: Sequence[Path], home: Path, **options: Any) -> str:
    with load(files, home, **options) as llm:
        return llm.engine.library.key


# Asked for


def test_a_library_that_is_asked_for_computes_and_nothing_is_compared(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    compared = finding(agreeing())
    with load(files, tmp_path, library="ik") as llm:
        assert llm.engine.library is both[1] and both[0].opened == [] == compared
        assert llm.settings["library"] == {
            "name": "the other one", "build": "fake 2", "reason": "asked for"
        }  # fmt: skip
        before = llm.generate(FIRST, **GREEDY).ids
        assert before == plain(both[0], files[0], FIRST, GREEDY["max_tokens"])
        assert llm.unload() and llm.generate(FIRST, **GREEDY).ids == before
        assert llm.engine.library is both[1]


@pytest.mark.parametrize("value", ["gpu", "", None, 3, "IK"])
def test_an_unknown_library_is_refused_with_the_list(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"library is .*one of auto, llama, ik") as caught:
        EngineOptions(library=value)  # type: ignore[arg-type]
    assert caught.value.name == "library" and LIBRARIES[0] == EngineOptions().library


def test_a_library_that_is_asked_for_and_cannot_says_why(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(
        monkeypatch,
        FakeLibrary("fake 1"),
        FakeLibrary("fake 2", key="ik", refuses=refusing("is too new for it")),
    )
    with pytest.raises(ModelLoadError, match=r"target.gguf is too new for it. .*Let another library compute"):
        load(files, tmp_path, library="ik")

    def missing(_self: object) -> str:
        raise BackendError("It is not installed.", "pip install 'localspec[fast]'")

    monkeypatch.setattr(FakeLibrary, "version", property(missing))
    with pytest.raises(BackendError, match=r"localspec\[fast\]"):
        load(files, tmp_path, library="ik")


def test_a_library_that_does_not_run_here_is_refused_or_passed_over(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = finding(agreeing())

    def usable(library: Library, _home: Path | None) -> str:
        return "It crashed beside the other." if library.key == "ik" else ""

    monkeypatch.setattr(choice, "why_not_together", usable)
    with pytest.raises(BackendError, match="It crashed beside the other"):
        load(files, tmp_path, library="ik")
    with load(files, tmp_path) as llm:
        assert llm.engine.library is both[0] and compared == []
        assert llm.warnings == ("the other one is left aside: It crashed beside the other.",)


# Chosen


def test_auto_takes_the_faster_one_that_agrees_and_compares_once(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    compared = finding(agreeing())
    for _ in range(2):
        with load(files, tmp_path) as llm:
            assert llm.engine.library is both[1] and llm.warnings == ()
            reason = llm.settings["library"]["reason"]  # type: ignore[index]
            assert (
                reason == "a token is expected to take 0.91 of the time that the made-up library takes here"
            )
            assert {weights.path for weights in both[1].opened} == set(files)
            assert llm.unload() and llm.engine.library is both[1], "and where it is loaded again"
    assert compared == ["target.gguf"] and both[0].opened == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (agreeing(divergence=0.021), "mean KL divergence 0.021, another likeliest token in 0 of 24 rows"),
        (agreeing(differing=2), "mean KL divergence 0.003, another likeliest token in 2 of 24 rows"),
        (Comparison(fault="a first try of it was ended by SIGABRT."), "was ended by SIGABRT"),
    ],
)
def test_a_file_that_disagrees_stays_with_the_reference_and_says_so(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path, found: Comparison, said: str
) -> None:  # fmt: skip
    compared = finding(found)
    for is_first in (True, False):
        with load(files, tmp_path) as llm:
            assert llm.engine.library is both[0]
            reason = llm.settings["library"]["reason"]  # type: ignore[index]
            assert said in reason
            verdict = "left aside for" if found.fault else "not trusted with"
            assert reason.startswith(f"the other one is {verdict} target.gguf: ")
            assert llm.warnings == ((f"{reason}; the made-up library computes.",) if is_first else ())
    assert len(compared) == 1
    assert computing(files, tmp_path, library="ik") == "ik", "the user's word counts"


def test_a_draft_that_ends_the_process_leaves_the_other_library_aside(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    """Its rows may differ, for the target checks them."""
    finding(agreeing(), Comparison(fault="a first try in a process of its own was ended by SIGABRT."))
    reason = (
        "the other one is left aside for draft.gguf: a first try in a process of its own was ended by SIGABRT"
    )
    for is_first in (True, False):
        with load(files, tmp_path) as llm:
            assert llm.engine.library is both[0]
            assert llm.settings["library"]["reason"] == reason  # type: ignore[index]
            assert llm.warnings == ((f"{reason}; the made-up library computes.",) if is_first else ())
    assert computing(files, tmp_path, no_draft=True) == "ik"
    finding(agreeing(), agreeing(divergence=3.0, differing=24))
    assert computing(files, tmp_path / "another") == "ik"


def test_a_tie_that_rounding_decides_is_no_difference() -> None:
    rows = np.full((24, 8), -9.0, dtype=np.float32)
    rows[:, 2], rows[:, 5] = 1.0, 1.0 - comparing.TIE / 2
    others = rows.copy()
    others[:5, 5] += comparing.TIE
    ours, tied = Reading("fake", rows, {1: [1.0]}), Reading("ik", others, {1: [1.0]})
    assert comparing.compared(ours, tied).differing == 0
    rows[:, 5] -= comparing.TIE
    assert comparing.compared(ours, tied).differing == 5 and not comparing.compared(ours, tied).trusted


def test_one_likeliest_token_may_differ() -> None:
    assert agreeing(differing=1).trusted and agreeing(divergence=trust.MOST_DIVERGENCE).trusted


@pytest.mark.parametrize("drafts", [True, False])
def test_the_library_with_the_fewest_expected_seconds_is_chosen(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, drafts: bool,
) -> None:  # fmt: skip
    """One is faster alone, the other where drafts are checked: it depends on the pair."""
    finding(agreeing(seconds={"fake": {1: 0.050, 4: 0.200}, "ik": {1: 0.054, 4: 0.070}}))
    cheap_draft(monkeypatch)
    expected = "ik" if drafts else "fake"
    assert computing(files if drafts else files[:1], tmp_path) == expected
    assert computing(files, tmp_path / "other", no_draft=not drafts) == expected


def test_measured_costs_of_both_outweigh_the_few_passes_of_the_comparison(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding(agreeing())
    known = {"ik": Costs(CostTable({1: 0.09, 8: 0.5}), CostTable({1: 0.03}))}
    monkeypatch.setattr(contest, "pair_costs", lambda *facts: known.get(facts[-1].key))
    assert computing(files, tmp_path) == "ik", "the other's were not measured"
    known["fake"] = Costs(CostTable({1: 0.06, 8: 0.3}), CostTable({1: 0.02}))
    assert computing(files, tmp_path) == "fake"
    known["ik"] = Costs(CostTable({1: 0.06 * (MARGIN + 0.02), 8: 0.3}), CostTable({1: 0.02}))
    assert computing(files, tmp_path) == "fake", "by too little to change"
    known["ik"] = Costs(CostTable({1: 0.06 * (MARGIN - 0.02), 8: 0.2}), CostTable({1: 0.02}))
    assert computing(files, tmp_path) == "ik"
    known["fake"] = Costs(CostTable({1: 0.055, 8: 0.2}), CostTable({1: 0.02}))
    assert computing(files, tmp_path) == "ik", "nor back"


def test_seconds_per_token_are_those_of_the_best_draft_length() -> None:
    target, draft = CostTable({1: 1.0, 2: 1.2, 8: 4.0}), CostTable({1: 0.2})
    controller = AdaptiveController(target, draft, max_width=8)
    cost = {k: (k * 0.2 + target.time(k + 1)) / sum(ACCEPTANCE**i for i in range(k + 1)) for k in range(1, 8)}
    assert controller.seconds_per_token(0, ACCEPTANCE) == pytest.approx(min(1.0, *cost.values()))
    assert AdaptiveController(target, CostTable({1: 0.9})).seconds_per_token(0, ACCEPTANCE) == 1.0
    assert AdaptiveController(target).seconds_per_token(0, ACCEPTANCE) == 1.0


@pytest.mark.parametrize("drafts", [True, False])
def test_the_fastest_plain_decoding_that_is_known_is_what_others_are_measured_against(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, drafts: bool,
) -> None:  # fmt: skip
    cheap_draft(monkeypatch)
    monkeypatch.setattr(both[0], "key", "llama")
    times = {"llama": {1: 0.05, 4: 0.2}, "ik": {1: 0.06, 4: 0.06 if drafts else 0.2}}
    target, draft = map(read_metadata, files)

    def share(library: str) -> float:
        return known_choice(target, draft, EngineOptions(library=library), tmp_path).plain_share

    assert share("auto") == share("ik") == share("llama") == 1.0, "nothing is known"
    finding(agreeing(seconds=times))
    assert computing(files, tmp_path) == ("ik" if drafts else "llama")
    assert share("auto") == pytest.approx(5 / 6 if drafts else 1.0)
    assert (share("ik"), share("llama")) == (pytest.approx(5 / 6), 1.0)
    with load(files, tmp_path, draft_tokens="auto", library="ik") as llm:
        assert llm._keeper.adaptive is not None
        assert llm._keeper.adaptive.plain_share == pytest.approx(5 / 6)


def test_with_the_target_on_a_gpu_the_reference_computes(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = finding(agreeing())
    assert computing(files, tmp_path, gpu_layers=5) == "fake", "layers were asked for"
    monkeypatch.setattr(both[0], "resolve_gpu_layers", lambda *_: 99)
    assert computing(files, tmp_path) == "fake" and compared == []


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_compared(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    compared = finding(agreeing())
    stranger = write_tokenizer_only(tmp_path / "stranger.gguf", Vocab(["a", "b", "c"], [NORMAL] * 3, {}))
    with pytest.raises(PairingError):
        load([files[0], stranger], tmp_path, no_cross_vocabulary=True)
    assert compared == []


@pytest.mark.usefixtures("both")
def test_what_cannot_be_compared_now_is_computed_by_the_reference(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> Ended:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trust, "run_in_child", run)
    for _ in range(2):
        with load(files, tmp_path) as llm:
            assert llm.engine.library.key == "fake"
            assert "is left aside for target.gguf: they could not be compared" in llm.warnings[0]
            assert "No space left" in llm.warnings[0]


def test_what_the_other_one_cannot_is_computed_by_the_reference_without_a_word(
    files: Files, finding: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = finding(agreeing())
    first, other = use(
        monkeypatch, FakeLibrary("fake 1"), FakeLibrary("fake 2", key="ik", refuses=refusing("is too new"))
    )
    with load(files, tmp_path) as llm:
        assert llm.engine.library is first and llm.warnings == ()
        assert llm.settings["library"]["reason"] == "target.gguf is too new. draft.gguf is too new"  # type: ignore[index]
    monkeypatch.setattr(other, "refuses", lambda _facts: "")
    monkeypatch.setattr(other, "cache_types", ("f16",), raising=False)
    assert computing(files, tmp_path, cache_type_k="f32") == "fake" and compared == []


def test_a_library_that_is_not_installed_is_passed_over_without_a_word(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = finding(agreeing())
    monkeypatch.setattr(choice, "installed", lambda _library: False)
    with load(files, tmp_path) as llm:
        assert llm.engine.library is both[0] and llm.warnings == () and compared == []


@pytest.mark.parametrize("victim", [0, 1])
def test_where_it_cannot_load_the_files_the_reference_does_and_says_so(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: int,
) -> None:
    finding(agreeing())
    open_weights = FakeLibrary.open_weights

    def failing(self: FakeLibrary, metadata: Metadata, **options: Any) -> FakeWeights:
        if self is both[1] and metadata.path == files[victim]:
            raise error
        return open_weights(self, metadata, **options)

    monkeypatch.setattr(FakeLibrary, "open_weights", failing)
    error: ModelLoadError = ModelLoadError("A tensor is of no known kind.")
    with load(files, tmp_path) as llm:
        assert llm.engine.library is both[0] and both[1].all_closed
        assert "so the made-up library computes: A tensor is of no known kind." in llm.warnings[0]
    with pytest.raises(ModelLoadError, match="no known kind"):
        load(files, tmp_path, library="ik")
    error = MemoryShort("There is no room.")
    with pytest.raises(MemoryShort):
        load(files, tmp_path)


def test_what_is_known_is_told_without_comparing(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    compared = finding(agreeing())
    target, draft = map(read_metadata, files)
    options = EngineOptions(n_ctx=256)
    known = known_choice(target, draft, options, tmp_path)
    assert known.library is both[0] and "was not compared" in known.reason
    assert compared == [] and not any(tmp_path.iterdir())
    load(files, tmp_path).close()
    assert known_choice(target, draft, options, tmp_path).library is both[1]


def test_a_prospect_is_that_of_the_library_that_would_compute(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    finding(agreeing())
    target, draft = map(read_metadata, files)
    with load(files, tmp_path, draft_tokens="auto", calibrate=True) as llm:
        assert llm.engine.library is both[1]
    assert prospect(target, draft, EngineOptions(n_ctx=256), tmp_path).gain is not None
    llama = EngineOptions(n_ctx=256, library="llama")
    assert library_for(target, draft, "ik") is both[1]
    use_llama = pytest.MonkeyPatch()
    use_llama.setattr(both[0], "key", "llama")
    assert prospect(target, draft, llama, tmp_path).gain is None
    use_llama.undo()


def test_strict_mode_names_the_library_and_compares_it_with_itself(
    files: Files, finding: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding(agreeing())
    use(
        monkeypatch,
        FakeLibrary("fake 1", kernels=(9,)),
        FakeLibrary("fake 2", name="the other one", key="ik", kernels=(9,)),
    )
    for library in ("ik", "auto"):
        with load(files, tmp_path, draft_tokens="auto", calibrate=True, library=library) as llm:
            assert llm.engine.library.key == "ik"
    with load(files, tmp_path, draft_tokens="auto", calibrate=True, strict=True, library="ik") as llm:
        sentence = strict_sentence(llm.engine, tmp_path)
        assert sentence.startswith("Strict mode with the other one: passes of 1 to 8 tokens")
        assert "of its usual speed" in sentence and sentence in llm.warnings


def test_all_that_load_a_model_take_the_library() -> None:
    from localspec.cli.app import main

    loading = ("chat", "serve", "bench", "audit", "calibrate", "estimate", "acceptance", "draft")
    for name in loading:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None and "library" in {parameter.name for parameter in command.params}


def test_show_and_check_tell_what_would_compute(
    shelf: Shelf, both: tuple[FakeLibrary, FakeLibrary], finding: Compare
) -> None:
    files = shelf.fill()
    commands = (["show", shelf.pair.name], ["check", *map(str, files)])

    def told() -> list[tuple[str, dict[str, str]]]:
        shown = [CliRunner().invoke(cli, command) for command in commands]
        as_json = [CliRunner().invoke(cli, [*command, "--json"]) for command in commands]
        return [
            (text.stdout, json.loads(data.stdout)["library"])
            for text, data in zip(shown, as_json, strict=True)
        ]

    for text, data in told():
        assert data == {
            "name": "the made-up library", "reason": "the other one was not compared with it here yet"
        }  # fmt: skip
        assert ": the other one was not compared with it here yet" in text
    finding(agreeing())
    load(files, shelf.home, n_ctx=4096).close()
    for text, data in told():
        assert data["name"] == "the other one" and f"the other one: {data['reason']}" in text


def test_a_draft_is_prepared_with_the_library_that_would_compute_it(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from localspec.cli.draft import _library

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    finding(agreeing())
    assert _library(*files, EngineOptions()) is both[0]
    load(files, tmp_path).close()
    assert _library(*files, EngineOptions()) is both[1]
    assert _library(None, files[1], EngineOptions(library="ik")) is both[1]
    (tmp_path / "none").write_bytes(b"none")
    assert _library(tmp_path / "none", files[1], EngineOptions()) is both[0]


def test_formats_are_tried_that_the_library_names(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both[1], "draft_formats", ("q8_0", "q5_1"), raising=False)
    assert _useful_formats(files[1], both[1]) == ["q8_0", "q5_1"]
    assert _useful_formats(files[1], both[0]) == ["q4_0"]


def test_calibrating_anew_lets_the_next_load_compare_anew(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    compared = finding(agreeing(divergence=1.0))
    for redo in (False, True, False):
        with load(files, tmp_path) as llm:
            llm.calibrate(redo=redo)
    assert len(compared) == 2


def test_a_load_that_is_cancelled_ends_the_comparison(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def run(_entry: str, _argument: str, _seconds: float, _folder: Path, check: Callable[[], None]) -> Ended:
        begun.set()
        while True:
            check()

    monkeypatch.setattr(trust, "run_in_child", run)
    loading = LLM.load_in_background(files[0], files[1], n_ctx=256, home=tmp_path)
    assert begun.wait(30) and loading.progress.stage == Stage.MEASURE
    assert "Comparing the other one" in loading.progress.sentence
    loading.cancel()
    with pytest.raises(LoadCancelled):
        loading.result(30)
    assert known_comparison(read_metadata(files[0]), EngineOptions(n_ctx=256), both[1], tmp_path) is None


# The comparison itself


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child does is done here, where libraries are made up."""

    def run(entry: str, argument: str, _seconds: float, _folder: Path, _check: object) -> Ended:
        assert entry == "localspec.engine.comparing:main"
        comparing.main(argument)
        return Ended(0, "")

    monkeypatch.setenv("PATH", os.environ["PATH"])  # put back: a child needs none
    monkeypatch.setattr(trust, "run_in_child", run)
    monkeypatch.setattr(
        comparing, "text_ids", lambda _metadata, size: [65 + index % 20 for index in range(size)]
    )


@pytest.mark.usefixtures("in_process")
def test_libraries_that_compute_the_same_agree(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path
) -> None:
    target, options, told = read_metadata(files[0]), EngineOptions(n_ctx=256), []
    found = trust.compare([Subject(target, options)], both[1], tmp_path, told.append)
    assert found.trusted and (found.divergence, found.differing, found.rows) == (0.0, 0, 24)
    assert {key: set(times) for key, times in found.seconds.items()} == {"fake": {1, 2, 4}, "ik": {1, 2, 4}}
    assert known_comparison(target, options, both[1], tmp_path) == found
    assert both[0].all_closed and both[1].all_closed and len(told) == 1
    assert known_comparison(target, EngineOptions(threads=1), both[1], tmp_path) == found
    for other in (EngineOptions(cache_type_k="f32"), EngineOptions(repack=False), EngineOptions(strict=True)):
        assert known_comparison(target, other, both[1], tmp_path) is None
    both[1].build = "fake 3"
    assert known_comparison(target, options, both[1], tmp_path) is None


@pytest.mark.parametrize("change", ["another model", "a damaged copy"])
def test_a_file_is_not_trusted_for_another_of_its_name_and_size(
    both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, change: str
) -> None:
    path = write_llama(tmp_path / "model.gguf", seed=1)
    before, options, written = read_metadata(path), EngineOptions(), path.stat().st_mtime_ns
    trust._keep(Subject(before, options), agreeing(), both[1], tmp_path)
    assert known_comparison(before, options, both[1], tmp_path) == agreeing()
    if change == "another model":
        write_llama(path, seed=2)
        os.utime(path, ns=(written, written))
    else:
        os.utime(path, ns=(written, written + 1_000_000_000))
    after = read_metadata(path)
    assert after == before and known_comparison(after, options, both[1], tmp_path) is None
    path.unlink()
    assert known_comparison(after, options, both[1], tmp_path) is None


@pytest.mark.usefixtures("in_process")
def test_one_that_computes_something_else_is_found_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = use(monkeypatch, FakeLibrary("fake 1"), FakeLibrary("fake 2", key="ik", kernels=(1,)))
    found = trust.compare(
        [Subject(read_metadata(files[0]), EngineOptions())], other, tmp_path, lambda _: None
    )
    assert not found.trusted and found.divergence > 0.02 and found.differing > 1
    assert computing(files, tmp_path) == "fake"


@pytest.mark.usefixtures("in_process")
def test_one_whose_wide_passes_alone_are_wrong_is_found_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are read by kernels of their own: ik_llama.cpp has such from 33 tokens on."""
    _, other = use(monkeypatch, FakeLibrary("fake 1"), FakeLibrary("fake 2", key="ik", kernels=(65,)))
    found = trust.compare(
        [Subject(read_metadata(files[0]), EngineOptions())], other, tmp_path, lambda _: None
    )
    assert not found.trusted and found.divergence > trust.MOST_DIVERGENCE


def test_what_was_read_as_a_draft_says_nothing_of_a_target(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    """The same file may draft for one model and be the target of another conversation, in any order."""
    target, options = read_metadata(files[0]), EngineOptions(n_ctx=256)
    as_draft, read_alone = Subject(target, options, alone=True), Comparison(seconds={"ik": IK})
    trust._keep(as_draft, read_alone, both[1], tmp_path)
    compared = finding(agreeing())
    assert computing(files[:1], tmp_path) == "ik" and compared == ["target.gguf"]
    trust._keep(as_draft, read_alone, both[1], tmp_path)
    assert known_comparison(target, options, both[1], tmp_path) == agreeing()
    crashed = Comparison(fault="a first try in a process of its own was ended by SIGABRT.")
    trust._keep(as_draft, crashed, both[1], tmp_path)
    assert known_comparison(target, options, both[1], tmp_path) == crashed


def test_who_asks_for_a_library_that_is_not_trusted_is_told(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    finding(agreeing(divergence=1.1, differing=5))
    load(files, tmp_path).close()
    with load(files, tmp_path, library="ik") as llm:
        assert llm.engine.library is both[1]
        assert llm.warnings == (
            "the other one was asked for, and is not trusted with target.gguf: "
            "mean KL divergence 1.1, another likeliest token in 5 of 24 rows.",
        )


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("fault", ["", "It has too many heads."])
def test_the_draft_is_read_in_the_same_child_by_the_library_alone(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:  # fmt: skip
    """What it makes of the target stays known where the draft fails, and neither is read again."""
    opened: list[tuple[str, str]] = []

    def note(library: FakeLibrary) -> None:
        open_weights = library.open_weights

        def noted(metadata: Metadata, **options: Any) -> FakeWeights:
            opened.append((library.key, metadata.path.stem))
            if fault and (library.key, metadata.path.stem) == ("ik", "draft"):
                raise ModelLoadError(fault)
            return open_weights(metadata, **options)

        monkeypatch.setattr(library, "open_weights", noted)

    for library in both:
        note(library)
    monkeypatch.setattr(choice, "busy_share", lambda: 1.0)
    target, draft, options = *map(read_metadata, files), EngineOptions()
    told: list[str] = []
    made = choice.choose(target, draft, options, tmp_path, told.append)
    assert opened == [("fake", "target"), ("ik", "target"), ("ik", "draft")] and len(told) == 1
    assert both[0].all_closed and both[1].all_closed
    assert len(made.warnings) == bool(fault) and fault.rstrip(".") in made.reason
    found = known_comparison(target, options, both[1], tmp_path)
    of_draft = known_comparison(draft, options, both[1], tmp_path)
    assert found is not None and found.trusted
    assert of_draft is not None and of_draft.fault == fault and (not of_draft.seconds) == bool(fault)
    again = choice.choose(target, draft, options, tmp_path, told.append)
    assert len(opened) == 3 and again.warnings == ()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("room", [True, False])
def test_passes_are_timed_in_turns_where_memory_holds_the_file_twice(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    room: bool,
) -> None:  # fmt: skip
    """A machine that is slow for a few seconds must not decide which library is faster."""
    order: list[str] = []

    def noting(library: FakeLibrary) -> Callable[..., FakeWeights]:
        open_weights = library.open_weights

        def opened(metadata: Metadata, **options: Any) -> FakeWeights:
            order.append(f"{library.key} opened")
            return open_weights(metadata, **options)

        return opened

    for library in both:
        monkeypatch.setattr(library, "open_weights", noting(library))
    decode = Session.decode

    def decoded(session: Session, span: Any) -> Any:
        order.append(f"pass of {len(span.tokens)}")
        return decode(session, span)

    monkeypatch.setattr(Session, "decode", decoded)
    monkeypatch.setattr(comparing._Subject, "fits", lambda *_: room)
    found = trust.compare(
        [Subject(read_metadata(files[0]), EngineOptions())], both[1], tmp_path, lambda _: None
    )
    assert found.trusted and found.rows == 24
    opened = [index for index, what in enumerate(order) if "opened" in what]
    assert opened == ([0, 1] if room else [0, 1 + (len(order) - 2) // 2])
    assert both[0].all_closed and both[1].all_closed


def test_a_draft_that_computes_no_numbers_is_left_aside() -> None:
    rows = np.zeros((24, 8), dtype=np.float32)
    assert comparing.usable(Reading("ik", rows, {1: [1.0]})).fault == ""
    rows[3, 2] = np.nan
    assert "no numbers" in comparing.usable(Reading("ik", rows, {1: [1.0]})).fault


def test_a_draft_that_one_library_timed_costs_the_other_the_same_share(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    finding(agreeing(), Comparison(seconds={"ik": {1: 0.25 * IK[1], 4: 0.04}}))
    load(files, tmp_path).close()
    rivals = Contest(both[0], both[1], *map(read_metadata, files), EngineOptions(), tmp_path)
    controllers = rivals.controllers(agreeing())
    assert controllers is not None
    for key, times in (("fake", LLAMA), ("ik", IK)):
        assert controllers[key].draft is not None
        assert controllers[key].draft.time(1) == pytest.approx(0.25 * times[1])


def test_the_first_answer_goes_by_the_passes_that_were_timed(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], finding: Compare, tmp_path: Path
) -> None:
    """Where no answer waits for measuring, nothing else would ever say that wide passes are cheap here."""
    finding(agreeing(seconds={"fake": LLAMA, "ik": {1: 0.054, 2: 0.06, 4: 0.08}}),
            Comparison(seconds={"ik": {1: 0.015, 2: 0.02, 4: 0.03}}))  # fmt: skip
    with load(files, tmp_path, draft_tokens="auto") as llm:
        assert llm.engine.library is both[1]
        costs = llm._keeper.adaptive
        assert costs is not None and costs.draft is not None
        assert [costs.target.time(width) for width in (1, 2, 3, 4)] == pytest.approx(
            [0.054, 0.06, 0.07, 0.08]
        )
        assert costs.draft.time(1) == pytest.approx(0.015) and costs.target.time(8) > 0.08
        assert not costs.measured, "wider passes are assumed"
    with load(files, tmp_path, draft_tokens="auto", threads=1) as llm:
        assert llm._keeper.adaptive is not None
        assert llm._keeper.adaptive.target.time(4) != pytest.approx(0.08), "with other threads"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_not_trusted(value: float) -> None:
    rows = np.zeros((24, 8), dtype=np.float32)
    wrong = rows.copy()
    wrong[7, 3] = value
    found = comparing.compared(Reading("fake", rows, {1: [1.0]}), Reading("ik", wrong, {1: [1.0]}))
    assert not found.trusted and "no numbers" in found.figures
    assert comparing.compared(*[Reading("fake", rows, {1: [1.0]})] * 2).trusted


def test_passes_that_were_disturbed_are_timed_again_on_a_calm_machine(
    files: Files,
    both: tuple[FakeLibrary, FakeLibrary],
    finding: Compare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.zeros((24, 8), dtype=np.float32)
    calm, disturbed = Reading("fake", rows, {1: [1.0, 1.1, 9.0]}), Reading("ik", rows, {1: [1.0, 1.6, 1.7]})
    assert comparing.compared(calm, calm).steady and not comparing.compared(calm, disturbed).steady
    busy = 0.9
    monkeypatch.setattr(choice, "busy_share", lambda: busy)
    compared = finding(agreeing(steady=False))
    for _ in range(2):
        load(files, tmp_path).close()
    assert len(compared) == 1
    busy = 0.0
    compared = finding(agreeing(steady=True))
    for _ in range(2):
        load(files, tmp_path).close()
    assert len(compared) == 1


@pytest.mark.usefixtures("in_process")
def test_a_machine_that_is_never_quiet_is_not_asked_for_ever(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "UNSTEADY", 0.0)
    monkeypatch.setattr(choice, "busy_share", lambda: 0.0)
    told: list[str] = []
    for _ in range(trust.MOST_TRIES + 2):
        load(files, tmp_path, notify=told.append).close()
    assert sum("target.gguf" in sentence for sentence in told) == trust.MOST_TRIES


# Both real libraries, on a model of some kilobytes


@pytest.mark.parametrize("library", ["llama", "ik"])
def test_a_real_library_that_is_asked_for_computes_again_after_it_was_freed(
    files: Files, tmp_path: Path, library: str
) -> None:
    with load(files, tmp_path, library=library, threads=1, try_first=True) as llm:
        build = named(library).build
        assert {weights.build for weights in (llm.engine.target.weights, llm.engine.draft.weights)} == {build}  # type: ignore[union-attr]
        assert llm.settings["library"]["build"] == build  # type: ignore[index]
        before = llm.generate(FIRST, **GREEDY).ids
        assert llm.unload() and llm.generate(FIRST, **GREEDY).ids == before
        assert llm.engine.library.key == library
    assert not (tmp_path / "libraries").exists()


def test_a_small_target_is_not_compared(files: Files, tmp_path: Path) -> None:
    with load(files, tmp_path, threads=1) as llm:
        assert llm.engine.library.key == "llama" and llm.warnings == ()
        assert "target.gguf is too small" in str(llm.settings["library"])
    assert not (tmp_path / "libraries").exists()


def test_a_conversation_of_one_library_is_read_again_by_the_other(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "conversation"

    def ask(conversation: Conversation, text: str) -> int:
        completion = [chunk.completion for chunk in conversation.ask(text, **GREEDY)][-1]
        assert completion is not None
        return completion.stats.cached_tokens

    with load(files, tmp_path, library="llama", threads=1) as llm:
        conversation = llm.conversation()
        ask(conversation, "What is it?")
        conversation.save(path)
        said = len(conversation.ids)
    for library in ("llama", "ik"):
        with load(files, tmp_path, library=library, threads=1) as llm:
            again = Conversation.load(llm, path)
            assert len(again.ids) == said
            assert ("are not those it was saved with" in again.restored) == (library == "ik")
            assert (ask(again, "And then?") == 0) == (library == "ik")


def test_the_real_libraries_agree_on_a_file_in_a_child(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "LEAST_BYTES", 0)
    with load(files, tmp_path, threads=1) as llm:
        assert llm.warnings == () and "a token is expected to take" in str(llm.settings["library"])
        ours = llm.engine.library.key
    found = known_comparison(
        read_metadata(files[0]), EngineOptions(n_ctx=256, threads=1), named("ik"), tmp_path
    )
    assert found is not None and found.trusted and set(found.seconds) == {"llama", "ik"}
    facts = known_choice(*map(read_metadata, files), EngineOptions(n_ctx=256, threads=1), tmp_path)
    assert facts.library.key == ours


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("by", "error", "kept"),
    [
        (1, ModelLoadError("It has too many heads."), True),
        (1, MemoryShort("There is no room."), False),
        (0, ModelLoadError("It is damaged."), False),
    ],
)
def test_only_what_speaks_of_the_library_is_kept(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    by: int, error: ModelLoadError, kept: bool,
) -> None:  # fmt: skip
    def failing(_metadata: Metadata, **_options: Any) -> FakeWeights:
        raise error

    monkeypatch.setattr(both[by], "open_weights", failing)
    target, options = read_metadata(files[0]), EngineOptions()
    found = trust.compare([Subject(target, options)], both[1], tmp_path, lambda _: None)
    assert not found.trusted and found.fault == error.message
    assert (known_comparison(target, options, both[1], tmp_path) is not None) == kept


def test_a_child_that_crashes_in_it_is_remembered(
    files: Files, both: tuple[FakeLibrary, FakeLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def run(_entry: str, argument: str, *_: object) -> Ended:
        runs.append(argument)
        order = json.loads(argument)
        Path(order["notes"]).write_text(json.dumps({"by": order["library"]}))
        return Ended(-6, "GGML_ASSERT")

    monkeypatch.setattr(trust, "run_in_child", run)
    for _ in range(2):
        with load(files, tmp_path) as llm:
            assert llm.engine.library is both[0]
            assert "ended by SIGABRT (a failed assertion)" in str(llm.settings["library"])
    assert len(runs) == 1


def test_the_real_child_reads_the_text_with_the_real_library(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference beside itself: a child of this kind computes no other bits."""
    from localspec.llama.library import LlamaCpp

    found = trust.compare(
        [Subject(read_metadata(files[0]), EngineOptions(n_ctx=64, threads=1))],
        LlamaCpp(),
        tmp_path,
        lambda _: None,
    )
    assert found.trusted and found.divergence == 0.0 and found.rows == 24
    assert set(found.seconds) == {"llama"} and set(found.seconds["llama"]) == {1, 2, 4}


def test_divergence_is_that_of_the_distributions() -> None:
    rng = np.random.default_rng(1)
    rows, others = rng.normal(size=(2, 5, 7)).astype(np.float32)
    p, q = (
        np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (rows.astype(float), others.astype(float))
    )
    assert kl_divergence(rows, others) == pytest.approx((p * np.log(p / q)).sum(axis=1))
    assert kl_divergence(rows, rows + 3) == pytest.approx(np.zeros(5), abs=1e-12)
