"""Loaders: the ways from a name, a folder or files to models in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from localspec.background import Loading, LoadProgress
from localspec.calibration import Notify
from localspec.engine import StrPath
from localspec.engine_options import engine_options
from localspec.idle import checked_seconds
from localspec.pairs.catalogue import DEFAULT_PAIR
from localspec.request import check_draft_tokens, check_listener
from localspec.sources import Found, find, find_files, find_folder, find_on_hub, find_pair
from localspec.store.usage import record_use
from localspec.weights import Order, Weights


def _ignore(sentence: str) -> None:
    pass


def _both(first: Notify, second: Notify) -> Notify:
    def notify(sentence: str) -> None:
        first(sentence)
        second(sentence)

    return notify


class Loaders(ABC):
    """What `LLM` is made by."""

    def __init__(self, weights: Weights, unload_after: float | None = None) -> None:
        self._weights = weights

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    @classmethod
    def load(cls, name_or_target: StrPath, draft: StrPath | None = None, **options: Any) -> Self:
        """Load a pair by its name, `org/repo:quant`, a folder, or GGUF files; whatever `name_or_target` is.

        Arguments and errors are those of `from_pair`, `from_hub`, `from_folder` and `from_files`.
        """
        home = options.pop("home", None)
        return cls._from(find(name_or_target, draft, home, with_draft=not options.get("no_draft")), options)

    @classmethod
    def load_in_background(
        cls,
        name_or_target: StrPath,
        draft: StrPath | None = None,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        **options: Any,
    ) -> Loading[Self]:
        """Begin what `load` does and return at once; `Loading.result()` is the LLM or raises what `load` raises.

        on_progress: called in the loading thread with the stage and the share done.
        """
        own = check_listener("notify", options.pop("notify", _ignore))
        if on_progress is not None:
            check_listener("on_progress", on_progress)

        return Loading(
            lambda tell: cls.load(name_or_target, draft, notify=_both(tell, own), **options), on_progress
        )

    @classmethod
    def from_pair(cls, name: str = DEFAULT_PAIR, *, home: StrPath | None = None, **options: Any) -> Self:
        """Load a pair that `localspec pull` fetched. Other arguments as for `from_files`.

        Raises `UnknownPair`, `NotDownloaded` and what `from_files` raises.
        """
        return cls._from(find_pair(name, home, with_draft=not options.get("no_draft")), options)

    @classmethod
    def from_folder(cls, folder: StrPath, *, home: StrPath | None = None, **options: Any) -> Self:
        """Load a folder that `localspec export` made: it is only read. Arguments as for `from_files`.

        Raises `CatalogueError` for a folder that is not whole, and what `from_files` raises.
        """
        return cls._from(find_folder(folder, home), options)

    @classmethod
    def from_hub(
        cls, target: str, draft: str | None = None, *, home: StrPath | None = None, **options: Any
    ) -> Self:
        """Load models of a hub's repositories, `org/repo:quant`, that `localspec pull` fetched and pinned.

        The network is not used. Arguments as for `from_files`; raises `NotDownloaded` and what that raises.
        """
        return cls._from(find_on_hub(target, draft, home, with_draft=not options.get("no_draft")), options)

    @classmethod
    def from_files(
        cls,
        target: StrPath,
        draft: StrPath | None = None,
        *,
        home: StrPath | None = None,
        draft_tokens: int | str = "auto",
        unload_after: float | None = None,
        notify: Notify = _ignore,
        **options: Any,
    ) -> Self:
        """Load GGUF files. Without a draft, repeated text is drafted from the conversation itself (n-grams).

        With draft_tokens "auto" the cost of a pass is measured at the first load on this machine (seconds) and kept
        in `home`; where a draft model can pay, a copy of it is requantized there and used if it drafts faster, unless
        `prepare_draft=False`.

        unload_after: free the weights when nothing was asked for so many seconds; the next use loads them again.
        notify: told in a sentence when something takes long.
        options: fields of `localspec.engine_options.EngineOptions`, such as `n_ctx`, `threads`, `gpu_layers`, `strict`.
        Raises `InvalidRequest`, `ModelFileError`, `PairingError`, `ModelLoadError`, `MemoryShort` or `BackendError`.
        """
        draft_tokens = check_draft_tokens(draft_tokens)
        seconds = checked_seconds(unload_after)
        check_listener("notify", notify)
        found = find_files(target, draft, home)
        order = Order(found.target, found.draft, engine_options(options), draft_tokens, found.home)
        weights = Weights(order, notify)
        record_use(found.target, found.draft if weights.engine.draft else None, home=found.home)
        return cls(weights, seconds)

    @classmethod
    def _from(cls, found: Found, options: dict[str, Any]) -> Self:
        llm = cls.from_files(found.target, found.draft, home=found.home, **options)
        llm._weights.warnings += found.warnings
        return llm
