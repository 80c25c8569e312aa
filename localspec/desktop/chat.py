"""Chat: the conversations, the one that is shown, and the answer that runs."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication

from localspec import AnswerOptions
from localspec.desktop.answer import Answer
from localspec.desktop.events import Answered, Piece
from localspec.desktop.holder import ModelHolder
from localspec.desktop.layout import Layout
from localspec.desktop.meter import meter
from localspec.desktop.settings import Settings
from localspec.desktop.shelf import Talk
from localspec.desktop.worker import Job, Worker


class Chat:
    """talk: the conversation that is shown; of `talks`, or a new one. answer: the one that runs, of whichever."""

    def __init__(
        self, ui: Layout, holder: ModelHolder, worker: Worker, settings: Settings, talks: list[Talk]
    ) -> None:
        self._ui, self._holder, self._worker, self._settings = ui, holder, worker, settings
        self.talks, self.talk = talks, Talk()
        self.answer: Answer | None = None
        self.has_model = False
        ui.sidebar.begun.connect(self.begin)
        ui.sidebar.opened.connect(self.open)
        ui.sidebar.removed.connect(self.remove)
        ui.composer.asked.connect(self.ask)
        ui.transcript.acted.connect(self._act)
        ui.sidebar.fill(talks)
        self.begin()

    def begin(self) -> None:
        """Show an empty conversation."""
        self.open(Talk())
        self._ui.composer.input.setFocus()

    def open(self, talk: Talk) -> None:
        """Show this one. A running answer of another one goes on."""
        self.talk = talk
        self._ui.composer.clear_extras()
        self._ui.sidebar.select(talk)
        self.redraw()

    def remove(self, talk: Talk) -> None:
        """Forget this one."""
        if self.answer is not None and self.answer.talk is talk:
            self._ui.say("This conversation is being answered. Stop the answer before.")
            return
        self.talks.remove(talk)
        self._ui.sidebar.fill(self.talks)
        self._worker.submit(lambda job: self._holder.forget(talk.key))
        self.open(Talk() if talk is self.talk else self.talk)

    def redraw(self) -> None:
        """Show the conversation from its beginning."""
        answer = self._shown
        if answer is None:
            self._ui.transcript.show_messages(self.talk.messages, self.talk.marks)
        else:
            marks = {**self.talk.marks, len(answer.earlier) + 1: answer.marks}
            self._ui.transcript.show_messages(answer.messages, marks, running=True)

    def ask(self) -> None:
        """Ask what was written; that replaces an earlier question where one is edited."""
        composer = self._ui.composer
        question, place = composer.question(), composer.replaces
        if question and self.is_ready:
            composer.input.clear()
            composer.clear_extras()
            self._ask(question, len(self.talk.messages) if place is None else place)
        elif question and not self.has_model:
            self._ui.say("No model is ready yet: wait for it, or choose one above.")

    def stop(self) -> None:
        """End the answer that runs; what it said stays."""
        if self.answer is not None:
            self.answer.job.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether a question could be answered now."""
        return self.has_model and self.answer is None

    @property
    def _shown(self) -> Answer | None:
        return self.answer if self.answer is not None and self.answer.talk is self.talk else None

    def _ask(self, question: str, place: int) -> None:
        """Ask in the place of message `place` and of all behind it."""
        talk, holder, system = self.talk, self._holder, self._settings.system
        earlier = talk.messages[:place]
        options: AnswerOptions = {"temperature": self._settings.temperature}
        if not self._settings.drafting:
            options["draft_tokens"] = "off"
        job = self._worker.submit(
            lambda job: holder.answer(job, talk.key, earlier, question, system, options)
        )
        self.answer = Answer(talk, earlier, question, job)
        talk.asked = question
        self._list_first(talk)
        self._ui.say("")
        self._ui.meter.setText("Reading the question…")
        self.redraw()
        self.show_state()

    def _list_first(self, talk: Talk) -> None:
        self.talks[:] = [talk, *(each for each in self.talks if each is not talk)]
        self._ui.sidebar.fill(self.talks)
        self._ui.sidebar.select(self.talk)

    def _act(self, action: str, index: int) -> None:
        """What the links at a message do."""
        shown, talk, composer = self._shown, self.talk, self._ui.composer
        if action == "copy":
            messages = talk.messages if shown is None else shown.messages
            QGuiApplication.clipboard().setText(messages[index]["content"])
        elif not self.is_ready:
            self._ui.say("That can be done once a model is loaded and no answer runs.")
        elif action == "edit":
            composer.edit(index, talk.messages[index]["content"])
        elif index == len(talk.messages) - 1:
            self._ask(talk.messages[index - 1]["content"], index - 1)
        else:  # what follows would be lost: that is for the user to say
            composer.edit(index - 1, talk.messages[index - 1]["content"])

    def take_piece(self, piece: Piece) -> None:
        """More of the answer."""
        assert self.answer is not None, "an answer runs"
        self.answer.text += piece.text
        self.answer.marks += piece.drafted
        if self._shown is not None:
            self._ui.transcript.feed(piece.text, piece.drafted)
        if piece.stats is not None:
            self._ui.meter.setText(meter(piece.stats))

    def take_end(self, event: Answered) -> None:
        """The answer is whole, or was stopped."""
        answer, self.answer = self.answer, None
        assert answer is not None, "an answer ran"
        self._ui.meter.setText(meter(event.completion.stats, event.completion))
        self._ui.say(event.completion.notice)
        if event.messages is None:
            self._take_back(answer)
            return
        answer.finish(event.messages)
        self._list_first(answer.talk)
        if answer.talk is self.talk:
            self._ui.transcript.end()

    def take_failure(self, job: Job) -> None:
        """The answer failed, if it is this job's."""
        if self.answer is not None and self.answer.job is job:
            answer, self.answer = self.answer, None
            self._ui.meter.clear()
            self._take_back(answer)

    def show_state(self) -> None:
        """Which buttons there are."""
        self._ui.composer.show_state(busy=self.answer is not None, ready=self.is_ready)

    def _take_back(self, answer: Answer) -> None:
        """The question was not answered: it can be asked again, and nothing was lost."""
        if not answer.talk.messages:
            self.talks.remove(answer.talk)
            self._ui.sidebar.fill(self.talks)
        if answer.talk is self.talk:
            self.redraw()
            if not self._ui.composer.input.toPlainText():
                replaced = len(answer.earlier) < len(answer.talk.messages)
                self._ui.composer.edit(len(answer.earlier) if replaced else None, answer.question)
