"""What is said of a pair before anything is loaded: verdict, deciding sentence, every fact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import LLM
from localspec.errors import PairingError
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.llama.weights import Weights
from localspec.pairs.judgement import Judgement, judge, judge_files

from . import tinygguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files named by what is special in them."""
    folder = tmp_path_factory.mktemp("judged")
    tinygguf.write_llama(folder / "target.gguf")
    tinygguf.write_gemma(folder / "gemma.gguf", vocab=tinygguf.sentencepiece_vocab())
    for name in ("mamba", "mamba-small"):
        tinygguf.write_mamba(folder / f"{name}.gguf")
    whole = (folder / "target.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(whole[:-100])
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html><html>Sign in</html>")
    (folder / "empty.gguf").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> Metadata:
    return read_metadata(folder / "target.gguf")


def facts(judgement: Judgement) -> dict[str, tuple[str, str]]:
    """Severity and sentence by topic."""
    found = {reason.topic: (reason.severity, reason.sentence) for reason in judgement.reasons}
    assert len(found) == len(judgement.reasons)
    return found


def fact(target: Metadata, topic: str, n_ctx: int | None = None, **changes: object) -> tuple[str, str]:
    """What is said of a draft that differs from the target in these facts alone."""
    draft = replace(target, path=Path("draft.gguf"), **changes)  # type: ignore[arg-type]
    judgement = judge(target, draft, n_ctx=n_ctx, cross_vocabulary=False)
    others = [reason for reason in judgement.reasons if reason.topic != topic]
    assert {reason.severity for reason in others} == {"harmless"}
    return facts(judgement)[topic]


# -- five pairs


@pytest.mark.real
def test_five_judged_pairs(folder: Path, real_paths: tuple[Path, Path], smollm_path: Path) -> None:
    target, draft = real_paths
    missing = folder / "missing.gguf"
    table = [
        (target, draft, "fits", "can draft for {target}: all 151936 ids mean the same to both."),
        (
            target,
            smollm_path,
            "fits, with reservations",
            "can draft for {target}, less well: their vocabularies differ, and 39237 of the target's 151936 ids (26%) "
            "stand for the same bytes as one of the draft's (80% of these): fewer drafted tokens stand than of a draft "
            "with the target's vocabulary.",
        ),
        (
            folder / "gemma.gguf",
            draft,
            "fits, with reservations",
            "can draft for {target}, less well: their vocabularies differ, and 273 of the target's 300 ids (91%) stand "
            "for the same bytes as one of the draft's (0% of these): fewer drafted tokens stand than of a draft with "
            "the target's vocabulary.",
        ),
        (
            folder / "mamba.gguf",
            folder / "mamba-small.gguf",
            "fits",
            "can draft for {target}: all 300 ids mean the same to both.",
        ),
    ]
    for one, other, verdict, sentence in table:
        judgement = judge_files(one, other)
        assert judgement.verdict == verdict
        assert judgement.sentence == f"{other.name} {sentence.format(target=one.name)}"
    nothing = judge_files(target, missing)
    assert (nothing.verdict, nothing.sentence) == ("does not fit", f"There is no file {missing}.")


@pytest.mark.real
def test_every_fact_about_the_real_pair_is_harmless_and_its_ends_are_those_of_llama_cpp(
    real_paths: tuple[Path, Path], smollm_path: Path
) -> None:
    assert {reason.severity for reason in judge_files(*real_paths).reasons} == {"harmless"}
    for path in (real_paths[1], smollm_path):
        model = Weights(path)
        try:
            assert model.metadata.eog_ids == model.vocabulary.eog_tokens
        finally:
            model.close()


@pytest.mark.parametrize(
    ("target", "draft", "sentence"),
    [
        ("target", "target", "target.gguf can draft for target.gguf: all 300 ids mean the same to both."),
        (
            "gemma",
            "target",
            "target.gguf can draft for gemma.gguf, less well: their vocabularies differ, and 256 of the target's 300 "
            "ids (85%) stand for the same bytes as one of the draft's (92% of these): fewer drafted tokens stand than "
            "of a draft with the target's vocabulary.",
        ),
        (
            "target",
            "mamba",
            "mamba.gguf can draft for target.gguf: all 300 ids mean the same to both.",
        ),
        ("target", "missing", "There is no file {folder}/missing.gguf."),
        (
            "page",
            "target",
            "{folder}/page.gguf is not a GGUF file: it looks like a web page, as a failed download leaves it.",
        ),
        ("target", "empty", "{folder}/empty.gguf is empty."),
        (
            "cut",
            "target",
            "{folder}/cut.gguf is not a usable GGUF file: it is cut off 100 bytes before the end of tensor "
            "'blk.1.ffn_down.weight'.",
        ),
        ("target", None, "Text that repeats itself can be drafted for target.gguf without a draft model."),
        (
            "mamba",
            None,
            "Text that repeats itself can be drafted for mamba.gguf without a draft model.",
        ),
    ],
)  # fmt: skip
def test_one_deciding_sentence(folder: Path, target: str, draft: str | None, sentence: str) -> None:
    other = None if draft is None else folder / f"{draft}.gguf"
    judgement = judge_files(folder / f"{target}.gguf", other)
    assert judgement.sentence == sentence.replace("{folder}", str(folder))
    assert judgement.fits == (" can " in sentence)
    assert bool(judgement.remedy) != judgement.fits
    assert (judgement.refusal is None) == judgement.fits


def test_a_directory_is_named_as_one(folder: Path) -> None:
    assert judge_files(folder / "target.gguf", folder).sentence == f"{folder} is a directory."


def test_two_recurrent_models_fit_and_the_way_back_of_both_is_told(folder: Path) -> None:
    told = facts(judge_files(folder / "mamba.gguf", folder / "mamba-small.gguf"))
    for role in ("target", "draft"):
        severity, sentence = told[f"{role} rollback"]
        assert severity == "harmless"
        assert sentence == (
            f"The {role} is a recurrent model (mamba), whose running state is saved before drafted tokens and put "
            "back, and tokens that stand are read again."
        )


# -- single facts


def test_every_topic_is_looked_at_and_every_reason_is_a_sentence(folder: Path, target: Metadata) -> None:
    for name in ("target", "gemma", "mamba"):
        judgement = judge(target, read_metadata(folder / f"{name}.gguf"))
        assert set(facts(judgement)) == {
            "target rollback", "draft rollback", "tokenizer", "pre-tokenizer", "token ids", "vocabulary size",
            "BOS", "EOS", "ends of generation", "chat template", "context",
        }  # fmt: skip
        for _, sentence in facts(judgement).values():
            assert sentence[0].isupper() or not sentence[0].isalpha()
            assert sentence.endswith(".") and "\n" not in sentence and "None" not in sentence


def test_rollback_classes(folder: Path, target: Metadata) -> None:
    gemma = facts(judge_files(folder / "gemma.gguf", None))["target rollback"]
    assert gemma == (
        "harmless",
        "The target has a sliding window of 16 tokens (gemma3), and its whole cache is kept, so that it can be "
        "rolled back.",
    )
    hybrid = replace(target, architecture="lfm2", is_hybrid=True)
    again = "whose running state is saved before drafted tokens and put back, and tokens that stand are read again."
    kept = "whose running state llama.cpp keeps behind the last tokens, to take them back."
    both = facts(judge(hybrid, hybrid))
    assert both["target rollback"] == ("harmless", f"The target is a hybrid model (lfm2), {kept}")
    assert both["draft rollback"] == ("harmless", f"The draft is a hybrid model (lfm2), {again}")


def test_another_pre_tokenizer_costs_acceptance(target: Metadata) -> None:
    severity, sentence = fact(target, "pre-tokenizer", tokenizer_pre="qwen2")
    assert severity == "costs acceptance"
    assert sentence.startswith("Their pre-tokenizers are 'gpt-2' and 'qwen2'")
    unnamed = replace(target, tokenizer_pre="")
    assert fact(unnamed, "pre-tokenizer", tokenizer_pre="default")[0] == "harmless"


def test_only_kinds_that_use_a_pre_tokenizer_are_held_to_it(folder: Path) -> None:
    gemma = read_metadata(folder / "gemma.gguf")
    assert fact(gemma, "pre-tokenizer", tokenizer_pre="qwen2")[0] == "harmless"


def test_bos(target: Metadata) -> None:
    assert fact(target, "BOS", add_bos=True) == (
        "costs acceptance",
        "Prompts get no BOS token in front, as the target wants it, and the draft was trained with '<|bos|>'.",
    )
    with_bos = replace(target, add_bos=True)
    assert fact(with_bos, "BOS") == ("harmless", "Prompts of both get '<|bos|>' in front.")
    assert fact(with_bos, "BOS", add_bos=False)[1].endswith("and the draft was trained with none.")
    assert fact(target, "BOS", bos_id=3) == ("harmless", "Prompts of both get no BOS token in front.")


def test_eos_and_ends_are_the_targets(target: Metadata) -> None:
    assert fact(target, "EOS")[1] == "The EOS token of both is '<|im_end|>'."
    other = replace(target, path=Path("draft.gguf"), eos_id=65)
    judgement = judge(target, other)
    assert judgement.verdict == "fits"
    assert facts(judgement)["EOS"] == (
        "harmless",
        "The EOS token is '<|im_end|>' in the target and 'A' in the draft, and only the target's counts.",
    )
    assert facts(judgement)["ends of generation"] == (
        "harmless",
        "An answer ends at '<|endoftext|>', '<|im_end|>'; the draft has also 'A', and only the target's ends count.",
    )
    assert "missing in the draft" in facts(judge(target, replace(target, eos_id=None)))["EOS"][1]


def test_templates(target: Metadata) -> None:
    topic = "chat template"
    template = target.chat_template or ""
    assert fact(target, topic) == ("harmless", "Both have the same chat template.")
    assert fact(target, topic, chat_template=template + " ")[0] == "harmless"
    assert fact(target, topic, chat_template=None)[0] == "costs acceptance"
    assert fact(target, topic, chat_template="{{ '<|bos|>' }}") == (
        "costs acceptance",
        "The target's chat template marks turns by '<|im_end|>', '<|im_start|>', the draft's by '<|bos|>'.",
    )
    assert fact(replace(target, chat_template=None), topic)[0] == "harmless"


@pytest.mark.parametrize(
    ("trained", "n_ctx", "severity"),
    [
        ((512, 512), None, "harmless"),
        ((512, 1024), None, "harmless"),
        ((512, 128), None, "costs acceptance"),
        ((512, 128), 128, "harmless"),
        ((512, 128), 129, "costs acceptance"),
        ((128, 512), 4096, "harmless"),
    ],
)
def test_contexts(target: Metadata, trained: tuple[int, int], n_ctx: int | None, severity: str) -> None:
    ours = replace(target, n_ctx_train=trained[0])
    assert fact(ours, "context", n_ctx, n_ctx_train=trained[1])[0] == severity


def test_sizes(target: Metadata) -> None:
    def sized(count: int, *more: bytes) -> Metadata:
        tokens = (*target.tokens[:count], *more)
        return replace(target, tokens=tokens, n_vocab=len(tokens))

    def size(ours: Metadata, theirs: Metadata) -> tuple[str, str]:
        return facts(judge(ours, theirs, cross_vocabulary=False))["vocabulary size"]

    padded = sized(300, b"[PAD300]", b"[PAD301]")
    assert size(target, target) == ("harmless", "Both vocabularies have 300 tokens.")
    assert size(target, padded) == (
        "harmless",
        "The target has 300 tokens and the draft 302, of which it never proposes the last 2.",
    )
    assert size(padded, target) == (
        "harmless",
        "The target has 302 tokens and the draft knows only the first 300; the others are padding.",
    )
    assert size(sized(300, b"<new>"), target)[0] == "costs acceptance"
    assert size(sized(300, *(b"<new%d>" % number for number in range(9))), target)[0] == "refuses"


def test_the_first_differing_ids_are_shown_with_both_texts(target: Metadata) -> None:
    tokens = tuple(
        b"other%d" % token if token % 10 == 7 else text for token, text in enumerate(target.tokens)
    )
    judgement = judge(target, replace(target, tokens=tokens), cross_vocabulary=False)
    shown = [(one.id, one.target, one.draft) for one in judgement.differing]
    assert shown == [(token, target.tokens[token].decode(), f"other{token}") for token in (7, 17, 27, 37, 47)]
    assert judgement.verdict == "does not fit"


def test_a_few_other_ids_are_a_reservation(target: Metadata) -> None:
    tokens = tuple(b"<|other|>" if token == 65 else text for token, text in enumerate(target.tokens))
    judgement = judge(target, replace(target, path=Path("draft.gguf"), tokens=tokens, chat_template=None))
    assert judgement.verdict == "fits, with reservations"
    assert judgement.sentence == (
        "draft.gguf can draft for target.gguf, less well: 1 of 300 ids mean something else to the draft, the first "
        "being 65, 'A' to the target and '<|other|>' to the draft."
    )
    assert [reason.topic for reason in judgement.reservations] == ["token ids", "chat template"]


# -- the same words where a pair is used


def test_the_engine_refuses_and_warns_in_the_same_words(folder: Path, tmp_path: Path) -> None:
    target, gemma = folder / "target.gguf", folder / "gemma.gguf"
    with pytest.raises(PairingError) as caught:
        LLM.from_files(target, gemma, no_cross_vocabulary=True)
    refused = judge(read_metadata(target), read_metadata(gemma), cross_vocabulary=False)
    assert caught.value.message == refused.sentence
    plain = tinygguf.write_llama(tmp_path / "plain.gguf", template=None, pre="qwen2")
    reservations = judge_files(target, plain).reservations
    assert len(reservations) == 2
    with LLM.from_files(target, plain, n_ctx=64, draft_tokens=2) as llm:
        assert llm.warnings == tuple(reason.sentence for reason in reservations)


# -- ends of generation


@pytest.mark.parametrize(
    ("names", "extra"),
    [
        ((), {}),
        (("</s>", "<EOT>", "<eos>", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>"), {}),
        (("<|return|>", "<|call|>", "<|end|>"), {}),
        (("<|calls|>", "<|flush|>", "<|end|>"), {}),
        (("<|calls|>", "<|end|>"), {}),
        (("<|return|>", "<|end|>"), {}),
        (("<|tool_response>", "</s>", "<turn|>"), {}),
        (("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"), {}),
        (("<|fim_pad|>",), {"tokenizer.ggml.fim_pad_token_id": 70}),
        ((), {"tokenizer.ggml.eot_token_id": 66, "tokenizer.ggml.eom_token_id": 67}),
        ((), {"tokenizer.ggml.eot_token_id": 5000, "tokenizer.ggml.fim_sep_token_id": 68}),
    ],
)
def test_ends_of_generation_are_those_of_llama_cpp(
    tmp_path: Path, names: tuple[str, ...], extra: dict[str, int]
) -> None:
    changed = dict(zip(range(100, 200), names, strict=False))
    model = Weights(tinygguf.write_llama(tmp_path / "model.gguf", changed_tokens=changed, extra=extra))
    try:
        assert model.metadata.eog_ids == model.vocabulary.eog_tokens
    finally:
        model.close()
