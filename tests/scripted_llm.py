"""A stand-in for `localspec.LLM` behind the server: real templates, scripted answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from localspec.answers.request import AnswerOptions, Chunk, Completion
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import Stats
from localspec.errors import PromptTooLong
from localspec.text.prompt import render_prompt
from localspec.text.template import ChatTemplate

QWEN = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages if message.role != 'system' %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.last -%}
[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST]{{ message.content }}[/INST]
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception('ids must have 9 characters') }}{% endif %}
{%- endfor %}[TOOL_CALLS]{{ message.tool_calls | map(attribute='function') | list | tojson }}{{ eos_token }}
{%- else %}{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"""

LLAMA = """\
{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if tools and loop.first %}Answer with {"name": ..., "parameters": ...}.
{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{% endif %}
{%- if message.tool_calls %}{% set call = message.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- else %}{{ message.content }}{% endif %}<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}{# <|python_tag|> #}"""

R1 = """\
{% for message in messages %}<|{{ message.role }}|>{{ message.content.split('</think>')[-1] }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|><think>
{% endif %}"""


class _Letters:
    """One id for each character."""

    control_literals = frozenset({"<|im_start|>", "<|im_end|>"})
    bos_text = ""
    add_bos = False

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return chr(token).encode()


class _Stream:
    """As `AnswerStream`."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def take_over(self) -> None:
        """Nobody waits for the completion."""

    def tell(self, completion: Completion) -> None:
        """As above."""

    def leave(self) -> None:
        """As above."""

    def cancel(self) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Nothing to free."""


class ScriptedLLM:
    """Gives the `answers` in turn, `step` characters a chunk.

    prompts: what was rendered. calls: the options of each answer.
    """

    def __init__(self, source: str, *answers: str, step: int = 3, n_ctx: int = 4096) -> None:
        self.template = ChatTemplate(source, bos="<s>", eos="</s>", name="scripted.gguf")
        self.engine = SimpleNamespace(vocab=_Letters(), target=SimpleNamespace(n_ctx=n_ctx))
        self.engine.holding = lambda tokens: self.engine
        self.parallel, self.seats = 1, ()
        self.answers = deque(answers)
        self.step = step
        self.prompts: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def says(self, *answers: str) -> None:
        """Give these from now on, and forget what was asked."""
        self.answers = deque(answers)
        self.prompts.clear()
        self.calls.clear()

    @contextmanager
    def using(self) -> Iterator[Any]:
        """As `LLM.using`."""
        yield self.engine

    def token_bytes(self, ids: list[int]) -> bytes:
        """As `LLM.token_bytes`."""
        return "".join(map(chr, ids)).encode()

    def render(self, messages: Any, *, template_variables: Any = None, **options: Any) -> list[int]:
        """As `LLM.render`."""
        vocabulary = self.engine.vocab
        ids = render_prompt(vocabulary, self.template, messages, variables=template_variables, **options)
        self.prompts.append("".join(map(chr, ids)))
        return ids

    def stream(self, ids: list[int], **options: Any) -> _Stream:
        """As `LLM.stream`."""
        assert set(options) <= set(AnswerOptions.__annotations__), "an option that LLM does not have"
        if len(ids) > self.engine.target.n_ctx:
            raise PromptTooLong("Too long.", num_tokens=len(ids), n_ctx=self.engine.target.n_ctx)
        self.calls.append(options)
        return _Stream(self._answer(ids, options["params"]))

    def close(self) -> None:
        """As `LLM.close`."""

    def _answer(self, prompt: list[int], params: SamplingParams) -> Iterator[Chunk]:
        """A letter's log-probability is minus its id."""
        whole = self.answers.popleft()
        text = whole[: params.max_tokens]
        for at in range(0, len(text), self.step):
            piece = text[at : at + self.step]
            logprobs = (
                []
                if params.logprobs is None
                else [TokenLogprob(ord(letter), -ord(letter)) for letter in piece]
            )
            yield Chunk(piece, tuple(map(ord, piece)), logprobs=tuple(logprobs))
        stats = Stats(tokens=len(text), rounds=1, prompt_tokens=len(prompt))
        reason = "stop" if text == whole else "length"
        ids = tuple(map(ord, text))
        yield Chunk("", (), Completion(text, ids, reason, stats, None, "off"))
