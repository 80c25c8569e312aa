"""LLM: what an application holds."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Unpack, cast

from localspec.answers.answering import answer_chunks, cancelled_chunk, make_request
from localspec.answers.conversation import Conversation
from localspec.answers.idle_moments import IdleMoments
from localspec.answers.queue import AnswerQueue
from localspec.answers.request import AnswerOptions, Chunk, Completion, Messages, Request
from localspec.answers.seated import SeatedAnswer
from localspec.answers.stream import AnswerStream
from localspec.answers.ticket import Ticket
from localspec.checks import check_draft_tokens, checked_ids, checked_prompt, text_or_items
from localspec.decoding.control import Controller
from localspec.engine.engine import Engine
from localspec.engine.kept import Keeper, Order
from localspec.engine.loaders import Loaders
from localspec.engine.measured_costs import Costs
from localspec.engine.options import Notify
from localspec.engine.seats import Seats, SeatState
from localspec.errors import DecodeCancelled, EngineClosed, LoadCancelled, LocalspecError
from localspec.remote.engine import RemoteEngine, refuse
from localspec.remote.keeper import RemoteKeeper
from localspec.remote.requests import portable
from localspec.system.at_exit import close_at_exit
from localspec.system.forks import is_forked
from localspec.text.prompt import render_prompt, text_prompt
from localspec.text.template import ChatTemplate

log = logging.getLogger(__name__)
EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for a running answer to stop."""


def _ignore(sentence: str) -> None:
    pass


