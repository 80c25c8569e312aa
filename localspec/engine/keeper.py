"""EngineKeeper: the engine of an `LLM`, which is loaded, freed when nobody needs it, and loaded again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from localspec.compute.library import Library
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.company import ALONE
from localspec.decoding.control import Controller, FixedLength
from localspec.decoding.estimates import Ledger
from localspec.decoding.rollback import CUT, WayBack
from localspec.engine.choice import Choice, choose, loaded_by_choice, look_again
from localspec.engine.costs_in_use import CostsInUse
from localspec.engine.draft_copy import improved_engine, load_engine
from localspec.engine.drafting_status import describe_drafting, standing_hint
from localspec.engine.engine import Engine, facts_of
from localspec.engine.kept import Order
from localspec.engine.measured_costs import Costs, strict_sentence
from localspec.engine.options import Notify
from localspec.engine.seats import Seats, open_seats
from localspec.engine.trial import try_load
from localspec.errors import EngineClosed, LoadCancelled, ModelFileError
from localspec.gguf.metadata import Metadata
from localspec.system.forks import is_forked
from localspec.system.load_watch import LoadWatch, watching

log = logging.getLogger(__name__)


def _ignore(sentence: str) -> None:
    pass


class EngineKeeper:
    """Loaded at once. `engine` loads again what `unload` freed; callers see to it that nobody uses it then.

    warnings: sentences for the user, from the first load. adaptive: decides draft lengths, by what passes cost as far
    as that is known.
    """

    def __init__(self, order: Order, notify: Notify) -> None:
        self.order = order
        self.adaptive: AdaptiveController | None = None
        self._costs: CostsInUse | None = None
        self._loading = threading.Lock()
        self._freeing = threading.RLock()  # a signal handler may close what is being closed
        self._watch: LoadWatch | None = None
        self._num_cancels = 0
        self._closed = False
        started = time.monotonic()
        self._engine: Engine | None = None
        self._engine, self.choice = self._load_first(notify)
        self.cancel = self._engine.cancel
        try:
            self._settle(notify)
            self.num_seats, about_seats = self._open_seats(order.options.parallel)
        except BaseException:
            self.close()
            raise
        self.warnings = [
            *self.choice.warnings,
            *self.engine.warnings,
            *self._about_draft_tokens(),
            *about_seats,
        ]
        self._described = (self.engine.describe(), self.drafting)
        self._identity = identity(self.engine.target.weights.metadata)
        log.info("loaded %s in %.1f s, drafting %s", self, time.monotonic() - started, self.drafting)

    def _load_first(self, notify: Notify) -> tuple[Engine, Choice]:
        order, options = self.order, self.order.options
        target = facts_of(order.target)
        draft = None if order.draft is None or options.no_draft else facts_of(order.draft)

        def load(library: Library) -> Engine:
            if options.try_first:
                notify("trying the files in a process of their own")
                try_load(order.target, order.draft, replace(options, library=library.key))
            return load_engine(target, draft, options, order.home, notify, library=library)

        return loaded_by_choice(choose(target, draft, options, order.home, notify), load)

    def _open_seats(self, wanted: int | str) -> tuple[int, list[str]]:
        """How many answers may run at a time, and a sentence where they are fewer than wanted."""
        self.engine.seats, sentence = open_seats(self.engine, wanted)
        return (1 if self.engine.seats is None else len(self.engine.seats)), [sentence] if sentence else []

    @property
    def seats(self) -> Seats | None:
        """Those of the engine that is loaded now; None where one answer runs at a time. Raises what a load raises."""
        engine = self.engine
        with self._loading:  # several answers may be the first to ask
            if self.num_seats > 1 and engine.seats is None:
                engine.seats, _ = open_seats(engine, self.num_seats)
        return engine.seats

    def _about_draft_tokens(self) -> list[str]:
        asked, most = self.order.draft_tokens, self.engine.most_draft_tokens
        if not isinstance(asked, int) or asked <= most or self.engine.no_draft_reason:
            return []
        return [f"draft_tokens is {asked}, and a pass here checks no more than {most}: {most} are drafted."]

    def __str__(self) -> str:
        return str(self.order)

    def _settle(self, notify: Notify) -> None:
        if self.order.calibrate:
            self.calibrate(notify=notify)
        elif self.order.draft_tokens == "auto":
            self._steer(notify, improve=True)
        if self.engine.options.strict:
            self.engine.warnings.append(strict_sentence(self.engine, self.order.home))

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """Both models, loaded again where they were freed.

        Raises what a load raises, `ModelFileError` also where the target's file was replaced by another model,
        `EngineClosed` after `close`, and `LoadCancelled` where `cancel_loading` came before they were there.
        """
        return self._engine or self._load_again(self._num_cancels)

    def _load_again(self, num_cancels: int) -> Engine:
        with self._loading:
            if self._engine is not None:
                return self._engine
            self._watch = LoadWatch()
            if self._closed:
                raise _closed()
            if self._num_cancels != num_cancels:  # while another thread was loading
                self._watch.cancel()
            started, order = time.monotonic(), self.order
            try:
                with watching(self._watch):
                    engine = load_engine(
                        order.target,
                        order.draft,
                        order.options,
                        order.home,
                        cancel=self.cancel,
                        library=self.choice.library,
                    )
            except LoadCancelled:
                if self._closed:
                    raise _closed() from None
                raise
            if identity(engine.target.weights.metadata) != self._identity:
                engine.close()
                raise ModelFileError(
                    f"{order.target} is another model than the one that was loaded from there before.",
                    "Put the file back, or load the new one as an LLM of its own.",
                    path=str(order.target),
                )
            self._engine = engine
            if self.adaptive is not None and self._costs is not None:
                self.adaptive.threads = engine.threads
                self.adaptive.costs_for = self._costs.tables(engine)
            log.info("loaded %s again in %.1f s", self, time.monotonic() - started)
            return engine

    def unload(self) -> None:
        """Free the memory until the engine is asked for again."""
        engine = self._engine
        if engine is not None:
            self._described = (engine.describe(), self.drafting)
            self.keep_costs()
            self._engine = None
            engine.close()
            log.info("unloaded %s", self)

    def cancel_loading(self) -> None:
        """Whoever waits now for weights that are loaded again gets `LoadCancelled`."""
        self._num_cancels += 1
        if self._watch is not None:
            self._watch.cancel()

    def stop_loading(self) -> None:
        """Nothing is loaded again from now on, and a load under way ends soon."""
        self._closed = True
        self.cancel_loading()

    def close(self) -> None:
        """Free everything. Idempotent; returns when all is freed, also where another thread does it."""
        self.stop_loading()
        if is_forked():  # a thread that is not here may hold the lock
            return
        with self._freeing:
            with self._loading:
                self.keep_costs()
                engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    @property
    def settings(self) -> dict[str, object]:
        """Settings in effect for both models, ready for JSON; from before where they are not loaded."""
        engine = self._present()
        settings = dict(self._described[0] if engine is None else engine.describe())
        if isinstance(draft := settings["draft"], dict):
            asked = str(self.order.draft)
            is_copy = self.order.draft is not None and draft["file"] != asked
            settings["draft"] = {**draft, "prepared_from": asked if is_copy else None}
        library = {**settings["library"], "reason": self.choice.reason}  # type: ignore[dict-item]
        return {
            **settings,
            "library": library,
            "draft_tokens": self.order.draft_tokens,
            "parallel": self.num_seats,
            "drafting": self.drafting,
        }

    @property
    def drafting(self) -> str:
        """Whether tokens are drafted by default, and why not."""
        engine = self._present()
        if engine is None:
            return self._described[1]
        return describe_drafting(engine, self.adaptive, self.order.draft_tokens)

    @property
    def hint(self) -> str:
        """What would let the draft model pay, in a sentence; "" where it can, or where none is loaded."""
        engine = self._present()
        if engine is None or engine.draft is None or self.order.draft_tokens != "auto":
            return ""
        return standing_hint(engine, self.adaptive)

    def _present(self) -> Engine | None:
        """The engine if it is loaded. Raises `EngineClosed` after `close`."""
        if self._engine is None and self._closed:
            raise _closed()
        return self._engine

    def controller(self, draft_tokens: int | str) -> Controller:
        """Who decides draft lengths."""
        if isinstance(draft_tokens, int):
            return FixedLength(draft_tokens)
        return self.adaptive or self._steer(_ignore)

    def seat_controller(self, draft_tokens: int | str, max_width: int) -> Controller:
        """The same for one answer among others: what passes cost is known to all of them, the rest is its own."""
        controller = self.controller(draft_tokens)
        if not isinstance(controller, AdaptiveController):
            return controller
        return replace(controller, max_width=max_width, ledger=Ledger(), company=ALONE)

    def _steer(self, notify: Notify, *, improve: bool = False, asked_for: bool = False) -> Controller:
        """Go by what is known of costs: kept, measured or assumed.

        improve: let a faster copy of the draft take its place, where the costs are certain enough to say that it pays;
        on a busy machine only where that was asked for.
        """
        engine, order = self.engine, self.order
        if engine.no_draft_reason:
            return FixedLength(0)
        self._costs = self._costs or CostsInUse(engine, order.home)
        costs = self._costs.most
        if improve and costs.certain:
            better = improved_engine(engine, order.draft, costs, order.home, notify, when_calm=not asked_for)
            if better is not engine:
                self._engine, self._costs = better, None
                return self._steer(notify)
        self.adaptive = AdaptiveController(
            costs.target,
            costs.draft,
            max_width=engine.target.n_outputs,
            threads=engine.threads,
            costs_for=self._costs.tables(engine),
            plain_share=self.choice.plain_share,
            back=WayBack(engine.target.rollback),
            draft_back=WayBack(engine.draft.rollback if engine.draft else CUT),
        )
        return self.adaptive

    def calibrate(
        self, *, redo: bool = False, notify: Notify = _ignore, skip: Callable[[], bool] = lambda: False
    ) -> Costs:
        """Measure now what is not certain, or with `redo` all; a faster copy of the draft is then made too.

        skip: asked after each pass whether what is known by then shall do. For whoever has the engine's turn.
        """
        if redo:
            draft = None if self.order.draft is None else facts_of(self.order.draft)
            look_again(self.engine.target.weights.metadata, draft, self.order.options, self.order.home)
        if redo or self._costs is None:
            self._costs, self.adaptive = CostsInUse(self.engine, self.order.home, redo=redo), None
        costs = self._costs.measure(self.engine, notify, skip, redo=redo)
        if self.order.draft_tokens == "auto":
            self._steer(notify, improve=not skip(), asked_for=True)
            costs = self._costs.measure(self.engine, notify, skip)  # of the copy, if it is another engine now
        return costs

    @property
    def may_measure(self) -> bool:
        """Whether there is something to measure in idle moments."""
        return self.adaptive is not None and self._costs is not None and self._costs.may_measure

    def measure_idly(self, stop: Callable[[], bool]) -> None:
        """Measure a little until `stop`, if the weights are in memory. For whoever has the engine's turn."""
        if self._engine is not None and self._costs is not None:
            self._costs.measure_idly(self._engine, stop)

    def keep_costs(self) -> None:
        """Write down what was learned of them."""
        if self._engine is not None and self._costs is not None:
            self._costs.keep(self._engine)


def identity(facts: Metadata) -> int:
    """What a file must have in common with the one before it, so that ids go on to mean what they meant."""
    values = repr(sorted(facts.key_values.items()))
    return hash((facts.size_bytes, tuple(facts.tokens), facts.token_types, values))


def _closed() -> EngineClosed:
    return EngineClosed("The engine was closed.", "Load it again.")
