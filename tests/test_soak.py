"""scripts/soak.py in seconds, on a tiny pair: the same clients as in its long form, on an engine and on a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .tinygguf import write_pair

ROOT = Path(__file__).parents[1]
SECONDS = 120
SPOILED = f"""
import runpy, sys
from localspec.decoding import session
right = session.common_prefix
session.common_prefix = lambda left, right_: min(right(left, right_) + 1, len(left), len(right_))
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(ROOT / "scripts")!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""One cell too many is reused: the fault of a cache that somebody else has filled."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return [str(file) for file in write_pair(tmp_path_factory.mktemp("soak"))]


def soak(files, *arguments, code=()):
    script = str(ROOT / "scripts" / "soak.py")
    done = subprocess.run(
        [sys.executable, *code, script, "0.08", *files, "-c", "512", "-t", "1", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


SEATS = ("--clients", "8", "--parallel", "4", "--library", "llama")


@pytest.mark.parametrize(
    "arguments",
    [(), ("--http",), SEATS, ("--http", *SEATS)],
    ids=["engine", "server", "engine-seats", "server-seats"],
)
def test_every_answer_is_the_one_given_alone(files, arguments):
    result, said = soak(files, *arguments)
    assert result["answered"] and result["cached"], said
    assert (result["wrong"], result["failed"], result["stuck"]) == (0, 0, 0), said


def test_an_answer_from_a_foreign_cell_is_found(files):
    result, _ = soak(files, code=("-c", SPOILED))
    assert result["wrong"] and not result["ok"]