class LLM(Loaders):
    """A target, with a draft where there is one. A context manager; `close` is idempotent.

    As many answers run at a time as it has seats (`parallel`, by default one): further threads wait for their turn.
    `cancel` and `close` work from any thread.
    """

    def __init__(self, keeper: Keeper, unload_after: float | None = None) -> None:
        """Use `load`, `from_pair`, `from_hub`, `from_folder` or `from_files`."""
        super().__init__(keeper)
        self._queue = AnswerQueue(keeper.cancel, keeper.num_seats)
        # Those of the load, then those that answered last: to ask what they hold must load nothing.
        seats = keeper.seats
        self._seats: Callable[[], Seats | None] = (lambda: None) if seats is None else weakref.ref(seats)
        self._idle = IdleMoments(self._queue, keeper, unload_after)
        close_at_exit(self)

    @property
    def engine(self) -> Engine:
        """Both models, loaded again if need be; with `unload_after` hold `using()`. Raises `EngineClosed`.

        With `rpc` they are in another process: raises `RpcError`.
        From then on nothing is measured in idle moments: its contexts are the caller's too.
        """
        with self.using() as engine:
            if isinstance(engine, RemoteEngine):
                refuse("engine")
            self._idle.end_measuring()  # whoever has it may compute with its contexts
            return engine

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory; they may not be with `unload_after`."""
        return self._keeper.loaded

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user about settings that were clamped or ignored at load."""
        return tuple(self._keeper.warnings)

    @property
    def settings(self) -> dict[str, object]:
        """Settings in effect for both models, ready for JSON."""
        return self._keeper.settings

    @property
    def drafting(self) -> str:
        """Whether tokens are drafted by default, and why not."""
        return self._keeper.drafting

    @property
    def hint(self) -> str:
        """What would let the draft model pay, in a sentence; "" where it can, or where there is none."""
        return self._keeper.hint

    @property
    def parallel(self) -> int:
        """Answers that may run at a time."""
        return self._queue.num_seats

    @property
    def seats(self) -> tuple[SeatState, ...]:
        """What they do now, where there are several; none where the weights are not in memory."""
        seats = self._seats()
        if seats is None or not self.loaded:
            return ()
        taken = self._queue.taken
        return tuple(SeatState(index in taken, held) for index, held in enumerate(seats.held))

    @property
    def template(self) -> ChatTemplate:
        """The target's chat template."""
        with self.using() as engine:
            return engine.template

    def chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[AnswerOptions],
    ) -> AnswerStream:
        """Answer a conversation: dicts with `role` and `content`, through the model's own chat template.

        A role is one of OpenAI's; a content is a text, or OpenAI's list of text parts.
        tools: functions the model may call, as OpenAI writes them; its calls stand in the answer's text, where
        `localspec.ToolCallParser` finds them. template_variables: what the template asks for besides,
        such as `enable_thinking`. options: those of `AnswerOptions`.
        Raises `InvalidRequest`, `TemplateError`, `PromptTooLong`.
        """
        with self.using() as engine:
            ids = self.render(messages, tools=tools, template_variables=template_variables)
            return self._start(engine, ids, options)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        beginning: str = "",
        ending: str = "answer",
    ) -> list[int]:
        """Prompt ids of a conversation; arguments as for `chat`.

        beginning: what the answer begins with, control tokens included; the model takes it for its own.
        ending: how the prompt ends: with the opening of an "answer"; inside the last "message", an assistant's, which
        the model then continues; or with "nothing", right behind the last message.
        """
        with self.using() as engine:
            return render_prompt(
                engine.vocab,
                engine.template,
                messages,
                tools=tools,
                beginning=beginning,
                variables=template_variables,
                ending=ending,
            )

    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Continue a raw prompt, text or token ids; arguments as for `chat`, without `tools` and template variables."""
        with self.using() as engine:
            given = text_or_items(prompt)
            ids = text_prompt(engine.vocab, given) if isinstance(given, str) else given
            return self._start(engine, ids, options)

    def generate(
        self, prompt: str | Sequence[int] | Messages, **options: Unpack[AnswerOptions]
    ) -> Completion:
        """The whole answer to a text, token ids or a conversation; arguments as for `stream` and `chat`."""
        completion = None
        for chunk in self.start(prompt, **options):
            completion = chunk.completion
        assert completion is not None, "the last chunk carries the completion"
        return completion

    def start(self, prompt: str | Sequence[int] | Messages, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """`chat` for messages, `stream` for a text or token ids."""
        given = text_or_items(prompt)
        if not isinstance(given, str) and any(isinstance(item, Mapping) for item in given):
            return self.chat(given, **options)
        return self.stream(given, **options)

    def tokenize(self, prompt: str | Sequence[int] | Messages) -> list[int]:
        """Token ids of a prompt as `generate` takes it; ids stay as they are. Raises what `chat` and `stream` raise."""
        given = text_or_items(prompt)
        with self.using() as engine:
            if isinstance(given, str):
                return text_prompt(engine.vocab, given)
            if any(isinstance(item, Mapping) for item in given):
                return self.render(given)
            return checked_prompt(given, engine.target.n_vocab, sys.maxsize)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included. Raises `InvalidRequest` for what is no id."""
        return self.token_bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of token ids, control tokens included: parts of characters stay parts. Raises `InvalidRequest`."""
        with self.using() as engine:
            known = checked_ids(ids, engine.target.n_vocab)
            return b"".join(engine.vocab.piece(token, special=True) for token in known)

    def conversation(
        self, system: str = "", *, when_full: str = "error", **defaults: Unpack[AnswerOptions]
    ) -> Conversation:
        """A conversation that keeps its ids; `defaults` hold for its answers. Raises `InvalidRequest`."""
        return Conversation(self, system, when_full=when_full, **defaults)

    @contextmanager
    def using(self) -> Iterator[Engine]:
        """Both models for short use beside a running answer, such as tokenizing: not freed inside the block."""
        with self._queue.using():
            yield self._keeper.engine

    @contextmanager
    def exclusive(self) -> Iterator[Engine]:
        """Both models while no answer runs: waits for those before. Raises `EngineClosed` or `EngineBusy`."""
        with self._queue.admit(Ticket(whole=True)):
            yield self._keeper.engine

    def controller(self, draft_tokens: int | str) -> Controller:
        """Who decides draft lengths: for "auto" the one of all answers, by what passes cost as far as that is known."""
        return self._keeper.controller(check_draft_tokens(draft_tokens))

    def cancel(self) -> None:
        """Stop every answer asked for until now, from any thread; each ends with finish reason `cancelled`.

        Calls that wait for weights that are loaded again (`unload_after`) and have no answer yet raise `LoadCancelled`.
        """
        self._queue.cancel()
        self._keeper.cancel_loading()

    def forget(self) -> None:
        """Forget the tokens of earlier answers: the next one starts cold, as a measurement must."""
        with self.exclusive() as engine:
            engine.forget()

    def unload(self) -> bool:
        """Free the weights until the next use, unless an answer is running; whether they are freed."""
        return self._queue.if_idle(0.0, self._keeper.unload)

    def calibrate(
        self, *, redo: bool = False, notify: Notify = _ignore, skip: Callable[[], bool] = lambda: False
    ) -> Costs:
        """Measure now what passes cost here (some seconds), which otherwise is done in idle moments and from answers.

        Only what is not certain, or with `redo` all. Where it then is clear that a copy of the draft can pay, it is
        made. notify: told in a sentence what is done. skip: asked after each pass whether what is known by then
        shall do. Waits for running answers, and begins with empty cells. Raises `DecodeCancelled` after `cancel`.
        """
        with self.exclusive() as engine:
            engine.forget()
            return self._keeper.calibrate(redo=redo, notify=notify, skip=skip)

    def close(self, *, wait: bool = True) -> None:
        """Stop what runs, from any thread, and free everything. Idempotent.

        Answers asked for until now end as after `cancel`; calls after it raise `EngineClosed`. Called in the middle of
        an answer or of `using` by the same thread (in a callback, a signal handler), it returns at once, and everything
        is freed when that has ended.

        wait: until everything is freed, which takes some tenths of a second for large models. False is for a thread
        that must not be held up, such as a window's: all that ends, and a thread of its own frees it. Who calls
        `close()` then, or ends the interpreter, waits for that.
        """
        self._stop()
        if wait:
            self._queue.close(self._keeper.close)
        elif not is_forked():
            self._queue.end_all()
            try:
                threading.Thread(target=self.close, name="localspec close", daemon=True).start()
            except RuntimeError:  # the interpreter ends, or the system has no more threads
                self.close()

    def close_at_exit(self) -> None:
        """Like `close`, but what does not stop in time is left to the end of the process."""
        self._stop()
        self._queue.close_at_exit(self._keeper.close, EXIT_SECONDS)

    def _stop(self) -> None:
        self._idle.stop()
        self._keeper.stop_loading()

    def __repr__(self) -> str:
        return f"<LLM {self._keeper}>"

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def _kept(cls, order: Order, notify: Notify) -> Keeper:
        elsewhere = order.options.rpc or order.options.draft_rpc
        return RemoteKeeper(order, notify) if elsewhere else super()._kept(order, notify)

    def _start(self, engine: Engine, ids: list[int], options: AnswerOptions) -> AnswerStream:
        default = self._keeper.order.draft_tokens
        given = cast(dict[str, Any], options)
        try:
            request = make_request(engine, ids, default, given)
            given = portable(request, given) if isinstance(engine, RemoteEngine) else given
        except LocalspecError as error:
            log.info("refused: %s", error.message)
            raise
        ticket = self._queue.ticket()
        if self._queue.num_seats > 1:
            ticket.seated = True
            compute = partial(self._answer_in_seat, request, ticket, self.drafting)
            return AnswerStream(self._queue, ticket, SeatedAnswer(self._queue, ticket, compute).chunks())
        return AnswerStream(self._queue, ticket, self._answer(request, given, ticket, self.drafting))

    def _answer(
        self, request: Request, options: dict[str, Any], ticket: Ticket, drafting: str
    ) -> Generator[Chunk]:
        with self._queue.admit(ticket) as mine:
            if not mine:
                yield cancelled_chunk(request, drafting)
                return
            try:
                engine = self._keeper.engine  # may load what was freed
            except (LoadCancelled, EngineClosed):
                yield cancelled_chunk(request, drafting)
                return
            if isinstance(self._keeper, RemoteKeeper):
                yield from self._keeper.answer(request, options, ticket)
                return
            controller = self._keeper.controller(request.draft_tokens)
            yield from answer_chunks(engine, controller, request, ticket)

    def _answer_in_seat(self, request: Request, ticket: Ticket, drafting: str) -> Generator[Chunk]:
        ticket.choose = lambda free: self._best_seat(free, request.ids)
        with self._queue.admit(ticket) as mine:
            try:
                seats = self._keeper.seats if mine else None
            except (LoadCancelled, EngineClosed, DecodeCancelled):  # the last: contexts are compared
                seats = None
            if seats is None:
                yield cancelled_chunk(request, drafting)
                return
            self._seats = weakref.ref(seats)
            engine = seats.take(ticket.seat, lambda: ticket.cancelled)
            with seats.passes.inside():
                seats.share(ticket.seat, request.ids)
                seats.set_aside(self._queue.taken)
                controller = self._keeper.seat_controller(request.draft_tokens, engine.target.n_outputs)
                yield from answer_chunks(engine, controller, request, ticket)

    def _best_seat(self, free: list[int], ids: list[int]) -> int:
        """Of the free ones the best for the prompt; where nothing is loaded, any."""
        seats = self._seats()
        return free[0] if seats is None else seats.best(free, ids)
