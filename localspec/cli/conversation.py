"""The turns of one chat. A turn is added only when its answer is there, so a failed one leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """A question and its answer; `attempt` counts how often the answer was regenerated."""

    question: str
    answer: str
    attempt: int = 0


@dataclass
class Conversation:
    """System prompt ("" for none) and finished turns."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)

    def messages(self, earlier: Sequence[Turn], question: str) -> list[Message]:
        """What the model reads: system prompt, earlier turns, the question."""
        messages = [_message("system", self.system)] if self.system else []
        for turn in earlier:
            messages += [_message("user", turn.question), _message("assistant", turn.answer)]
        return [*messages, _message("user", question)]

    def undo(self) -> Turn | None:
        """Remove and return the last turn, or None when there is none."""
        return self.turns.pop() if self.turns else None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
