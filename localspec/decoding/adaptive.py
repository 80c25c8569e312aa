"""The controller that drafts only where measured time says it pays.

With survival S_i, the chance that the first i drafted tokens all stand, drafting from i on to m gives
sum(S_j, j = i+1..m) more tokens and costs the draft's passes plus T'(m+1) - T'(i+1) of the target's. It is worth it
when the tokens exceed R times the seconds, R being the tokens per second reached now (at least plain decoding's).
Whole stretches are judged, not single tokens: the cost curve has steps, and ten tokens at .8 survive with .11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from localspec.decoding.adaptive_plan import BEST_ACCEPTANCE, AdaptivePlan
from localspec.decoding.company import ALONE, Company
from localspec.decoding.control import FORCED, MODEL, NGRAM, PREDICTION
from localspec.decoding.costs import CostTable
from localspec.decoding.estimates import Average, Buckets, Ledger
from localspec.decoding.rollback import WayBack
from localspec.decoding.stats import Step
from localspec.decoding.threads import ThreadControl

FIRST_PROBE, LAST_PROBE = 16, 128
"""Tokens after which a draft model that does not pay is tried again; doubled while it fails."""
REUSE = 8
"""Rounds for which the expected seconds of passes are kept."""
LIKELY, TYPICAL_ANSWER = 0.85, 256
"""Acceptance, and tokens still to come, for which a draft model is expected to be worth reading the prompt."""

WORTH_TRYING = 1.03
"""A smaller gain is not worth trying for: measured costs are good to a few percent at best."""
SLOW_ROUND = 1.1
"""What a round may take of its expected seconds before it counts as slow: the ledger's credit bears such a round."""


def model_confidence() -> Buckets:
    """By the draft's own largest probability."""
    return Buckets((0.2, 0.4, 0.6, 0.8, 0.9, 0.97), (0.15, 0.3, 0.45, 0.62, 0.78, 0.9, 0.97))


def match_length() -> Buckets:
    """By how many tokens of the text agree with the place it is copied from."""
    return Buckets((4, 5, 7, 10, 16, 24), (0.3, 0.42, 0.52, 0.66, 0.82, 0.92, 0.97))


