"""The audit: it passes on a sound engine, names what rounding does, and fails on every fault planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from localspec import LLM
from localspec.decoding.classes import WidthClass
from localspec.decoding.session import Session
from localspec.errors import PromptTooLong
from localspec.measure import audit_seed
from localspec.measure.audit import PARTS, Audit, AuditOptions, audit_report
from localspec.measure.audit_classes import audit_classes
from localspec.measure.audit_greedy import GreedyAudit
from localspec.measure.audit_part import Part
from localspec.measure.audit_sampled import Replay, SampledAudit, Subject, subjects
from localspec.measure.audit_seed import SeedAudit
from localspec.measure.chisquare import critical, detectable, fit, survival
from localspec.measure.difference import Answer, Rounding, logits
from localspec.measure.prompts import Prompt
from localspec.measure.replay import ReplayContext, RowBook

from .fakes import FakeContext, random_model
from .mutation import planted
from .tinygguf import write_llama
from .tinyhybrid import write_running_pair

PROMPTS = [
    Prompt("talk", ("one the other and then the next of them, in the tin",), system="Be brief."),
    Prompt("code", ("for a in b: print(a); for b in a: print(b); then return the other one",)),
]
RUNS = 800
"""The faults below then give p-values of 1e-15 and less, where 1e-6 is asked for."""


def quiet(label: str) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1)
    return target, write_llama(folder / "draft.gguf", seed=1, noise=0.1)


@pytest.fixture(scope="module")
def llm(files: tuple[Path, Path]) -> Iterator[LLM]:
    with LLM.from_files(*files, n_ctx=512, threads=1, draft_tokens=3) as llm:
        yield llm


@pytest.fixture(scope="module")
def strict_llm(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    home = tmp_path_factory.mktemp("home")
    with LLM.from_files(*files, home=home, n_ctx=512, threads=1, draft_tokens=3, strict=True) as llm:
        yield llm


def options(*parts: str) -> AuditOptions:
    return AuditOptions(parts or PARTS, num_tokens=12, runs=200, prefixes=1, seeded=1)


# The whole


def test_a_sound_engine_passes_every_part_and_progress_rises_to_the_end(llm: LLM) -> None:
    shown: list[tuple[str, float]] = []
    parts = dict(Audit(llm, options(), lambda *step: shown.append(step)).run(PROMPTS))
    assert tuple(parts) == PARTS
    assert all(part.passed for part in parts.values()), [part.verdict for part in parts.values()]
    shares = [share for _, share in shown]
    assert shares == sorted(shares) and shares[0] == 0 and 0.9 < shares[-1] < 1
    report = audit_report("pair", llm, parts)
    assert (report["passed"], report["strict"]) == (True, False)
    assert report["verdict"] == "PASS: classes, rollback, greedy, sampled, seed."
    drafted = [test for test in report["parts"]["sampled"]["tests"] if test["drafter"] != "no draft"]
    assert {test["rule"] for test in drafted} == {"rejection", "block", "coupled"}
    assert all(test["drafted"] > 0 for test in drafted)


def test_a_prompt_that_the_context_cannot_hold_is_refused_at_once(llm: LLM) -> None:
    shown: list[str] = []
    audit = Audit(llm, options(), lambda label, share: shown.append(label))
    with pytest.raises(PromptTooLong):
        list(audit.run([*PROMPTS, Prompt("long", ("word " * 600,))]))
    assert shown == []


def test_only_the_parts_asked_for_run(llm: LLM) -> None:
    assert list(dict(Audit(llm, options("seed", "classes")).run(PROMPTS))) == ["classes", "seed"]


def test_a_failed_part_fails_the_whole(llm: LLM) -> None:
    parts = {"greedy": Part(True, "", {}), "seed": Part(False, "", {})}
    report = audit_report("pair", llm, parts)
    assert (report["passed"], report["verdict"]) == (False, "FAIL: seed.")


def test_a_strict_engine_passes_without_a_tolerance(strict_llm: LLM) -> None:
    parts = dict(Audit(strict_llm, options()).run(PROMPTS))
    assert all(part.passed for part in parts.values()), [part.verdict for part in parts.values()]
    assert "all that are used, compute the same bits" in parts["classes"].verdict
    assert parts["classes"].figures["tolerance"] == 0.0


def test_without_a_draft_repeated_text_is_drafted(files: tuple[Path, Path]) -> None:
    with LLM.from_files(files[0], n_ctx=512, threads=1, draft_tokens=3) as alone:
        assert {subject.drafter for subject in subjects(alone.engine)} == {"no draft", "repeated text"}
        part = SampledAudit(alone.engine, 300, quiet).run(PROMPTS[:1])
        assert part.passed, part.verdict
        assert sum(test["drafted"] for test in part.figures["tests"]) > 0


def test_a_running_state_is_checked_as_others_are(tmp_path: Path) -> None:
    target, draft = write_running_pair(tmp_path, noise=0.03)
    with LLM.from_files(target, draft, n_ctx=512, threads=1, prepare_draft=False) as hybrid:
        short = [Prompt("talk", ("one the other",))]
        parts = dict(Audit(hybrid, options()).run(short))
    assert all(part.passed for part in parts.values()), [part.verdict for part in parts.values()]
    assert "no draft" not in [test["drafter"] for test in parts["sampled"].figures["tests"]][1:]
    assert "Passes of" in parts["classes"].verdict


def test_after_an_audit_the_engine_answers_as_before(llm: LLM) -> None:
    ask = {"temperature": 0, "max_tokens": 10}
    llm.forget()
    before = llm.generate("one and the other", **ask)
    dict(Audit(llm, options()).run(PROMPTS))
    assert llm.generate("one and the other", **ask).ids == before.ids


# Faults


FAULTS = {
    "q from raw logits": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose", "probs.append(draft_probs)",
        "probs.append(Distribution.normalised(np.arange(len(row)), np.exp(row - row.max())))",
        ("rejection", "block"),
    ),
    "the recovered token from the target, by rejection": (
        "localspec.decoding.verify", "residual",
        "mass = _excess(target_probs, draft_probs, 1)", "mass = target_probs.probs", ("rejection",),
    ),
    "the recovered token from the target, by block": (
        "localspec.decoding.verify", "_after_block",
        "mass = _excess(following, draft.distribution(count), weight)", "mass = following.probs", ("block",),
    ),
    "the draft's pick emitted, by coupled": (
        "localspec.decoding.verify", "coupled",
        "pick(target_probs[index], index)", "pick(draft.distribution(index), index)", ("coupled",),
    ),
    "penalties that do not see the drafted tokens": (
        "localspec.decoding.loop", "TargetRows.__getitem__", "self._committed + index", "self._committed",
        ("rejection", "block", "coupled"),
    ),
    "the bonus from the wrong row": (
        "localspec.decoding.verify", "rejection",
        "target_probs[len(draft.tokens)].sample", "target_probs[max(len(draft.tokens) - 1, 0)].sample",
        ("rejection",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_fails_the_sampled_part_under_the_rules_it_touches(llm: LLM, fault: str) -> None:
    module, function, right, wrong, rules = FAULTS[fault]
    with planted(module, function, right, wrong):
        part = SampledAudit(llm.engine, RUNS, quiet).run(PROMPTS[1:])
    failed = {
        test["rule"]
        for test in part.figures["tests"]
        if test["p_value"] < 1e-6 and test["drafter"] == "draft model"
    }
    assert not part.passed
    assert failed == set(rules)
    assert part.verdict.startswith("FAIL: sampled texts are not distributed as the target's under ")


def test_a_wrong_token_fails_the_greedy_part(llm: LLM) -> None:
    fault = (
        "localspec.decoding.verify",
        "block",
        "return Verdict(count, _after_block(",
        "return Verdict(count, 7 + 0 * _after_block(",
    )
    with planted(*fault):
        part = GreedyAudit(llm, Rounding(llm.engine), 12, quiet).run(PROMPTS[:1])
    assert not part.passed
    first = next(entry["difference"] for entry in part.figures["answers"] if entry["difference"])
    assert first["gap"] > part.figures["tolerance"] > 0
    assert not first["explained"]
    assert f"at token {first['index']}" in part.verdict


def test_noise_by_round_fails_the_seed_part(llm: LLM) -> None:
    fault = ("localspec.decoding.verify", "_CoupledRound.verify", "self.position + index", "self.position")
    with planted(*fault):
        part = SeedAudit(llm, Rounding(llm.engine), 12, quiet).run(PROMPTS[:1])
    assert not part.passed and part.verdict.startswith("FAIL: ")


# Differences


def test_where_two_answers_part() -> None:
    text = Answer((1, 2, 3), ended=False)
    assert text.departs(text) is None
    assert text.departs(Answer((1, 5, 3), ended=False)) == 1
    assert text.departs(Answer((1, 2), ended=True)) == 2
    assert Answer((1, 2), ended=True).departs(Answer((1, 2), ended=True)) is None
    for ended in (True, False):  # one said that this is all, the other was cut off there
        assert Answer((1, 2), ended=ended).departs(Answer((1, 2), ended=not ended)) == 2
        assert Answer((), ended=ended).departs(Answer((), ended=not ended)) == 0


class KnownRounding(Rounding):
    """With a distance of our choice."""

    def __init__(self, engine: object, distance: float) -> None:
        super().__init__(engine)  # type: ignore[arg-type]
        self.classes = {32: [WidthClass((1,), 0.0), WidthClass((2,), distance)]}


def greedy_and_runner_up(llm: LLM, prompt: Sequence[int]) -> tuple[int, int, float]:
    """The two best tokens behind a prompt and their gap."""
    llm.engine.forget()
    session = Session(llm.engine.target)
    session.align(prompt)
    row = session.forward(prompt)[0]
    second, best = np.argsort(row)[-2:]
    return int(best), int(second), float(row[best] - row[second])


def test_a_difference_is_explained_when_the_gap_is_within_twice_the_distance(llm: LLM) -> None:
    prompt = [40, 41, 42]
    best, second, gap = greedy_and_runner_up(llm, prompt)
    pair = Answer((best, 5), ended=False), Answer((second, 5), ended=False)
    wide, narrow = KnownRounding(llm.engine, gap), KnownRounding(llm.engine, 0.4 * gap)
    found = wide.difference(prompt, *pair, logits)
    assert found is not None and found.explained
    assert (found.index, found.gap) == (0, pytest.approx(gap, abs=1e-4))
    assert found.below_best == pytest.approx(gap, abs=1e-4)
    piece = llm.engine.vocab.piece
    assert (found.expected, found.got) == tuple(piece(t).decode("utf-8", "replace") for t in (best, second))
    unexplained = narrow.difference(prompt, *pair, logits)
    assert unexplained is not None and not unexplained.explained


def test_two_tokens_close_to_each_other_but_far_below_the_best_are_not_explained(llm: LLM) -> None:
    prompt = [40, 41, 42]
    *_, gap = greedy_and_runner_up(llm, prompt)
    same = Answer((3,), ended=False), Answer((4,), ended=False)
    found = KnownRounding(llm.engine, 0.01 * gap).difference(
        prompt, *same, lambda row, _: np.where(np.arange(len(row)) == 9, 50.0, 0.0)
    )
    assert found is not None and found.gap == 0 and found.below_best == 50 and not found.explained


def test_in_strict_mode_no_difference_is_explained(strict_llm: LLM) -> None:
    prompt = [40, 41, 42]
    best, second, _ = greedy_and_runner_up(strict_llm, prompt)
    rounding = KnownRounding(strict_llm.engine, 1e6)
    found = rounding.difference(prompt, Answer((best,), ended=False), Answer((second,), ended=False), logits)
    assert found is not None and not found.explained


def test_an_end_is_named_by_its_likeliest_token(llm: LLM) -> None:
    found = KnownRounding(llm.engine, 0).difference(
        [40], Answer((7,), ended=False), Answer((), ended=True), logits
    )
    assert found is not None and found.got in ("<|im_end|>", "<|endoftext|>")


def test_differences_within_rounding_pass_and_say_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target whose passes of several tokens are off by a little: some greedy answers then differ."""
    decode = type(llm.engine.target).decode

    def rounded(context, spans):
        rows = decode(context, spans)
        off = 1.5 if context is llm.engine.target and len(spans[0].tokens) > 1 else 0.0
        return [[row + off * np.sin(np.arange(len(row), dtype=np.float32)) for row in span] for span in rows]

    monkeypatch.setattr(type(llm.engine.target), "decode", rounded)
    part = GreedyAudit(llm, KnownRounding(llm.engine, 1.5), 24, quiet).run(PROMPTS)
    assert any(entry["difference"] for entry in part.figures["answers"])
    assert part.passed, part.verdict
    assert "only where two logits are closer than the kernels' rounding (3)" in part.verdict
    tight = GreedyAudit(llm, KnownRounding(llm.engine, 0.0), 24, quiet).run(PROMPTS)
    assert not tight.passed


