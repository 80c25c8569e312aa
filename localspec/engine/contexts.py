"""Which contexts an engine has, and how they are opened: the target's, and a draft model's or a head's beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag, Context, HeadContext, Headed, Library, Weights
from localspec.decoding.threads import ThreadControl
from localspec.engine.heads import Head
from localspec.engine.libraries import reference
from localspec.engine.memory import Load, with_snapshots
from localspec.engine.options import TARGET_ROWS, EngineOptions
from localspec.errors import InvalidRequest
from localspec.gguf.eagle import is_eagle
from localspec.gguf.metadata import Metadata


@dataclass(frozen=True)
class Opener:
    """Opens weights and contexts that are freed with `opened`, in the reverse order, also when a later one fails.

    cancel: the flag that stops the passes of all of them.
    """

    library: Library
    cancel: CancelFlag
    opened: ExitStack

    def weights(
        self,
        metadata: Metadata,
        gpu_layers: int,
        options: EngineOptions,
        *,
        heads: bool = False,
        rpc: Sequence[str] = (),
    ) -> Weights:
        """heads: with the prediction layers. rpc: servers for its layers. Raises what `Library.open_weights` raises."""
        weights = self.library.open_weights(
            metadata,
            gpu_layers=gpu_layers,
            use_mmap=options.use_mmap,
            repack=options.repack,
            heads=heads,
            rpc=rpc,
        )
        self.opened.callback(weights.close)
        return weights

    def context(self, weights: Weights, options: ContextOptions) -> Context:
        """Raises `ModelLoadError`."""
        context = weights.open_context(options, self.cancel)
        self.opened.callback(context.close)
        return context

    def head(self, weights: Weights, target: Context, options: ContextOptions) -> HeadContext:
        """A context on the prediction layers of `weights`, beside their target's. Raises `ModelLoadError`."""
        assert isinstance(weights, Headed), "weights with their head loaded"
        head = weights.open_head(target, options, self.cancel)
        self.opened.callback(head.close)
        return head

    def another(self, context: Context, target: Context) -> Context:
        """One more like this one, on the same weights; of a head beside `target`. Raises `ModelLoadError`."""
        if isinstance(context, HeadContext):
            return self.head(context.weights, target, context.options)
        return self.context(context.weights, context.options)


def loads_of(
    target: Metadata,
    draft: Metadata | None,
    head: Head,
    options: EngineOptions,
    asked: EngineOptions,
    *,
    library: Library,
    n_ctx: int,
    draft_n_ctx: int,
) -> list[Load]:
    """What will be loaded, the target first. options: in effect for the target; asked: for the draft."""
    gpu_layers, draft_gpu_layers = layers_elsewhere(library, options)
    target_options = replace(
        options.context(n_ctx, TARGET_ROWS), hidden_states=head.states, layer_inputs=head.layer_inputs
    )
    loads = [Load(target, target_options, gpu_layers)]
    if head.drafts:
        file = head.file or target
        of_head = gpu_layers if head.file is None else draft_gpu_layers
        loads.append(Load(file, asked.context(n_ctx, 1), of_head, is_head=not is_eagle(file)))
    elif draft:
        loads.append(Load(draft, asked.context(draft_n_ctx, 1), draft_gpu_layers))
    if options.no_draft or library.key != reference().key:  # which alone can keep snapshots
        return loads
    return [with_snapshots(loads, options), *loads[1:]]


def layers_elsewhere(library: Library, options: EngineOptions) -> tuple[int, int]:
    """How many layers of target and draft go to a GPU or to servers. Raises `InvalidRequest`."""

    def resolved(name: str, rpc: Sequence[str]) -> int:
        return library.resolve_gpu_layers(getattr(options, name), name, **({"rpc": True} if rpc else {}))

    return resolved("gpu_layers", options.rpc), resolved("draft_gpu_layers", options.draft_rpc)


def another_load(context: Context) -> Load:
    """What `Opener.another` takes."""
    weights = context.weights
    is_head = isinstance(context, HeadContext) and not is_eagle(weights.metadata)
    return Load(weights.metadata, context.options, weights.gpu_layers, is_head)


def govern(
    threads: ThreadControl | None, contexts: Iterable[Context | None], opened: ExitStack | None = None
) -> None:
    """Give those that processors compute as many threads as `threads` decides, until `opened` is closed."""
    for context in contexts:
        if threads is not None and context is not None and not context.weights.gpu_layers:
            threads.govern(context)
            if opened is not None:
                opened.callback(threads.release, context)


def check_cache_types(library: Library, options: EngineOptions) -> None:
    """Before anything is loaded. Raises `InvalidRequest`."""
    for name in ("cache_type_k", "cache_type_v"):
        if (asked := getattr(options, name)) not in library.cache_types:
            raise InvalidRequest(
                f"{name} is {asked}, which {library.name} does not have.",
                f"It must be one of {', '.join(library.cache_types)}.",
                name=name,
            )