@dataclass
class AdaptiveController:
    """Per answer: what each drafter is worth, and a ledger. Across answers: only what passes cost.

    target, draft: costs, as far as they are known; draft is None without a draft model.
    max_width:     widest pass it may plan.
    plain_share:   seconds of a token of the fastest plain decoding that is known here, which may be another library's,
                   as a share of those of this one's.
    threads:       where the number of threads changes; `target` and `draft` are then at first for the most there are.
    costs_for:     both tables for another number of them.
    back, draft_back: what it costs that tokens may be taken back, in the target and in the draft.
    """

    target: CostTable
    draft: CostTable | None = None
    max_width: int = 32
    plain_share: float = 1.0
    threads: ThreadControl | None = None
    costs_for: Callable[[int], tuple[CostTable, CostTable | None]] | None = None
    back: WayBack = field(default_factory=WayBack)
    draft_back: WayBack = field(default_factory=WayBack)
    ledger: Ledger = field(default_factory=Ledger)
    company: Company = ALONE
    predictors: dict[str, Buckets] = field(init=False)
    average: Average = field(init=False)

    def __post_init__(self) -> None:
        self.predictors = {
            MODEL: model_confidence(),
            NGRAM: match_length(),
            PREDICTION: match_length(),
            FORCED: Buckets((), (0.95,)),
        }
        self.average = Average(prior=0.88, weight=10.0)
        self._num_threads = self.threads.most if self.threads else 0
        self.begin()

    def begin(self) -> None:
        """Nothing learned from one text speaks about the next."""
        for predictor in self.predictors.values():
            predictor.reset()
        self.average.reset()
        self.ledger.reset(self._round_steps())
        self._rate_tokens = self._rate_seconds = 0.0
        self._since_model = 0
        self._probe_after = FIRST_PROBE
        self._plan: AdaptivePlan | None = None
        self._times: tuple[int, list[float]] | None = None
        self._times_age = 0
        self._hopeless = False

    def meet(self, company: Company) -> None:
        """Told before each round who else takes part in its passes."""
        if company != self.company:
            self.company, self._times, self._hopeless = company, None, False

    def time(self, width: int, length: int = 0) -> float:
        """Expected seconds of a pass over so many tokens of this answer.

        Of one that others share: an even part of what it takes where each has one token, and what more tokens add to
        the width that it has now. By these seconds a draft is worth it where it raises what all of them commit in a
        second; that the others draft is no reason to draft too.
        """
        company, target = self.company, self.target
        if company.seats == 1:
            return target.time(width, length)
        even = target.time(company.seats, length) / company.seats
        if width == 1:
            return even
        if company.apart:
            return target.time(width, length)
        return even + target.time(width + company.rows, length) - target.time(1 + company.rows, length)

    def draft_time(self, width: int, length: int = 0) -> float:
        """The same for the draft model, whose passes serve all who draft just then."""
        assert self.draft is not None, "a draft model"
        mates = self.company.mates
        return self.draft.time(width + round(mates) - 1, length) / mates

    @property
    def measured(self) -> bool:
        """Whether none of the costs it goes by is merely assumed."""
        return self.target.measured and (self.draft is None or self.draft.measured)

    def plain_seconds(self, step: Step) -> float:
        """What the fastest plain decoding known here would have taken for a round's tokens.

        A round that drafted nothing is one of plain decoding, and no estimate. Of others the pass says how fast the
        machine was just then, and the costs what part of it a pass over one token takes; all else in the round is left
        out, so that no gain is made of it.
        """
        if step.plain and step.batch is None:
            return self.plain_share * (step.seconds - step.draft_seconds)
        seats = self.company.seats if step.batch or self.company.apart else 1
        part = self.target.plain_part(step.batch_width, step.length, seats)
        return self.plain_share * len(step.tokens) * part * step.batch_seconds

    def prefills_draft(self, num_unread: int, num_left: int | None) -> bool:
        """If what the draft model is likely to gain in the answer is worth the time in which it reads the prompt."""
        if self.draft is None or not num_unread:
            return False
        plain = self.time(1)
        best = min((seconds / tokens for tokens, seconds in self._rounds_of_model(0, LIKELY)), default=plain)
        answer = TYPICAL_ANSWER if num_left is None else min(num_left, TYPICAL_ANSWER)
        return answer * (plain - best) > self.draft.time(num_unread)

    def can_pay(self, length: int, acceptance: float = BEST_ACCEPTANCE) -> bool:
        """Whether the draft model beats plain decoding at this acceptance: max over k of (k+1 tokens) / cost."""
        plain = self.time(1, length)
        rounds = self._rounds_of_model(length, acceptance)
        return any(tokens * plain > WORTH_TRYING * seconds for tokens, seconds in rounds)

    def pays_but_for_the_way_back(self, length: int) -> bool:
        """Whether it is taking tokens back alone that keeps the draft model from paying."""
        free = AdaptiveController(self.target, self.draft, self.max_width)
        return not self.can_pay(length) and free.can_pay(length)

    def seconds_per_token(self, length: int, acceptance: float) -> float:
        """Expected where each drafted token stands with that chance: with the best draft length, or none."""
        rounds = self._rounds_of_model(length, acceptance)
        drafted = [seconds / tokens for tokens, seconds in rounds]
        return min([self.time(1, length), *drafted])

    def _round_steps(self) -> float:
        """Plain steps that the shortest round of the draft model puts at risk that would pay at its best."""
        plain = self.time(1)
        for tokens, seconds in self._rounds_of_model(0, BEST_ACCEPTANCE):
            if tokens * plain > SLOW_ROUND * seconds:
                return SLOW_ROUND * seconds / plain - 1
        return 0.0

    def _rounds_of_model(self, length: int, acceptance: float) -> Iterator[tuple[float, float]]:
        """Expected tokens and seconds of rounds in which the draft model drafts 1, 2, 3 ... tokens."""
        if self.draft is None:
            return
        tokens, survival = 1.0, 1.0
        for k in range(1, self.max_width):
            survival *= acceptance
            tokens += survival
            verify = self._verify_time(k + 1, self.max_width, length)
            refused = self.way_back(tokens - 1, 1 - survival, length)
            yield tokens, k * self.draft_time(1, length) + verify + refused

    def _verify_time(self, width: int, limit: int, length: int) -> float:
        """Seconds of a pass, padded where that is cheaper, which a running state never is."""
        if self.back.rollback.kind != "cut" or self.company.seats > 1:
            return self.time(width, length)
        return self.target.padded_time(width, limit, length)

    def way_back(self, accepted: float, refused: float, length: int, num_pending: int = 1) -> float:
        """Seconds that a drafted round costs beside its own passes, where tokens that stand are read again.

        accepted: drafted tokens that stand, refused: chance that some do not; num_pending: tokens before the drafted.
        """
        if self.back.is_free and (self.draft is None or self.draft_back.is_free):
            return 0.0  # asked for every width that might be drafted
        kept = num_pending + accepted
        seconds = self.back.seconds + self._again(self.target, self.back, kept, length) * refused
        if self.draft is not None and accepted:
            seconds += self.draft_back.seconds + refused * self._again(
                self.draft, self.draft_back, accepted, length
            )
        return seconds

    @staticmethod
    def _again(costs: CostTable, back: WayBack, kept: float, length: int) -> float:
        if not back.reads_again:
            return 0.0
        return costs.time(1 + round(kept), length) - costs.time(1, length)

    def plan(self, limit: int, length: int, num_pending: int = 1) -> AdaptivePlan:
        """The next round. Nothing is drafted until a few plain ones have shown what the ledger counts in."""
        if self.threads is not None:
            self.threads.decide()
            self._follow_threads()
        limit = max(min(limit, self._widest - num_pending), 0) if self.target.paced else 0
        self._plan = AdaptivePlan(self, limit, length, num_pending)
        return self._plan

    def _follow_threads(self) -> bool:
        """Expect what passes with that many threads cost; whether it is another number. What is owed stays."""
        if self.threads is None or self.costs_for is None or self.threads.count == self._num_threads:
            return False
        self._num_threads, plain = self.threads.count, self.time(1)
        self.target, self.draft = self.costs_for(self._num_threads)
        self._rate_seconds *= self.time(1) / plain
        self._times = None
        return True

    def width(self, width: int, limit: int, length: int) -> int:
        """Padded where a wider pass is cheaper. A pass of one token is what plain decoding does: left alone."""
        if width == 1 or self.company.seats > 1:
            return width
        return self.target.padded_width(width, min(limit, self._widest), length)

    @property
    def _widest(self) -> int:
        return min(self.max_width, self.target.reach)

    def calm_times(self, limit: int, length: int) -> list[float]:
        """Seconds of a pass by width, 0 to `limit`, at scale 1; padded where that is cheaper, which plain decoding
        never is. Looked up many times a round and moving slowly: kept for REUSE rounds.
        """
        if self._times is None or self._times[0] != limit or self._times_age >= REUSE:
            target = self.target
            wide = [self._verify_time(width, limit, length) for width in range(2, limit + 1)]
            times = [seconds / target.scale for seconds in (0.0, self.time(1, length), *wide)]
            self._times, self._times_age, self._hopeless = (limit, times), 0, False
        return self._times[1]

    def probe_due(self, length: int) -> bool:
        """Whether a draft model that did not pay deserves another try."""
        if self._since_model < self._probe_after:
            return False
        # Asked in every round while it does not pay, and as slow to change as the times.
        self._hopeless = self._hopeless or not self.can_pay(length)
        return not self._hopeless

    def rate(self, limit: int, length: int) -> float:
        """R, tokens per second: what rounds give now, but no more than the draft model is expected to give from here
        on, and at least what plain decoding gives. A lucky stretch would else ask too much of the next round.
        """
        plain = 1 / self.time(1, length)
        if not self._rate_seconds:
            return plain
        now = self._rate_tokens / self._rate_seconds
        return max(plain, min(now, self._expected_rate(limit, length))) if now > plain else plain

    def _expected_rate(self, limit: int, length: int) -> float:
        """Of the best number of tokens to draft, if all are accepted as they are on average."""
        if self.draft is None:
            return 0.0
        pass_time, scale = self.draft_time(1, length), self.target.scale
        catch_up = self.draft_time(2, length) - pass_time  # behind a draft that stands whole
        times = self.calm_times(limit + 1, length)
        tokens = survival = 1.0
        best = 0.0
        for k in range(1, limit + 1):
            survival *= self.average.value
            tokens += survival
            refused = self.way_back(tokens - 1, 1 - survival, length)
            best = max(best, tokens / (k * pass_time + survival * catch_up + scale * times[k + 1] + refused))
            if survival < 0.02:
                break
        return best

    def observe(self, step: Step) -> None:
        """Learn costs, acceptance and the balance from one decode round."""
        if step.num_prefilled or not step.tokens:
            return
        plan, self._plan = self._plan, None
        mixed = self._follow_threads()  # the draft's passes had another number than the target's
        seconds = self._learn_costs(step, plan, mixed)
        self._times_age += 1
        self.ledger.settle(seconds, len(step.tokens), self.time(1, step.length))
        self._rate_tokens = 0.9 * self._rate_tokens + len(step.tokens)
        self._rate_seconds = 0.9 * self._rate_seconds + seconds
        if plan is None:
            return
        if plan.taken and self.back.reads_again:
            self.back.observe(step.rollback_seconds)
        for index, (drafter, confidence) in enumerate(plan.taken[: step.num_accepted + 1]):
            accepted = index < step.num_accepted
            self.predictors[drafter].observe(confidence, accepted)
            if drafter == MODEL:
                self.average.observe(float(accepted))
        if not plan.taken:
            for drafter, confidence, token in plan.foreseen:
                self.predictors[drafter].observe(confidence, token == step.tokens[0])
        self._count_model(step, plan)

    def _learn_costs(self, step: Step, plan: AdaptivePlan | None, mixed: bool) -> float:
        """What the round's passes say of costs; returns the seconds that the round is to blame for.

        Where passes had more threads than there was room for, it is others who made them slow.
        """
        expected = self.target.time(step.batch_width, step.length)
        drafting = plan.pass_seconds if plan else 0.0
        crowded = self.threads is not None and self.threads.judge(
            step.batch_seconds, expected if self.target.paced else step.batch_seconds
        )
        if not crowded:
            pace = self.target.scale
            self.target.observe(step.batch_width, step.length, step.batch_seconds)
            if self.draft is not None and not self.draft.paced:  # the same machine computes both
                self.draft.scale *= self.target.scale / pace
            if self.draft is not None and not mixed and drafting and step.draft_seconds > 0:
                self.draft.rescale(step.draft_seconds / drafting)
        own = self._own_seconds(step)
        return min(own, self.time(step.width, step.length) + drafting) if crowded or mixed else own

    def _own_seconds(self, step: Step) -> float:
        """What a round is to blame for: all of it, or of a pass that others shared as much as `time` says."""
        if step.batch is None and self.company.seats == 1:
            return step.seconds
        expected = self.target.time(step.batch_width, step.length)
        share = min(self.time(step.width, step.length) / expected, 1.0)
        return step.draft_seconds + share * step.batch_seconds

    def _count_model(self, step: Step, plan: AdaptivePlan) -> None:
        if not plan.pass_seconds:
            self._since_model += len(step.tokens)
            return
        if plan.probing:
            paid = len(step.tokens) * self.time(1, step.length) > self._own_seconds(step)
            self._probe_after = FIRST_PROBE if paid else min(2 * self._probe_after, LAST_PROBE)
        self._since_model = 0