def test_the_score_of_a_seeded_token_is_the_largest(llm: LLM) -> None:
    """What the seed part judges by is what the coupled rule draws by."""
    prompt = [40, 41, 42]
    params = {"temperature": audit_seed.TEMPERATURE, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    answer = llm.generate(prompt, seed=audit_seed.SEED, max_tokens=6, draft_tokens="off", **params)
    for index, token in enumerate(answer.ids):
        prefix = [*prompt, *answer.ids[:index]]
        llm.engine.forget()
        session = Session(llm.engine.target)
        session.align(prefix)
        scores = audit_seed.noisy(session.forward(prefix)[0], len(prefix))
        assert scores[token] > scores.max() - 0.1


# The class table


def test_strict_mode_with_two_classes_among_its_widths_fails(strict_llm: LLM) -> None:
    assert audit_classes(strict_llm.engine, KnownRounding(strict_llm.engine, 0.0)).passed
    low, high = strict_llm.engine.session.min_width, strict_llm.engine.target.n_batch
    mixed = KnownRounding(strict_llm.engine, 0.0)
    mixed.classes = {300: [WidthClass((low,), 0.0), WidthClass((high,), 0.25)]}
    part = audit_classes(strict_llm.engine, mixed)
    assert not part.passed
    assert f"passes of {low} to {high} tokens differ in bits behind 300 tokens" in part.verdict
    outside = KnownRounding(strict_llm.engine, 0.0)
    outside.classes = {300: [WidthClass((low, high), 0.0), WidthClass((high + 1,), 0.25)]}
    assert audit_classes(strict_llm.engine, outside).passed


def test_without_strict_mode_the_table_is_told_and_its_distance_doubled(llm: LLM) -> None:
    part = audit_classes(llm.engine, KnownRounding(llm.engine, 0.5))
    assert part.passed and part.figures["tolerance"] == 1.0
    assert "differ by up to 0.5 in a logit (behind 32 tokens {1} {2} off by 0.5)" in part.verdict


# Replay


def test_a_book_computes_each_row_once_and_gives_the_models_rows() -> None:
    model = random_model(7, seed=3)
    context = FakeContext(model, 7)
    book = RowBook(Session(context))
    rows = book.rows([1, 2, 3, 4], 3)
    assert all(np.array_equal(row, model((1, 2, 3, 4)[: 2 + i])) for i, row in enumerate(rows))
    passes = len(context.passes)
    assert book.row([1, 2, 3]) is rows[1]
    assert len(context.passes) == passes
    more = book.rows([1, 2, 3, 5], 2)
    assert more[0] is rows[1] and np.array_equal(more[1], model((1, 2, 3, 5)))
    assert context.passes[passes:] == [1]


def test_a_replayed_context_continues_where_its_cells_end() -> None:
    context = ReplayContext(RowBook(Session(FakeContext(random_model(7, seed=3), 7))))
    session = Session(context, min_width=4)
    assert len(session.forward([1, 2], num_logits=2)) == 2
    assert context.length(0) == 2  # padding is rolled back
    with pytest.raises(AssertionError, match="where the cells end"):
        context.decode([session.span([3], 1).__class__(0, (3,), 5, 1)])


def test_the_joint_sums_to_one_and_the_target_alone_follows_it(llm: LLM) -> None:
    llm.engine.forget()
    replay = Replay(llm.engine, list(range(40, 60)))
    joint = replay.joint()
    assert sum(joint.values()) == pytest.approx(1.0)
    assert len(joint) > 20
    tally = replay.count(Subject("coupled", "no draft"), 500)
    assert sum(tally.counts.values()) == 500 and tally.drafted == 0
    assert set(tally.counts) <= set(joint)


# The test's own mathematics


@pytest.mark.parametrize("degrees", [1, 2, 7, 40, 80, 300])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0, 1.7, 3.0, 10.0])
def test_survival_is_the_chi_squares(degrees: int, share: float) -> None:
    assert survival(share * degrees, degrees) == pytest.approx(
        stats.chi2.sf(share * degrees, degrees), rel=1e-8, abs=1e-300
    )


