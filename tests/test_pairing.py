"""Which pairs may draft together, judged from metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import PairingError
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.pairs.check import check_pair
from tests import tinygguf


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Metadata:
    return read_metadata(tinygguf.write_llama(tmp_path_factory.mktemp("pair") / "target.gguf"))


def draft_with(target: Metadata, **changes: object) -> Metadata:
    if "tokens" in changes:  # its special tokens were those of the old vocabulary
        changes = {"bos_id": None, "eos_id": None, "key_values": {}, "token_types": b"", **changes}
    draft = replace(target, path=Path("draft.gguf"), **changes)  # type: ignore[arg-type]
    return replace(draft, n_vocab=len(draft.tokens))


def refused(target: Metadata, draft: Metadata) -> str:
    with pytest.raises(PairingError) as caught:
        check_pair(target, draft)
    error = caught.value
    assert (error.target, error.draft) == (target.path, draft.path)
    assert str(error.reason) in error.message
    assert error.message == f"{draft.path.name} cannot draft for {target.path.name}: {error.reason}."
    assert error.remedy == "no_draft=True goes on without a draft."
    assert error.command == "--no-draft goes on without a draft."
    return str(error.reason)


def words(count: int, prefix: str = "w") -> tuple[bytes, ...]:
    return tuple(f"{prefix}{index}".encode() for index in range(count))


def test_the_same_vocabulary_pairs(target: Metadata) -> None:
    check_pair(target, draft_with(target))


def test_padded_vocabularies_pair_either_way(tmp_path: Path, target: Metadata) -> None:
    padded = read_metadata(tinygguf.write_llama(tmp_path / "padded.gguf", n_vocab=420))
    check_pair(target, padded)
    check_pair(padded, target)


@pytest.mark.parametrize(
    "placeholder",
    [
        b"[PAD99]",
        b"<pad>",
        b"<unused12>",
        b"<|extra_3|>",
        b"<|reserved_special_token_7|>",
        b"<dummy00001>",
        b"",
    ],
)
def test_placeholders_do_not_count(target: Metadata, placeholder: bytes) -> None:
    tokens = (*target.tokens[:200], *[placeholder] * 100)
    check_pair(target, draft_with(target, tokens=tokens))


def test_one_rare_token_does_not_refuse_a_good_pair(target: Metadata) -> None:
    tokens = (*target.tokens[:299], b"<|other|>")
    check_pair(target, draft_with(target, tokens=tokens))


def test_the_tolerated_share_is_one_percent(target: Metadata) -> None:
    target = draft_with(target, tokens=words(1000))
    check_pair(target, draft_with(target, tokens=words(990) + words(10, "other")))
    reason = refused(target, draft_with(target, tokens=words(989) + words(11, "other")))
    assert "the first being 989, 'w989' to the target and 'other0' to the draft" in reason


def test_ids_that_only_the_draft_has_do_not_count(target: Metadata) -> None:
    target = draft_with(target, tokens=words(100))
    check_pair(target, draft_with(target, tokens=words(1000)))


def test_a_draft_that_knows_too_few_tokens_is_refused(target: Metadata) -> None:
    target = draft_with(target, tokens=words(1000))
    check_pair(target, draft_with(target, tokens=words(990)))
    assert "knows only the first 989" in refused(target, draft_with(target, tokens=words(989)))


def test_shifted_ids_are_refused(target: Metadata) -> None:
    reason = refused(target, draft_with(target, tokens=(b"<new>", *target.tokens)))
    assert "% of the ids" in reason
    assert "the first being 0" in reason


def test_another_tokenizer_is_refused(target: Metadata) -> None:
    reason = refused(target, draft_with(target, tokenizer_model="llama"))
    assert "'gpt2'" in reason
    assert "'llama'" in reason


def test_a_pre_tokenizer_is_only_a_hint(target: Metadata) -> None:
    check_pair(target, draft_with(target, tokenizer_pre="qwen2"))
    other = draft_with(target, tokenizer_pre="qwen2", tokens=words(300))
    assert "pre-tokenizers 'gpt-2' and 'qwen2'" in refused(target, other)


def test_bos_eos_and_template_are_not_compared(target: Metadata) -> None:
    check_pair(target, draft_with(target, bos_id=3, eos_id=None, add_bos=True, chat_template=None))


def test_running_state_on_either_side(tmp_path: Path, target: Metadata) -> None:
    mamba = read_metadata(tinygguf.write_mamba(tmp_path / "mamba.gguf"))
    hybrid = draft_with(target, architecture="lfm2", is_hybrid=True)
    for one, other in ((mamba, target), (target, mamba), (hybrid, target), (target, hybrid)):
        assert check_pair(one, other).fits
