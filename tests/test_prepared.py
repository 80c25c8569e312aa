"""Prepared drafts: what is made, chosen, kept and given up; greedy output is the target's own with any of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import LLM
from localspec.decoding.costs import CostTable
from localspec.engine import draft_copy as preparation
from localspec.engine.measured_costs import Costs
from localspec.errors import ModelLoadError, StoreError
from localspec.gguf.formats import bytes_in_format, bytes_of_pass, elements_by_type
from localspec.gguf.metadata import read_headers, read_metadata
from localspec.llama.library import LlamaCpp
from localspec.llama.quantize import requantize
from localspec.store import store as store_module
from localspec.store.prepared import ORIGINAL, PreparedDrafts, Source, Trial
from localspec.store.store import Store
from tests.hubkit import content, make_pair, model_file
from tests.tinygguf import write_llama, write_pair

FASTER, SLOWER = {ORIGINAL: 0.015, "q4_0": 0.009}, {ORIGINAL: 0.015, "q4_0": 0.014}
CHEAP, DEAR = 0.060, 0.240
"""Seconds of a pass of 8 tokens, where one of 1 token takes 0.030."""
FACTS = {"threads": 2}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "störe 🗄"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "modèles 模型"
    folder.mkdir()
    return write_pair(folder)


class Machine:
    """What a machine measures, and how often it is asked to."""

    def __init__(self) -> None:
        self.seconds, self.wide_pass, self.trials = dict(FASTER), CHEAP, 0
        self.busy, self.others = False, 0.0

    def costs(self, *_args: object, **_options: object) -> Costs:
        return Costs(CostTable({1: 0.030, 8: self.wide_pass}), CostTable({1: 0.015}))

    def time_token(self, contexts: dict[str, object]) -> dict[str, list[float]]:
        self.trials += 1
        return {name: [self.seconds[name]] * 3 + [1.0] * 6 * self.busy for name in contexts}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(preparation, "MIN_BYTES", 0)
    monkeypatch.setattr(preparation, "time_token", machine.time_token)
    monkeypatch.setattr(preparation, "busy_share", lambda: machine.others)
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", machine.costs)
    return machine


def used(files: tuple[Path, Path], home: Path, **options: object) -> tuple[str, object, tuple[str, ...]]:
    """The draft file's name, what it was prepared from, and the warnings."""
    with LLM.from_files(*files, home=home, n_ctx=256, **options) as llm:
        draft = llm.settings["draft"]
        assert isinstance(draft, dict)
        return Path(draft["file"]).name, draft["prepared_from"], llm.warnings


# What is used


