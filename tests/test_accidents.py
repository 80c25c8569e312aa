"""Accidents inside an application: close and cancel from within, the wrong thread, the wrong moment.

After each of them the engine answers as one that had none.
"""

from __future__ import annotations

import pytest

from localspec import LLM
from localspec.decoding import calibrate

from .tinygguf import write_llama

GREEDY = {"temperature": 0}
SHORT = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accidents")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
        "deep": write_llama(folder / "deep.gguf", seed=1, n_layer=40),
    }


@pytest.fixture
def load(files, tmp_path):
    """Loads an engine with a home of its own."""
    opened = []

    def load(name="target", **options):
        options = {"n_ctx": 512, "draft_tokens": 3, "cache_type_v": "bf16", "home": tmp_path, **options}
        opened.append(LLM.from_files(files[name], files["draft"], **options))
        return opened[-1]

    yield load
    for llm in opened:
        llm.close()


# Cancel while passes are measured


@pytest.mark.parametrize("moment", [1, 2, 4])
def test_cancel_while_an_answer_measures_what_passes_cost(load, monkeypatch, moment):
    """Its tokens stood in the cells, and the next answer took them for its own."""
    llm = load()
    prompt = "a prompt that is in the cells. " * 4
    expected = llm.generate(prompt, **SHORT).ids
    calls = []

    def cancelling(self, *arguments, _least=calibrate._Bench.least):
        calls.append(1)
        if len(calls) == moment:
            llm.cancel()
        return _least(self, *arguments)

    monkeypatch.setattr(calibrate._Bench, "least", cancelling)
    answer = llm.generate(prompt, draft_tokens="auto", **SHORT)
    assert (answer.finish_reason, answer.ids) == ("cancelled", ()) and len(calls) >= moment
    assert llm.generate(prompt, **SHORT).ids == expected
