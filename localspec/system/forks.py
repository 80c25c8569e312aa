"""A forked process has the memory of the models and none of the threads that compute: a pass there would never end."""

from __future__ import annotations

import os

from localspec.errors import BackendError

_computes_in: list[int] = []


def claim_process() -> None:
    """Note that this process computes. Raises `BackendError` if one that it was forked from did so before."""
    check_process()
    if not _computes_in:
        _computes_in.append(os.getpid())


def is_forked() -> bool:
    """Whether this process was forked from one that computed."""
    return bool(_computes_in) and _computes_in[0] != os.getpid()


def check_process() -> None:
    """Raise `BackendError` in a forked process."""
    if is_forked():
        raise BackendError(
            "Models computed in the process that this one was forked from, and their threads are not here.",
            "Start the process with multiprocessing's spawn method, and load the model in it.",
        )
