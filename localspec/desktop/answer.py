"""Answer: the one that is being computed, as far as the window knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.desktop.shelf import Message, Talk
from localspec.desktop.worker import Job


@dataclass
class Answer:
    """earlier: the messages before the question. marks: for each character of the text, whether it was drafted."""

    talk: Talk
    earlier: list[Message]
    question: str
    job: Job
    text: str = ""
    marks: list[bool] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """The conversation as it will be."""
        question = {"role": "user", "content": self.question}
        return [*self.earlier, question, {"role": "assistant", "content": self.text}]

    def finish(self, messages: list[Message]) -> None:
        """These are the conversation's messages from now on."""
        place = len(self.earlier) + 1
        self.talk.messages = messages
        self.talk.marks = {index: marks for index, marks in self.talk.marks.items() if index < place}
        self.talk.marks[place] = self.marks
