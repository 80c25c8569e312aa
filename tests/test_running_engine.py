"""Engines whose target or draft has a running state: the laws hold, and any history leaves them as a fresh one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import LLM
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.decoding.params import SamplingParams
from localspec.decoding.rollback import WayBack
from localspec.decoding.sampling import Logits, distribution
from localspec.errors import DecodeError
from localspec.ggml.running_state import RunningStates

from . import tinyhybrid
from .joint import THRESHOLD, p_value
from .tinygguf import write_llama
from .tinyhybrid import write_running

GREEDY: dict[str, Any] = {"temperature": 0.0}
HALF = {tinyhybrid.SNAPSHOTS: 0.03, tinyhybrid.REPLAY: 0.01, tinyhybrid.RECURRENT: 0.05}
"""Noise of a draft that is right about half of the time."""
WAYS = [
    ("llama", tinyhybrid.SNAPSHOTS, "snapshots"),
    ("llama", tinyhybrid.REPLAY, "replay"),
    ("llama", tinyhybrid.RECURRENT, "replay"),
    ("ik", tinyhybrid.SNAPSHOTS, "replay"),
]
every_way = pytest.mark.parametrize(("library", "architecture", "kind"), WAYS)
Files = dict[str, dict[str, Path]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("running")
    found = {}
    for kind in tinyhybrid.KINDS:
        made = {"target": {"seed": 1}, "half": {"seed": 1, "noise": HALF[kind]}, "never": {"seed": 2}}
        found[kind] = {
            name: write_running(folder / f"{kind}-{name}.gguf", kind, **options)  # type: ignore[arg-type]
            for name, options in made.items()
        }
        found[kind]["always"] = write_running(folder / f"{kind}-always.gguf", kind, seed=1)
        found[kind]["attention"] = write_llama(folder / f"{kind}-attention.gguf", seed=3)
    return found


def load(target: Path, draft: Path | None = None, library: str = "llama", **options: Any) -> LLM:
    settings = {
        "n_ctx": 400,
        "threads": 1,
        "gpu_layers": 0,
        "draft_gpu_layers": 0,
        "prepare_draft": False,
        **options,
    }
    return LLM.from_files(target, draft, library=library, **settings)


# The laws


@every_way
@pytest.mark.parametrize("draft", ["always", "half", "never", "attention"])
def test_greedy_ids_are_the_targets_own(
    files: Files, library: str, architecture: str, kind: str, draft: str
) -> None:
    """At every draft length, of a draft that is right always, about half of the time, and never."""
    target = files[architecture]["target"]
    with load(target, library=library, no_draft=True) as llm:
        expected = llm.generate("Hello, you!", max_tokens=24, **GREEDY).ids
    with load(target, files[architecture][draft], library) as llm:
        assert llm.engine.target.rollback.kind == kind
        for length in range(9):
            answer = llm.generate("Hello, you!", max_tokens=24, draft_tokens=length, **GREEDY)
            assert answer.ids == expected
            accepted, drafted = answer.stats.accepted, answer.stats.drafted
            if draft == "always":
                assert accepted == drafted >= 2 * length
            elif draft == "half" and length:
                assert 0 < accepted < drafted


@pytest.mark.parametrize(
    ("architecture", "verify"), [(tinyhybrid.SNAPSHOTS, "rejection"), (tinyhybrid.REPLAY, "block")]
)
def test_the_first_tokens_have_the_targets_joint_distribution(
    files: Files, architecture: str, verify: str
) -> None:
    drafted, runs = 2, 500
    prompt = [70, 71, 72]
    shape: dict[str, Any] = {"temperature": 1.5, "top_k": 3, "top_p": 1.0, "min_p": 0.0}
    params = SamplingParams(**shape)
    with load(files[architecture]["target"], no_draft=True) as llm:
        joint = exact_joint(row_reader(llm), params, prompt, drafted + 2)
    counts: Counter[tuple[int, ...]] = Counter()
    with load(files[architecture]["target"], files[architecture]["half"]) as llm:
        for seed in range(runs):
            answer = llm.generate(
                prompt, seed=seed, verify=verify, draft_tokens=drafted, max_tokens=drafted + 3, **shape
            )
            counts[answer.ids[: drafted + 2]] += 1
    assert set(counts) <= set(joint)
    assert p_value(joint, counts) > THRESHOLD


def row_reader(llm: LLM) -> Callable[[Sequence[int]], Logits]:
    """The row behind a prefix, read by an empty context."""

    def row(prefix: Sequence[int]) -> Logits:
        llm.engine.forget()
        return llm.engine.session.forward(prefix)[0]

    return row


def exact_joint(
    row: Callable[[Sequence[int]], Logits], params: SamplingParams, prompt: Sequence[int], length: int
) -> dict[tuple[int, ...], float]:
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        joint = {
            (*tokens, token): probability * chance
            for tokens, probability in joint.items()
            for token, chance in likely(row([*prompt, *tokens]), params, [*prompt, *tokens])
        }
    return joint


def likely(row: Logits, params: SamplingParams, prefix: list[int]) -> Iterator[tuple[int, float]]:
    found = distribution(row, params, prefix)
    yield from ((token, float(found.prob(token))) for token in range(len(row)) if found.prob(token) > 0)


# Who drafts


@every_way
def test_copies_are_drafted_without_a_model(
    files: Files, library: str, architecture: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)
    monkeypatch.setattr(WayBack, "observe", lambda *_: None)
    text = "abcdefgh" * 12
    with load(files[architecture]["target"], library=library) as llm:
        expected = llm.generate(text, max_tokens=40, draft_tokens=0, **GREEDY).ids
        prediction = llm.detokenize(expected[:10])
        controller = AdaptiveController(
            CostTable({1: 1.0, 32: 1.1}), back=WayBack(llm.engine.target.rollback)
        )
        monkeypatch.setattr(llm._keeper, "adaptive", controller)
        monkeypatch.setattr(controller, "observe", lambda step: None)
        answer = llm.generate(text, max_tokens=40, draft_tokens="auto", prediction=prediction, **GREEDY)
        assert answer.ids == expected and answer.stats.drafted > 0


# What was asked before


@every_way
def test_conversations_answer_as_fresh_engines(
    files: Files, library: str, architecture: str, kind: str
) -> None:
    wrong = converse(files[architecture], library, seeds=range(3))
    assert wrong == []


def converse(files: dict[str, Path], library: str, seeds: Sequence[int]) -> list[str]:
    """Random turns, undone ones and cancelled ones; what an answer differs in from that of an engine which was just
    loaded."""
    wrong = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 14])
        draft = files[str(rng.choice(["half", "always", "attention"]))]
        with load(files["target"], draft, library, draft_tokens=int(rng.integers(1, 7))) as llm:
            for turn, (prompt, ids) in enumerate(turns(llm, rng)):
                with load(files["target"], library=library, no_draft=True) as fresh:
                    if fresh.generate(prompt, max_tokens=len(ids), **GREEDY).ids != ids:
                        wrong.append(f"conversation {seed}, turn {turn}")
    return wrong


def turns(llm: LLM, rng: np.random.Generator) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Prompt and answer of each turn that came to its end."""
    conversation = llm.conversation(when_full="drop_oldest")
    for _ in range(6):
        act = rng.choice(["ask", "ask", "again", "undo", "leave", "cancel", "other"])
        if act == "undo":
            conversation.undo()
        elif act == "other":
            llm.generate("Another text " + chr(65 + int(rng.integers(26))), max_tokens=4, **GREEDY)
        elif act in ("leave", "cancel"):
            interrupt(llm, conversation.ask(sentence(rng), max_tokens=30, **GREEDY), rng, act == "cancel")
        else:
            again = act == "again" and conversation.turns
            options = {"max_tokens": int(rng.integers(1, 24)), **GREEDY}
            stream = (
                conversation.regenerate(**options) if again else conversation.ask(sentence(rng), **options)
            )
            answer = list(stream)[-1].completion
            assert answer is not None
            yield list(conversation.ids[: answer.stats.prompt_tokens]), answer.ids


def sentence(rng: np.random.Generator) -> str:
    return "".join(chr(97 + int(letter)) for letter in rng.integers(0, 26, int(rng.integers(1, 20))))


def interrupt(llm: LLM, stream: Any, rng: np.random.Generator, by_flag: bool) -> None:
    """Read a few chunks, then leave; or have it cancelled from another thread meanwhile."""
    if by_flag:
        timer = threading.Timer(float(rng.uniform(0.0005, 0.02)), llm.cancel)
        timer.start()
        for _ in stream:
            pass
        timer.join()
    else:
        for _, _ in zip(stream, range(int(rng.integers(1, 5))), strict=False):
            pass
        stream.close()


def test_a_state_that_is_not_put_back_spoils_answers(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the laws above would see it."""

    def fault(states: RunningStates, sequence_id: int) -> bool:
        sequence = states._sequences[sequence_id]
        sequence.length = sequence.reach = sequence.saved_at
        states._native.remove_cells(sequence_id, sequence.length)
        return True

    monkeypatch.setattr(RunningStates, "_restore", fault)
    with pytest.raises((AssertionError, DecodeError)):
        test_greedy_ids_are_the_targets_own(files, "llama", tinyhybrid.REPLAY, "replay", "half")
