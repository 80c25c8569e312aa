"""Tokens are taken back from running states: by snapshots, by a copy and reading again, on both libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag, Context
from localspec.decoding.calibrate import Calibrator
from localspec.decoding.loop import MOST_READ_AGAIN
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Session, Span
from localspec.engine.libraries import named
from localspec.errors import DecodeCancelled, DecodeError, ModelFileError
from localspec.ggml.running_state import RunningStates
from localspec.gguf.architectures import HYBRID, RECURRENT, SNAPSHOTS
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes
from localspec.llama import backend

from . import tinyhybrid
from .tinyhybrid import write_running

DEPTH = 4
ALIKE = 0.02
"""Largest difference of two logits over their spread, where kernels round differently."""
IDS = tuple(int(token) for token in np.random.default_rng(3).integers(33, 250, 200))


@dataclass(frozen=True)
class Way:
    """A library and an architecture, and how its contexts take tokens back."""

    library: str
    architecture: str
    kind: str

    @property
    def depth(self) -> int:
        return DEPTH if self.kind == "snapshots" else 0

    def __str__(self) -> str:
        return f"{self.library}-{self.architecture}-{self.kind}"


WAYS = (
    Way("llama", tinyhybrid.SNAPSHOTS, "snapshots"),
    Way("llama", tinyhybrid.SNAPSHOTS, "replay"),
    Way("llama", tinyhybrid.REPLAY, "replay"),
    Way("llama", tinyhybrid.RECURRENT, "replay"),
    Way("ik", tinyhybrid.SNAPSHOTS, "replay"),
)
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("running")
    return {kind: write_running(folder / f"{kind}.gguf", kind, seed=1) for kind in tinyhybrid.KINDS}


class Checked:
    """A session on one context, whose rows are compared with those of another one that reads all at once."""

    def __init__(self, context: Context, fresh: Context) -> None:
        self.session, self.fresh = Session(context), fresh

    def expected(self, ids: Sequence[int], count: int) -> list[Logits]:
        self.fresh.truncate(0, 0)
        (rows,) = self.fresh.decode([Span(0, tuple(ids), 0, count)])
        return rows

    def read(self, ids: Sequence[int], sure: int | None = None) -> None:
        """Read on to `ids`, as a round does, and compare the rows of what was not read before."""
        held = len(self.session.tokens)
        assert self.session.tokens == list(ids[:held])
        rows = self.session.forward(ids[held:], len(ids) - held, sure)
        expected = self.expected(ids, len(rows))
        far = float(np.abs(np.array(rows) - np.array(expected)).max() / np.std(expected))
        assert far < ALIKE, f"rows behind {held} tokens are off by {far:.3f}"

    def back(self, length: int) -> int:
        """Take tokens back; returns how many are left."""
        self.session.rollback(length)
        assert self.session.context.length(0) == len(self.session.tokens) <= length
        return len(self.session.tokens)


@contextmanager
def opened(
    way: Way, files: dict[str, Path], cancel: CancelFlag | None = None, **options: Any
) -> Iterator[Checked]:
    weights = named(way.library).open_weights(read_metadata(files[way.architecture]), gpu_layers=0)
    sizes = {"n_ctx": 256, "n_batch": 64, "n_outputs": 64, "threads": 1, **options}
    contexts = [
        weights.open_context(ContextOptions(**sizes, snapshots=way.depth), cancel),
        weights.open_context(ContextOptions(**{**sizes, "n_batch": 256, "n_outputs": 256})),
    ]
    try:
        assert contexts[0].rollback.kind == way.kind and contexts[0].rollback.depth == way.depth
        yield Checked(*contexts)
    finally:
        for context in contexts:
            context.close()
        weights.close()


# What one pass read


def check_every_depth(checked: Checked, depth: int) -> None:
    for width in (1, 2, DEPTH + 1, 9):
        for stand in range(1, width + 1):
            checked.session.rollback(0)
            checked.read(IDS[:20])
            checked.read(IDS[: 20 + width], sure=21)
            left = checked.back(20 + stand)
            assert left == (20 + stand if width - stand <= min(depth, width - 1) else 20)
            checked.read([*IDS[: 20 + stand], *IDS[100:103]], sure=21 + stand)


@every_way
def test_every_depth(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        check_every_depth(checked, way.depth)


def check_rounds_in_a_row(checked: Checked, depth: int) -> None:
    """As the loop does it: nothing, some or all stands, and what stands is read again beside the next draft."""
    rng = np.random.default_rng(5)
    text = list(IDS[:10])
    checked.session.rollback(0)
    checked.read(text)
    for _ in range(40):
        drafted = int(rng.integers(0, DEPTH + 1))
        text.append(int(rng.integers(33, 250)))
        draft = [int(token) for token in rng.integers(33, 250, drafted)]
        if len(text) - len(checked.session.tokens) > MOST_READ_AGAIN:
            draft = []
        checked.read([*text, *draft], sure=len(text) if draft else None)
        stand = int(rng.integers(0, len(draft) + 1))
        text += draft[:stand]
        left = checked.back(len(text))
        assert left == len(text) or not depth, "a snapshot was not found"
        assert len(text) - left <= MOST_READ_AGAIN + DEPTH + 1, "what was saved is far behind"


@every_way
def test_rounds_in_a_row(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        check_rounds_in_a_row(checked, way.depth)


def check_over_passes(checked: Checked, depth: int) -> None:
    """What an earlier pass read is out of reach of snapshots, though a library may say otherwise."""
    checked.session.rollback(0)
    checked.read(IDS[:20])
    for length in (21, 22, 23):
        checked.read(IDS[:length])
    assert checked.back(21) == 0
    checked.read([*IDS[:21], *IDS[100:103]])


@every_way
def test_nothing_is_believed_of_earlier_passes(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        check_over_passes(checked, way.depth)


def check_one_after_another(checked: Checked, depth: int) -> None:
    """A library takes one removal between two passes; the second may not be believed either."""
    checked.session.rollback(0)
    checked.read(IDS[:20])
    checked.read(IDS[:25], sure=21)
    checked.back(24)
    checked.back(22)
    checked.read([*IDS[:22], *IDS[100:103]])


@every_way
def test_two_removals_before_the_next_pass(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        check_one_after_another(checked, way.depth)


def check_token_by_token(checked: Checked, depth: int) -> None:
    """As a draft reads: one token a pass, all of them unsure; it goes back to where they began, or further."""
    for stand in range(5):
        checked.session.rollback(0)
        checked.read(IDS[:20])
        for length in range(21, 25):
            checked.read(IDS[:length], sure=20)
        assert checked.back(20 + stand) in ({24} if stand == 4 else {20, 20 + stand})
        checked.read([*IDS[: 20 + stand], *IDS[100:103]])


@every_way
def test_a_draft_that_reads_token_by_token(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        check_token_by_token(checked, way.depth)


# Where contexts end, fail, or are saved


@every_way
def test_over_passes_of_a_long_prompt_and_at_a_full_context(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files, n_ctx=48, n_batch=16, n_outputs=16) as checked:
        checked.read(IDS[:16])
        checked.session.forward(IDS[16:44], num_logits=0)  # two passes, the last of 12 tokens
        checked.read(IDS[:48], sure=45)
        checked.back(46)
        checked.read([*IDS[:46], *IDS[100:102]], sure=47)
        with pytest.raises(DecodeError, match="do not fit"):
            checked.session.forward(IDS[:1])
        checked.back(47)
        checked.read([*IDS[:46], IDS[100], IDS[103]])


def cancelled_in(checked: Checked, ids: Sequence[int], flag: CancelFlag, sure: int | None) -> None:
    flag.set()
    with pytest.raises(DecodeCancelled):
        checked.session.forward(ids[len(checked.session.tokens) :], sure=sure)
    flag.clear()


@every_way
def test_a_cancelled_pass_leaves_what_was_saved_before_it(way: Way, files: dict[str, Path]) -> None:
    flag = named(way.library).cancel_flag()
    with opened(way, files, flag) as checked:
        checked.read(IDS[:20])
        cancelled_in(checked, IDS[:26], flag, sure=21)
        with pytest.raises(DecodeError, match="must go on where the cells end"):
            checked.session.context.decode([Span(0, IDS[20:22], 20, 1)])
        wanted = [*IDS[:22], 77, 78]
        assert checked.session.align(wanted) in (0, 20)  # snapshots of a failed pass are none
        checked.read(wanted)
        cancelled_in(checked, [*wanted, 79], flag, sure=None)
        checked.session.align([*wanted, 80])
        checked.read([*wanted, 80, 81])


@every_way
def test_a_saved_state_is_the_one_of_its_tokens(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        checked.read(IDS[:20])
        checked.read(IDS[:24], sure=21)
        left = checked.back(22)  # and the removal is still to come into effect
        tokens, data = checked.session.save()
        assert list(tokens) == list(IDS[:left])
        checked.read([*IDS[:22], 99])
        checked.session.restore(tokens, data)
        assert checked.session.can_go_back.kind == way.kind
        checked.read([*IDS[:22], *IDS[100:104]], sure=23)
        checked.back(23)
        checked.read([*IDS[:22], IDS[100], 55])
        checked.session.restore(tokens, data)
        assert checked.back(left - 1) == 0  # what was saved has no past
        checked.read(IDS[:30])


@every_way
@pytest.mark.parametrize("verifies", [True, False])
def test_what_passes_cost_is_measured_behind_a_conversation(
    way: Way, files: dict[str, Path], verifies: bool
) -> None:
    with opened(way, files) as checked:
        context = checked.session.context
        for held in (10, 45):
            checked.read(IDS[:held])
            calibrator = Calibrator(context, verifies=verifies, held=held)
            for _ in calibrator.passes(2, 0.2):
                pass
            assert calibrator.has_begun and max(calibrator.result().table.seconds) == 32
            assert context.truncate(0, held) == held
        checked.read(IDS[:50])


@every_way
def test_a_pass_goes_on_where_the_cells_end(way: Way, files: dict[str, Path]) -> None:
    with opened(way, files) as checked:
        checked.read(IDS[:20])
        for start in (19, 21):
            with pytest.raises(DecodeError, match="must go on where the cells end"):
                checked.session.context.decode([Span(0, (7,), start, 1)])
        checked.read(IDS[:21])


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_both_libraries_compute_the_same_and_what_differs_is_refused(
    architecture: str, tmp_path: Path
) -> None:
    shapes: list[dict[str, Any]] = [
        {},
        {"ssm.group_count": 1},
        {"ssm.time_step_rank": 4, "ssm.inner_size": 512},
        {"block_count": 5, "full_attention_interval": 4},
        {"ssm.state_size": 64, "ssm.inner_size": 128, "rope.dimension_sections": [8, 4, 4, 0]},
    ]
    for shape in shapes:
        path = write_running(
            tmp_path / "tiny.gguf", architecture, experts="moe" in architecture, changes=shape
        )
        assert named("ik").refusal(read_metadata(path)) == ""
        with opened(Way("ik", architecture, "replay"), {architecture: path}) as ours:
            rows = [*ours.session.forward(IDS[:40], 40), *ours.session.forward(IDS[40:41])]
            with opened(Way("llama", architecture, "replay"), {architecture: path}) as reference:
                theirs = reference.expected(IDS[:41], 41)
        assert np.abs(np.array(rows) - np.array(theirs)).max() < ALIKE * np.std(theirs), shape
    refused: list[dict[str, Any]] = [
        {"ssm.state_size": 32, "ssm.inner_size": 64},
        {"block_count": 3, "nextn_predict_layers": 1},
    ]
    for shape in refused:
        path = write_running(
            tmp_path / "other.gguf", architecture, experts="moe" in architecture, changes=shape
        )
        assert named("ik").refusal(read_metadata(path)) != "", shape


@pytest.mark.parametrize("shape", [{"full_attention_interval": 1}, {"full_attention_interval": 3}])
def test_layers_of_one_kind_alone_are_refused(shape: dict[str, int], tmp_path: Path) -> None:
    """llama.cpp would end the process at the first pass."""
    path = write_running(tmp_path / "tiny.gguf", changes={**shape})
    with pytest.raises(ModelFileError, match="some must have attention and others a running state"):
        read_metadata(path)


# Planted faults


def no_bound(states: RunningStates, span: Span) -> None:
    """Snapshots are believed to reach back over the last pass."""
    after(states, span)
    states._sequences[0].reach = max(states._sequences[0].length - DEPTH, 1)


def one_too_deep(states: RunningStates, span: Span) -> None:
    """To before the first token of the last pass."""
    after(states, span)
    states._sequences[0].reach -= 1


def two_removals(states: RunningStates, sequence_id: int, length: int) -> bool:
    """A second removal is believed to have been taken."""
    sequence = states._sequences[sequence_id]
    sequence.length = length
    states._native.remove_cells(sequence_id, length)
    return True


def stale_copy(states: RunningStates, span: Span) -> None:
    """What was saved first is taken for what was to be saved now."""
    first = states._sequences[0].saved
    before(states, span)
    if first is not None:
        states._sequences[0].saved = first


def not_put_back(states: RunningStates, sequence_id: int) -> bool:
    """The positions go back and the state does not."""
    sequence = states._sequences[sequence_id]
    sequence.length = sequence.reach = sequence.saved_at
    states._native.remove_cells(sequence_id, sequence.length)
    return True


after, before = RunningStates.after, RunningStates.before


@pytest.mark.parametrize(
    ("way", "name", "fault", "check"),
    [
        (WAYS[0], "after", no_bound, check_over_passes),
        (WAYS[0], "after", one_too_deep, check_token_by_token),
        (WAYS[0], "_step_back", two_removals, check_one_after_another),
        (WAYS[4], "_restore", not_put_back, check_every_depth),
        (WAYS[2], "before", stale_copy, check_rounds_in_a_row),
        (WAYS[3], "before", stale_copy, check_rounds_in_a_row),
    ],
)
def test_a_planted_fault_is_caught(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, way: Way, name: str, fault: Any, check: Any
) -> None:
    monkeypatch.setattr(RunningStates, name, fault)
    with opened(way, files) as checked, pytest.raises((AssertionError, DecodeError)):
        check(checked, way.depth)


# What the library grants


EXPERTS = frozenset({"qwen35moe", "lfm2moe", "qwen3next", "kimi-linear"})


@pytest.mark.parametrize(
    "architecture",
    [
        "falcon-h1",
        "jamba",
        "kimi-linear",
        "lfm2",
        "mamba2",
        "nemotron_h",
        "plamo2",
        "qwen35moe",
        "qwen3next",
        "rwkv7",
    ],
)
def test_other_architectures_take_the_way_that_is_said_of_them(architecture: str, tmp_path: Path) -> None:
    assert architecture in HYBRID | RECURRENT
    path = write_running(tmp_path / "tiny.gguf", architecture, experts=architecture in EXPERTS)
    way = Way("llama", architecture, "snapshots" if architecture in SNAPSHOTS else "replay")
    with opened(way, {architecture: path}) as checked:
        check_every_depth(checked, way.depth)
        context = checked.session.context
        checked.session.rollback(0)
        checked.read(IDS[:1])
        lib, handle = backend.library(), context._handle  # type: ignore[attr-defined]
        size = lib.llama_state_seq_get_size_ext(handle, 0, lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        assert 0 <= size - state_bytes(read_metadata(path)) < 400, "bytes of a running state"
