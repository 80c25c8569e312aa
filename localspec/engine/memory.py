"""What models will need, from their files' headers alone, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.checks import StrPath, check_parallel
from localspec.compute.context_options import ContextOptions
from localspec.engine.heads import may_draft
from localspec.engine.options import TARGET_ROWS, EngineOptions
from localspec.errors import MemoryShort, NotDownloaded
from localspec.gguf.architectures import DELTA_NET
from localspec.gguf.eagle import is_eagle, target_layers
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.gguf.running_state import keeps_snapshots, recurrent_layers, state_bytes
from localspec.hub.named_models import models_named
from localspec.hub.sources import find, store_in
from localspec.system.progress import readable
from localspec.system.ram import free_memory

_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
"""Bytes per element of a cache type, block scales included."""

MOST_SNAPSHOTS = 8
"""Of a running state: drafts of up to so many tokens. Each makes every pass a little dearer, and longer drafts seldom
stand."""
SNAPSHOT_SHARE = 0.25
"""Of the memory that is left, for them."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a target and perhaps a draft take.

    weights: the files. kv_cache: memory of the context. compute: intermediate results of a pass, a guess.
    available: free now, copies of files that can be dropped included.
    """

    weights: int
    kv_cache: int
    compute: int
    available: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.kv_cache + self.compute

    @property
    def fits(self) -> bool:
        """Whether there is room for it now."""
        return self.total <= self.available

    def __str__(self) -> str:
        return (
            f"{readable(self.total)} (weights {readable(self.weights)}, context {readable(self.kv_cache)}, "
            f"passes {readable(self.compute)})"
        )


@dataclass(frozen=True)
class Load:
    """A model to be loaded. gpu_layers: how many of its layers do not go into main memory.

    is_head: the context of a model's prediction layers, whose cells were counted with the others, and its weights too
    where they are in the same file.
    """

    metadata: Metadata
    options: ContextOptions
    gpu_layers: int = 0
    is_head: bool = False

    @property
    def share(self) -> float:
        """Of the model, in main memory. The output layer counts as one."""
        layers = self.metadata.n_layer + 1
        return 1 - min(self.gpu_layers, layers) / layers


def memory_estimate(loads: Sequence[Load]) -> MemoryEstimate:
    """Main memory that the models take together."""
    models = [load for load in loads if not load.is_head]
    paths = {load.metadata.path for load in models}
    files = [load for load in loads if not (load.is_head and load.metadata.path in paths)]
    return MemoryEstimate(
        weights=sum(int(load.share * load.metadata.size_bytes) for load in files),
        kv_cache=sum(int(load.share * kv_cache_bytes(load.metadata, load.options)) for load in models),
        compute=sum(int(load.share * compute_bytes(load.metadata, load.options)) for load in loads),
        available=free_memory(),
    )


def kv_cache_bytes(metadata: Metadata, options: ContextOptions) -> int:
    """Bytes of the cells of `options`, of running states with their snapshots, and of hidden states that are kept."""
    states = options.n_sequences * (1 + options.snapshots) * state_bytes(metadata)
    kept = len(options.layer_inputs) or int(options.hidden_states)
    hidden = 2 * kept * metadata.n_embd * options.n_ctx * options.n_sequences
    return states + hidden + _attention_bytes(metadata, options)


def most_snapshots(metadata: Metadata, loads: Sequence[Load]) -> int:
    """Snapshots of a running state that are worth their memory beside these loads; 0 where none can be kept."""
    size = state_bytes(metadata) if keeps_snapshots(metadata) else 0
    if not size:
        return 0
    estimate = memory_estimate(loads)
    room = SNAPSHOT_SHARE * max(estimate.available - estimate.total, 0)
    return min(int(room / size), MOST_SNAPSHOTS)


def _attention_bytes(metadata: Metadata, options: ContextOptions) -> int:
    if metadata.is_recurrent:
        return 0
    heads = max(*metadata.per_layer("attention.head_count"), 1)
    heads_kv = sum(metadata.per_layer("attention.head_count_kv", heads))  # 0 in a layer without attention
    if metadata.architecture in DELTA_NET:  # where only some layers have it, and the file says so elsewhere
        heads_kv = heads_kv * (metadata.n_layer - recurrent_layers(metadata)) // metadata.n_layer
    head_size = metadata.n_embd // heads
    bytes_k = _number(metadata, "attention.key_length", head_size) * _BYTES[options.cache_type_k]
    bytes_v = _number(metadata, "attention.value_length", head_size) * _BYTES[options.cache_type_v]
    return int(heads_kv * (bytes_k + bytes_v) * options.n_ctx)


def compute_bytes(metadata: Metadata, options: ContextOptions) -> int:
    """A guess: float32 activations of the widest pass, its mask over the context, and its rows of logits, twice."""
    width = min(options.n_batch, options.n_ctx)
    activations = width * (6 * metadata.n_embd + 3 * max(*metadata.per_layer("feed_forward_length"), 0))
    rows = 2 * min(options.n_outputs, width) * metadata.n_vocab
    return 4 * (activations + width * options.n_ctx + rows)


def check_memory(loads: Sequence[Load], *, loaded: bool = False, each: int | None = None) -> None:
    """Raise `MemoryShort` when the models together exceed the free memory (a failed reservation may abort).

    loaded: the weights are in memory, and a further context on each of them is asked for.
    each: tokens of the context of each of several answers at a time, which share these loads.
    """
    estimate = memory_estimate(loads)
    if loaded:
        estimate = replace(estimate, weights=0)
    if estimate.fits:
        return
    n_ctx = each or max(load.options.n_ctx for load in loads)
    context, fewer, fewer_command = f"a context of {n_ctx} tokens", "", ""
    if each is not None:
        context += f" for each of {loads[0].options.n_sequences} answers at a time"
        fewer, fewer_command = (
            "fewer answers at a time (parallel), ",
            "fewer answers at a time (--parallel), ",
        )
    names = " and ".join(load.metadata.path.name for load in loads)
    raise MemoryShort(
        f"{names} with {context} would take {estimate}, and {readable(estimate.available)} are free.",
        f"Ask for {fewer}a smaller context or cache type, leave the draft out, close other "
        "programs, or load all the same with check_memory=False.",
        command=f"Ask for {fewer_command}a smaller context (-c) or cache type (-ctk, -ctv), leave "
        "the draft out (--no-draft), or close other programs.",
        path=str(loads[0].metadata.path),
        needed=estimate.total,
        free=estimate.available,
    )


def memory_needed(
    target: StrPath,
    draft: StrPath | None = None,
    n_ctx: int = 4096,
    *,
    home: StrPath | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    offline: bool = False,
    parallel: int | str = 1,
) -> MemoryEstimate:
    """Bytes that a pair (by name, or by its files) would take with a context of `n_ctx` tokens, and whether it fits.

    parallel: as for a load; "auto" takes only what is free, and counts as 1.
    Milliseconds: no weights are read, and a pair of the catalogue need not be on this disk. Of other models that are
    not here the header is asked of their hub: call it in a thread then. offline: open no connection.
    On a GPU the part of the layers there is taken from its memory instead.
    Raises `InvalidRequest`, `ModelFileError`, and for a name `UnknownPair`, `NotDownloaded`, or `DownloadError` and
    its kinds.
    """
    options = EngineOptions(n_ctx=n_ctx, cache_type_k=cache_type_k, cache_type_v=cache_type_v)
    options.context(n_ctx, 1)  # validated, before anybody is asked
    count = check_parallel(parallel)
    ours, theirs = _models(target, draft, home, offline)
    loads = pair_loads(ours, theirs, options)
    alone = memory_estimate(loads)
    if (
        isinstance(count, str)
        or count < 2
        or any(load.is_head or load.options.layer_inputs for load in loads)
    ):
        return alone
    seats = memory_estimate(seat_loads(loads, count))
    return replace(alone, kv_cache=alone.kv_cache + seats.kv_cache, compute=alone.compute + seats.compute)


SLACK = 256
"""Cells beyond what seats need, so that a pass finds a place between those that are taken."""


def seat_loads(loads: Sequence[Load], count: int, *, strict: bool = False) -> list[Load]:
    """The contexts that so many answers at a time share, beside those of `loads`: a target, and perhaps a draft.

    In strict mode each has cells of its own in the target's.
    """
    rows = TARGET_ROWS if count < 3 else TARGET_ROWS // 2
    shared = []
    for index, load in enumerate(loads):
        options, separate = load.options, strict and not index
        n_ctx = count * (options.n_ctx + options.spare) if separate else count * options.n_ctx + SLACK
        outputs = min(count * (1 if index else rows), options.n_batch)
        own = replace(options, n_ctx=n_ctx, n_outputs=outputs, n_sequences=count, separate=separate)
        shared.append(replace(load, options=own))
    return shared


def pair_loads(target: Metadata, draft: Metadata | None, options: EngineOptions) -> list[Load]:
    """What loading the pair under these options reserves in main memory, as if no layer went to a GPU."""
    loads = [Load(target, options.context(_n_ctx(target, options.n_ctx), TARGET_ROWS))]
    if may_draft(target, draft is not None, options):
        own = loads[0].options
        loads = [
            Load(target, replace(own, hidden_states=True)),
            Load(target, replace(own, n_outputs=1), is_head=True),
        ]
    elif draft is not None:
        if is_eagle(draft):
            own = replace(loads[0].options, layer_inputs=target_layers(draft))
            loads = [Load(target, own)]
        loads.append(Load(draft, options.context(_n_ctx(draft, loads[0].options.n_ctx), 1)))
    return [with_snapshots(loads, options), *loads[1:]]


def with_snapshots(loads: Sequence[Load], options: EngineOptions) -> Load:
    """The first of `loads`, the target's, with as many snapshots of its running state as are worth their memory.

    None where nothing is drafted, and none in strict mode: with them passes are computed in another way.
    """
    target = loads[0]
    count = 0 if options.no_draft or options.strict else most_snapshots(target.metadata, loads)
    return replace(target, options=replace(target.options, snapshots=count))


def _models(
    target: StrPath, draft: StrPath | None, home: StrPath | None, offline: bool
) -> tuple[Metadata, Metadata | None]:
    """Facts of both models: from their files, else from the catalogue, else from their hub."""
    try:
        found = find(target, draft, home)
    except NotDownloaded:
        named = os.fspath(target), None if draft is None else os.fspath(draft)
        return models_named(*named, offline=offline, store=store_in(home), outlines=True)
    return read_metadata(found.target), None if found.draft is None else read_metadata(found.draft)


def _n_ctx(metadata: Metadata, asked: int) -> int:
    """The context asked for, cut to what the model was trained for."""
    trained = metadata.n_ctx_train
    return min(asked, trained) if trained > 0 else asked


def _number(metadata: Metadata, name: str, default: int = 0) -> int:
    value = metadata.key_values.get(f"{metadata.architecture}.{name}", default)
    return value if isinstance(value, int) else default
