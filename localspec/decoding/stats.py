"""What one round did, and the counters folded from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from localspec.decoding.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass of the target, which the spans of several answers may share.

    width: tokens in it, padding included. seconds: that it took.
    """

    width: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One round: a forward pass of the target and what it committed.

    A round that only reads a piece of the prompt commits nothing. Times are seconds; `seconds` is the whole
    round, drafting, passes and what neighbours in the batch took included.
    width, length: tokens of this answer in the pass (padding included), and cells before them.
    target_seconds: this answer's share of the pass, by width.
    batch: the whole pass, where other answers were in it too; None: this one was alone.
    num_accepted: drafted tokens that were committed, the first ones of `tokens`. An answer that ends among them has no
    token of the target's own in its last round.
    reading_seconds: before the round, in which the draft model read the prompt; not part of `seconds`.
    logprobs: one for each of `tokens`, where they were asked for.
    num_read_again: tokens in the pass that had been read before a running state was brought back.
    rollback_seconds: spent on copies of the target's running state; part of `seconds`, not of `target_seconds`.
    """

    width: int
    length: int
    tokens: tuple[int, ...]
    num_prefilled: int
    num_drafted: int
    num_accepted: int
    bonus: bool
    finish_reason: str | None
    draft_seconds: float
    target_seconds: float
    seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()
    batch: Batch | None = None
    reading_seconds: float = 0.0
    num_read_again: int = 0
    rollback_seconds: float = 0.0

    @property
    def batch_width(self) -> int:
        """Tokens in the whole pass."""
        return self.batch.width if self.batch else self.width

    @property
    def batch_seconds(self) -> float:
        """Seconds of the whole pass."""
        return self.batch.seconds if self.batch else self.target_seconds

    @property
    def recovered(self) -> bool:
        """Whether a token of the target's own took the place of a refused one."""
        return self.num_drafted > 0 and not self.bonus and len(self.tokens) > self.num_accepted

    @property
    def plain(self) -> bool:
        """Whether a token was committed without a draft."""
        return self.num_drafted == 0 and len(self.tokens) > 0


LEAST_TOKENS = 16
"""Decoded tokens from which on a speedup is said: fewer are one stall, or one lucky guess."""


@dataclass
class Stats:
    """Counters of one answer. Times are seconds.

    tokens = accepted + recovered + bonus + plain: drafted ones that stand, those in the place of a refused one, those
    after a draft that stands whole, and those of rounds without a draft.
    prefill_seconds is the time to the first token; decode_seconds everything after it. first_tokens are those that the
    last prefill round committed. target_seconds and draft_seconds are spent in forward passes and drafting (in which
    the draft model reads the prompt too), other_seconds is the rest.
    threads: CPU threads of the target's passes, the fewest where their number changed; None before the first.
    draft_ended_at: tokens of prompt and answer after which the draft model drafted no more, None if it went on.
    plain_seconds: what plain decoding would have taken instead of decode_seconds, estimated from the costs of passes;
    None where they are not known, or a fixed length was drafted whatever it cost.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    plain: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    other_seconds: float = 0.0
    threads: int | None = None
    draft_ended_at: int | None = None
    plain_seconds: float | None = None

    def add(self, step: Step, plain_seconds: float | None = None) -> None:
        """Fold one round in. plain_seconds: what plain decoding would have taken for its tokens, if known."""
        if step.num_prefilled or not self.tokens:
            self.prefill_seconds += step.seconds
            self.first_tokens += len(step.tokens)
        else:
            self.decode_seconds += step.seconds + step.reading_seconds
            if plain_seconds is not None:
                self.plain_seconds = (self.plain_seconds or 0.0) + plain_seconds
        self.tokens += len(step.tokens)
        self.rounds += 1 if step.tokens else 0
        self.drafted += step.num_drafted
        self.accepted += step.num_accepted
        self.recovered += int(step.recovered)
        self.bonus += int(step.bonus)
        self.plain += int(step.plain)
        self.target_seconds += step.target_seconds
        self.draft_seconds += step.draft_seconds + step.reading_seconds
        self.other_seconds += step.seconds - step.target_seconds - step.draft_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first round's, per second of decoding; 0.0 when there were none."""
        return (self.tokens - self.first_tokens) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, or None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens committed per target pass, bonus included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def speedup_estimate(self) -> float | None:
        """Plain decoding's seconds / these, estimated; None where nothing is known of them, or after few tokens."""
        if not self.plain_seconds or self.tokens - self.first_tokens < LEAST_TOKENS:
            return None
        return self.plain_seconds / self.decode_seconds if self.decode_seconds > 0 else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Counters and rates, ready for JSON."""
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "speedup_estimate": self.speedup_estimate,
        }
