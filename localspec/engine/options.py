"""EngineOptions: how both models are loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

from localspec.checks import check_head, check_library, check_names, check_parallel, checked_switch
from localspec.compute.context_options import ContextOptions, StrictForm
from localspec.compute.library import Library
from localspec.errors import InvalidRequest
from localspec.gguf.metadata import Metadata
from localspec.system.cores import processors
from localspec.system.progress import ProgressCallback
from localspec.system.rpc_servers import checked_addresses

Notify = Callable[[str], None]
"""Told in a sentence when something takes long."""
TARGET_ROWS = 32
"""Logit rows of one pass of the target: drafts of up to 31 tokens."""

_SWITCHES = (
    "use_mmap", "repack", "check_memory", "no_draft", "no_cross_vocabulary", "prepare_draft", "strict", "try_first",
)  # fmt: skip


@dataclass(frozen=True)
class EngineOptions:
    """How both models are loaded.

    n_ctx: tokens of context (cut to what a model was trained for). threads: CPU threads (cut to the processors that
    there are); None: before each pass as many of the physical cores as other programs leave.
    gpu_layers, draft_gpu_layers: "auto", "all" or a number. cache_type_k, cache_type_v: see `ContextOptions`.
    use_mmap: map the files instead of reading them. repack: let the CPU rearrange weights for speed.
    check_memory: refuse models that exceed the free memory by estimate.
    no_draft: plain decoding even where a draft is given. no_cross_vocabulary: refuse a draft of another vocabulary
    instead of passing texts between the two. prepare_draft: make and use a copy of the draft that is
    faster on this machine. strict: passes of the target that all compute the same bits, whatever is drafted.
    keep_prefixes: conversations that alternate find their tokens again, so many beside the running one (0: none), in
    at most `prefix_bytes` of memory. try_first: load unknown files in a child process before, so that one which ends
    it is an error and not a crash (`trial.py`). library: what computes, by its name in LIBRARIES; "auto": the one that
    is expected to take the least time for the pair here (`choice.py`). head: whether the target's own prediction layers
    draft: "auto", where it has some and no draft is given; "on", in the place of the pair's draft too, and it is an
    error where they cannot; "off". rpc, draft_rpc: servers of llama.cpp's RPC backend, HOST:PORT, in one text with
    commas or in several, that have the layers of the target and those of the draft (as many as `gpu_layers` and
    `draft_gpu_layers` say, by default all); a process of its own computes then. parallel: answers that run at a time,
    each with `n_ctx` cells of its own; "auto": as many as memory has room for, up to 4 (`seats.py`); with servers one.
    Raises `InvalidRequest`, for `keep_prefixes` and the layers when they are used.
    """

    n_ctx: int = 4096
    threads: int | None = None
    gpu_layers: str | int = "auto"
    draft_gpu_layers: str | int = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    use_mmap: bool = True
    repack: bool = True
    check_memory: bool = True
    no_draft: bool = False
    no_cross_vocabulary: bool = False
    prepare_draft: bool = True
    strict: bool = False
    keep_prefixes: int = 4
    prefix_bytes: int = 1 << 30
    try_first: bool = False
    library: str = "auto"
    head: str = "auto"
    parallel: int | str = 1
    rpc: Sequence[str] | str = ()
    draft_rpc: Sequence[str] | str = ()

    def __post_init__(self) -> None:
        self.context(self.n_ctx, 1)  # checks what it is given
        for name in _SWITCHES:
            checked_switch(name, getattr(self, name))
        check_library(self.library)
        check_head(self.head)
        check_parallel(self.parallel)
        for name in ("rpc", "draft_rpc"):
            addresses = checked_addresses(name, getattr(self, name))
            object.__setattr__(self, name, addresses)
            if addresses and self.library not in ("auto", "llama"):
                raise InvalidRequest(
                    f"library is {self.library}, and only llama.cpp computes with RPC servers.",
                    "Ask for llama, or for none.",
                    name="library",
                )

    def strict_for(self, target: Metadata, library: Library) -> EngineOptions:
        """These options with what strict mode changes for a target that `library` computes."""
        asked = StrictForm(self.cache_type_k, self.cache_type_v, self.repack)
        return replace(self, **asdict(library.strict_form(target, asked)))

    def context(self, n_ctx: int, n_outputs: int) -> ContextOptions:
        """Options of one model's context."""
        return ContextOptions(
            n_ctx=n_ctx,
            n_outputs=n_outputs,
            threads=self.threads,
            cache_type_k=self.cache_type_k,
            cache_type_v=self.cache_type_v,
        )


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of the loaders of `LLM`, each of them optional: fields of `EngineOptions`, and these.

    draft_tokens: how many tokens to draft in a round where an answer does not say: "auto", "off" or a number. "auto"
    goes by what passes cost, which is assumed at first, learned from answers, measured in idle moments (seconds in
    all) and kept in `home`.
    calibrate: measure that in the load (seconds, more on a busy machine), as far as it is not certain.
    unload_after: free the weights when nothing was asked for so many seconds; the next use loads them again.
    notify: told in a sentence when something takes long, such as a measurement; a program may print it.
    on_progress: called in the loading thread with a `localspec.Progress`, some ten times a second; what it raises ends
    the load. Not called when freed weights are loaded again.
    home: localspec's folder, for pairs and measurements; by default the user's own.
    """

    draft_tokens: int | str
    calibrate: bool
    unload_after: float | None
    notify: Notify
    on_progress: ProgressCallback | None
    home: str | Path | None
    n_ctx: int
    threads: int | None
    gpu_layers: str | int
    draft_gpu_layers: str | int
    cache_type_k: str
    cache_type_v: str
    use_mmap: bool
    repack: bool
    check_memory: bool
    no_draft: bool
    no_cross_vocabulary: bool
    prepare_draft: bool
    strict: bool
    keep_prefixes: int
    prefix_bytes: int
    try_first: bool
    library: str
    head: str
    parallel: int | str
    rpc: Sequence[str] | str
    draft_rpc: Sequence[str] | str


def engine_options(values: dict[str, object]) -> EngineOptions:
    """Options from keyword arguments of a loader. Raises `InvalidRequest` naming an unknown one."""
    fields = EngineOptions.__dataclass_fields__
    check_names((name for name in values if name not in fields), LoadOptions.__annotations__)
    return replace(EngineOptions(), **values)  # type: ignore[arg-type]


def within_machine(options: EngineOptions) -> tuple[EngineOptions, list[str]]:
    """Options with no more threads than processors, and a sentence where that changes them.

    llama.cpp's threads wait for each other in a loop: more of them than processors make a pass many times slower.
    """
    most = processors()
    if options.threads is None or options.threads <= most:
        return options, []
    sentence = f"threads is {options.threads}, and this process may use {most} processors: {most} are used."
    return replace(options, threads=most), [sentence]
