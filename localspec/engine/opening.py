"""Models: a target and, where there is one, a draft, in memory and ready for an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag, Context, Library, Weights
from localspec.compute.vocabulary import Vocabulary
from localspec.decoding.session import Session
from localspec.decoding.threads import ThreadControl
from localspec.engine.contexts import Opener, govern, loads_of
from localspec.engine.cross_vocabulary import translation_between
from localspec.engine.heads import Head
from localspec.engine.libraries import reference
from localspec.engine.memory import Load, check_memory
from localspec.engine.options import EngineOptions
from localspec.engine.strict import Widths
from localspec.gguf.metadata import Metadata
from localspec.pairs.behaviour import context as context_reach
from localspec.pairs.shared_vocabulary import SharedVocabulary
from localspec.system.cores import processors
from localspec.system.load_watch import stage
from localspec.system.neighbours import Glance, Neighbours
from localspec.system.progress import Stage
from localspec.text.template import ChatTemplate
from localspec.text.translation import Translation

READ, LOADED = 0.02, 0.8
"""Shares of a load that are done when the files' metadata are read, and when the weights are in memory."""


class StrictWidths(Protocol):
    """`strict.strict_widths` with its home."""

    def __call__(
        self,
        weights: Weights,
        options: ContextOptions,
        cancel: CancelFlag | None = None,
        *,
        room: Callable[[int], int],
    ) -> Widths: ...


@dataclass(frozen=True)
class Models:
    """What an engine has of its files."""

    target: Context
    draft: Context | None
    threads: ThreadControl | None
    session: Session
    vocab: Vocabulary
    translation: Translation | None
    template: ChatTemplate


@dataclass(frozen=True)
class ModelLoader:
    """Loads them.

    options: in effect for the target; asked: as asked for, in effect for the draft. shared: tokens that both models
    have, where each has a vocabulary of its own. warnings: gets sentences about what was clamped or ignored.
    """

    library: Library
    cancel: CancelFlag
    options: EngineOptions
    asked: EngineOptions
    head: Head
    shared: SharedVocabulary | None
    warnings: list[str]
    strict_widths: StrictWidths

    def load(self, target: Metadata, draft: Metadata | None, loaded: ExitStack) -> Models:
        """Both, freed with `loaded`. Raises `MemoryShort`, `ModelLoadError`, and what opening weights raises."""
        neighbours = Neighbours()
        room = _Room(neighbours, neighbours.look())
        self._warn_about_gpu()
        opener = Opener(self.library, self.cancel, loaded)
        n_ctx = self._target_n_ctx(target)
        draft_n_ctx = self._draft_n_ctx(target, draft, n_ctx) if draft else 0
        loads = loads_of(
            target, draft, self.head, self.options, self.asked,
            library=self.library, n_ctx=n_ctx, draft_n_ctx=draft_n_ctx,
        )  # fmt: skip
        if self.options.check_memory:
            check_memory(loads)
        between = READ + (LOADED - READ) * target.size_bytes / (
            target.size_bytes + (draft.size_bytes if draft else 0)
        )
        stage(Stage.LOAD, f"loading {target.path.name}", READ, between)
        opened, widths = self._open_target(loads[0], opener, room)
        if draft:
            stage(Stage.LOAD, f"loading {draft.path.name}", between, LOADED)
        drafting = self._open_draft(loads[1], opener, opened) if len(loads) > 1 else None
        threads = self._thread_control(opened, drafting, widths, room)
        vocab = opened.weights.vocabulary or reference().open_vocabulary(target)
        loaded.callback(vocab.close)
        return Models(
            opened,
            drafting,
            threads,
            Session(opened, min_width=widths.low, threads=threads),
            vocab,
            self._translation(opened, drafting, vocab, loaded),
            ChatTemplate(target.chat_template, bos=vocab.bos_text, eos=vocab.eos_text, name=target.path.name),
        )

    def _translation(
        self, target: Context, draft: Context | None, vocab: Vocabulary, loaded: ExitStack
    ) -> Translation | None:
        """What the draft's ids are to the target, where it has a vocabulary of its own."""
        if draft is None or self.shared is None:
            return None
        facts = draft.weights.metadata
        draft_vocab = draft.weights.vocabulary or reference().open_vocabulary(facts)
        loaded.callback(draft_vocab.close)
        return translation_between(target.weights.metadata, vocab, facts, draft_vocab, self.shared)

    def _thread_control(
        self, target: Context, draft: Context | None, widths: Widths, room: _Room
    ) -> ThreadControl | None:
        if self.options.threads is not None or target.weights.gpu_layers or target.threads == 1:
            return None
        control = room.control(target.threads, widths.threads if self.options.strict else ())
        govern(control, [target, draft])
        return control

    def _open_target(self, load: Load, opener: Opener, room: _Room) -> tuple[Context, Widths]:
        own_head = self.head.drafts and self.head.file is None
        weights = opener.weights(
            load.metadata, load.gpu_layers, self.options, heads=own_head, rpc=self.options.rpc
        )
        options, widths = load.options, Widths(1, load.options.n_batch)
        if self.options.strict:
            widths = self.strict_widths(
                weights, options, self.cancel, room=lambda most: room.control(most).decide()
            )
            options = replace(options, n_batch=widths.high, spare=widths.low - 1)
        return opener.context(weights, options), widths

    def _open_draft(self, load: Load, opener: Opener, target: Context) -> Context:
        """A model of its own, or prediction layers of the target or of another file.

        Rounding in the draft changes what is proposed, never what comes out: strict mode leaves it alone.
        """
        rpc = self.asked.draft_rpc
        if not self.head.drafts:
            weights = opener.weights(load.metadata, load.gpu_layers, self.asked, rpc=rpc)
            return opener.context(weights, load.options)
        weights = target.weights
        if self.head.file is not None:
            weights = opener.weights(load.metadata, load.gpu_layers, self.asked, heads=True, rpc=rpc)
        return opener.head(weights, target, load.options)

    def _target_n_ctx(self, target: Metadata) -> int:
        n_ctx = self.options.context(self.options.n_ctx, 1).n_ctx  # validated
        trained = target.n_ctx_train
        if not 0 < trained < n_ctx:
            return n_ctx
        self.warnings.append(f"The context is {trained} tokens: {target.path.name} was trained for no more.")
        return trained

    def _draft_n_ctx(self, target: Metadata, draft: Metadata, n_ctx: int) -> int:
        """Never more than the target has: what lies beyond is not drafted for."""
        trained = draft.n_ctx_train
        if not 0 < trained < n_ctx:
            return n_ctx
        self.warnings.append(context_reach(target, draft, n_ctx).sentence)
        return trained

    def _warn_about_gpu(self) -> None:
        layers = (
            (self.options.gpu_layers, self.options.rpc),
            (self.options.draft_gpu_layers, self.options.draft_rpc),
        )
        asked = {value for value, rpc in layers if not rpc} - {"auto", 0}
        if asked and (reason := self.library.why_no_gpu()):
            self.warnings.append(f"GPU layers were asked for, but {reason}")


@dataclass(frozen=True)
class _Room:
    """For threads, beside what others compute. before: from when the load began, so that the first pass knows of it."""

    neighbours: Neighbours
    before: Glance

    def control(self, most: int, allowed: Sequence[int] = ()) -> ThreadControl:
        return ThreadControl(most, processors(), self.neighbours.look, allowed, self.before)
