"""The audit of tokens taken back: it passes for each way back there is, and every fault planted in one fails it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from localspec import LLM
from localspec.cli import main
from localspec.ggml.context import NativeContext
from localspec.measure.audit_part import Part
from localspec.measure.audit_rollback import LONGEST, RollbackAudit, contexts
from localspec.measure.difference import Rounding
from localspec.measure.prompts import Prompt

from . import tinyhybrid
from .tinygguf import write_pair
from .tinyhybrid import write_running_pair

PROMPTS = [Prompt("talk", ("one the other and then the next of them, in the tin, and on the other end",))]
WAYS = {
    "cut": ("llama", ""),
    "snapshots": ("llama", tinyhybrid.SNAPSHOTS),
    "replay": ("llama", tinyhybrid.REPLAY),
    "recurrent": ("llama", tinyhybrid.RECURRENT),
}


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder, (library, architecture) = tmp_path_factory.mktemp(way), WAYS[way]
    files = write_running_pair(folder, architecture) if architecture else write_pair(folder)
    with LLM.from_files(*files, n_ctx=400, threads=1, library=library, draft_tokens=3, home=folder) as llm:
        yield llm


def audited(llm: LLM, rounding: Rounding | None = None) -> Part:
    return RollbackAudit(llm.engine, rounding or Rounding(llm.engine), lambda label: None).run(PROMPTS)


def test_every_way_back_leaves_no_trace(llm: LLM, way: str) -> None:
    part = audited(llm)
    assert part.passed, part.verdict
    tests = part.figures["tests"]
    assert [test["model"] for test in tests] == ["target", "draft"] == list(contexts(llm.engine))
    assert tests[0]["way"] == {"recurrent": "replay"}.get(way, way)
    assert all(test["moved"] > 0.05 for test in tests)  # or nothing could have been seen
    depth = llm.engine.target.rollback.limit or LONGEST
    assert tests[0]["passes"] == sum(range(1, min(depth, LONGEST) + 1))
    assert "leave no trace" in part.verdict


@pytest.mark.parametrize("way", ["replay"], indirect=True)
def test_a_state_that_comes_back_changed_is_seen(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    rounding = Rounding(llm.engine)
    assert rounding.tolerance < 2  # measured before the fault is there
    whole = NativeContext.copy_running

    def fault(context: NativeContext, sequence_id: int) -> bytearray:
        saved = bytearray(memoryview(whole(context, sequence_id)))
        saved[len(saved) // 2 :] = bytes(len(saved) - len(saved) // 2)
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(NativeContext, "copy_running", fault)
        part = audited(llm, rounding)
    assert not part.passed
    assert part.verdict.startswith("FAIL: behind ")
    llm.engine.forget()
    assert audited(llm, rounding).passed


def test_the_command_covers_a_hybrid_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    target, draft = write_running_pair(tmp_path)
    files = ["-m", str(target), "-md", str(draft), "-t", "1", "-c", "512"]
    done = CliRunner().invoke(main, ["audit", *files, "--scenario", "math", "--runs", "100", "-n", "8"])
    assert done.exit_code == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "PASS: classes, rollback, greedy, sampled, seed."
    assert "snapshots" in done.stdout


def test_without_drafts_nothing_is_taken_back(tmp_path: Path) -> None:
    with LLM.from_files(write_pair(tmp_path)[0], no_draft=True, n_ctx=200, threads=1) as llm:
        part = audited(llm)
    assert part.passed
    assert part.verdict == "No tokens are taken back here: nothing is drafted."
