"""POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from localspec.answers.request import Chunk, Completion
from localspec.answers.stream import Start
from localspec.decoding.logprobs import TokenLogprob
from localspec.llm import LLM
from localspec.server.faults import ApiError, bad_request
from localspec.server.logprobs import Pieces, Placed, TextTokens, completion_logprobs, prompt_tokens
from localspec.server.options import answer_options, choice_options, choices, wants_usage
from localspec.server.replies import DONE
from localspec.server.schemas import CompletionRequest
from localspec.server.settings import Settings
from localspec.server.usage import timings, usage

Payload = dict[str, Any]
MOST_PROMPTS = 128


class CompletionFormat:
    """Text completions and their chunks: an `AnswerFormat`. Choice `p * n + i` is answer i to prompt p."""

    done = DONE

    def __init__(self, body: CompletionRequest, llm: LLM, settings: Settings) -> None:
        _refuse_unsupported(body)
        self._body = body
        self._n = choices(body)
        self._options = answer_options(body, settings, llm)
        scored: Payload = {"prompt_logprobs": True} if body.echo and body.logprobs is not None else {}
        self._prompts = [llm.tokenize(prompt) for prompt in _prompts(body)]
        self._echo = [_echo(prompt, llm) if body.echo else "" for prompt in _prompts(body)]
        self._pieces = Pieces(llm)
        self._completions: dict[int, Completion] = {}
        self._tokens: dict[int, TextTokens] = {}
        self._scored, self._scores = bool(scored), dict[int, list[Placed]]()
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": settings.name,
            "system_fingerprint": "localspec",
        }
        checked = [
            llm.stream(ids, **self._options, **scored) for ids in self._prompts
        ]  # refuses what is not right
        self.starts: list[Start] = [
            self._start(llm, prompt, index) if index else (lambda stream=stream: stream)  # type: ignore[misc]
            for prompt, stream in enumerate(checked)
            for index in range(self._n)
        ]

    def _start(self, llm: LLM, prompt: int, index: int) -> Start:
        return lambda: llm.stream(self._prompts[prompt], **choice_options(self._options, index))

    def opening(self, index: int) -> list[Payload]:
        """A chunk with the prompt, if it is to be echoed. For its log-probabilities the first choice waits."""
        prompt, answer = divmod(index, self._n)
        if not self._echo[prompt] or (self._scored and answer == 0):
            return []
        return [self._with_tokens(self._chunk(index, self._echo[prompt]), self._scores.get(prompt, []))]

    def events(self, index: int, chunk: Chunk) -> list[Payload]:
        """A chunk with the text, and at the end one with the finish reason."""
        payloads, text, tokens = [], chunk.text, list[Placed]()
        if chunk.prompt_logprobs is not None:
            text, tokens = self._echo[index // self._n], self._score(index, chunk.prompt_logprobs)
        elif self._body.logprobs is not None:
            tokens = self._text_tokens(index).push(chunk) + self._end_token(index, chunk.completion)
        if text or tokens:
            payloads.append(self._with_tokens(self._chunk(index, text), tokens))
        if chunk.completion is not None:
            self._completions[index] = chunk.completion
            last = self._chunk(index, "", chunk.completion.finish_reason)
            if len(self._completions) == len(self.starts):
                last["timings"] = self._timings()
            payloads.append(last)
        return payloads

    def closing(self) -> list[Payload]:
        """A chunk with the usage, if it was asked for."""
        return [{**self._head, "choices": [], "usage": self._usage()}] if wants_usage(self._body) else []

    def failure(self, error: ApiError) -> Payload:
        """OpenAI's error object."""
        return error.body()

    def whole(self, chunks: dict[int, list[Chunk]]) -> Payload:
        """A text completion."""
        for index, pieces in chunks.items():
            completion = pieces[-1].completion
            assert completion is not None, "the last chunk carries the completion"
            self._completions[index] = completion
        return {
            **self._head,
            "choices": [self._choice(index, self._completions[index]) for index in sorted(chunks)],
            "usage": self._usage(),
            "timings": self._timings(),
        }

    def _choice(self, index: int, completion: Completion) -> Payload:
        logprobs = None
        if completion.logprobs is not None:
            if completion.prompt_logprobs is not None:
                self._score(index, completion.prompt_logprobs)
            tokens = [
                *self._scores.get(index // self._n, ()),
                *self._text_tokens(index).take(completion.text, completion.logprobs, last=True),
                *self._end_token(index, completion),
            ]
            logprobs = completion_logprobs(tokens, self._pieces)
        return {
            "index": index,
            "text": self._echo[index // self._n] + completion.text,
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }

    def _text_tokens(self, index: int) -> TextTokens:
        start = len(self._echo[index // self._n])
        return self._tokens.setdefault(index, TextTokens(self._pieces.shown, start))

    def _score(self, index: int, logprobs: Sequence[TokenLogprob | None]) -> list[Placed]:
        """The tokens of the prompt; the other choices get them from the first, which read them."""
        prompt = index // self._n
        tokens = prompt_tokens(self._prompts[prompt], logprobs, self._echo[prompt], self._pieces.whole)
        self._scores[prompt] = tokens
        return tokens

    def _with_tokens(self, payload: Payload, tokens: Sequence[Placed]) -> Payload:
        if tokens:
            payload["choices"][0]["logprobs"] = completion_logprobs(tokens, self._pieces)
        return payload

    def _end_token(self, index: int, completion: Completion | None) -> list[Placed]:
        """The end of generation, with an echo: who reads a prompt's tokens so counts on one more that was drawn."""
        if completion is None or completion.end_logprob is None or not self._body.echo:
            return []
        end = completion.end_logprob
        return [Placed(end.token, len(self._echo[index // self._n] + completion.text), end)]

    def _chunk(self, index: int, text: str, reason: str | None = None) -> Payload:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        payload = {**self._head, "choices": [choice]}
        return payload | ({"usage": None} if wants_usage(self._body) else {})

    def _usage(self) -> Payload:
        n, done = self._n, self._completions
        return usage([[done[p * n + i] for i in range(n)] for p in range(len(self._prompts))])

    def _timings(self) -> Payload:
        return timings([completion.stats for completion in self._completions.values()])


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts as a list: each a text or a list of ids. Raises `ApiError`."""
    given: Any = body.prompt
    several = isinstance(given, list) and (not given or not isinstance(given[0], int))
    prompts = given if several else [given]
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise bad_request(f"There are {len(prompts)} prompts. Give 1 to {MOST_PROMPTS}.", "prompt")
    return list(prompts)


def _echo(prompt: str | list[int], llm: LLM) -> str:
    return prompt if isinstance(prompt, str) else llm.detokenize(prompt)


def _refuse_unsupported(body: CompletionRequest) -> None:
    if body.suffix:
        raise bad_request("suffix is given, but this server only continues a prompt. Leave it out.", "suffix")
    if body.best_of is not None and body.best_of != choices(body):
        raise bad_request(f"best_of is {body.best_of}. It must be n, or left out.", "best_of")
