"""ik_llama.cpp beside llama.cpp: the same logits for every file that it takes, and a refusal for every other."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import LLM
from localspec.compute.context_options import CACHE_TYPES, ContextOptions
from localspec.compute.library import Library
from localspec.decoding.sampling import Logits, kl_divergence
from localspec.decoding.session import Span
from localspec.engine import trust
from localspec.engine.libraries import library_for
from localspec.engine.options import EngineOptions
from localspec.errors import InvalidRequest, LocalspecError, ModelLoadError
from localspec.gguf.metadata import read_metadata
from localspec.ik import files
from localspec.ik.cancelling import CancelFlag
from localspec.ik.library import IkLlama
from localspec.llama.library import LlamaCpp

from .tinyarch import TinyFile, header_only, tiny
from .tinygguf import write_gemma, write_llama, write_mamba

WHOLE = {
    "command-r": False, "ernie4_5": False, "falcon": False, "gemma": False, "glm4": False, "gptneox": False,
    "internlm2": False, "llama": False, "olmo": False, "phi2": False, "qwen": False, "qwen2": False, "qwen2moe": True,
    "qwen3": False, "qwen3moe": True, "seed_oss": False, "smollm3": False, "stablelm": False, "xverse": False,
}  # fmt: skip
"""Architectures whose tiny files differ from theirs in nothing but size, and whether they have experts."""
DAMAGED = ("llama", "qwen3moe")
IDS = tuple(33 + 67 * index % 170 for index in range(90))
SPREAD = 0.02
"""Largest difference of two logits over their spread, where kernels round differently."""


# What it takes


def read(
    library: Library, path: Path, ids: tuple[int, ...] = IDS, alike: float = SPREAD, **options: Any
) -> Logits:
    """Rows of a wide pass; those behind a rollback and of single passes must be as near to them as `alike`."""
    weights = library.open_weights(read_metadata(path), repack=False)
    try:
        context = weights.open_context(
            ContextOptions(
                **{"n_ctx": 128, "n_batch": len(ids), "n_outputs": len(ids), "threads": 1, **options}
            )
        )
        (wide,) = context.decode([Span(0, ids, 0, len(ids))])
        cut = len(ids) // 2
        assert context.truncate(0, cut) == cut
        (again,) = context.decode([Span(0, ids[cut:], cut, len(ids) - cut)])
        assert distance(wide[cut:], again) < alike
        context.truncate(0, len(ids) - 3)
        singles = [
            context.decode([Span(0, ids[at : at + 1], at, 1)])[0][0] for at in range(len(ids) - 3, len(ids))
        ]
        assert distance(wide[-3:], singles) < alike
        context.close()
        return np.array(wide)
    finally:
        weights.close()


def distance(rows: Any, others: Any) -> float:
    ours, theirs = np.array(rows), np.array(others)
    return float(np.abs(ours - theirs).max() / ours.std())


def plain(file: TinyFile) -> TinyFile:
    """Without what this architecture does not have in real files."""
    own = f"{file.architecture}."
    held = {
        key: value
        for key, value in file.values.items()
        if not key.startswith(own) or key[len(own) :] in files.KEYS
    }
    held.pop(f"{own}attention.sliding_window", None)
    kept = {}
    extras = (
        "rope_freqs.weight",
        "cls.output.weight",
        *(() if file.architecture == "phi2" else ("output.bias",)),
    )
    data, offset = b"", 0
    for name, shape in file.tensors.items():
        size = -(-int(np.prod(shape)) * 4 // 32) * 32
        is_bias = name.startswith("blk.") and name.endswith(".bias") and file.architecture in NO_BIAS
        if not (name in extras or name.endswith("scale") or is_bias):
            kept[name] = shape
            data += file.data[offset : offset + size]
        offset += size
    return TinyFile(file.architecture, held, kept, data)


NO_BIAS = ("command-r", "gemma", "internlm2", "olmo", "qwen3", "qwen3moe", "smollm3", "xverse")
"""Architectures that have no biases in their layers."""


def in_child(what: str, folder: Path) -> dict[str, Any]:
    """Run a function of this module, which prints JSON: whatever the library does, the tests live."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_ik", what, str(folder)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    current = folder / "current"
    last = current.read_text(encoding="utf-8") if current.exists() else ""
    assert child.returncode == 0, f"{last}: {child.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(child.stdout)  # and nothing else came there
    return found


