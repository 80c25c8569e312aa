"""RemoteKeeper: keeps an engine in a process of its own, whose end is an error here."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, cast

from localspec.answers.queue import closed
from localspec.answers.request import Chunk, Request
from localspec.answers.ticket import Ticket
from localspec.decoding.control import Controller
from localspec.engine.engine import Engine
from localspec.engine.engine import facts_of as metadata_of
from localspec.engine.keeper import identity
from localspec.engine.kept import Order
from localspec.engine.libraries import reference
from localspec.engine.measured_costs import Costs
from localspec.engine.options import Notify
from localspec.errors import DecodeCancelled, LoadCancelled, ModelFileError, RpcError
from localspec.remote.asking import Asking
from localspec.remote.engine import RemoteEngine, refuse
from localspec.remote.facts import Facts
from localspec.remote.requests import cut_short
from localspec.system.forks import claim_process, is_forked
from localspec.system.load_watch import LoadWatch, check_cancelled, stage, watching
from localspec.system.progress import Progress, Stage
from localspec.system.rpc_servers import SECONDS, check_servers

CANCEL_SECONDS = 20.0
"""How long a pass may go on after a cancel. llama.cpp waits without end for a server that went silent."""
CLOSE_SECONDS = 3.0
"""The same where everything is closed, and for the process to end by itself."""
AGAIN_SECONDS = 10.0
"""How long a server may take to answer again: it ends the pass first that it computed for a process that was ended."""
log = logging.getLogger(__name__)


class _Flag:
    """Whoever waits for a chunk sees that its ticket was cancelled: nothing has to be told here."""

    def set(self) -> None:
        """Stop passes."""

    def clear(self) -> None:
        """Let them run."""


class RemoteKeeper:
    """As `EngineKeeper`, for an engine in a child. A child that was lost is started again at the next use.

    Raises `RpcError` where a server cannot be used, `BackendError` where the library here knows no servers, and what
    a load raises.
    """

    def __init__(self, order: Order, notify: Notify) -> None:
        claim_process()  # the threads that hear the child are not in one that is forked from this
        options = replace(order.options, try_first=False, parallel=1)  # it is tried in a child as it is
        self.order = replace(order, options=options)
        self.cancel = _Flag()
        self.may_measure, self.num_seats = False, 1
        self._loading = threading.Lock()
        self._freeing = threading.RLock()
        self._watch: LoadWatch | None = None
        self._num_cancels = 0
        self._closed = False
        self._asking: Asking | None = None
        self._engine: RemoteEngine | None = None
        started = time.monotonic()
        self._facts = self._load(notify)
        self.warnings = [*self._facts.warnings, *self._about_servers(order.options.parallel)]
        self._identity = identity(metadata_of(self.order.target))
        log.info("loaded %s in %.1f s, in process %s", self, time.monotonic() - started, self.pid)

    def _about_servers(self, parallel: int | str) -> list[str]:
        sentences, given = [], self.order.options.draft_rpc
        if given and not self._facts.has_draft:
            sentences += [
                f"draft_rpc is {', '.join(given)}, and no draft model is loaded: nothing is put there."
            ]
        if parallel not in ("auto", 1):
            sentences += [f"parallel is {parallel}, and with RPC servers one answer runs at a time."]
        return sentences

    def __str__(self) -> str:
        return str(self.order)

    @property
    def pid(self) -> int | None:
        """Of the process that computes, where there is one."""
        return None if self._asking is None else self._asking.pid

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory, there."""
        return self._asking is not None and not self._asking.lost

    @property
    def engine(self) -> Engine:
        """A `RemoteEngine`; models that were freed or lost are loaded again. Raises what `EngineKeeper.engine` does."""
        if self._engine is None or not self.loaded:
            self._load_again(self._num_cancels)
        return cast(Engine, self._engine)

    def _load(self, notify: Notify, seconds: float = SECONDS) -> Facts:
        """Start the child and let it load. seconds: how long each server may take to answer."""
        addresses = tuple(dict.fromkeys((*self.order.options.rpc, *self.order.options.draft_rpc)))
        if addresses:
            reference().check_rpc()
            check_servers(addresses, seconds)

        def told(what: object) -> None:
            if not isinstance(what, Progress):
                notify(str(what))
            elif what.stage is not Stage.READY:
                stage(what.stage, what.sentence, what.fraction, what.fraction)

        asking = Asking(addresses)
        try:
            facts: Facts = asking.ask("load", self.order, told=told, check=check_cancelled)
            self._engine = self._engine or RemoteEngine(
                metadata_of(self.order.target), facts, _forgetting(self)
            )
        except BaseException:
            asking.end()
            raise
        self._asking = asking
        return facts

    def _load_again(self, num_cancels: int) -> None:
        with self._loading:
            if self._engine is not None and self.loaded:
                return
            self._watch = LoadWatch()
            if self._closed:
                raise closed()
            if self._num_cancels != num_cancels:  # while another thread was loading
                self._watch.cancel()
            started = time.monotonic()
            if self._asking is not None:  # one that was lost
                self._asking.end()
            try:
                with watching(self._watch):
                    check_cancelled()
                    self._facts = self._load(lambda sentence: None, AGAIN_SECONDS)
            except LoadCancelled:
                if self._closed:
                    raise closed() from None
                raise
            if identity(metadata_of(self.order.target)) != self._identity:
                self.unload()
                raise ModelFileError(
                    f"{self.order.target} is another model than the one that was loaded from there before.",
                    "Put the file back, or load the new one as an LLM of its own.",
                    path=str(self.order.target),
                )
            log.info("loaded %s again in %.1f s", self, time.monotonic() - started)

    def forget(self) -> None:
        """Empty the cells. For whoever has the engine's turn."""
        self._running().ask("forget")

    def _running(self) -> Asking:
        if self._asking is None:
            raise closed()
        return self._asking

    def answer(self, request: Request, options: dict[str, Any], ticket: Ticket) -> Generator[Chunk]:
        """As `answer_chunks`, by the child. options: those that made the request, as `portable` leaves them."""
        asking, chunks = self._running(), list[Chunk]()
        try:
            number = asking.begin("start", request.ids, options)
            check = _Wait(asking, number, ticket, lambda: self.patience).check
            asking.wait(number, check=check)
            while True:
                chunk, facts = asking.ask("next", check=check)
                self._facts = facts or self._facts
                chunks.append(chunk)
                if chunk.completion is not None:
                    yield chunk
                    return
                try:
                    yield chunk
                except DecodeCancelled:
                    ticket.cancelled = True
                    check()  # the child is told before it is asked for the next chunk, which so is the last
        except (_TooLong, RpcError) as error:
            if not ticket.cancelled:
                raise
            log.info("the process that computes %s was ended: %s", self, error)
            asking.end()
            yield cut_short(request, chunks, self._facts.drafting)
        finally:
            asking.leave()

    @property
    def patience(self) -> float:
        """Seconds that a pass may go on after a cancel."""
        return CLOSE_SECONDS if self._closed else CANCEL_SECONDS

    def unload(self) -> None:
        """End the child, until the engine is asked for again."""
        asking, self._asking = self._asking, None
        engine, self._engine = self._engine, None
        if asking is not None:
            asking.end(CLOSE_SECONDS)
        if engine is not None:
            engine.close()
        log.info("unloaded %s", self)

    def cancel_loading(self) -> None:
        """Whoever waits now for models that are loaded again gets `LoadCancelled`."""
        self._num_cancels += 1
        if self._watch is not None:
            self._watch.cancel()

    def stop_loading(self) -> None:
        """Nothing is loaded again from now on, and a load under way ends soon."""
        self._closed = True
        self.cancel_loading()

    def close(self) -> None:
        """End the child. Idempotent."""
        self.stop_loading()
        if is_forked():
            return
        with self._freeing, self._loading:
            self.unload()

    @property
    def settings(self) -> dict[str, object]:
        """Settings in effect for both models, as the child said at the end of the last answer."""
        self._refuse_closed()
        return dict(self._facts.settings)

    @property
    def drafting(self) -> str:
        """Whether tokens are drafted by default, and why not."""
        self._refuse_closed()
        return self._facts.drafting

    @property
    def hint(self) -> str:
        """What would let the draft model pay, in a sentence, or ""."""
        self._refuse_closed()
        return self._facts.hint

    def _refuse_closed(self) -> None:
        if self._closed and self._asking is None:
            raise closed()

    @property
    def seats(self) -> None:
        """None: one answer runs at a time."""

    def seat_controller(self, draft_tokens: int | str, max_width: int) -> Controller:
        """Raises `RpcError`: there are no seats."""
        refuse("seat_controller")

    def controller(self, draft_tokens: int | str) -> Controller:
        """Raises `RpcError`: draft lengths are decided by the child."""
        refuse("controller")

    def calibrate(
        self,
        *,
        redo: bool = False,
        notify: Notify = lambda sentence: None,
        skip: Callable[[], bool] = lambda: False,
    ) -> Costs:
        """Raises `RpcError`: the child measures, in a load with `calibrate` and in idle moments."""
        refuse("calibrate")

    def measure_idly(self, stop: Callable[[], bool]) -> None:
        """The child measures by itself."""

    def keep_costs(self) -> None:
        """The child does."""


def _forgetting(keeper: RemoteKeeper) -> Callable[[], None]:
    """Lets it forget, without keeping it alive."""
    reference = weakref.ref(keeper)

    def forget() -> None:
        if (kept := reference()) is not None:
            kept.forget()

    return forget


class _TooLong(Exception):
    """A cancelled pass does not end."""


class _Wait:
    """What is looked at while the child computes for an answer. number: by which it was started there.

    patience: how long a pass may go on after a cancel.
    """

    def __init__(self, asking: Asking, number: int, ticket: Ticket, patience: Callable[[], float]) -> None:
        self._asking, self._number, self._ticket = asking, number, ticket
        self._patience = patience
        self._cancelled: float | None = None

    def check(self) -> None:
        """Tell the child of a cancel, once. Raises `_TooLong`."""
        if not self._ticket.cancelled:
            return
        now = time.monotonic()
        if self._cancelled is None:
            self._cancelled = now
            self._asking.cancel(self._number)
        if now - self._cancelled > self._patience():
            raise _TooLong("it did not stop in time")
