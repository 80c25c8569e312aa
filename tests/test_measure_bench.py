"""The bench: who answers what, when, how cold; when it ends; and what becomes of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pytest

from localspec import LLM
from localspec.answers.request import Completion
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedLength
from localspec.decoding.costs import CostTable
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import Stats
from localspec.engine.libraries import reference
from localspec.engine.measured_costs import Costs
from localspec.engine.trust import Comparison
from localspec.errors import DecodeCancelled, MemoryShort
from localspec.llama.library import LlamaCpp
from localspec.measure import bench as benching
from localspec.measure import lanes as laning
from localspec.measure.bench import WARM_UP, Bench, BenchOptions, Measured, Record
from localspec.measure.interleave import TOKENS
from localspec.measure.interval import Place, Segment
from localspec.measure.lanes import AnswerLane, other_engines
from localspec.measure.prompts import Prompt
from localspec.measure.report import fastest, report, scenario_figures, shares
from localspec.measure.timing import Tally, Timing, timed_answer

from .fake_library import FakeLibrary
from .tinygguf import write_llama, write_pair

COSTS = Costs(CostTable({1: 1.0, 4: 1.2, 8: 1.5, 32: 5.0}), CostTable({1: 0.1}))
GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = [
    Prompt("talk", ("one the other", "then the next", "and on"), system="Be brief."),
    Prompt("code", ("a b c a b c",)),
    Prompt("code", ("the thing in the tin",)),
]
DESIGN_KEYS = {
    "pair", "machine", "versions", "scenarios", "mean_speedup", "mean_speedup_interval", "min_speedup",
    "mean_oracle_share", "plain",
}  # fmt: skip
SCENARIO_KEYS = {
    "against", "plain_tps", "plain_tps_interval", "localspec_tps", "localspec_tps_interval", "speedup",
    "speedup_interval", "oracle_speedup", "oracle_share", "acceptance_rate", "mean_acceptance_length",
    "ttft_ms", "share", "plain", "runs", "ended_by",
}  # fmt: skip


class WatchedLane(AnswerLane):
    """Writes down what is asked of it."""

    log: ClassVar[list[tuple[Any, ...]]] = []

    def forget(self) -> None:
        self.log.append((self._draft_tokens, "forget"))
        super().forget()

    def ask(self, ids: Any, params: SamplingParams) -> None:
        self.log.append((self._draft_tokens, "ask", list(ids), params))
        super().ask(ids, params)

    def begin(self) -> None:
        super().begin()
        self.log.append((self._draft_tokens, "begin"))

    def go_on(self, until: int) -> Segment | None:
        found = super().go_on(until)
        self.log.append((self._draft_tokens, until, found and found.tokens))
        if self._completion is not None:
            self.log.append((self._draft_tokens, "end", self._completion))
        return found


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    pair = write_pair(tmp_path_factory.mktemp("tiny"))
    with LLM.from_files(*pair, n_ctx=512, cache_type_v="bf16", threads=1) as llm:
        yield llm


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    WatchedLane.log = []
    monkeypatch.setattr(benching, "AnswerLane", WatchedLane)
    return WatchedLane.log


def bench(
    llm: LLM, options: BenchOptions, prompts: list[Prompt] = PROMPTS, **further: Any
) -> dict[str, Measured]:
    return dict(Bench(llm, options, costs=COSTS, **further).run(prompts))


def whole(runs: int, params: SamplingParams = GREEDY, **further: Any) -> BenchOptions:
    """Options of a bench that makes all its runs."""
    return BenchOptions(params, runs=runs, precision=0.0, **further)


def of(log: list[tuple[Any, ...]], kind: str) -> list[tuple[Any, ...]]:
    return [entry for entry in log if entry[1] == kind]


# Who answers what, and when


def test_lanes_take_turns_within_an_answer(llm: LLM, log: list[tuple[Any, ...]]) -> None:
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    measured = bench(llm, whole(2, long, lengths=(3,)), PROMPTS[1:2])
    turns = [entry[0] for entry in log if isinstance(entry[1], int)][3:]  # after the warm-up
    assert turns[:9] == ["off", "auto", 3, "auto", 3, "off", 3, "off", "auto"]
    begun = [mode for mode, _ in of(log, "begin")][3:]
    assert begun == ["off", "auto", 3, "auto", 3, "off"], "every run begins with another"
    plain = measured["code"].plain["llama.cpp"].segments
    assert [(place.run, place.number, one.tokens) for place, one in sorted(plain.items())] == [
        (run, number, tokens) for run in (0, 1) for number, tokens in enumerate((TOKENS, TOKENS, 7))
    ]
    drafted = measured["code"].drafted[3].segments
    for run in (0, 1):
        assert sum(one.tokens for place, one in drafted.items() if place.run == run) == 39


def test_every_lane_writes_what_it_alone_would_write(llm: LLM, log: list[tuple[Any, ...]]) -> None:
    """Taking turns changes no token: each goes on from a state of its own."""
    bench(llm, whole(1, lengths=(2, 5)))
    answers = [(mode, completion.ids) for mode, _, completion in of(log, "end")][4:]
    messages = PROMPTS[0].messages([])
    for mode, ids in answers[:4]:
        llm.forget()
        alone = timed_answer(llm, messages, GREEDY, mode).completion
        assert ids == alone.ids


def test_every_lane_gets_the_same_ids_cold_at_first_and_warm_within_a_talk(
    llm: LLM, log: list[tuple[Any, ...]]
) -> None:
    bench(llm, whole(2, lengths=(2,)))
    asked = of(log, "ask")[3:]
    by_mode = {mode: [ids for m, _, ids, _ in asked if m == mode] for mode in ("off", "auto", 2)}
    assert by_mode["off"] == by_mode["auto"] == by_mode[2]
    asked_off = by_mode["off"]  # two runs of three turns, then two of two prompts
    assert asked_off[:3] == asked_off[3:6] and asked_off[6:8] == asked_off[8:], "every run asks the same"
    ends = [(mode, completion) for mode, _, completion in of(log, "end")][3:]
    talk = [completion for mode, completion in ends if mode == "off"][:3]
    expected = [llm.render(PROMPTS[0].messages([one.text for one in talk[:turn]])) for turn in range(3)]
    assert asked_off[:3] == expected, "plain decoding's answers are the history"
    for mode in ("off", "auto", 2):
        cached = [completion.stats.cached_tokens for m, completion in ends if m == mode]
        assert [count > 0 for count in cached] == 2 * [False, True, True] + 4 * [False]


def test_the_controller_in_use_decides(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[Any] = []
    make = benching.AnswerLane

    def watched(engine: Any, controller: Any, *rest: Any) -> AnswerLane:
        lanes.append((engine, controller))
        return make(engine, controller, *rest)

    monkeypatch.setattr(benching, "AnswerLane", watched)
    bench(llm, whole(1, lengths=(4,)), PROMPTS[1:2])
    controllers = [controller for _, controller in lanes]
    assert controllers[0] == FixedLength(0) and controllers[2] == FixedLength(4)
    assert isinstance(controllers[1], AdaptiveController) and controllers[1] is llm.controller("auto")
    targets = [engine.target for engine, _ in lanes]
    assert len({id(one) for one in [*targets, llm.engine.target]}) == 4
    assert all(one.weights is llm.engine.target.weights for one in targets), "loaded once"


def test_a_branch_computes_on_its_own_cells_and_frees_only_them(llm: LLM) -> None:
    engine = llm.engine
    with closing(engine.branch()) as branch:
        assert branch.draft is not None and engine.draft is not None
        assert branch.draft.weights is engine.draft.weights
        branch.session.forward([1, 2, 3])
        assert (branch.target.length(), engine.target.length()) == (3, 0)
        assert branch.options == engine.options and branch.session.min_width == engine.session.min_width
    alone = engine.branch(with_draft=False)
    assert alone.draft is None and alone.no_draft_reason == "asked for" and not engine.no_draft_reason
    alone.close()
    assert llm.generate([1, 2, 3], params=GREEDY).ids


def test_a_branch_that_does_not_fit_the_memory_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: 1000)
    with pytest.raises(MemoryShort, match="weights 0") as refused:
        bench(llm, whole(1))
    assert refused.value.data["free"] == 1000
    monkeypatch.undo()
    assert llm.generate([1, 2, 3], params=GREEDY).ids, "it can be used on"


def test_the_warm_up_is_short_and_not_counted(llm: LLM, log: list[tuple[Any, ...]]) -> None:
    measured = bench(llm, whole(3))
    assert list(measured) == ["talk", "code"]
    for tally in measured["talk"].plain["llama.cpp"].tallies:
        assert (tally.tokens, tally.committed, len(tally.ttfts)) == (3 * 11, 3 * 12, 3)
    assert [entry[3].max_tokens for entry in of(log, "ask")[:3]] == [WARM_UP, WARM_UP, GREEDY.max_tokens]


def test_a_seed_differs_by_run_and_not_by_lane(llm: LLM, log: list[tuple[Any, ...]]) -> None:
    bench(llm, whole(2, SamplingParams(seed=40, max_tokens=6)), PROMPTS[1:2])
    seeds = [(mode, params.seed) for mode, _, _, params in of(log, "ask")[2:]]
    assert seeds == [("off", 40), ("auto", 40), ("off", 41), ("auto", 41)]


def test_progress_grows_to_the_end(llm: LLM) -> None:
    seen: list[tuple[str, float]] = []
    bench(llm, whole(2), progress=lambda *news: seen.append(news))
    shares = [share for _, share in seen]
    assert shares == sorted(shares) and shares[0] >= 0 and 0.5 < shares[-1] <= 1
    labels = list(dict.fromkeys(label for label, _ in seen))
    assert labels == [
        "warm-up",
        "talk: run 1 of at most 2",
        "talk: run 2 of at most 2",
        "code: run 1 of at most 2",
        "code: run 2 of at most 2",
    ]


def test_a_cancel_ends_the_bench_and_leaves_the_engine_whole(llm: LLM) -> None:
    def stop(label: str, share: float) -> None:
        if label.startswith("talk"):
            llm.cancel()

    with pytest.raises(DecodeCancelled):
        bench(llm, whole(2), progress=stop)
    assert llm.generate([1, 2, 3], params=GREEDY).finish_reason != "cancelled"


# When it ends


class Ticking:
    """A clock that only rounds move: a lane's passes take what it says, in every context."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.now, self.count, self.seconds = 0.0, 0, seconds

    def __call__(self) -> float:
        return self.now

    def passes(self, chunks: Iterator[Any]) -> Iterator[Any]:
        for chunk in chunks:
            self.now += self.seconds(self.count)
            self.count += 1
            yield chunk


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> Ticking:
    clock = Ticking(seconds)
    real = laning.answer_chunks
    monkeypatch.setattr(laning, "answer_chunks", lambda *given: clock.passes(real(*given)))
    return clock