def compare_architectures(folder: Path) -> dict[str, Any]:
    found = {}
    for architecture, experts in WHOLE.items():
        (folder / "current").write_text(architecture, encoding="utf-8")
        path = plain(tiny(architecture, folder, experts=experts)).write(folder / "tiny.gguf")
        assert IkLlama().refusal(read_metadata(path)) == "", architecture
        found[architecture] = distance(read(LlamaCpp(), path), read(IkLlama(), path))
    return found


def test_it_computes_the_logits_of_llama_cpp(tmp_path: Path) -> None:
    found = in_child("compare_architectures", tmp_path)
    assert set(found) == set(WHOLE) <= files.ARCHITECTURES
    assert {name: far for name, far in found.items() if not far < SPREAD} == {}


# What it refuses


def mutations(file: TinyFile) -> Iterator[tuple[str, Any]]:
    for name in sorted(files.KEYS):
        key = f"{file.architecture}.{name}"
        held = file.values.get(key, 1.0 if name.startswith("rope") else 1)
        one = held[0] if isinstance(held, list) else held
        if name == "rope.scaling.type":
            yield from ((key, kind) for kind in ("none", "linear", "yarn", "longrope", 1))
        elif isinstance(one, float):
            yield from ((key, value) for value in (None, 0.0, -1.0, 1e-30, 0.5, 1e30, float("inf"), 1, "x"))
        elif isinstance(one, int):
            values = (None, 0, 1, 2, 3, (1 << 31) - 1, (1 << 32) - 1, -1, 0.5, True, "x", [one] * 2)
            yield from ((key, value) for value in values)


def compare_damaged(folder: Path) -> dict[str, Any]:
    counts: dict[str, int] = {}
    apart = {}
    for architecture in DAMAGED:
        file = plain(tiny(architecture, folder, experts=WHOLE[architecture]))
        for key, value in mutations(file):
            (folder / "current").write_text(f"{key} is {value!r}", encoding="utf-8")
            path = file.write(folder / "changed.gguf", {key: value})
            try:
                if IkLlama().refusal(read_metadata(path)):
                    outcome = "refused"
                else:
                    ours, theirs = (read(library, path, IDS[:24]) for library in (IkLlama(), LlamaCpp()))
                    outcome = "computed"
                    if not distance(ours, theirs) < SPREAD:
                        apart[f"{key} is {value!r}"] = distance(ours, theirs)
            except LocalspecError as error:
                outcome = type(error).__name__
            counts[outcome] = counts.get(outcome, 0) + 1
    return {"counts": counts, "apart": apart}


def test_no_key_that_it_reads_ends_the_process_or_means_something_else(tmp_path: Path) -> None:
    found = in_child("compare_damaged", tmp_path)
    assert found["apart"] == {}
    assert min(found["counts"][outcome] for outcome in ("refused", "computed", "ModelFileError")) > 30


def of(architecture: str, **changes: Any) -> TinyFile:
    """A header of that architecture with its plain keys, some of them changed: `__` for a dot."""
    file = plain(header_only(architecture))
    file.values |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return file


