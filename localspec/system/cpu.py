"""What this processor has, under the names that llama.cpp uses for what it was compiled with."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

X86 = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c",
    "FMA": "fma", "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
}  # fmt: skip
"""llama.cpp's name -> the flag in Linux's /proc/cpuinfo."""
ARM = {
    "NEON": "asimd", "ARM_FMA": "asimd", "FP16_VA": "asimdhp", "MATMUL_INT8": "i8mm", "SVE": "sve",
    "DOTPROD": "asimddp", "SME": "sme",
}  # fmt: skip
_MAC_X86 = {
    "SSE3": "sse3", "SSSE3": "ssse3", "AVX": "avx1.0", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f",
}  # fmt: skip


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, bool] | None:
    """llama.cpp's name of a feature -> whether the processor has it; None where that cannot be read.

    Names that are not in the result are not about the processor, or not known here.
    """
    if sys.platform == "darwin":
        return _mac()
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            names = X86 if key.strip() == "flags" else ARM
            return {name: flag in value.split() for name, flag in names.items()}
    return None


def lacked(built: Mapping[str, int]) -> list[str]:
    """What a library was compiled for (llama.cpp's names, 0 for what was left out) and this processor lacks."""
    cpu = cpu_features() or {}
    return sorted(name for name, value in built.items() if value and cpu.get(name) is False)


def _mac() -> dict[str, bool] | None:
    if platform.machine() == "arm64":
        return None  # every Apple processor runs what is compiled for the first of them
    asked = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    try:
        done = subprocess.run(["sysctl", "-n", *asked], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    flags = done.stdout.lower().split()
    return {name: flag in flags for name, flag in _MAC_X86.items()} if flags else None
