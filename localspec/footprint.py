"""memory_needed: what models would take, from their files' headers alone."""

from __future__ import annotations

from localspec.engine import TARGET_ROWS
from localspec.engine_options import EngineOptions
from localspec.llama.memory import Load, MemoryEstimate, memory_estimate
from localspec.llama.metadata import Metadata, read_metadata
from localspec.sources import StrPath, find


def memory_needed(
    target: StrPath,
    draft: StrPath | None = None,
    n_ctx: int = 4096,
    *,
    home: StrPath | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
) -> MemoryEstimate:
    """Bytes that a pair (by name, or by its files) would take with a context of `n_ctx` tokens, and whether it fits.

    Milliseconds: no weights are read. On a GPU the part of the layers there is taken from its memory instead.
    Raises `InvalidRequest`, `ModelFileError`, and for a name `UnknownPair` or `NotDownloaded`.
    """
    found = find(target, draft, home)
    options = EngineOptions(n_ctx=n_ctx, cache_type_k=cache_type_k, cache_type_v=cache_type_v)
    loads = [_load(read_metadata(found.target), options, TARGET_ROWS)]
    if found.draft is not None:
        loads.append(_load(read_metadata(found.draft), options, 1))
    return memory_estimate(loads)


def _load(metadata: Metadata, options: EngineOptions, n_outputs: int) -> Load:
    trained = metadata.n_ctx_train
    n_ctx = options.context(options.n_ctx, 1).n_ctx  # validated
    return Load(metadata, options.context(min(n_ctx, trained) if trained > 0 else n_ctx, n_outputs))
