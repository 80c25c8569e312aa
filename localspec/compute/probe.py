"""What a compute library says of itself when it is tried in a child process."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """One that layers can run on. memory: (free, total) in bytes, 0 where it does not say."""

    name: str
    description: str
    memory: tuple[int, int]


@dataclass(frozen=True)
class Probe:
    """What became of the child.

    stage:    how far it came: "start", "load" (the library), "ask" (for its facts) or "done".
    version:  of llama-cpp-python, or None where there is none.
    error:    (sentence, remedy) of a library that Python could not use, or None.
    code:     exit code of the child, negative for a signal; None where the time was up.
    said:     the end of what it wrote to standard error.
    features: what the library was compiled for, e.g. {"AVX2": 1}, as llama.cpp spells it.
    backends: kinds of devices that are compiled in, e.g. ("CPU", "CUDA").
    """

    stage: str = "start"
    version: str | None = None
    error: tuple[str, str] | None = None
    code: int | None = 0
    said: str = ""
    features: dict[str, int] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether the library loaded and answered."""
        return self.stage == "done" and self.error is None and self.code == 0