@pytest.mark.parametrize(
    ("architecture", "changes", "tensor", "said"),
    [
        ("qwen2", {}, "", ""),
        ("mamba2", {}, "", "does not compute models of architecture mamba2 here"),
        ("gemma3", {}, "", "does not compute models of architecture gemma3 here"),
        ("deepseek2", {}, "", "does not compute models of architecture deepseek2 here"),
        ("llama", {}, "rope_freqs.weight", "passes over rope_freqs.weight"),
        ("llama", {}, "rope_factors_long.weight", "passes over rope_factors_long.weight"),
        ("phi3", {"attention__sliding_window": 256}, "rope_factors_long.weight", ""),
        ("phi3", {}, "", "needs attention.sliding_window in a file of phi3"),
        ("phi3", {"attention__sliding_window": 255}, "", "cuts a sliding window of 255 tokens short"),
        ("phi3", {"attention__sliding_window": 0}, "", ""),
        ("qwen2", {}, "output.bias", "passes over output.bias"),
        ("phi2", {}, "output.bias", ""),
        ("qwen2", {}, "blk.0.attn_q.input_scale", "does not know blk.0.attn_q.input_scale"),
        ("llama", {"residual_scale": 0.5}, "", "may not read llama.residual_scale as llama.cpp does"),
        ("glm4", {"rope__dimension_sections": [4, 4, 4, 4]}, "", "may not read a list, glm4.rope.dim"),
        ("llama", {"feed_forward_length": [192, 192]}, "", "may not read a list, llama.feed_forward_length"),
        ("llama", {"rope__scaling__type": "longrope"}, "", "does not know rope.scaling.type longrope"),
        ("llama", {"rope__scaling__type": "yarn"}, "", ""),
        ("llama", {"attention__layer_norm_rms_epsilon": 0.0}, "", "cannot compute with attention.layer_norm_rms"),
        ("llama", {"rope__freq_base": 0.0}, "", "cannot compute with rope.freq_base 0.0"),
        ("qwen3moe", {"expert_count": 512, "expert_used_count": 8}, "", ""),
        ("qwen3moe", {"expert_count": 513, "expert_used_count": 8}, "", "holds 512 experts at most, not 513"),
    ],
)  # fmt: skip
def test_what_it_would_compute_otherwise_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], tensor: str, said: str
) -> None:
    file = of(architecture, **changes)
    if tensor:
        file.tensors[tensor], file.data = (8, 1), bytes(64)
    facts = read_metadata(file.write(tmp_path / "file.gguf"))
    refusal = IkLlama().refusal(facts)
    assert refusal.startswith(f"ik_llama.cpp {said}" if said else "") and bool(refusal) is bool(said)
    assert library_for(facts) == library_for(facts, asked="llama")


def test_weights_of_a_format_that_it_lacks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_metadata(write_llama(tmp_path / "model.gguf"))
    assert IkLlama().refusal(facts) == ""
    monkeypatch.setattr(files, "FORMATS", files.FORMATS - {"F32"})
    assert IkLlama().refusal(facts) == "ik_llama.cpp does not know weights of format F32."


@pytest.mark.parametrize("write", [write_mamba, write_gemma])
def test_who_asks_for_it_is_told_why_not(tmp_path: Path, write: Any) -> None:
    with pytest.raises(ModelLoadError, match="does not compute models of architecture") as caught:
        LLM.from_files(write(tmp_path / "model.gguf"), library="ik")
    assert "another library" in caught.value.remedy


# Types of its cache


@pytest.mark.parametrize("cache_type", sorted({*CACHE_TYPES} - {*IkLlama.cache_types}))
@pytest.mark.parametrize("of_what", ["k", "v"])
def test_a_type_without_kernels_is_refused_before_a_load(
    tmp_path: Path, cache_type: str, of_what: str
) -> None:
    file = write_llama(tmp_path / "model.gguf")
    with pytest.raises(InvalidRequest, match=f"cache_type_{of_what} is {cache_type}"):
        LLM.from_files(file, library="ik", **{f"cache_type_{of_what}": cache_type})