def test_the_first_load_prepares_says_so_and_the_next_one_finds_it(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    said: list[str] = []
    first = used(files, home, notify=said.append)
    assert first[:2] == ("draft.q4_0.gguf", str(files[1]))
    assert said == ["Preparing draft.gguf for this machine, once (some seconds)."]
    assert used(files, home, notify=said.append) == first
    assert (machine.trials, len(said)) == (1, 1)
    assert used(files, home, draft_tokens=3)[0] == "draft.q4_0.gguf"


def test_greedy_ids_are_the_targets_own_with_a_prepared_draft(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    with LLM.from_files(files[0], no_draft=True, n_ctx=256, cache_type_v="bf16") as llm:
        plain = llm.generate("abc", max_tokens=120, temperature=0).ids
    assert used(files, home)[0] == "draft.q4_0.gguf"
    for draft_tokens in ("auto", 1, 3, 7):
        with LLM.from_files(
            *files, home=home, n_ctx=256, cache_type_v="bf16", draft_tokens=draft_tokens
        ) as llm:
            assert "q4_0" in Path(llm.settings["draft"]["file"]).name  # type: ignore[index]
            answer = llm.generate("abc", max_tokens=120, temperature=0)
            assert answer.ids == plain
            assert draft_tokens == "auto" or answer.stats.accepted > 0  # auto drafts only where it pays
    assert machine.trials == 1


def test_a_copy_that_is_not_clearly_faster_is_not_kept(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    machine.seconds = SLOWER
    for _ in range(2):
        assert used(files, home) == ("draft.gguf", None, ())
    assert machine.trials == 1
    assert list(home.rglob("*.gguf")) == []


def test_a_busy_machine_prepares_nothing_in_a_load_and_later_does(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    machine.others = 0.9
    assert used(files, home)[0] == "draft.gguf"
    assert machine.trials == 0
    machine.others = 0.0
    assert used(files, home)[0] == "draft.q4_0.gguf"


def test_nothing_is_prepared_by_costs_that_are_assumed(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncertain = Costs(CostTable({1: 0.030, 8: CHEAP}, certainty={8: 0.6}), CostTable({1: 0.015}))
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_args, **_options: uncertain)
    assert used(files, home)[0] == "draft.gguf"
    assert machine.trials == 0


def test_a_copy_that_lost_on_a_busy_machine_gets_another_trial(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.seconds, machine.busy = SLOWER, True
    assert used(files, home)[0] == "draft.gguf"
    monkeypatch.setattr("localspec.llama.quantize.requantize", None)  # the copy was kept
    machine.seconds = FASTER
    for _ in range(2):
        assert used(files, home)[0] == "draft.q4_0.gguf"
    assert machine.trials == 2


@pytest.mark.parametrize(
    "options", [{"prepare_draft": False}, {"draft_tokens": 3}, {"draft_tokens": "off"}, {"n_ctx": 64}]
)
def test_nothing_is_prepared_unasked(
    files: tuple[Path, Path], home: Path, machine: Machine, options: dict[str, object]
) -> None:
    with LLM.from_files(*files, home=home, **{"n_ctx": 256, **options}) as llm:
        assert llm.settings["draft"]["file"] == str(files[1])  # type: ignore[index]
    assert machine.trials == 0
    assert not home.exists()


def test_nothing_is_prepared_where_no_draft_model_can_pay(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    machine.wide_pass = DEAR
    assert used(files, home)[0] == "draft.gguf"
    assert machine.trials == 0


def test_a_draft_on_a_gpu_is_used_as_it_is(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(files, home)
    monkeypatch.setattr("localspec.llama.library.LlamaCpp.resolve_gpu_layers", lambda *_: 99)
    assert used(files, home)[0] == "draft.gguf"


def test_a_draft_in_the_format_already_needs_no_copy(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    ready = files[1].with_name("ready.gguf")
    requantize(files[1], ready, "q4_0")
    assert used((files[0], ready), home) == ("ready.gguf", None, ())
    assert machine.trials == 0


def test_another_number_of_threads_is_tried_on_the_same_copy(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(files, home, threads=2)
    monkeypatch.setattr("localspec.llama.quantize.requantize", None)
    machine.seconds = SLOWER
    assert used(files, home, threads=1)[0] == "draft.gguf"
    assert used(files, home, threads=2)[0] == "draft.q4_0.gguf"
    assert machine.trials == 2


# What can go wrong


def test_a_draft_that_cannot_be_requantized_is_used_and_said_once(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, *_rest: object, **_options: object) -> None:
        raise ModelLoadError(f"llama.cpp could not requantize {source.name}: no.", "Check it.")

    monkeypatch.setattr("localspec.llama.quantize.requantize", refuse)
    name, _, warnings = used(files, home)
    assert name == "draft.gguf"
    assert warnings == (
        "draft.gguf could not be prepared for this machine: llama.cpp could not requantize draft.gguf: no.",
    )
    assert used(files, home) == ("draft.gguf", None, ())


def test_a_home_that_cannot_be_written_changes_nothing(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    home.write_text("a file where the folder should be", encoding="utf-8")
    said: list[str] = []
    assert used(files, home, notify=said.append) == ("draft.gguf", None, ())
    assert len(said) == 1 and said[0].startswith("draft.gguf stays as it is: The store cannot use")
    assert machine.trials == 0


def test_a_short_disk_changes_nothing_and_leaves_nothing(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "RESERVE", 1 << 60)
    said: list[str] = []
    assert used(files, home, notify=said.append) == ("draft.gguf", None, ())
    assert "free, and" in said[-1]
    assert list(home.rglob("*.gguf")) == list(home.rglob("*.json")) == []


def test_while_another_process_prepares_the_draft_itself_is_used(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    said: list[str] = []
    with PreparedDrafts(home).lock(Source.of(files[1])):
        assert used(files, home, notify=said.append)[0] == "draft.gguf"
    assert said[-1].startswith("draft.gguf stays as it is: draft.gguf is being prepared by another process.")
    assert used(files, home)[0] == "draft.q4_0.gguf"


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone"])
def test_a_damaged_copy_is_given_up_and_made_again(
    files: tuple[Path, Path], home: Path, machine: Machine, damage: str
) -> None:
    used(files, home)
    (copy,) = home.rglob("*.gguf")
    size = copy.stat().st_size
    if damage == "gone":
        copy.unlink()
    else:
        copy.write_bytes(copy.read_bytes()[:-100] if damage == "cut" else bytes(size))
    name, _, warnings = used(files, home, draft_tokens=3)
    assert name == "draft.gguf"
    if damage == "garbage":  # of the right size: only loading it shows
        assert "was given up" in warnings[0] and copy.name in warnings[0]
    assert used(files, home)[:2] == ("draft.q4_0.gguf", str(files[1]))
    assert copy.stat().st_size == size
    assert machine.trials == 2


def test_another_file_of_the_same_name_is_prepared_anew(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    used(files, home)
    write_llama(files[1], seed=1, noise=0.2, n_vocab=320)
    assert used(files, home)[0] == "draft.q4_0.gguf"
    assert machine.trials == 2
    (copy,) = home.rglob("*.gguf")
    assert read_metadata(copy).n_vocab == 320


KILLED_CHILD = """
import os, sys
from pathlib import Path
from localspec.engine import draft_copy
from localspec.llama import quantize
from localspec.engine.options import EngineOptions

def half(source, copy, name, threads):
    copy.with_name(copy.name + ".1.part").write_bytes(bytes(1000))
    os.kill(os.getpid(), 9)

quantize.requantize = half
draft_copy.try_draft(Path(sys.argv[1]), EngineOptions(), Path(sys.argv[2]))
"""


def test_a_process_killed_in_the_middle_leaves_nothing_that_lasts(
    files: tuple[Path, Path], home: Path, machine: Machine
) -> None:
    argv = [sys.executable, "-c", KILLED_CHILD, str(files[1]), str(home)]
    assert subprocess.run(argv, cwd=Path(__file__).parents[1]).returncode != 0
    assert len(list(home.rglob("*.part"))) == 1
    assert used(files, home)[0] == "draft.q4_0.gguf"
    assert list(home.rglob("*.part")) == []


def test_a_damaged_copy_in_a_store_that_cannot_be_written(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(files, home)
    (copy,) = home.rglob("*.gguf")
    copy.write_bytes(bytes(copy.stat().st_size))

    def refuse(*_arguments: object) -> int:
        raise StoreError("The store is read-only.")

    monkeypatch.setattr(PreparedDrafts, "remove", refuse)
    assert used(files, home, draft_tokens=3)[0] == "draft.gguf"


# The records


def kept(home: Path, draft: Path, trial: Trial) -> PreparedDrafts:
    drafts, source = PreparedDrafts(home), Source.of(draft)
    with drafts.lock(source):
        drafts.path(source, "q4_0").write_bytes(bytes(100))
        drafts.keep(source, trial)
    return drafts


def test_a_record_names_source_build_times_and_choice(files: tuple[Path, Path], home: Path) -> None:
    drafts = kept(home, files[1], Trial(FACTS, FASTER, "q4_0"))
    (record,) = drafts.records()
    assert record.source.file == str(files[1])
    assert record.source.bytes == files[1].stat().st_size
    assert (record.copies, record.trials) == ({"q4_0": 100}, (Trial(FACTS, FASTER, "q4_0"),))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"format": 99}', '{"format": 1, "source": 3, "copies": {}, "trials": []}'],
)
def test_a_damaged_record_does_not_exist(files: tuple[Path, Path], home: Path, text: str) -> None:
    drafts, source = kept(home, files[1], Trial(FACTS, FASTER, "q4_0")), Source.of(files[1])
    drafts.path(source, "q4_0").with_name("record.json").write_text(text, encoding="utf-8")
    assert (drafts.records(), drafts.trial(source, FACTS), drafts.copy(source, "q4_0")) == ([], None, None)
    assert drafts.remove(source) == 100


def test_reading_makes_nothing(files: tuple[Path, Path], home: Path) -> None:
    drafts, source = PreparedDrafts(home), Source.of(files[1])
    assert (drafts.records(), drafts.trial(source, FACTS), drafts.remove(source)) == ([], None, 0)
    assert not home.exists()


def test_a_store_that_moves_keeps_its_prepared_drafts(files: tuple[Path, Path], home: Path) -> None:
    draft = home / "files" / ("ab" * 32) / "draft.gguf"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(files[1].read_bytes())
    kept(home, draft, Trial(FACTS, FASTER, "q4_0"))
    moved = home.rename(home.with_name("moved"))
    source = Source.of(moved / draft.relative_to(home))
    assert PreparedDrafts(moved).copy(source, "q4_0") is not None
    assert PreparedDrafts(moved).records()[0].source.is_of(moved / draft.relative_to(home))


def test_removing_a_pair_removes_what_was_prepared_from_its_draft(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {name: content(seed, 3000) for seed, name in enumerate(("target.gguf", "draft.gguf"))}
    pair = make_pair(*(model_file(name, body) for name, body in bodies.items()))
    monkeypatch.setattr(store_module, "pairs", lambda _home: [pair])
    store = Store(home)
    store.prepare()
    for file in pair.files:
        (path := home / "files" / file.sha256 / file.file).parent.mkdir()
        path.write_bytes(bodies[file.file])
    drafts = kept(home, store.pair_paths(pair)[1] or home, Trial(FACTS, FASTER, "q4_0"))
    assert store.remove(pair) == 6100
    assert drafts.records() == [] and list(drafts.folder.iterdir()) == []


def test_a_draft_being_prepared_is_not_removed(files: tuple[Path, Path], home: Path) -> None:
    drafts, source = kept(home, files[1], Trial(FACTS, FASTER, "q4_0")), Source.of(files[1])
    with drafts.lock(source), pytest.raises(StoreError, match=r"draft\.gguf is being prepared"):
        PreparedDrafts(home).remove(source)
    assert drafts.copy(source, "q4_0") is not None
    assert json.loads(drafts.path(source, "q4_0").with_name("record.json").read_text())["copies"]


# Measuring and making


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({}, ORIGINAL), ({ORIGINAL: 1.0}, ORIGINAL), ({ORIGINAL: 1.0, "q4_0": 0.91}, ORIGINAL),
        ({ORIGINAL: 1.0, "q4_0": 0.89}, "q4_0"), ({ORIGINAL: 1.0, "q4_0": 0.8, "q8_0": 0.7}, "q8_0"),
    ],
)  # fmt: skip
def test_the_fastest_is_chosen_if_clearly_faster(seconds: dict[str, float], chosen: str) -> None:
    assert preparation.fastest(seconds) == chosen


def test_two_candidates_are_timed_and_the_loser_is_deleted(
    files: tuple[Path, Path], home: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCpp, "draft_formats", ("q4_0", "q8_0"))
    machine.seconds = {ORIGINAL: 0.015, "q4_0": 0.009, "q8_0": 0.012}
    assert used(files, home)[0] == "draft.q4_0.gguf"
    assert [path.name for path in home.rglob("*.gguf")] == ["draft.q4_0.gguf"]


def test_a_token_is_timed_in_turns_and_the_context_left_empty(files: tuple[Path, Path]) -> None:
    from localspec.engine.engine import Engine
    from localspec.engine.options import EngineOptions

    ticks = iter(range(1000))
    engine = Engine(*files, EngineOptions(n_ctx=256))
    try:
        contexts = {ORIGINAL: engine.target, "q4_0": engine.draft}
        samples = preparation.time_token(contexts, lambda: float(next(ticks)))  # type: ignore[arg-type]
        assert samples == {ORIGINAL: [1.0] * 3, "q4_0": [1.0] * 3}  # a slow machine: three turns are enough
        assert engine.target.length() == 0
    finally:
        engine.close()


def test_a_pass_reads_no_embeddings_where_the_output_has_a_matrix_of_its_own(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        path = write_llama(tmp_path / f"{tied}.gguf", leave_out=["output.weight"] if tied else [])
        tensors = {
            tensor.name: tensor.num_bytes for header in read_headers(path) for tensor in header.tensors
        }
        sizes[tied] = bytes_of_pass(path)
        assert ("output.weight" in tensors) != tied
        assert sum(tensors.values()) - sizes[tied] == (0 if tied else tensors["token_embd.weight"])
    assert sizes[True] == sizes[False] > 0


def test_the_copy_is_pure_and_as_large_as_foretold(files: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    requantize(files[1], copy, "q4_0")
    before, after = elements_by_type(files[1]), elements_by_type(copy)
    assert set(before) == {"F32"}
    assert after["Q4_0"] > 0.98 * sum(after.values()) == 0.98 * before["F32"]
    overhead = copy.stat().st_size - bytes_in_format(sum(after.values()), "q4_0")
    assert 0 < overhead < 20_000
