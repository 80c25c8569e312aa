"""What goes into an answer and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Constraint, LogitsProcessor
from localspec.decoding.stats import Stats

Messages = Sequence[Mapping[str, Any]]


class AnswerOptions(TypedDict, total=False):
    """Keyword arguments of `LLM.chat`, `stream` and `generate`, each of them optional.

    params:       a `SamplingParams`; its fields may also be given by name, and then go before it.
    draft_tokens: "auto", "off" or a number of tokens to draft in each round.
    verify:       accept rule: "block", "rejection", "coupled", or "auto": coupled with a seed, else block.
    prediction:   a text that the answer is expected to resemble, such as the file to be edited: a draft source.
    grammar:      the answer must match this GBNF grammar.
    json_schema:  the answer must be JSON that this schema (a dict, or its JSON text) describes; {} is any JSON.
    logits_processors: called with (ids, logits) for every row of both models, in turn; see `LogitsProcessor`.
    shown_tokens: texts of control tokens, such as "[TOOL_CALLS]", that the answer's text keeps.
    prompt_logprobs: with `logprobs`, those of the prompt's tokens too. The whole prompt is read for it, also what was
        kept of it, in passes that are narrower than usual.
    """

    params: SamplingParams | None
    draft_tokens: int | str | None
    verify: str
    prediction: str
    grammar: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    logits_processors: Sequence[LogitsProcessor]
    shown_tokens: Sequence[str]
    prompt_logprobs: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    logprobs: int | None
    stop: Sequence[str]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ids: its tokens without the end-of-generation id. finish_reason: "stop", "length" or "cancelled".
    seed: the one asked for, which gives the same text with any draft; None: the answer does not repeat.
    drafting: whether tokens were drafted, and why not. hint: what would let drafting pay more, in a sentence, or "".
    notice: what the user should know, in sentences, or "".
    drafted: for each id, whether it came from the draft. logprobs: for each id, where they were asked for.
    end_logprob: that of the end of generation, where one ended the answer and logprobs were asked for.
    prompt_logprobs: for each id of the prompt, where they were asked for; None for the first, which nothing precedes.
    text_ends: for each id, how many characters of `text` there are with it. A notebook shows by them what was drafted.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    seed: int | None
    drafting: str
    notice: str = ""
    drafted: tuple[bool, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    end_logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    hint: str = ""
    text_ends: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        from localspec.answers.notebook import completion_html

        return completion_html(self)


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: what one round committed. The last one carries the completion.

    tokens: ids, without the end of generation; their text may come later, when it is certain.
    drafted, logprobs: one for each of `tokens`; logprobs is empty where none were asked for.
    prompt_logprobs: those of the prompt, in a first chunk without text, where they were asked for.
    stats: the answer's counters up to here, for a live meter.
    text_ends: for each of `tokens`, how many characters the answer has with it, those still to come included.
    """

    text: str
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None
    drafted: tuple[bool, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    stats: Stats | None = field(default=None, compare=False, repr=False)
    text_ends: tuple[int, ...] = ()


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Pieces that follow each other as one, with what the last one says of the answer."""
    return replace(
        chunks[-1],
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        drafted=tuple(drafted for chunk in chunks for drafted in chunk.drafted),
        logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
        prompt_logprobs=next(
            (one.prompt_logprobs for one in chunks if one.prompt_logprobs is not None), None
        ),
        text_ends=tuple(end for chunk in chunks for end in chunk.text_ends),
    )


@dataclass(frozen=True)
class Request:
    """A checked request.

    draft_tokens: "auto" or a number. prediction: ids the answer may resemble. shown: control tokens kept in the text.
    scores_prompt: whether the log-probabilities of the prompt are asked for.
    """

    ids: list[int]
    params: SamplingParams
    draft_tokens: int | str
    verify: str = "auto"
    prediction: tuple[int, ...] = ()
    constraint: Constraint | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    shown: frozenset[int] = frozenset()
    scores_prompt: bool = False
