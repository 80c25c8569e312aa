"""Whether a compute library can be used beside the reference on this machine: tried once, in a process of its own.

Both are loaded there in the order in which they are used. The verdict is kept for these two builds and this machine.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.compute.probe import Probe, probe_in_child
from localspec.engine.libraries import reference
from localspec.errors import BackendError
from localspec.store.measurements import Measurements, this_machine
from localspec.system.cpu import lacked
from localspec.system.home import default_home
from localspec.system.load_watch import check_cancelled

if TYPE_CHECKING:
    from localspec.compute.library import Library

FORMAT = 1
SECONDS = 120.0
"""How long the two may take to load."""
_PASSING = (None, -getattr(signal, "SIGKILL", 9))
"""Ends that say something of the machine at that moment, which was busy or short of memory: not kept on disk."""
_tried: dict[str, str] = {}
"""What was found so in this process."""


def why_not_together(library: Library, home: Path | None = None, *, redo: bool = False) -> str:
    """Why it is passed over here, in a sentence, or "". Takes a second where it is not known yet.

    redo: try again, whatever is known. Raises `LoadCancelled` where the load that runs in this thread is cancelled.
    """
    first = reference()
    if library is first:
        return ""
    try:
        facts: dict[str, object] = {"builds": [first.build, library.build], "machine": this_machine()}
    except BackendError as error:
        return error.message
    kept, key = Measurements((home or default_home()) / "together", FORMAT), repr((home, facts))
    if not redo:
        known = (kept.find(facts) or {}).get("reason", _tried.get(key))
        if isinstance(known, str):
            return known
    probes = probe_in_child([first.probe_entry, library.probe_entry], SECONDS, check_cancelled)
    reason = _reason(first, library, probes)
    if probes[0].code in _PASSING:
        _tried[key] = reason
    else:
        kept.keep(facts, {"reason": reason})
    return reason


def _reason(first: Library, library: Library, probes: list[Probe]) -> str:
    if error := next((probe.error for probe in probes if probe.error is not None), None):
        return error[0]
    if not all(probe.usable for probe in probes):
        words = probes[0].said.splitlines()[-1:]
        last = f": {words[0][-200:]}" if words and probes[0].code else ""
        return f"A process that loaded {library.name} beside {first.name} {probes[0].how}{last}."
    if lacking := lacked(probes[1].features):
        return f"{library.name} was compiled with {', '.join(lacking)}, which this processor lacks."
    return ""
