"""The account that bounds what drafting may lose against plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.003
"""Of the elapsed time that may be lost."""
LEAST_CREDIT, MOST_CREDIT = 3.5, 6.5
"""Plain steps that may be lost before anything was gained: lets the first rounds start. Within these limits it is
what one useful round puts at risk."""
STAKE = 0.7
"""Share of what may still be lost that one round may put at risk: one bad guess must not end all drafting."""
SURPLUS_STEPS = 8.0
"""Plain steps of gain that are kept: what was won in one part of a text must not be gambled away in the next."""


@dataclass
class Ledger:
    """Balance D = sum(round time - emitted * plain step time), in seconds; positive is a loss.

    credit_steps: plain steps that D may reach, beside SHARE of the elapsed time.
    """

    balance: float = 0.0
    elapsed: float = 0.0
    credit_steps: float = LEAST_CREDIT

    def reset(self, round_steps: float) -> None:
        """A new answer starts; a useful round may lose `round_steps` plain steps."""
        self.balance = self.elapsed = 0.0
        self.credit_steps = min(max(round_steps / STAKE, LEAST_CREDIT), MOST_CREDIT)

    def settle(self, seconds: float, emitted: int, plain_step: float) -> None:
        """Book one round."""
        self.elapsed += seconds
        self.balance = max(self.balance + seconds - emitted * plain_step, -SURPLUS_STEPS * plain_step)

    def stake(self, plain_step: float) -> float:
        """Seconds that the next round may lose: a part of what is left, so that one bad guess does not end it all."""
        return STAKE * (self.credit_steps * plain_step + SHARE * self.elapsed - self.balance)
