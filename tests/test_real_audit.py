"""The audit on the real pair: it passes, and a fault planted in the source fails it."""

from __future__ import annotations

import pytest

from localspec.measure import audit_sampled
from localspec.measure.audit import Audit, AuditOptions
from localspec.measure.audit_sampled import MODEL, SampledAudit, Subject
from localspec.measure.prompts import builtin_prompts, choose

from .mutation import planted

pytestmark = pytest.mark.real

RUNS = 400
FAULTS = {
    "q from raw logits": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose", "probs.append(draft_probs)",
        "probs.append(Distribution.normalised(np.arange(len(row)), np.exp(row - row.max())))",
    ),
    "the recovered token from the target": (
        "localspec.decoding.verify", "residual",
        "mass = _excess(target_probs, draft_probs, 1)", "mass = target_probs.probs",
    ),
    "penalties that do not see the drafted tokens": (
        "localspec.decoding.loop", "TargetRows.__getitem__", "self._committed + index", "self._committed",
    ),
}  # fmt: skip


def test_a_reduced_audit_passes(real_llm):
    options = AuditOptions(parts=("greedy", "sampled"), num_tokens=8, runs=RUNS, prefixes=1)
    prompts = choose(builtin_prompts(), ("creative",), 1)
    parts = dict(Audit(real_llm, options).run(prompts))
    assert all(part.passed for part in parts.values()), [part.verdict for part in parts.values()]
    assert parts["greedy"].figures["accepted"] > 0
    by_model = [test for test in parts["sampled"].figures["tests"] if test["drafter"] == "draft model"]
    assert len(by_model) == 3 and all(0 < test["accepted"] < test["drafted"] for test in by_model)
    assert all(test["degrees"] > 5 for test in by_model)


@pytest.mark.parametrize("real_llm", ["llama"], indirect=True)
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_fails_it(real_llm, fault, monkeypatch):
    """By the test closest to it alone; in test_measure_audit.py each rule fails for its own faults."""
    monkeypatch.setattr(audit_sampled, "subjects", lambda _: [Subject("rejection", MODEL)])
    with planted(*FAULTS[fault]):
        part = SampledAudit(real_llm.engine, 2 * RUNS, lambda label: None).run(
            choose(builtin_prompts(), ("creative",), 1)
        )
    assert not part.passed
