"""Engine: a target and, where there is one, a draft, loaded and ready to decode."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from localspec.checks import StrPath
from localspec.compute.library import CancelFlag, Context, HeadContext, Library
from localspec.decoding.cross_drafter import CrossDrafter
from localspec.decoding.drafting import Drafter, NoDrafter, chain
from localspec.decoding.model_drafter import ModelDrafter, Stop
from localspec.decoding.session import Session
from localspec.engine.contexts import (
    Opener,
    another_load,
    check_cache_types,
    govern,
    layers_elsewhere,
)
from localspec.engine.heads import head_of, model_drafter
from localspec.engine.libraries import library_for, watched_flag
from localspec.engine.memory import check_memory
from localspec.engine.opening import READ, ModelLoader, Models
from localspec.engine.options import EngineOptions
from localspec.engine.prefixes import KeptPrefixes
from localspec.engine.strict import check_seats, strict_widths
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.pairs.check import check_pair
from localspec.pairs.shared_vocabulary import SharedVocabulary
from localspec.system.load_watch import stage
from localspec.system.progress import Stage

if TYPE_CHECKING:
    from localspec.engine.seats import Seats


class Engine:
    """Both models with their contexts and sessions.

    options: in effect for the target; asked: as asked for, in effect for the draft. They differ in strict mode.
    warnings: sentences for the user about what was clamped or ignored.
    no_draft_reason: why nothing is drafted, or "".
    home, notify: where measurements of strict mode are kept, and who is told that they are made.
    cancel: the flag that stops passes; by default one of its own.
    library: what computes; by default that of the options, for "auto" the first that can compute the files.
    vocab: the target's vocabulary, whose ids everything here speaks.
    threads: decides how many threads passes have; None where that was asked for, or a GPU computes the target.
    seats: several answers at a time, where they were opened. check_seats: `strict.check_seats`, measured in that home.
    """

    seats: Seats | None = None

    def __init__(
        self,
        target: StrPath | Metadata,
        draft: StrPath | Metadata | None,
        options: EngineOptions,
        home: Path | None = None,
        notify: Callable[[str], None] = lambda sentence: None,
        cancel: CancelFlag | None = None,
        library: Library | None = None,
    ) -> None:
        self.prefixes = KeptPrefixes(options.keep_prefixes, options.prefix_bytes)
        self.warnings: list[str] = []
        stage(Stage.READ, "reading what the files say", 0.0, READ)
        target_metadata = facts_of(target)
        draft_metadata = facts_of(draft) if draft is not None and not options.no_draft else None
        self.library = library or library_for(target_metadata, draft_metadata, options.library)
        check_cache_types(self.library, options)
        layers_elsewhere(self.library, options)
        self.asked = options
        self.options = options.strict_for(target_metadata, self.library) if options.strict else options
        self.check_seats = partial(check_seats, home=home, notify=notify)
        self.no_draft_reason = "asked for" if options.no_draft else ""
        self.head = head_of(target_metadata, draft_metadata, options, self.library)
        shared: SharedVocabulary | None = None
        if draft_metadata is not None:
            judgement = check_pair(
                target_metadata, draft_metadata, cross_vocabulary=not options.no_cross_vocabulary
            )
            shared = judgement.shared
            reservations = [reason for reason in judgement.reservations if reason.topic != "context"]
            self.warnings += [reason.sentence for reason in reservations]
        if self.head.file is not None:
            draft_metadata = None
        self.cancel = cancel or watched_flag(self.library)
        loader = ModelLoader(
            self.library, self.cancel, self.options, options, self.head, shared, self.warnings,
            strict_widths=partial(strict_widths, home=home, notify=notify),
        )  # fmt: skip
        with ExitStack() as loaded:
            self._take(loader.load(target_metadata, draft_metadata, loaded))
            # Frees an engine that is dropped without `close`; at exit its owner decides.
            self._free = weakref.finalize(self, loaded.pop_all().close)
            self._free.atexit = False
        try:
            self._prepare()
        except BaseException:
            self._free()
            raise

    def _prepare(self) -> None:
        """Who drafts, and which cells are kept, now that it is known what both contexts can do."""
        for model in (self.target, self.draft):
            if model is not None and model.rollback.kind == "none" and not self.no_draft_reason:
                self.no_draft_reason = (
                    f"{self.library.name} cannot forget single tokens of {model.weights.path.name} here"
                )
        self._model_drafter = (
            self.model_drafter(Session(self.draft, threads=self.threads))
            if self.draft and not self.no_draft_reason
            else None
        )
        self._keep_cells()

    def _keep_cells(self) -> None:
        for (name, session), context in zip(self.sessions.items(), (self.target, self.draft), strict=False):
            assert context is not None, "a session has a context"
            self.prefixes.keep_cells_of(
                session,
                whole=not context.can_cut,
                whole_copies=context.whole_states,
                read_by=self._readers.get(name),
            )

    def _take(self, models: Models) -> None:
        self.target, self.draft = models.target, models.draft
        self.threads, self.session = models.threads, models.session
        self.vocab, self.template = models.vocab, models.template
        self._translation = models.translation

    def drafter(
        self, *, adaptive: bool, prediction: Sequence[int] = (), constrained: bool = False
    ) -> Drafter:
        """Who drafts one answer: for an adaptive controller everyone, the free ones first; else the model alone.

        prediction: ids the answer is expected to resemble. constrained: a grammar may leave no choice.
        """
        if self.no_draft_reason:
            return NoDrafter()
        return chain(self._model_drafter, copies=adaptive, prediction=prediction, constrained=constrained)

    def model_drafter(self, session: Session) -> ModelDrafter | CrossDrafter:
        """The draft model with a session of its own; of another vocabulary, with what its ids are to the target."""
        if self._translation is None:
            return model_drafter(session, self.target.n_vocab, self.vocab.eog_tokens)
        return CrossDrafter(session, self._translation, self.target.n_vocab, self.vocab.eog_tokens)

    @property
    def crosses_vocabularies(self) -> bool:
        """Whether the draft has a vocabulary of its own: its ids are not the target's."""
        return self._translation is not None

    def read_by(self, name: str, ids: Sequence[int]) -> Sequence[int]:
        """What the model "target" or "draft" reads for the target's `ids`, in its own."""
        reads = self._readers.get(name)
        return ids if reads is None else reads(ids)

    @property
    def _readers(self) -> dict[str, Callable[[Sequence[int]], Sequence[int]]]:
        """By model, where its ids are not the target's."""
        drafter = self._model_drafter
        return {"draft": drafter.reads} if isinstance(drafter, CrossDrafter) else {}

    @property
    def drafts_itself(self) -> bool:
        """Whether the draft is the target's own prediction layers, in its file or in another."""
        return isinstance(self.draft, HeadContext)

    @property
    def draft_stop(self) -> Stop | None:
        """Why the draft model drafts no more in the latest answer, if so."""
        return self._model_drafter.stop if self._model_drafter else None

    @property
    def most_draft_tokens(self) -> int:
        """Drafted tokens that one pass of the target can check, and take back."""
        most = min(self.target.n_outputs, self.target.n_batch, self.target.n_ctx) - 1
        deepest = self.target.rollback.limit
        return most if deepest is None else min(most, deepest)

    @property
    def strict_form(self) -> str:
        """What strict mode means for this target, in words."""
        options, low = self.options, self.session.min_width
        rearranged = "" if options.repack == self.asked.repack else ", weights not rearranged"
        return (
            f"passes of {low} to {self.target.n_batch} tokens, K and V cache {options.cache_type_k} and "
            f"{options.cache_type_v}{rearranged}"
        )

    @property
    def sessions(self) -> dict[str, Session]:
        """What is in the cells of each model, by "target" and "draft"."""
        drafting = {"draft": self._model_drafter.session} if self._model_drafter else {}
        return {"target": self.session, **drafting}

    def forget(self) -> None:
        """Empty both models' cells and what is kept of them: the next prompt is read from its first token."""
        self.prefixes.clear()
        if self.seats is not None:
            self.seats.forget()
        for session in self.sessions.values():
            session.rollback(0)

    def branch(self, *, with_draft: bool = True) -> Engine:
        """An engine with contexts of its own on the same weights, stopped by the same flag. Close it before this one.

        Raises `MemoryShort` or `ModelLoadError`.
        """
        other = copy.copy(self)
        other.prefixes, other.seats = KeptPrefixes(0, 0), None
        if not with_draft:
            other.no_draft_reason = self.no_draft_reason or "asked for"
        draft = self.draft if with_draft else None
        if self.options.check_memory:
            check_memory([another_load(one) for one in (self.target, draft) if one], loaded=True)
        with ExitStack() as opened:
            opener = Opener(self.library, self.cancel, opened)
            other.target = opener.another(self.target, self.target)
            other.draft = None if draft is None else opener.another(draft, other.target)
            other.session = Session(other.target, min_width=self.session.min_width, threads=self.threads)
            other._prepare()
            govern(self.threads, [other.target, other.draft], opened)
            other._free = weakref.finalize(other, opened.pop_all().close)
            other._free.atexit = False
        return other

    def seated(self, session: Session, draft: Session | None) -> Engine:
        """The same models as one seat has them, by its sessions. It owns nothing: whoever made its contexts does."""
        other = copy.copy(self)
        other.target, other.session = cast(Context, session.context), session
        other.draft = None if draft is None else cast(Context, draft.context)
        other._model_drafter = None if draft is None else self.model_drafter(draft)
        other.prefixes, other.seats = self.prefixes.beside(), None
        other._keep_cells()
        other._free = weakref.finalize(other, _nothing)
        other._free.atexit = False
        return other

    def describe(self) -> dict[str, object]:
        """Settings in effect for both models, ready for JSON."""
        return {
            "library": {"name": self.library.name, "build": self.target.weights.build},
            "target": _describe(self.target, self.options, self.options.rpc),
            "draft": _describe(self.draft, self.asked, self._rpc_of_draft) if self.draft else None,
            "kept_prefixes": {
                "count": self.prefixes.count,
                "max_bytes": self.prefixes.max_bytes,
                "bytes": self.prefixes.num_bytes,
            },
        }

    def holding(self, tokens: Sequence[int]) -> Engine:
        """This engine, or that of the seat whose cells hold most of these tokens."""
        return self if self.seats is None else self.seats.holding(tokens)

    @property
    def _rpc_of_draft(self) -> Sequence[str]:
        """Servers with the draft's layers: the target's where it drafts itself with layers of its own file."""
        return self.options.rpc if self.head.drafts and self.head.file is None else self.asked.draft_rpc

    def close(self) -> None:
        """Free contexts, then models. Idempotent."""
        seats, self.seats = self.seats, None
        if seats is not None:
            seats.close()
        self.prefixes.clear()
        self._free()


def _nothing() -> None:
    pass


def facts_of(model: StrPath | Metadata) -> Metadata:
    """What a file says of itself, where it was not read before. Raises `ModelFileError`."""
    return model if isinstance(model, Metadata) else read_metadata(Path(model))


def _describe(context: Context, options: EngineOptions, rpc: Sequence[str]) -> dict[str, object]:
    return {
        "file": str(context.weights.path),
        "architecture": context.weights.metadata.architecture,
        "n_ctx": context.n_ctx,
        "n_batch": min(context.options.n_batch, context.n_ctx),
        "threads": context.threads,
        "gpu_layers": context.weights.gpu_layers,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
        "use_mmap": options.use_mmap,
        "repack": options.repack,
        "strict": options.strict,
        **({"head": True} if isinstance(context, HeadContext) else {}),
        **({"rpc": list(rpc)} if rpc else {}),
    }
