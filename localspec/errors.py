"""One tree of errors.

Every error a user or an application can cause is a `LocalspecError`. It carries its data as attributes and
prints as one sentence that names the value, followed by the remedy. A remedy speaks to an application (calls and
arguments); where the command line has other words for it, they are `command`. Subclasses stand below their bases here:

    LocalspecError
      InvalidRequest (also a ValueError): PromptTooLong, NoTokenLeft
      EngineClosed, EngineBusy, BackendError, MissingPackage, TemplateError, PairingError
      ModelFileError, ModelLoadError: MemoryShort; LoadCancelled
      ConversationFileError, RpcError
      DecodeError: ContextFull; DecodeCancelled; StateError
      HubError: UnknownPair, NotDownloaded, CatalogueError, StoreError: DiskFull
        DownloadError: HashMismatch, AccessDenied, FileMissing, SourceUnreachable, OfflineError
"""

from __future__ import annotations

from typing import Self


class LocalspecError(Exception):
    """Base of the tree.

    message: one sentence that names the value at fault.
    remedy:  one sentence that says what to do, in the words of the Python API, or "".
    command: the remedy in the words of the command line; by default the same.
    data:    the facts behind the sentence, for programs; every item is also an attribute.
    """

    def __init__(self, message: str, remedy: str = "", *, command: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.command = command or remedy
        self.data = data

    def with_message(self, message: str, **data: object) -> Self:
        """The same error, with another sentence and further facts."""
        return type(self)(message, self.remedy, command=self.command, **{**self.data, **data})

    def __getattr__(self, name: str) -> object:
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class InvalidRequest(LocalspecError, ValueError):
    """A value given by the caller is not usable (`name`, `value`)."""


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context (`num_tokens`, `n_ctx`)."""


class NoTokenLeft(InvalidRequest):
    """Bias, callbacks and grammar together leave no token that could come next (`name`)."""


class EngineClosed(LocalspecError):
    """The engine was closed and cannot answer."""


class EngineBusy(LocalspecError):
    """Waiting would never end: this thread, or this conversation, has an answer that is not read to its end."""


class BackendError(LocalspecError):
    """llama-cpp-python is missing, outside the tested range, or refused to start."""


class MissingPackage(LocalspecError):
    """An optional Python package is not installed (`package`)."""


class ModelFileError(LocalspecError):
    """A file is not a usable GGUF model (`path`)."""


class ModelLoadError(LocalspecError):
    """llama.cpp could not load the weights or make a context (`path`)."""


class MemoryShort(ModelLoadError):
    """The models do not fit the free memory (`needed`, `free`, both bytes, and `path`)."""


class LoadCancelled(LocalspecError):
    """A load was ended by `Loading.cancel()` or `LLM.cancel()`; everything it had loaded is freed."""


class ConversationFileError(LocalspecError):
    """A saved conversation cannot be written, read, or used with this model (`path`)."""


class RpcError(LocalspecError):
    """A server given by `rpc` cannot be used or was lost, or what was asked for does not work with servers.

    Where one was named or lost: `addresses`; where it ended the process that computes: `code`, negative for a signal.
    """


class DecodeError(LocalspecError):
    """A forward pass failed (`code`, as llama_decode returned it)."""


class DecodeCancelled(LocalspecError):
    """A forward pass was stopped by `cancel()`. Internal: an answer then ends with finish reason `cancelled`."""


class ContextFull(DecodeError):
    """llama.cpp found no room for the tokens of this pass."""


class StateError(LocalspecError):
    """Saved cells cannot be used here: damaged, of another model or build, or too many for the context."""


class TemplateError(LocalspecError):
    """The model has no chat template, or its template rejects these messages."""


class PairingError(LocalspecError):
    """The draft cannot draft for this target (`target`, `draft`, `reason`)."""


class HubError(LocalspecError):
    """Base of what can go wrong with the catalogue, the store and downloads."""


class UnknownPair(HubError):
    """No pair of that name (`name`, `known`)."""


class NotDownloaded(HubError):
    """The pair is known but its files are not on disk (`name`, `missing`)."""


class CatalogueError(HubError):
    """A pair file cannot be read (`path`)."""


class StoreError(HubError):
    """The store's folder cannot be used: permissions, format version, lock (`path`)."""


class DiskFull(StoreError):
    """Not enough room for the files (`needed`, `free`, both bytes)."""


class DownloadError(HubError):
    """A file could not be fetched from any of its sources (`file`, `source`)."""


class HashMismatch(DownloadError):
    """The bytes fetched are not the file (`expected`, `actual`, both hex sha256)."""


class AccessDenied(DownloadError):
    """The source wants a licence accepted first (gated), or refuses the token sent."""


class FileMissing(DownloadError):
    """The source has no such repository, revision or file."""


class SourceUnreachable(DownloadError):
    """The source did not answer, stopped sending, or answered with a server error."""


class OfflineError(DownloadError):
    """The network is needed, and `offline` forbids it."""
