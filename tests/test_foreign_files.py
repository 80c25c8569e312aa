"""Bad files beside good ones: an error in Python each time, a process that lives, and nothing left in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_bad_files_as_target_or_draft(tmp_path: Path) -> None:
    environment = {**os.environ, "LOCALSPEC_HOME": str(tmp_path / "home"), "GGML_NO_BACKTRACE": "1"}
    argv = [sys.executable, "-m", "tests.fuzz", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)
    last = (tmp_path / "current").read_text(encoding="utf-8")
    assert done.returncode == 0, f"the process ended over: {last}\n{done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    assert result["faults"] == []
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) >= 1000  # 500 files, each as target and as draft
    assert outcomes["ModelFileError"] > 500
    assert outcomes["ModelLoadError"] > 50  # by llama.cpp itself
    assert outcomes["loaded"] > 50
    assert result["freed_beside"] > 20  # the good model was loaded by then
