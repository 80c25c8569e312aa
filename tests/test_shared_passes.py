"""Passes that several answers share, on tables of logits: who waits for whom, what fails alone, what a draft costs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.company import ALONE, Company
from localspec.decoding.costs import CostTable
from localspec.decoding.session import Span
from localspec.decoding.shared_passes import FIRST_ROWS, LEAST_ROWS, SharedPasses
from localspec.decoding.stats import Batch, Step
from localspec.errors import DecodeCancelled, DecodeError

from .fakes import FakeContext

V = 5


class Recording(FakeContext):
    """Notes the sequences of each pass, and fails where a sequence is in `bad`."""

    def __init__(self, name="target", **sizes):
        super().__init__(lambda prefix: np.full(V, float(len(prefix)), np.float32), V, **sizes)
        self.name, self.made, self.bad = name, [], set()

    def decode(self, spans):
        self.made.append(sorted(span.sequence_id for span in spans))
        if self.bad & {span.sequence_id for span in spans}:
            raise DecodeError("A bad span.", code=-1)
        return super().decode(spans)


def together(passes, *works):
    """Each in a thread, all inside before the first one asks for a pass."""
    barrier = threading.Barrier(len(works))

    def run(work):
        with passes.inside():
            passes._turn.release()  # the others must come in too
            barrier.wait()
            passes._turn.acquire()
            return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, work) for work in works]]


def reading(passes, context, sequence_id, count=3, width=1, **options):
    """`count` passes of a sequence; the first number of each row."""

    def work():
        found = []
        for step in range(count):
            span = Span(sequence_id, (1,) * width, step * width, 1)
            found.append(float(passes.decode(context, span, **options).found[0][0]))
        return found

    return work


def test_all_who_are_inside_share_each_pass():
    target = Recording()
    passes = SharedPasses([target])
    found = together(passes, *(reading(passes, target, sequence) for sequence in range(3)))
    assert found == [[1.0, 2.0, 3.0]] * 3
    assert target.made == [[0, 1, 2]] * 3


def test_who_is_done_holds_up_nobody():
    target = Recording()
    passes = SharedPasses([target])
    together(passes, reading(passes, target, 0, 1), reading(passes, target, 1, 4))
    assert target.made == [[0, 1], [1], [1], [1]]
    assert passes.num_inside == 0


def test_the_draft_model_goes_first_so_that_the_pass_of_the_target_is_one_for_all():
    draft, target = Recording("draft"), Recording()
    passes = SharedPasses([draft, target])

    def drafting():
        return [*reading(passes, draft, 0, 3)(), *reading(passes, target, 0, 1)()]

    together(passes, drafting, reading(passes, target, 1, 1))
    assert draft.made == [[0]] * 3 and target.made == [[0, 1]]


def test_what_does_not_fit_one_pass_is_made_in_several_and_nobody_starves():
    target = Recording(n_batch=8, n_outputs=2)
    passes = SharedPasses([target])
    found = together(passes, *(reading(passes, target, sequence, width=4) for sequence in range(4)))
    assert found == [[4.0, 8.0, 12.0]] * 4
    assert all(len(made) <= 2 for made in target.made) and len(target.made) <= 8


def test_the_fault_of_one_is_no_fault_of_the_others():
    target = Recording()
    target.bad = {1}
    passes = SharedPasses([target])

    def bad():
        with pytest.raises(DecodeError):
            reading(passes, target, 1)()
        return "failed"

    assert together(passes, reading(passes, target, 0), bad, reading(passes, target, 2)) == [
        [1.0, 2.0, 3.0],
        "failed",
        [1.0, 2.0, 3.0],
    ]


def test_a_pass_that_was_stopped_is_made_again_for_those_that_were_not_cancelled():
    target, cleared = Recording(), []
    passes = SharedPasses([target], lambda: cleared.append(True))
    target.fail_with = DecodeCancelled("The pass was cancelled.", code=2)

    def cancelled():
        with pytest.raises(DecodeCancelled):
            reading(passes, target, 1, cancelled=lambda: True)()
        return "cancelled"

    assert together(passes, reading(passes, target, 0), cancelled) == [[1.0, 2.0, 3.0], "cancelled"]
    assert cleared == [True]


class Forgetful(Recording):
    """Once `lost` is set, a sequence keeps none of its cells, as behind a sliding window."""

    lost = False

    def truncate(self, sequence_id, length):
        return super().truncate(sequence_id, 0 if self.lost else length)


@pytest.mark.parametrize("stop", [DecodeCancelled("Cancelled.", code=2), DecodeError("No room.", code=1)])
def test_a_pass_is_not_made_again_behind_cells_that_are_gone(stop):
    target = Forgetful()
    passes = SharedPasses([target])

    def one(sequence_id):
        def work():
            passes.decode(target, Span(sequence_id, (1,), 0, 1))
            target.lost, target.fail_with = True, stop
            with pytest.raises(DecodeError, match="lost"):
                passes.decode(target, Span(sequence_id, (1,), 1, 1))
            return "lost"

        return work

    assert together(passes, one(0), one(1)) == ["lost", "lost"]


def test_whoever_is_not_inside_has_a_pass_of_its_own():
    target = Recording()
    made = SharedPasses([target]).decode(target, Span(0, (1, 1), 0, 1))
    assert made.alone and made.batch.width == 2 and made.share == made.batch.seconds


def test_a_piece_of_a_prompt_is_shorter_where_others_wait():
    target = Recording(n_batch=512)
    passes = SharedPasses([target])
    assert passes.piece(target) == FIRST_ROWS
    passes._pace(target).seconds_per_row = 0.01
    alone = passes.piece(target)
    with passes.inside():
        passes._inside.add(-1)
        assert LEAST_ROWS <= passes.piece(target) < alone <= 512
        passes._inside.discard(-1)


def test_where_passes_are_even_spans_of_one_length_meet_in_the_order_of_sequences():
    target = Recording(n_batch=8, n_outputs=8)
    target.decode = lambda spans: (
        lengths.append([(span.sequence_id, len(span.tokens)) for span in spans])
        or FakeContext.decode(target, spans)
    )
    lengths = []
    passes = SharedPasses([target], even=[target])
    found = together(
        passes,
        *(
            reading(passes, target, sequence, count=2, width=width)
            for sequence, width in ((2, 1), (1, 3), (0, 1))
        ),
    )
    assert found == [[1.0, 2.0], [3.0, 6.0], [1.0, 2.0]]
    assert all(len({width for _, width in made}) == 1 and made == sorted(made) for made in lengths)
    assert [(0, 1), (2, 1)] in lengths


def test_a_piece_fills_an_even_pass_and_no_more():
    target = Recording(n_batch=5, n_outputs=5)
    passes = SharedPasses([target], even=[target])
    with passes.inside():
        passes._inside |= {-1, -2}
        passes._pace(target).seconds_per_row = 0.01
        assert passes.piece(target) == 5 == target.n_batch
        passes._inside -= {-1, -2}


# What a draft costs where others share the pass

CURVES = {
    "ik": {1: 1.0, 2: 1.27, 4: 1.84, 8: 3.2, 16: 5.6, 32: 10.0},
    "flat": {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.2, 16: 1.5, 32: 2.4},
}


def controller(curve):
    target = {width: 0.08 * value for width, value in CURVES[curve].items()}
    return AdaptiveController(CostTable(target), CostTable({w: 0.25 * s for w, s in target.items()}))


@pytest.mark.parametrize("curve", list(CURVES))
def test_alone_it_is_the_whole_pass(curve):
    one = controller(curve)
    assert [one.time(width, 10) for width in (1, 3, 8)] == [one.target.time(width, 10) for width in (1, 3, 8)]
    assert one.draft_time(1, 10) == one.draft.time(1, 10)


@pytest.mark.parametrize("curve", list(CURVES))
@pytest.mark.parametrize("seats", [2, 4, 8])
def test_the_parts_of_all_are_the_pass(curve, seats):
    one = controller(curve)
    one.meet(Company(seats, seats - 1, 1.0))
    assert one.time(1) * seats == pytest.approx(one.target.time(seats))
    assert one.time(3) - one.time(1) == pytest.approx(one.target.time(seats + 2) - one.target.time(seats))


def test_drafting_ends_where_seats_fill_the_pass_and_comes_back_when_they_leave():
    one = controller("ik")
    assert one.can_pay(0, 0.8)
    one.meet(Company(4, 3, 1.0))
    assert not one.can_pay(0, 0.95) and not one.prefills_draft(200, 256)
    one.meet(ALONE)
    assert one.can_pay(0, 0.8)
    flat = controller("flat")
    flat.meet(Company(4, 3, 4.0))
    assert flat.can_pay(0, 0.8), "where rows cost next to nothing it pays beside others too"


def test_that_others_draft_is_no_reason_to_draft():
    one = controller("ik")
    one.meet(Company(4, 6, 3.0))
    assert not one.can_pay(0, 0.8)


def test_a_pass_of_its_own_is_charged_whole():
    """Where passes are even, the others wait for whoever drafts."""
    one = controller("flat")
    one.meet(Company(4, 3, 1.0, apart=True))
    assert one.time(1) == pytest.approx(one.target.time(4) / 4)
    assert one.time(4) == one.target.time(4)
    assert not one.can_pay(0, 0.95)
    seconds = one.target.time(4)
    step = Step(
        width=4, length=0, tokens=(1, 2, 3), num_prefilled=0, num_drafted=3, num_accepted=2, bonus=False,
        finish_reason=None, draft_seconds=0.0, target_seconds=seconds, seconds=seconds,
    )  # fmt: skip
    assert one._own_seconds(step) == pytest.approx(seconds)
    # As long as these tokens would have waited for passes of all.
    assert one.plain_seconds(step) == pytest.approx(3 * one.target.time(4))


def test_what_neighbours_take_is_no_debt_of_this_answer():
    """Rounds of plain decoding beside others that draft leave the ledger as it is."""
    one = controller("ik")
    one.meet(Company(4, 6, 1.0))
    seconds = one.target.time(7)
    step = Step(
        width=1, length=0, tokens=(1,), num_prefilled=0, num_drafted=0, num_accepted=0, bonus=False,
        finish_reason=None, draft_seconds=0.0, target_seconds=seconds / 7, seconds=5 * seconds,
        batch=Batch(7, seconds),
    )  # fmt: skip
    assert one._own_seconds(step) == pytest.approx(one.time(1))