LONG = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)


def ended(llm: LLM, clock: Ticking, **options: Any) -> tuple[int, str]:
    """Runs made, and what ended them."""
    measured = bench(llm, BenchOptions(LONG, **options), PROMPTS[1:2], clock=clock)["code"]
    return len(measured.drafted["auto"].tallies), measured.ended_by


def test_precision_ends_it_as_soon_as_it_is_reached(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = ticking(monkeypatch, lambda count: 1.0)
    assert ended(llm, steady, runs=9, precision=0.02, max_seconds=1e9) == (1, "precision")
    noisy = ticking(monkeypatch, lambda count: 1.0 + (count * 7919 % 13) / 3)
    runs, by = ended(llm, noisy, runs=30, precision=0.05, max_seconds=1e9)
    assert by == "precision" and 1 < runs < 30
    assert ended(llm, noisy, runs=30, precision=0.5, max_seconds=1e9) == (1, "precision")


def test_runs_end_it_where_it_is_not_precise(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = ticking(monkeypatch, lambda count: 1.0 + (count * 7919 % 13) / 3)
    assert ended(llm, noisy, runs=2, precision=0.001, max_seconds=1e9) == (2, "runs")


def test_time_ends_it_before_a_run_that_would_not_fit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = ticking(monkeypatch, lambda count: 1.0 + (count * 7919 % 13) / 3)
    bench(llm, BenchOptions(LONG, runs=1), PROMPTS[1:2], clock=noisy)
    run = noisy.now  # about; the warm-up is in it
    runs, by = ended(llm, noisy, runs=30, precision=0.001, max_seconds=3.5 * run)
    assert by == "time" and 2 <= runs <= 4
    assert ended(llm, noisy, runs=30, precision=0.001, max_seconds=0.0) == (1, "time"), "one in any case"


def test_a_lane_that_is_slower_by_a_known_share_is_found_slower_by_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the real loop to the figure: passes of the fixed lane take 3 % more, on a machine that slows down."""
    clock = ticking(monkeypatch, lambda count: 1.0 + count / 2000)
    make = benching.AnswerLane

    class Slow(make):  # type: ignore[misc, valid-type]
        def _next(self) -> None:
            before = clock.now
            super()._next()
            if self._draft_tokens == "auto":
                clock.now += 0.03 * (clock.now - before)

    monkeypatch.setattr(benching, "AnswerLane", Slow)
    monkeypatch.setattr(LLM, "controller", lambda _llm, _mode: FixedLength(0))
    options = BenchOptions(LONG, runs=4, precision=0.0, max_seconds=1e9)
    figures = scenario_figures(bench(llm, options, PROMPTS[1:2], clock=clock)["code"])
    low, high = figures["speedup_interval"]
    assert low <= 1 / 1.03 <= high < 1.0
    assert high - low < 0.04


# Other libraries


def test_plain_decoding_of_every_library_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[tuple[Any, ...]]
) -> None:
    first, second = FakeLibrary(build="one", name="one"), FakeLibrary(build="two", name="two")
    monkeypatch.setattr("localspec.engine.libraries.libraries", lambda: (first, second))
    pair = write_pair(tmp_path)
    with LLM.from_files(*pair, n_ctx=512, threads=1) as llm:
        told: list[str] = []
        measured = bench(llm, whole(2), PROMPTS[1:], libraries=(first, second), notify=told.append)["code"]
        assert len(first.opened) == 2 and not told, "its own weights are there already"
        (weights,) = second.opened
        assert weights.closed and weights.path == pair[0], "the target alone"
    assert first.all_closed and second.all_closed
    assert list(measured.plain) == ["one", "two"] and measured.own_plain == "one"
    assert len(of(log, "begin")) == 3 + 2 * 2 * 3
    figures = scenario_figures(measured)
    assert figures["against"] == fastest(measured)
    assert set(figures["plain"]) == {"one", "two"}
    chosen = figures["plain"][figures["against"]]
    assert figures["plain_tps"] == chosen["tps"] == max(one["tps"] for one in figures["plain"].values())
    assert (
        figures["speedup"] == chosen["speedup"] and figures["speedup_interval"] == chosen["speedup_interval"]
    )


def test_a_library_that_cannot_is_left_out_and_one_that_fails_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = FakeLibrary(build="one", name="one")
    cannot = FakeLibrary(build="two", name="two", refuses=lambda metadata: "It is not installed.")
    full = FakeLibrary(build="three", name="three")
    monkeypatch.setattr("localspec.engine.libraries.libraries", lambda: (used, cannot, full))
    told: list[str] = []
    with LLM.from_files(*write_pair(tmp_path), n_ctx=512, threads=1) as llm:
        engine = llm.engine
        monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: 1000)
        with other_engines(engine, (used, cannot, full), told.append) as others:
            assert others == []
    (sentence,) = told
    assert sentence.startswith("Plain decoding by three is not measured: ") and "are free" in sentence
    assert not cannot.opened


# Figures


def test_a_report_has_exactly_the_keys_of_the_design(llm: LLM) -> None:
    measured = bench(llm, whole(2))
    result = report("tiny", llm, measured)
    assert set(result) == DESIGN_KEYS
    assert set(result["plain"]) == {"llama.cpp"}
    assert result["plain"]["llama.cpp"]["mean_speedup"] == result["mean_speedup"]
    low, high = result["mean_speedup_interval"]
    assert low <= result["mean_speedup"] <= high
    for figures in result["scenarios"].values():
        assert set(figures) == SCENARIO_KEYS
        assert set(figures["plain"]["llama.cpp"]) == {
            "tps", "tps_interval", "speedup", "speedup_interval", "ttft_ms", "ttft_ratio", "ttft_ratio_interval",
        }  # fmt: skip
        for name in ("plain_tps", "localspec_tps", "speedup"):
            low, high = figures[f"{name}_interval"]
            assert 0 < low <= figures[name] <= high
        assert set(figures["share"]) == {"target", "draft", "other"}
        assert sum(figures["share"].values()) == pytest.approx(1.0, abs=1e-3)
        assert min(figures["share"].values()) >= 0
        assert figures["oracle_speedup"] > 1  # this draft is nearly the target, at a tenth of its cost
        assert figures["oracle_share"] == pytest.approx(
            figures["speedup"] / figures["oracle_speedup"], abs=2e-3
        )
        assert (len(figures["runs"]), figures["ended_by"]) == (2, "runs")
    assert result["machine"]["threads"] == 1
    assert (result["machine"]["library"], result["machine"]["build"]) == ("llama.cpp", LlamaCpp().build)
    every = {"localspec", "python", "llama-cpp-python", "ik-llama-cpp-python", "numpy"}
    assert every - {"ik-llama-cpp-python"} <= set(result["versions"]) <= every


def test_a_target_that_cannot_be_drafted_for_has_no_oracle(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf", seed=1)
    with LLM.from_files(target, no_draft=True, n_ctx=256, threads=1) as llm:
        (measured,) = bench(llm, whole(1), PROMPTS[1:2]).values()
        assert measured.oracle_speedup == 1.0
        assert scenario_figures(measured)["acceptance_rate"] is None


def made(*seconds: float, tokens: int = 10, **rest: Any) -> Record:
    """Runs of one text of one segment."""
    return Record(
        {Place(0, run, 0): Segment(tokens, one) for run, one in enumerate(seconds)},
        {Place(0, run, 0): Segment(1, one) for run, one in enumerate(seconds)},
        [tally(one, tokens, **rest) for one in seconds],
    )


def tally(seconds: float, tokens: int = 100, **rest: Any) -> Tally:
    return Tally(tokens=tokens, seconds=seconds, committed=tokens, rounds=tokens, ttfts=[seconds], **rest)


def test_figures_are_of_all_runs_together_and_against_the_fastest_plain() -> None:
    plain = {"own": made(4.0, 4.4, 3.6), "other": made(2.0, 2.2, 1.8)}
    drafted = {"auto": made(1.0, 1.1, 0.9), 3: made(8.0, 8.0, 8.0)}
    figures = scenario_figures(Measured(5.0, plain, drafted, "time"))
    assert figures["against"] == "other"
    assert (figures["plain_tps"], figures["localspec_tps"], figures["speedup"]) == (5.0, 10.0, 2.0)
    assert figures["speedup_interval"] == [2.0, 2.0], "what slowed both slowed neither"
    assert figures["plain"]["own"]["speedup"] == 4.0
    assert (figures["oracle_speedup"], figures["oracle_share"]) == (5.0, 0.8)
    assert figures["ttft_ms"] == 1000 * median([1.0, 1.1, 0.9])
    assert figures["plain"]["own"]["ttft_ms"] == 4000.0
    assert figures["plain"]["own"]["ttft_ratio"] == 0.25
    assert figures["runs"][1] == {"plain_tps": 4.55, "localspec_tps": 9.09, "tokens": 10}
    assert figures["fixed"]["3"]["speedup"] == 0.25
    assert figures["ended_by"] == "time"


def test_one_segment_has_no_interval() -> None:
    figures = scenario_figures(Measured(1.0, {"own": made(1.0)}, {"auto": made(1.0)}, "runs"))
    assert figures["speedup"] == 1.0 and figures["speedup_interval"] is None


def test_acceptance_is_over_all_runs() -> None:
    ours = made(1.0, 1.0)
    ours.tallies[0].drafted, ours.tallies[0].accepted = 10, 9
    ours.tallies[1].drafted, ours.tallies[1].accepted = 30, 3
    figures = scenario_figures(Measured(1.0, {"own": made(1.0, 1.0)}, {"auto": ours}, "runs"))
    assert figures["acceptance_rate"] == pytest.approx(12 / 40)
    assert figures["mean_acceptance_length"] == 1.0


def test_shares_leave_the_rest_to_other() -> None:
    spent = tally(10.0, target_seconds=7.0, draft_seconds=2.5)
    assert shares(spent) == {"target": 0.7, "draft": 0.25, "other": 0.05}
    assert shares(Tally()) == {"target": 0.0, "draft": 0.0, "other": 0.0}


def test_answers_of_one_token_have_no_speed(llm: LLM) -> None:
    measured = bench(llm, whole(1, SamplingParams(temperature=0, max_tokens=1)), PROMPTS[1:2])
    figures = report("tiny", llm, measured)["scenarios"]["code"]
    assert (figures["plain_tps"], figures["speedup"], figures["speedup_interval"]) == (0.0, 0.0, None)


def test_a_tally_counts_what_comes_after_the_first_round() -> None:
    stats = Stats(tokens=20, first_tokens=1, rounds=8, drafted=15, accepted=12, prefill_seconds=9.0)
    completion = Completion("", (), "stop", stats, None, "on")
    total = Tally()
    total.add(Timing(completion, ttft=0.5, seconds=2.0, target_seconds=1.5, draft_seconds=0.25))
    assert (total.tokens, total.seconds, total.tps) == (19, 2.0, 9.5)
    doubled = total + total
    assert (doubled.tokens, doubled.drafted, doubled.ttfts) == (38, 30, [0.5, 0.5])
    assert total.ttfts == [0.5]


def test_a_lane_counts_the_end_of_generation_and_times_its_own_turns_alone(llm: LLM) -> None:
    times = iter([10.0, 13.0, 20.0, 21.5, 100.0, 104.0])
    with closing(llm.engine.branch()) as branch:
        lane = AnswerLane(branch, FixedLength(0), "off", lambda: next(times))
        lane.ask([1, 2, 3], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        lane.begin()
        assert lane.go_on(4) == Segment(4, 1.5)
        assert not lane.ended
        assert lane.go_on(100) == Segment(7, 4.0)
        assert lane.ended
        timing = lane.timing()
    assert (timing.ttft, timing.seconds, timing.draft_seconds) == (3.0, 5.5, 0.0)
    assert timing.completion.stats.tokens == 12 and timing.target_seconds > 0
    eog = min(llm.engine.vocab.eog_tokens)
    with closing(llm.engine.branch()) as branch:
        lane = AnswerLane(branch, FixedLength(0), "off")
        lane.ask([1, 2, 3], SamplingParams(temperature=0, min_tokens=5, logit_bias={eog: 1e4}))
        lane.begin()
        segment = lane.go_on(100)
    assert segment is not None and segment.tokens == 5, (
        "five tokens behind the first; the last of them ends it"
    )
    assert len(lane.timing().completion.ids) == 5


def test_the_clock_is_read_at_the_request_the_first_chunk_and_the_end(llm: LLM) -> None:
    ticks = iter([10.0, 13.0, 20.0])
    messages = [{"role": "user", "content": "abc"}]
    before = llm.engine.target.decode_seconds
    timing = timed_answer(llm, messages, GREEDY, "off", lambda: next(ticks))
    assert (timing.ttft, timing.seconds, timing.draft_seconds) == (3.0, 7.0, 0.0)
    assert 0 < timing.target_seconds < llm.engine.target.decode_seconds - before
    assert timing.completion.stats.tokens == 12
    llm.forget()


def test_a_library_that_is_not_trusted_with_the_file_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, broken, doubted, absent = (
        FakeLibrary(name=name) for name in ("good", "broken", "doubted", "absent")
    )
    monkeypatch.setattr(laning, "libraries", lambda: (reference(), good, broken, doubted, absent))
    monkeypatch.setattr(laning, "installed", lambda library: library is not absent)
    monkeypatch.setattr(
        laning, "why_not_together", lambda library, _home: "It ends." if library is broken else ""
    )
    verdicts = {"doubted": Comparison(divergence=0.5, rows=24), "good": Comparison(rows=24)}
    monkeypatch.setattr(
        laning, "known_verdict", lambda _target, _options, library, _home: verdicts[library.name]
    )
    told: list[str] = []
    target, _draft = write_pair(tmp_path)
    with LLM.load(target, no_draft=True, library="llama", home=tmp_path) as llm:
        found = laning.trusted_libraries(llm.engine, told.append)
    assert [library.name for library in found] == ["llama.cpp", "good"]
    assert told[0] == "Plain decoding by broken is not measured: It ends."
    assert told[1].startswith("Plain decoding by doubted is not measured: mean KL divergence 0.5,")
