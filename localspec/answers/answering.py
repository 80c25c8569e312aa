"""One answer on a loaded engine: from the caller's options to a request, and from the request to chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from localspec.answers.request import AnswerOptions, Chunk, Completion, Request
from localspec.answers.ticket import Ticket
from localspec.checks import (
    check_draft_tokens,
    check_names,
    check_verify,
    checked_processors,
    checked_prompt,
    shown,
)
from localspec.compute.vocabulary import Vocabulary
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import Controller
from localspec.decoding.logprobs import TokenLogprob, prompt_logprobs
from localspec.decoding.loop import Generation, run
from localspec.decoding.params import SamplingParams, checked_bias, sampling_params
from localspec.decoding.sampler import Constraint, Sampler
from localspec.decoding.stats import Stats, Step
from localspec.decoding.verify import choose_rule
from localspec.engine.drafting_status import describe_drafting, drafting_hint
from localspec.engine.engine import Engine
from localspec.errors import DecodeCancelled, InvalidRequest
from localspec.grammar.constraint import token_constraint
from localspec.text.answer import AnswerText, StopMatcher
from localspec.text.messages import checked_text

log = logging.getLogger(__name__)


def make_request(engine: Engine, ids: list[int], draft_tokens: int | str, options: dict[str, Any]) -> Request:
    """Check everything, so that a bad request fails at the call and not at the first chunk.

    draft_tokens: what holds where `options`, those of `AnswerOptions`, say nothing.
    Raises `InvalidRequest` or `PromptTooLong`.
    """
    check_names(options, AnswerOptions.__annotations__)
    options = dict(options)
    context, vocab = engine.target, engine.vocab
    own_draft_tokens = options.pop("draft_tokens", None)
    verify = check_verify(options.pop("verify", "auto"))
    prediction = checked_text(options.pop("prediction", ""), "The prediction", name="prediction")
    processors = checked_processors(options.pop("logits_processors", ()))
    shown_tokens = _shown_tokens(vocab, options.pop("shown_tokens", ()))
    scores_prompt = options.pop("prompt_logprobs", False)
    grammar, schema = options.pop("grammar", None), options.pop("json_schema", None)
    params = checked_bias(sampling_params(options.pop("params", None), options), context.n_vocab)
    request = Request(
        ids=checked_prompt(ids, context.n_vocab, context.n_ctx),
        params=params,
        draft_tokens=draft_tokens if own_draft_tokens is None else check_draft_tokens(own_draft_tokens),
        verify=verify,
        prediction=_predicted_ids(vocab, prediction),
        constraint=_constraint(vocab, grammar, schema),
        processors=processors,
        shown=shown_tokens,
        scores_prompt=_checked_scoring(scores_prompt, params),
    )
    sampler_of(engine, request)  # refuses options that exclude each other
    StopMatcher(params.stop)  # and this, too many stop strings
    return request


def _checked_scoring(wanted: object, params: SamplingParams) -> bool:
    if not isinstance(wanted, bool):
        raise InvalidRequest(
            f"prompt_logprobs is {shown(wanted)}.", "It must be True or False.", name="prompt_logprobs"
        )
    if wanted and params.logprobs is None:
        raise InvalidRequest(
            "prompt_logprobs is given without logprobs.", "Give logprobs, 0 or more.", name="prompt_logprobs"
        )
    return wanted


def _predicted_ids(vocab: Vocabulary, text: str) -> tuple[int, ...]:
    try:
        return tuple(vocab.tokenize(text, parse_special=False)) if text else ()
    except InvalidRequest as error:
        raise error.with_message(error.message, name="prediction") from None


def _constraint(vocab: Vocabulary, grammar: Any, schema: Any) -> Constraint | None:
    if grammar is None and schema is None:
        return None
    return token_constraint(vocab, grammar=grammar, json_schema=schema)


def _shown_tokens(vocab: Vocabulary, texts: object) -> frozenset[int]:
    """Ids of control tokens by their texts; texts that are no single token are passed over. Raises `InvalidRequest`."""
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            f"shown_tokens is {shown(texts)}.", "Give a list of their texts.", name="shown_tokens"
        )
    found = [vocab.tokenize(text, parse_special=True) for text in texts if text in vocab.control_literals]
    return frozenset(ids[0] for ids in found if len(ids) == 1) - vocab.eog_tokens


def sampler_of(engine: Engine, request: Request) -> Sampler:
    """What shapes this request's rows."""
    return Sampler(
        request.params,
        num_prompt=len(request.ids),
        eog=engine.vocab.eog_tokens,
        constraint=request.constraint,
        processors=request.processors,
        n_vocab=engine.target.n_vocab,
    )


def answer_chunks(
    engine: Engine, controller: Controller, request: Request, ticket: Ticket
) -> Generator[Chunk]:
    """Decode one answer; the engine must be this caller's alone until the end.

    A cancelled ticket, a cancelled pass, and `DecodeCancelled` thrown in between two chunks lead to the last chunk.
    """
    log.debug("answering %d prompt tokens, at most %s", len(request.ids), request.params.max_tokens)
    engine.prefixes.switch(request.ids)
    began, scores = time.perf_counter(), None
    if request.scores_prompt:
        try:
            scores = _prompt_logprobs(engine, request, ticket)
            yield Chunk("", prompt_logprobs=scores)
        except DecodeCancelled:
            yield cancelled_chunk(request, describe_drafting(engine, None, request.draft_tokens))
            return
    answer = _Answer(engine, controller, request, scores, time.perf_counter() - began)
    try:
        for step in _rounds(answer.generation, ticket):
            if (chunk := answer.take(step)) is not None:
                yield chunk
    except DecodeCancelled:
        pass
    yield answer.last()


