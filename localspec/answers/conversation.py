"""Conversation: turns with the ids that were read and written, so that no history is tokenized twice."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, Protocol, Unpack, cast

from localspec.answers.request import AnswerOptions, Completion
from localspec.answers.saved import Saved, read_saved, restore_cells, saved_cells, write_saved
from localspec.answers.saved_options import missing_functions, overridden
from localspec.answers.stream import AnswerStream
from localspec.answers.turn import Message, Turn, first_with_room, room_for_answer, spoken, written
from localspec.checks import StrPath, as_integer, check_names, check_when_full
from localspec.decoding.params import SamplingParams
from localspec.decoding.seeds import attempt_seed
from localspec.engine.engine import Engine
from localspec.errors import EngineBusy, InvalidRequest, PromptTooLong
from localspec.text.continuation import Prompt, Said, next_prompt
from localspec.text.messages import checked_text

CANCEL_SECONDS = 5.0
"""How long the next question waits for the thread that reads a cancelled answer to take its end."""

_GO_ON = (
    'when_full = "drop_oldest" goes on without the oldest turns, and undo() takes the last one back; '
    "or load the model with a larger context (n_ctx)."
)


class Answers(Protocol):
    """What a conversation needs of an `LLM`."""

    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> AnswerStream: ...

    def using(self) -> AbstractContextManager[Engine]: ...

    def exclusive(self) -> AbstractContextManager[Engine]: ...


class Conversation:
    """One conversation with an `LLM`; `LLM.conversation` makes it. Several may share an `LLM`.

    A turn is added when its answer is complete, just before the last chunk is handed out. An answer that was
    cancelled keeps what it said, if it is read to its end before the next question; one that was closed, dropped or
    failed leaves no trace.

    A context that is full: with `when_full` "error" a question that no longer fits raises `PromptTooLong`; with
    "drop_oldest" the model is no longer shown the oldest turns, whole ones, until there is room for question and
    answer. The notice of the completion (and, before the first chunk, of the stream) then says which. They stay in
    `turns` and `messages`; `dropped` is their number, and `seen` what is left of the messages.

    system, when_full, defaults: hold from the next question on when they are changed.
    reread: why the history had to be rendered and read again for the last question, or "" where its ids were kept.
    restored: after `load`, what became of the saved state of the models, in a sentence.
    """

    def __init__(
        self, llm: Answers, system: str = "", *, when_full: str = "error", **defaults: Unpack[AnswerOptions]
    ) -> None:
        self._llm = llm
        self.when_full = check_when_full(when_full)
        self.system = checked_text(system, "The system prompt", name="system")
        self.defaults = _checked_options(cast(dict[str, Any], defaults))
        self.reread = ""
        self.restored = ""
        self._turns: tuple[Turn, ...] = ()
        self._lock = threading.RLock()
        self._pending: weakref.ref[AnswerStream] | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns, oldest first."""
        return self._turns

    @property
    def messages(self) -> list[Message]:
        """System prompt, questions and answers, as `LLM.chat` takes them; those that were dropped too."""
        return list(written(self.system, self._turns))

    @property
    def dropped(self) -> int:
        """How many of the oldest turns the model no longer sees; `undo` takes that back with the turn that did it."""
        return self._turns[-1].dropped if self._turns else 0

    @property
    def seen(self) -> list[Message]:
        """Those of `messages` that the model still sees: the next question is answered behind these, or fewer."""
        return list(written(self.system, self._turns[self.dropped :]))

    @property
    def ids(self) -> tuple[int, ...]:
        """Everything that was read and written so far, without the turns that were dropped."""
        return (*self._turns[-1].said.prompt, *self._turns[-1].said.ids) if self._turns else ()

    def ask(self, text: str, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """The answer to the next question; options go before the conversation's defaults.

        Raises `InvalidRequest` for a text of blanks, `EngineBusy` while an earlier answer is unfinished, and what
        `LLM.chat` raises.
        """
        question = _checked_question(text)
        self._let_cancelled_end()
        with self._lock:
            return self._answer(self._turns, question, 0, options)

    def regenerate(self, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Another answer to the last question, which replaces the last one when it is complete.

        With a seed each attempt has its own, derived from it. Raises what `ask` raises, `InvalidRequest` where
        nothing was asked yet.
        """
        self._let_cancelled_end()
        with self._lock:
            if not self._turns:
                raise InvalidRequest("There is no answer to regenerate.", "Ask something first.")
            *earlier, last = self._turns
            return self._answer(tuple(earlier), last.question, last.attempt + 1, options)

    def ask_instead(self, text: str, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Ask another question in the place of the last one, which stays until its answer is complete.

        Raises what `ask` raises.
        """
        question = _checked_question(text)
        self._let_cancelled_end()
        with self._lock:
            return self._answer(self._turns[:-1], question, 0, options)

    def undo(self) -> Turn | None:
        """Take the last question and its answer back; None where there is none. Raises `EngineBusy` as `ask`."""
        self._let_cancelled_end()
        with self._lock:
            self._refuse_unfinished()
            if not self._turns:
                return None
            *earlier, last = self._turns
            self._turns, self._pending = tuple(earlier), None
            return last

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt and the defaults stay. Raises `EngineBusy` as `ask`."""
        self._let_cancelled_end()
        with self._lock:
            self._refuse_unfinished()
            self._turns, self._pending = (), None

    def save(self, path: StrPath, *, with_state: bool = True) -> None:
        """Write it to a file, with its options, and the models' state where they hold it now.

        with_state: False leaves the state out. The file is then small, and what is loaded from it is read again.

        They hold the state of the conversation that they answered last, until they are unloaded. The file is replaced
        at once or not at all. Functions among the options (`logits_processors`) are not in it. Waits for other answers.
        Raises `ConversationFileError`, `InvalidRequest` for options that no answer could have, `EngineBusy` as `ask`,
        and `EngineClosed`: save before closing.
        """
        self._let_cancelled_end()
        with self._lock:
            self._refuse_unfinished()
            with self._llm.exclusive() as engine:
                cells = saved_cells(engine.holding(self.ids), self.ids) if with_state else {}
                saved = Saved(self.system, self._turns, cells, self.defaults, self.when_full)
                write_saved(path, saved, engine)

    @classmethod
    def load(
        cls, llm: Answers, path: StrPath, *, when_full: str | None = None, **defaults: Unpack[AnswerOptions]
    ) -> Conversation:
        """A saved conversation, ready to go on where it was. Load only files of your own: a forged state is not safe.

        Its options and `when_full` are those it was saved with, but for what is given here; `params` takes the place of
        all that were saved of sampling.

        Saved under another model file, build or setting, the ids are kept and read again at the next question;
        `restored` says so. Raises `ConversationFileError` for a file that is damaged or of another vocabulary.
        """
        with llm.exclusive() as engine:
            saved = read_saved(path, engine)
            options = overridden(saved.options, defaults)
            full = saved.when_full if when_full is None else when_full
            conversation = cls(llm, saved.system, when_full=full, **cast(AnswerOptions, options))
            conversation._turns = saved.turns
            ids = conversation.ids
            conversation.restored = restore_cells(engine.holding(ids), ids, saved.cells)
            conversation.restored += missing_functions(saved.options, defaults)
        return conversation

    @classmethod
    def from_messages(
        cls,
        llm: Answers,
        messages: Sequence[Mapping[str, str]],
        *,
        when_full: str = "error",
        **defaults: Unpack[AnswerOptions],
    ) -> Conversation:
        """One that goes on behind `messages`, in the form of `Conversation.messages`: also those of another model.

        They are read at the next question. Raises `InvalidRequest` for messages of another form.
        """
        system, turns = spoken(messages)
        conversation = cls(llm, system, when_full=when_full, **defaults)
        conversation._turns = tuple(turns)
        return conversation

    def _answer(
        self, earlier: tuple[Turn, ...], question: str, attempt: int, options: AnswerOptions
    ) -> AnswerStream:
        self._refuse_unfinished()
        merged = {**self.defaults, **options}
        params = merged.get("params")
        seed = merged["seed"] if "seed" in merged else getattr(params, "seed", None)
        if attempt and seed is not None:
            merged["seed"] = attempt_seed(SamplingParams(seed=seed).seed, attempt)
        with self._llm.using() as engine:
            prompt, dropped, notice = self._prompt(engine, earlier, question, merged)
        try:
            stream = self._llm.stream(prompt.ids, **cast(AnswerOptions, merged))
        except PromptTooLong as error:
            if self.when_full == "error" and earlier:
                error.remedy = _GO_ON
            raise
        stream.notice, self.reread = notice, notice or prompt.reread
        self._pending = pending = weakref.ref(stream)
        return stream.when_complete(
            partial(self._record, pending, earlier, question, attempt, prompt, dropped)
        )

    def _prompt(
        self, engine: Engine, earlier: tuple[Turn, ...], question: str, options: dict[str, Any]
    ) -> tuple[Prompt, int, str]:
        """What the model reads, how many of the oldest turns are not in it, and which were dropped just now."""

        @cache
        def beginning_with(turn: int, said: Said | None = None) -> Prompt:
            messages = list(written(self.system, earlier[turn:], question))
            return next_prompt(engine.vocab, engine.template, messages, said)

        when_full = check_when_full(self.when_full)
        dropped = earlier[-1].dropped if earlier else 0
        prompt = beginning_with(dropped, earlier[-1].said if earlier else None)
        if when_full == "error" or dropped == len(earlier):
            return prompt, dropped, ""
        n_ctx, room = engine.target.n_ctx, room_for_answer(engine.target.n_ctx, _max_tokens(options))
        if len(prompt.ids) <= n_ctx - room:
            return prompt, dropped, ""
        dropped = first_with_room(
            lambda turn: len(beginning_with(turn).ids), dropped, len(earlier), n_ctx, room
        )
        return beginning_with(dropped), dropped, _dropped_notice(n_ctx, dropped, len(earlier))

    def _record(
        self,
        pending: weakref.ref[AnswerStream],
        earlier: tuple[Turn, ...],
        question: str,
        attempt: int,
        prompt: Prompt,
        dropped: int,
        completion: Completion,
    ) -> None:
        if completion.finish_reason == "cancelled" and not completion.ids:
            return
        said = Said(prompt.ids, prompt.digest, completion.ids, completion.text)
        with self._lock:
            if pending is self._pending:  # else it was closed, and the conversation went on, a moment before
                self._turns = (*earlier, Turn(question, completion.text, attempt, said, dropped))

    def _unfinished(self) -> AnswerStream | None:
        stream = self._pending() if self._pending is not None else None
        return None if stream is None or stream.ended else stream

    def _let_cancelled_end(self) -> None:
        """A cancelled answer that another thread reads is kept with what it said, which takes a moment."""
        stream = self._unfinished()
        if stream is not None and stream.cancelled:
            stream.wait(CANCEL_SECONDS)

    def _refuse_unfinished(self) -> None:
        stream = self._unfinished()
        if stream is None or (stream.cancelled and stream.close_unread()):
            return
        raise EngineBusy(
            "The last answer of this conversation is unfinished.", "Read it to its end, or close it."
        )


def _checked_question(text: str) -> str:
    question = checked_text(text, "The question", name="text")
    if not question.strip():
        raise InvalidRequest("The question is empty.", "Ask something.", name="text")
    return question


def _max_tokens(options: dict[str, Any]) -> int | None:
    """What is asked for; `LLM.stream` refuses what makes no sense."""
    params = options.get("params")
    return as_integer(
        options["max_tokens"] if "max_tokens" in options else getattr(params, "max_tokens", None)
    )


def _dropped_notice(n_ctx: int, dropped: int, turns: int) -> str:
    which = "turn 1" if dropped == 1 else f"turns 1 to {dropped}"
    return f"The context of {n_ctx} tokens is full: the model no longer sees {which} of {turns}."


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    check_names(options, AnswerOptions.__annotations__)
    return options
