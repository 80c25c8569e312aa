"""What a way back costs is charged to drafting, bounds the draft, and takes memory that the estimate knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import LLM
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import MODEL, FixedLength
from localspec.decoding.costs import CostTable
from localspec.decoding.params import SamplingParams
from localspec.decoding.rollback import CUT, Rollback, WayBack
from localspec.decoding.session import Session, Span
from localspec.decoding.stats import Step
from localspec.engine.drafting_status import describe_drafting, standing_hint
from localspec.engine.memory import MOST_SNAPSHOTS, Load, kv_cache_bytes, with_snapshots
from localspec.engine.options import EngineOptions
from localspec.errors import ModelLoadError
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes
from scripts.rollback_cost import write_hybrid

from . import tinyhybrid
from .fakes import FakeContext, generate, model_drafter, random_model
from .tinyhybrid import write_running, write_running_pair

FLAT = {1: 1.0, 2: 1.02, 4: 1.06, 8: 1.14, 32: 1.6}
REPLAY, SNAPSHOTS = Rollback("replay"), Rollback("snapshots", 4)


def controller(
    back: WayBack | None = None, draft_back: WayBack | None = None, draft: float = 0.1
) -> AdaptiveController:
    return AdaptiveController(
        CostTable(FLAT), CostTable({1: draft}), 16, back=back or WayBack(), draft_back=draft_back or WayBack()
    )


# What is charged


def test_copies_and_reading_again_are_charged_and_a_cut_costs_nothing() -> None:
    free = controller().seconds_per_token(0, 0.8)
    assert controller(WayBack(CUT)).seconds_per_token(0, 0.8) == free
    assert controller(WayBack(SNAPSHOTS)).seconds_per_token(0, 0.8) == pytest.approx(free)
    cheap = controller(WayBack(REPLAY)).seconds_per_token(0, 0.8)
    assert free < cheap < controller(WayBack(REPLAY, 0.3)).seconds_per_token(0, 0.8) < 1.0
    assert controller(WayBack(REPLAY, 50.0)).seconds_per_token(0, 0.8) == 1.0, "plain decoding is better"


def test_a_draft_with_a_running_state_reads_again_too() -> None:
    both = controller(WayBack(REPLAY), WayBack(REPLAY))
    assert both.seconds_per_token(0, 0.8) >= controller(WayBack(REPLAY)).seconds_per_token(0, 0.8)


def test_where_copies_are_too_dear_nothing_is_drafted_and_the_line_says_so() -> None:
    dear = controller(WayBack(REPLAY, 40.0))
    assert not dear.can_pay(0) and controller().can_pay(0) and dear.pays_but_for_the_way_back(0)
    assert not controller().pays_but_for_the_way_back(0)
    for _ in range(8):
        dear.target.observe(1, 0, 1.0)
    assert not dear.plan(8, 100).pays_for_pass(MODEL, 1)
    engine: Any = SimpleNamespace(
        no_draft_reason="",
        draft=object(),
        drafts_itself=False,
        target=SimpleNamespace(weights=SimpleNamespace(gpu_layers=1)),
    )
    assert "cost more than they save" in describe_drafting(engine, dear, "auto")
    assert "but for the way back" in standing_hint(engine, dear) and "40000 ms" in standing_hint(engine, dear)


def test_what_copies_take_is_learned_of_rounds_that_drafted() -> None:
    control = controller(WayBack(REPLAY))
    step = Step(3, 50, (1, 2), 0, 2, 1, False, None, 0.2, 1.1, 1.8, rollback_seconds=0.5)
    plan = control.plan(8, 50)
    assert plan.pays_for_pass(MODEL, 1) and plan.take(MODEL, 0.9)
    control.observe(step)
    assert control.back.seconds == pytest.approx(0.5)
    control.plan(8, 50)
    control.observe(replace(step, num_drafted=0, num_accepted=0, rollback_seconds=9.0))
    assert control.back.seconds == pytest.approx(0.5), "a plain round makes no copies for a draft"
    assert control.target.time(3, 50) < 1.3, "a pass is not to blame for the copies"


def test_tokens_read_again_are_no_part_of_what_a_draft_costs() -> None:
    """A pass that reads four tokens in any case is as good a place for a draft as one that reads one."""
    steep = CostTable({1: 1.0, 2: 1.5, 4: 2.5, 8: 4.5, 32: 16.5})
    control = AdaptiveController(steep, CostTable({1: 0.01}), 16, back=WayBack(REPLAY))
    assert control.plan(8, 100, 4).limit == 8 and control.plan(31, 100, 4).limit == 12
    values = [control.plan(4, 100, count)._value(iter([0.9] * 4), 0.01) for count in (1, 4)]
    assert values[1] <= values[0] + 1e-9


# What it bounds


class Remembering(FakeContext):
    """Takes back at most so many tokens of the last pass, as snapshots do."""

    rollback = SNAPSHOTS
    rollback_seconds = 0.0
    last = 0

    def decode(self, spans: Any) -> Any:
        rows = super().decode(spans)
        self.last = len(spans[0].tokens)
        return rows

    def truncate(self, sequence_id: int, length: int) -> int:
        back = self.length(sequence_id) - length
        assert length == 0 or back <= min(self.rollback.depth, self.last - 1), "deeper than snapshots reach"
        return super().truncate(sequence_id, length)


def test_snapshots_bound_the_draft() -> None:
    model = random_model(5, 1)
    drafter = model_drafter(random_model(5, 2), 5)
    session = Session(Remembering(model, 5))
    params = SamplingParams(temperature=0.0, max_tokens=60)
    ids, steps = generate(
        model, drafter, n_vocab=5, params=params, controller=FixedLength(20), session=session
    )
    plain, _ = generate(model, drafter, n_vocab=5, params=params, controller=FixedLength(0))
    assert ids == plain
    assert max(step.num_drafted for step in steps) == SNAPSHOTS.depth


class Replaying(FakeContext):
    """Goes back to where it was last saved: before the first pass whose tokens were not all sure."""

    rollback = REPLAY
    rollback_seconds = 0.0
    saved = 0

    def decode(self, spans: Any) -> Any:
        (span,) = spans
        if span.sure is not None and span.start <= span.sure < span.start + len(span.tokens):
            self.saved = span.start
        return super().decode(spans)

    def truncate(self, sequence_id: int, length: int) -> int:
        held = self.length(sequence_id)
        return super().truncate(sequence_id, length if length >= held else min(self.saved, length))


@pytest.mark.parametrize("length", range(9))
def test_what_was_read_before_is_read_again_with_the_next_pass(length: int) -> None:
    model = random_model(5, 1)
    context = Replaying(model, 5)
    drafter = model_drafter(random_model(5, 2), 5)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    ids, steps = generate(
        model, drafter, n_vocab=5, params=params, num_draft_tokens=length, session=Session(context)
    )
    assert ids == generate(model, drafter, n_vocab=5, params=params, num_draft_tokens=0)[0]
    assert not any(step.num_prefilled for step in steps[1:]), "a decode round is none of reading the prompt"
    assert all(step.num_read_again <= 8 + length + 1 for step in steps)
    assert any(step.num_read_again for step in steps) == (length > 0)
    assert sum(context.passes) == sum(step.width for step in steps)
    assert all(not span_is_padded(step) for step in steps)


def span_is_padded(step: Step) -> bool:
    return bool(step.num_prefilled == 0 and step.width != 1 + step.num_drafted + step.num_read_again)


# What it takes


def test_snapshots_are_as_many_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = read_metadata(write_running(tmp_path / "target.gguf"))
    options = EngineOptions(n_ctx=256)
    load, state = Load(metadata, options.context(256, 32)), state_bytes(metadata)
    total = {"free": 0}
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: total["free"])
    needed = sum((metadata.size_bytes, kv_cache_bytes(metadata, load.options)))
    counts = []
    for room in (0, 3, 4, 13, 4000):
        total["free"] = 10**9 if room == 4000 else needed + room * state + _compute(load)
        counts.append(with_snapshots([load], options).options.snapshots)
    assert counts == [0, 0, 1, 3, MOST_SNAPSHOTS]
    most = with_snapshots([load], options)
    assert (
        kv_cache_bytes(metadata, most.options)
        == kv_cache_bytes(metadata, load.options) + MOST_SNAPSHOTS * state
    )
    for plain in ({"no_draft": True}, {"strict": True}):
        assert with_snapshots([load], replace(options, **plain)).options.snapshots == 0
    other = read_metadata(write_running(tmp_path / "other.gguf", tinyhybrid.REPLAY))
    assert with_snapshots([Load(other, load.options)], options).options.snapshots == 0


def _compute(load: Load) -> int:
    from localspec.engine.memory import compute_bytes

    return compute_bytes(load.metadata, load.options)


def test_without_memory_for_snapshots_tokens_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = write_running_pair(tmp_path, noise=0.03)
    settings: dict[str, Any] = {"n_ctx": 256, "threads": 1, "gpu_layers": 0, "prepare_draft": False}
    with LLM.from_files(target, draft, library="llama", **settings) as llm:
        assert llm.engine.target.rollback == Rollback("snapshots", MOST_SNAPSHOTS)
        expected = llm.generate("abc", max_tokens=20, temperature=0, draft_tokens=20)
        assert expected.stats.drafted > 0
        assert llm.engine.most_draft_tokens == MOST_SNAPSHOTS
        assert f"on, {MOST_SNAPSHOTS} (not 20" in describe_drafting(llm.engine, None, 20)
    monkeypatch.setattr("localspec.engine.memory.SNAPSHOT_SHARE", 0.0)
    with LLM.from_files(target, draft, library="llama", **settings) as llm:
        assert llm.engine.target.rollback == REPLAY
        assert llm.generate("abc", max_tokens=20, temperature=0, draft_tokens=5).ids == expected.ids


# Strict mode


@pytest.mark.parametrize("drafting", ["always", "seldom"])
def test_strict_mode_gives_the_same_bits_with_any_draft(tmp_path: Path, drafting: str) -> None:
    target = write_hybrid(tmp_path / "target.gguf", layers=4, width=256)
    draft = target if drafting == "always" else write_hybrid(tmp_path / "draft.gguf", layers=4, width=512)
    settings: dict[str, Any] = {
        "n_ctx": 400,
        "threads": 1,
        "gpu_layers": 0,
        "prepare_draft": False,
        "home": tmp_path,
    }
    with LLM.from_files(target, draft, library="llama", strict=True, **settings) as llm:
        assert llm.engine.session.min_width == 1 and llm.engine.target.rollback == REPLAY
        prompt = list(range(5, 60))
        options: dict[str, Any] = {"max_tokens": 40, "seed": 5, "top_k": 3}
        plain = llm.generate(prompt, draft_tokens=0, **options)
        for length in (1, 3, 6):
            answer = llm.generate(prompt, draft_tokens=length, **options)
            assert answer.ids == plain.ids and answer.stats.drafted > 0
            assert (answer.stats.accepted == answer.stats.drafted) == (drafting == "always")
            llm.generate(prompt[:20], max_tokens=1)


def test_strict_mode_refuses_what_only_padding_could_make_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.decoding.classes import WidthClass

    classes = [WidthClass((1,), 0.0), WidthClass((2, 3, 4, 5, 6, 7, 8), 0.1)]
    monkeypatch.setattr("localspec.engine.strict.measured_classes", lambda *_, **__: classes)
    target = write_running(tmp_path / "target.gguf")
    with pytest.raises(ModelLoadError, match="no padding is taken back from its running state") as caught:
        LLM.from_files(
            target, n_ctx=128, threads=1, gpu_layers=0, strict=True, library="llama", home=tmp_path
        )
    assert "leave strict out" in caught.value.remedy


def test_a_span_says_what_is_sure() -> None:
    session = Session(FakeContext(random_model(5, 1), 5))
    assert session.span([1, 2], 1) == Span(0, (1, 2), 0, 1, min_rows=1)
    assert session.span([1, 2], 1, sure=1).sure == 1