class _Answer:
    """One answer as its rounds come: their ids, text, counts and log-probabilities."""

    def __init__(
        self,
        engine: Engine,
        controller: Controller,
        request: Request,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None,
        scoring_seconds: float,
    ) -> None:
        vocab = engine.vocab
        self._engine, self._request = engine, request
        self._adaptive = controller if isinstance(controller, AdaptiveController) else None
        self._text = AnswerText(
            lambda token: vocab.piece(token, special=token in request.shown),
            vocab.eog_tokens,
            request.params.stop,
        )
        self.generation = Generation(
            engine.session,
            engine.drafter(
                adaptive=self._adaptive is not None,
                prediction=request.prediction,
                constrained=request.constraint is not None,
            ),
            controller,
            sampler_of(engine, request),
            request.ids,
            rule=choose_rule(request.verify, request.params.seed),
            check=self._text.check,
        )
        self._stats = Stats(prompt_tokens=len(request.ids), cached_tokens=self.generation.num_cached)
        if prompt_logprobs is not None:  # what is in the cells was read for this answer
            self._stats.cached_tokens = 0
            self._stats.prefill_seconds = self._stats.target_seconds = scoring_seconds
        self._prompt_logprobs = prompt_logprobs
        self._drafted: list[bool] = []
        self._logprobs: list[TokenLogprob] = []
        self._end: TokenLogprob | None = None

    def take(self, step: Step) -> Chunk | None:
        """What a round committed; None for one that read a piece of the prompt."""
        threads = self._engine.target.threads
        self._stats.add(step, None if self._adaptive is None else self._adaptive.plain_seconds(step))
        self._stats.threads = min(self._stats.threads or threads, threads)
        if not step.tokens:
            return None
        before, ids = len(self._drafted), self._text.take_ids()
        chunk = Chunk(
            self._text.take(),
            ids,
            drafted=tuple(index < step.num_accepted for index in range(len(ids))),
            logprobs=step.logprobs[: len(ids)],
            stats=self._stats_so_far(),
            text_ends=tuple(self._text.ends[before:]),
        )
        self._drafted += chunk.drafted
        self._logprobs += chunk.logprobs
        self._end = next(iter(step.logprobs[len(ids) :]), None)
        return chunk

    def last(self) -> Chunk:
        """The text that was held back, with the completion."""
        rest, stats, params = self._text.finish(), self._stats_so_far(), self._request.params
        if (stop := self._engine.draft_stop) is not None:
            stats.draft_ended_at = stop.tokens
        completion = Completion(
            text=self._text.text,
            ids=tuple(self._text.ids),
            finish_reason=self.generation.finish_reason or "cancelled",
            stats=stats,
            seed=params.seed,
            drafting=describe_drafting(self._engine, self._adaptive, self._request.draft_tokens, stats),
            notice=_notice(self._engine, self.generation),
            drafted=tuple(self._drafted),
            logprobs=None if params.logprobs is None else tuple(self._logprobs),
            end_logprob=self._end,
            prompt_logprobs=self._prompt_logprobs,
            hint=drafting_hint(self._engine, self._adaptive, stats, params.temperature),
            text_ends=tuple(min(end, len(self._text.text)) for end in self._text.ends),
        )
        log.info(
            "answered: %d prompt tokens (%d cached), %d tokens, %s, drafting %s",
            stats.prompt_tokens,
            stats.cached_tokens,
            stats.tokens,
            completion.finish_reason,
            completion.drafting,
        )
        return Chunk(rest, (), completion, stats=stats)

    def _stats_so_far(self) -> Stats:
        if self._adaptive is None or not self._adaptive.target.knows_plain:
            return replace(self._stats, plain_seconds=None)
        return replace(self._stats)


def _prompt_logprobs(engine: Engine, request: Request, ticket: Ticket) -> tuple[TokenLogprob | None, ...]:
    """Raises `DecodeCancelled`."""
    entries: list[TokenLogprob | None] = [None]
    for entry in prompt_logprobs(engine.session, request.ids, request.params.logprobs or 0):
        entries.append(entry)
        if ticket.cancelled:
            raise DecodeCancelled("The answer was cancelled.")
    return tuple(entries)


def cancelled_chunk(request: Request, drafting: str) -> Chunk:
    """The whole of an answer that was cancelled before it began."""
    completion = Completion(
        text="",
        ids=(),
        finish_reason="cancelled",
        stats=Stats(prompt_tokens=len(request.ids)),
        seed=request.params.seed,
        drafting=drafting,
        logprobs=None if request.params.logprobs is None else (),
    )
    return Chunk("", (), completion)


def _rounds(generation: Generation, ticket: Ticket) -> Iterator[Step]:
    """Every round, until the end or a cancel. Raises `DecodeCancelled` for a pass that was stopped."""
    steps = run(generation)
    while not ticket.cancelled and (step := next(steps, None)) is not None:
        yield step


def _notice(engine: Engine, generation: Generation) -> str:
    n_ctx = engine.target.n_ctx
    if generation.finish_reason == "length" and len(generation.sequence) > n_ctx:
        return f"The context of {n_ctx} tokens is full: the answer ends here."
    return ""