def compare_cache_types(folder: Path) -> dict[str, Any]:
    path = plain(tiny("llama", folder)).write(folder / "model.gguf")  # whose heads have 64 numbers
    exact = read(LlamaCpp(), path, cache_type_k="f32", cache_type_v="f32")
    found = {}
    for k, v in itertools.product(IkLlama.cache_types, repeat=2):
        (folder / "current").write_text(f"{k} and {v}", encoding="utf-8")
        types: dict[str, Any] = {
            "cache_type_k": k,
            "cache_type_v": v,
            "alike": 1.0,
        }  # one bit may move a block
        found[f"{k} and {v}"] = [
            float(kl_divergence(exact, read(library, path, **types)).mean())
            for library in (IkLlama(), LlamaCpp())
        ]
    return found


def test_its_cache_types_lose_no_more_than_those_of_llama_cpp(tmp_path: Path) -> None:
    found = in_child("compare_cache_types", tmp_path)
    assert len(found) == len(IkLlama.cache_types) ** 2
    assert {types: both for types, both in found.items() if not both[0] < 2 * both[1] + 0.001} == {}


@pytest.mark.parametrize("cache_type", IkLlama.cache_types)
@pytest.mark.parametrize(("heads", "size"), [(4, 16), (2, 32), (1, 64)])
def test_heads_that_do_not_fit_a_cache_type_are_refused_before_a_context(
    tmp_path: Path, cache_type: str, heads: int, size: int
) -> None:
    extra = {"llama.attention.head_count": heads, "llama.attention.head_count_kv": 1}
    facts = read_metadata(write_llama(tmp_path / "model.gguf", extra=extra))
    for k, v, needs in (
        (cache_type, "f16", 64 if cache_type.startswith(("q4", "iq4")) else 32),
        ("f16", cache_type, 32),
    ):
        fits = cache_type == "f16" or size >= needs
        assert bool(files.cache_fault(facts, k, v)) is not fits


def test_a_child_that_it_ended_says_by_which_assertion(tmp_path: Path) -> None:
    """And nothing of the stack, which it prints behind that."""
    path = write_llama(tmp_path / "damaged.gguf", extra={"llama.attention.layer_norm_rms_epsilon": 0.0})
    subject = trust.Subject(read_metadata(path), EngineOptions(threads=1), alone=True)
    found = trust.compare([subject], IkLlama(), tmp_path, lambda _: None)
    assert "was ended by SIGABRT" in found.fault and "GGML_ASSERT" in found.fault
    assert "libc" not in found.fault


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))


CANCELS = """
import random, sys, threading, time
from pathlib import Path
from localspec.compute.context_options import ContextOptions
from localspec.decoding.session import Span
from localspec.engine.libraries import named
from localspec.errors import DecodeCancelled
from localspec.gguf.metadata import read_metadata

library = named(sys.argv[1])
flag = library.cancel_flag()
weights = library.open_weights(read_metadata(Path(sys.argv[2])))
context = weights.open_context(ContextOptions(n_ctx=256, n_outputs=8, threads=2), flag)
for _ in range(60):
    thread = threading.Thread(target=lambda delay: (time.sleep(delay), flag.set()), args=(0.01 * random.random(),))
    thread.start()
    try:
        while True:
            context.decode([Span(0, (65,), 0, 1)])
            context.truncate(0, 0)
    except DecodeCancelled:
        thread.join()
        flag.clear()
        context.truncate(0, 0)
print("ended")
"""


@pytest.mark.parametrize("library", ["llama", "ik"])
def test_a_pass_that_is_cancelled_ends_also_where_its_threads_sleep(library: str, tmp_path: Path) -> None:
    """A thread that came late out of a wait left its pass one operation early, and the other waited for it for ever."""
    path = write_llama(tmp_path / "deep.gguf", n_layer=60)
    done = subprocess.run(
        [sys.executable, "-c", CANCELS, library, str(path)],
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "ended\n", done.stderr


def test_its_flag_takes_its_time() -> None:
    flag = CancelFlag()
    ask = flag.callback(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p))
    assert not ask(flag.data) and not flag.is_set
    for _ in range(2):
        flag.set()
        started = time.perf_counter()
        assert ask(flag.data) and flag.is_set
        assert time.perf_counter() - started > 0.002
        flag.clear()
        assert not ask(flag.data) and not flag.is_set
