"""Loading in the background: progress, cancel at every stage, memory asked for before anything is read."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from localspec import LLM, LoadCancelled, memory_needed
from localspec.engine.memory import Load, MemoryEstimate, memory_estimate
from localspec.engine.options import EngineOptions
from localspec.errors import (
    EngineBusy,
    InvalidRequest,
    LocalspecError,
    ModelFileError,
    ModelLoadError,
    UnknownPair,
)
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes
from localspec.llama import context, weights
from localspec.system.load_watch import LoadWatch, watching
from localspec.system.progress import Progress, Reporter, Stage

from .tinygguf import write_llama, write_mamba

GREEDY = {"temperature": 0, "max_tokens": 8}
STAGES = (
    "read", "load target", "load draft", "measure target", "measure draft", "prepare draft", "ready",
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("background")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
    }


@pytest.fixture
def prepares(monkeypatch):
    """Every load that measures makes and tries a copy of the draft."""
    monkeypatch.setattr("localspec.decoding.calibrate.UNSTEADY", 1e9)
    monkeypatch.setattr("localspec.engine.draft_copy.MIN_BYTES", 0)
    monkeypatch.setattr("localspec.engine.draft_copy._can_pay", lambda *_arguments: True)
    monkeypatch.setattr("localspec.engine.draft_copy.require_room", lambda *_arguments: None)


@pytest.fixture
def opened(monkeypatch):
    """Every model and context that was made."""
    made = []
    for owner in (weights.Weights, context.Context):
        monkeypatch.setattr(owner, "__init__", _recording(owner.__init__, made))
    return made


def _recording(original, made):
    def init(self, *arguments, **options):
        made.append(self)
        original(self, *arguments, **options)

    return init


def test_progress_goes_up_through_every_stage(files, tmp_path, prepares):
    seen = []
    loading = LLM.load_in_background(
        files["target"], files["draft"], on_progress=seen.append, home=tmp_path, n_ctx=512, calibrate=True
    )
    with loading.result(120) as llm:
        assert loading.done and loading.progress == seen[-1]
        assert llm.generate("abc", **GREEDY).ids
    shares = [progress.fraction for progress in seen]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    found = [next((stage for stage in STAGES if _is(progress, stage)), "") for progress in seen]
    assert sorted(set(found) - {""}, key=found.index) == list(STAGES)
    assert len({share for share, stage in zip(shares, found, strict=True) if stage == "load target"}) > 3


def _is(progress, stage):
    """A stage of some file, which goes on in the words that `notify` gets."""
    name, _, file = stage.partition(" ")
    return progress.stage == name and file in progress.sentence


@pytest.mark.parametrize("loader", ["load", "from_files", "load_in_background"])
def test_every_loader_reports(files, tmp_path, prepares, loader):
    """The same stages whether somebody waits for the load or not, and the sentences that `notify` gets."""
    seen, told = [], []
    loaded = getattr(LLM, loader)(
        files["target"],
        files["draft"],
        on_progress=seen.append,
        notify=told.append,
        home=tmp_path,
        n_ctx=512,
        calibrate=True,
    )
    with loaded.result(120) if loader == "load_in_background" else loaded:
        pass
    shares = [progress.fraction for progress in seen]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0.0, 1.0)
    assert seen[-1] == Progress(Stage.READY, 1.0, "ready")
    assert [stage for stage in STAGES if any(_is(progress, stage) for progress in seen)] == list(STAGES)
    assert told and set(told) <= {progress.sentence for progress in seen}


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_loaders_listener_raises_ends_the_load(files, tmp_path, prepares, opened, stage):
    def on_progress(progress):
        if _is(progress, stage):
            raise ZeroDivisionError(stage)

    with pytest.raises(ZeroDivisionError, match=stage):
        LLM.load(
            files["target"], files["draft"], on_progress=on_progress, home=tmp_path, n_ctx=512, calibrate=True
        )
    assert all(thing._handle is None for thing in opened)


def test_a_load_with_a_listener_of_its_own_still_is_that_of_who_follows_it(files, opened):
    """A server follows what it loads, whoever listens inside: it hears of it, and its stop ends it."""
    outside, inside = [], []
    with watching(LoadWatch(outside.append)):
        LLM.load(files["target"], on_progress=inside.append, draft_tokens=3, n_ctx=512).close()
    assert outside == inside and inside[-1].stage == Stage.READY
    watch = LoadWatch()

    def on_progress(progress):
        if progress.stage == Stage.LOAD:
            watch.cancel()

    with watching(watch), pytest.raises(LoadCancelled):
        LLM.load(files["target"], on_progress=on_progress, draft_tokens=3, n_ctx=512)
    assert all(thing._handle is None for thing in opened)


def test_a_listener_may_be_left_out_or_must_be_a_function(files):
    LLM.load(files["target"], on_progress=None, draft_tokens=3).close()
    for loader in (LLM.load, LLM.from_files, LLM.load_in_background):
        with pytest.raises(InvalidRequest, match="on_progress is 'loud'"):
            loader(files["target"], on_progress="loud")


@pytest.mark.parametrize("stage", STAGES)
def test_cancel_at_every_stage_frees_everything(files, tmp_path, prepares, opened, stage):
    begun = threading.Event()

    def on_progress(progress):
        begun.wait(30)
        if _is(progress, stage):
            assert loading.cancel()

    loading = LLM.load_in_background(
        files["target"], files["draft"], on_progress=on_progress, home=tmp_path, n_ctx=512, calibrate=True
    )
    begun.set()
    with pytest.raises(LoadCancelled, match="cancelled"):
        loading.result(120)
    assert loading.done and not loading.cancel()
    assert all(thing._handle is None for thing in opened)
    assert bool(opened) == (stage != "read")
    assert not list(tmp_path.rglob("*.part"))
    with LLM.load(files["target"], files["draft"], home=tmp_path, n_ctx=512) as llm:
        assert llm.generate("abc", **GREEDY).ids


def test_a_failed_load_raises_its_own_error_and_frees_the_first_model(files, tmp_path, opened):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(files["draft"].read_bytes()[:-4000])
    with pytest.raises((ModelLoadError, ModelFileError), match="damaged"):
        LLM.load_in_background(files["target"], damaged, draft_tokens=3).result(60)
    assert all(thing._handle is None for thing in opened)
    with pytest.raises(InvalidRequest, match="colour"):
        LLM.load_in_background(files["target"], colour=3).result(60)
    with pytest.raises(UnknownPair, match="no-such-pair"):
        LLM.load_in_background("no-such-pair").result(60)


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_what_fails_when_both_models_are_there_frees_both(files, opened, monkeypatch, error):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr("localspec.engine.engine.model_drafter", fail)
    with pytest.raises(type(error)) as caught:
        LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=3)
    assert len(opened) == 4 and all(one._handle is None for one in opened)
    assert caught.value is error


@pytest.mark.parametrize("stage", ["read", "load target"])
def test_what_a_listener_raises_ends_the_load(files, opened, stage):
    def on_progress(progress):
        if _is(progress, stage):
            raise RuntimeError("the window is gone")

    loading = LLM.load_in_background(files["target"], on_progress=on_progress, draft_tokens=3)
    with pytest.raises(RuntimeError, match="window"):
        loading.result(60)
    assert all(thing._handle is None for thing in opened)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_listener_that_asks_for_the_result_is_told_so(files, opened, share):
    """It would wait for itself; a share of 1 looks as if there was a result."""

    def on_progress(progress):
        begun.wait(30)
        if progress.fraction == share:
            loading.result()

    begun = threading.Event()
    loading = LLM.load_in_background(files["target"], on_progress=on_progress, draft_tokens=3)
    begun.set()
    with pytest.raises(EngineBusy, match="thread that loads"):
        loading.result(60)
    assert all(thing._handle is None for thing in opened)
    results = []
    loading = LLM.load_in_background(files["target"], draft_tokens=3)
    loading.when_done(lambda: results.append(loading.result()))
    with loading.result(60) as llm:
        assert llm.generate("abc", **GREEDY).ids
    loading.when_done(lambda: None)  # which comes after those that were told before
    assert results == [llm]


@pytest.mark.parametrize("name", ["x" * 5000, "/" + "x" * 5000 + ".gguf"])
def test_a_path_that_cannot_be_looked_at_is_an_error(name):
    for use in (LLM.load, memory_needed):
        with pytest.raises(LocalspecError):
            use(name)


def test_a_result_that_takes_too_long_can_be_asked_for_again(files):
    go_on = threading.Event()
    loading = LLM.load_in_background(
        files["target"], on_progress=lambda progress: go_on.wait(60), draft_tokens=3
    )
    with pytest.raises(TimeoutError, match=r"starting|reading"):
        loading.result(0.01)
    assert not loading.done
    told = []
    loading.when_done(lambda: told.append(loading.done))
    go_on.set()
    loading.result(60).close()
    loading.when_done(lambda: told.append("at once"))
    assert told == [True, "at once"]
    assert not loading.cancel() and loading.result(0) is loading.result()


def test_two_loads_at_once_do_not_stop_each_other(files):
    stopped = LLM.load_in_background(files["target"], files["draft"], draft_tokens=3)
    stopped.cancel()
    kept = LLM.load_in_background(files["target"], files["draft"], draft_tokens=3)
    with pytest.raises(LoadCancelled):
        stopped.result(60)
    with kept.result(60) as llm:
        assert llm.generate("abc", **GREEDY).ids


def test_a_watch_goes_forward_only_and_ends_what_it_is_told_of_too_late(monkeypatch):
    monkeypatch.setattr("localspec.system.progress.INTERVAL", 0.0)  # every report, not some ten in a second
    told: list[Progress] = []
    watch, before, behind = LoadWatch(told.append), threading.Event(), threading.Event()
    watch.adopt(before)
    watch.stage(Stage.READ, "first", 0.0, 0.4)
    for share in (0.5, 0.25, 7.0, -1.0):
        assert watch.advance(share)
    watch.stage(Stage.LOAD, "second", 0.1, 0.8)  # begins before the first one ended
    watch.advance(0.5)
    watch.say("third")
    assert [one.stage for one in told] == [Stage.READ] * 5 + [Stage.LOAD] * 3
    shares = [one.fraction for one in told]
    assert shares == pytest.approx([0, 0.2, 0.2, 0.4, 0.4, 0.4, 0.45, 0.45])
    assert not before.is_set()
    watch.cancel()
    watch.adopt(behind)
    assert before.is_set() and behind.is_set() and not watch.advance(1.0)
    count = len(told)
    with pytest.raises(LoadCancelled):
        watch.stage(Stage.READY, "fourth", 0.8, 1.0)
    assert len(told) == count


# Memory


def test_the_estimate_adds_both_models_up(files):
    alone = memory_needed(files["target"], n_ctx=256)
    both = memory_needed(files["target"], files["draft"], n_ctx=256)
    assert both.weights == sum(path.stat().st_size for path in files.values())
    assert both.kv_cache == 2 * alone.kv_cache == 2 * 256 * 2 * 2 * 32 * 2  # layers, K and V, width, bytes
    assert alone.compute > 0 and both.compute > alone.compute
    assert both.total == both.weights + both.kv_cache + both.compute and both.fits
    assert memory_needed(files["target"], n_ctx=512).kv_cache == 2 * alone.kv_cache
    longer, trained = (memory_needed(files["target"], n_ctx=n_ctx) for n_ctx in (10**6, 512))
    assert replace(longer, available=0) == replace(trained, available=0)  # what is free changes meanwhile
    assert memory_needed(files["target"], n_ctx=256, cache_type_v="f32").kv_cache == 1.5 * alone.kv_cache


@pytest.mark.parametrize(
    ("gpu_layers", "share"), [(0, 1), (1, 2 / 3), (2, 1 / 3), (3, 0), (99, 0), (2**31 - 1, 0)]
)
def test_layers_elsewhere_take_no_main_memory(files, gpu_layers, share):
    """Two layers, and the output as one more."""
    facts = read_metadata(files["target"])
    load = Load(facts, EngineOptions().context(256, 1), gpu_layers)
    assert load.share == pytest.approx(share)
    estimate = memory_estimate([load])
    assert estimate.weights == pytest.approx(share * facts.size_bytes, abs=1)
    assert (estimate.kv_cache > 0) is (estimate.compute > 0) is (share > 0)


def test_a_recurrent_model_needs_its_state_and_no_cache(tmp_path):
    mamba = write_mamba(tmp_path / "mamba.gguf")
    state = state_bytes(read_metadata(mamba))
    assert memory_needed(mamba).kv_cache == memory_needed(mamba, n_ctx=64).kv_cache == state > 0


@pytest.mark.parametrize(("free", "fits"), [(1000, True), (999, False)])
def test_what_fits(free, fits):
    assert MemoryEstimate(weights=500, kv_cache=400, compute=100, available=free).fits is fits


def test_a_pair_of_which_only_the_target_fits_is_refused_before_any_is_loaded(files, monkeypatch, opened):
    needed = memory_needed(files["target"], n_ctx=512).total
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: needed + 1000)
    with pytest.raises(LocalspecError, match=r"target\.gguf and draft\.gguf .* MB are free") as caught:
        LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=3)
    assert opened == []
    error = caught.value
    assert type(error).__name__ == "MemoryShort" and error.needed > error.free == needed + 1000
    LLM.from_files(files["target"], n_ctx=512, draft_tokens=3).close()
    LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=3, check_memory=False).close()


def test_a_bad_context_size_is_refused(files):
    with pytest.raises(InvalidRequest, match="n_ctx"):
        memory_needed(files["target"], n_ctx=0)


# One kind of report


def test_a_load_and_a_pull_report_some_ten_times_a_second(monkeypatch):
    """The first and the last of a stage are never left out, and nothing that anybody may want to tell apart."""
    now = [0.0]
    monkeypatch.setattr("localspec.system.progress.INTERVAL", 0.1)
    monkeypatch.setattr("localspec.system.progress.time.monotonic", lambda: now[0])
    loaded, pulled = [], []
    watch, report = LoadWatch(loaded.append), Reporter("a.gguf", 1000, pulled.append)
    for step in range(1001):
        now[0] = step / 1000
        if step in (0, 500):
            watch.stage(Stage.LOAD, f"loading {step}", 0.5 * (step // 500), 0.5 + 0.5 * (step // 500))
        watch.advance((step % 500) / 500)
        report(step)
    watch.stage(Stage.READY, "ready", 1.0, 1.0)
    report.ready()
    for heard in (loaded, pulled):
        assert all(type(event) is Progress for event in heard) and 10 <= len(heard) <= 15
        assert (heard[0].fraction, heard[-1].fraction, heard[-1].stage) == (0.0, 1.0, "ready")
        assert [event.fraction for event in heard] == sorted(event.fraction for event in heard)
    assert [event.done for event in pulled][-2:] == [1000, 1000] and pulled[3].total == 1000
    assert {"loading 0", "loading 500"} <= {event.sentence for event in loaded}
    assert all(isinstance(stage, str) and stage == stage.value for stage in Stage)