@pytest.mark.parametrize("degrees", [1, 12, 80])
def test_power_holds_for_the_exact_noncentral_distribution(degrees: int) -> None:
    limit = critical(1e-6, degrees)
    assert stats.chi2.sf(limit, degrees) == pytest.approx(1e-6, rel=1e-6)
    runs = 10_000
    distance = detectable(1e-6, degrees, runs)
    assert 0.985 < stats.ncx2.sf(limit, degrees, 4 * runs * distance**2) < 0.9999


def test_cells_expected_rarely_are_pooled_and_an_impossible_one_is_fatal() -> None:
    joint = {(0,): 0.5, (1,): 0.496, (2,): 0.002, (3,): 0.002, (4,): 0.0}
    counts = Counter({(0,): 480, (1,): 512, (2,): 8})
    found = fit(joint, counts)
    expected = stats.chisquare([480, 512, 8], [500, 496, 4])
    assert found.degrees == 2 and found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)
    for cell in ((4,), (9,)):
        assert (
            fit(joint, counts + Counter({cell: 1})).p_value,
            fit(joint, counts + Counter({cell: 1})).impossible,
        ) == (0.0, 1)


def test_one_cell_alone_tests_nothing() -> None:
    found = fit({(0,): 1.0}, Counter({(0,): 100}))
    assert (found.degrees, found.p_value) == (0, 1.0)
    assert detectable(1e-6, found.degrees, 100) == 1.0
