"""Chat templates that would take all memory, or never end: refused, each in its own sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from localspec.errors import TemplateError
from localspec.text.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
MEGABYTE = "{% set a = 'a' * 1000000 %}"


def doubling(made: str, first: str = "'x'", then: str = "") -> str:
    start = f"{{% set ns = namespace(v={first}) %}}{{% for i in range(60) %}}"
    return f"{start}{{% set ns.v = {made} %}}{{% endfor %}}{then}"


def nested(body: str, *, depth: int = 3) -> str:
    opened = "".join(f"{{% for v{level} in range(99999) %}}" for level in range(depth))
    return opened + body + "{% endfor %}" * depth


HOSTILE = [
    # operators
    "{{ 'x' * 10**10 }}",
    "{{ 10**10 * 'x' }}",
    "{{ ['x'] * 10**10 }}",
    "{{ 10**(10**10) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.*f' % (1000000000, 1.0) }}",
    MEGABYTE + "{{ ('%s' * 10000) % (([a] * 10000) | list) }}",
    MEGABYTE + "{{ ('%(a)s' * 10000) % {'a': a} }}",
    # what doubles, in each of the ways to make a value
    doubling("ns.v + ns.v"),
    doubling("ns.v ~ ns.v"),
    doubling("ns.v * ns.v", "9"),
    doubling("[ns.v, ns.v]", then="{{ ns.v }}"),
    doubling("(ns.v, ns.v)", then="{{ ns.v == 1 }}"),
    doubling("{'a': ns.v, 'b': ns.v}", then="{{ ns.v | tojson }}"),
    doubling("dict(a=ns.v, b=ns.v)", then="{{ ns.v | tojson }}"),
    doubling("namespace(a=ns.v, b=ns.v)", then="{{ ns.v }}"),
    doubling("range(2) | map('default', ns.v, true) | list + [ns.v]"),
    # methods and filters
    *(f"{{{{ '\t'.{method}(10**10) }}}}" for method in ("center", "ljust", "rjust", "zfill", "expandtabs")),
    "{{ '\t'.expandtabs(tabsize=10**10) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    MEGABYTE + "{{ ('{0}' * 10000).format(a) }}",
    MEGABYTE + "{{ ('%s' * 10000) | format(*([a] * 10000)) }}",
    MEGABYTE + "{{ a.replace('a', a) }}",
    MEGABYTE + "{{ a | replace('', a) }}",
    MEGABYTE + "{{ a.translate({97: a}) }}",
    MEGABYTE + "{{ a.join(range(99999) | map('string')) }}",
    MEGABYTE + "{{ range(99999) | join(a) }}",
    MEGABYTE + "{% for i in range(1000) %}{% set b = a.split('a') %}{% endfor %}",
    MEGABYTE + "{{ a | list | tojson(indent=1000) }}",
    "{{ 'x' | center(10**10) }}",
    "{{ 'x\ny' | indent(10**10) }}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ [range(9999) | list] * 90 | sum(start=[]) }}",
    "{{ messages | tojson(indent=10**10) }}",
    "{{ range(99999) | map('center', 100000) | list }}",
    "{{ strftime_now('%Y' * 1000000) }}",
    "{{ lipsum(10**6) }}",
    # searches whose time is a product of lengths
    "{{ (('a' * 1000) * 1800).rfind('ab' + ('a' * 1000) * 900) }}",
    "{{ (('a' * 1000) * 1800).rindex('ab' + ('a' * 1000) * 900) }}",
    "{{ (('a' * 1000) * 1800).rsplit('ab' + ('a' * 1000) * 900, 1) }}",
    "{{ (('a' * 1000) * 1800).rsplit(sep='ab' + ('a' * 1000) * 900) }}",
    "{{ (('a' * 1000) * 1800).encode().rpartition(('ab' + ('a' * 1000) * 900).encode()) }}",
    "{{ (('a' * 1000) * 1800).strip(('b' * 1000) * 900 + 'a') }}",
    "{{ (('a' * 1000) * 1800) | trim(('b' * 1000) * 900 + 'a') }}",
    "{{ ('<!-->' * 500000) | striptags }}",
    "{{ ('{' + (':' * 1000) * 1000) % 1 }}",
    "{% set s = range(60000) | list %}{{ s | reject('in', range(60000, 90000) | list) | list | length }}",
    "{% set s = range(60000) | list %}{{ s | select('in', s) | first }}" * 300,
    "{% set s = range(90000) | list %}{% for i in s %}{% if -1 in s %}{% endif %}{% endfor %}",
    "{{ 'x'.encode('idna') }}",
    # whole numbers
    "{{ (('f' * 1000) * 3000) | int(0, 16) is divisibleby((('e' * 1000) * 1500) | int(0, 16)) }}",
    "{{ ('9' * 4200) | int * ('9' * 4200) | int }}",
    "{{ 2 ** 1500 * 2 ** 1500 }}",
    "{{ '%s' % (10 ** 700) }}",
    "{{ ['f' * 99999] | map('int', 0, 16) | list }}",
    # copies that no operator makes
    "{% set a %}" + "{% for i in range(99) %}{{ 'x' * 100000 }}{% endfor %}{% endset %}",
    "{% set a = 'a' * 4000000 %}" + "".join(f"{{% set b{i} = a[1:] %}}" for i in range(99)),
    # steps and output
    nested(""),
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    nested("x" * 1000, depth=2),
    MEGABYTE + "{% macro m() %}" + nested("{{ a }}", depth=1) + "{% endmacro %}{{ m() }}",
    "{% set kept %}" + nested("x" * 100_000, depth=1) + "{% endset %}",
    "{% macro m() %}" + "x" * 100_000 + "{% endmacro %}" + nested("{% set kept = m() %}", depth=1),
    # recursion
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "{{ " + "not " * 5000 + "x }}",
    # the text itself
    "a" * 2_000_000,
    "{{ a }}" * 30_000,
]


def test_hostile_templates_are_refused_and_cost_little() -> None:
    """In a child whose memory is limited: without the bounds it is the child that fails, not the machine."""
    root = Path(__file__).parents[1]
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_template_limits"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    outcome = json.loads(child.stdout)
    assert len(outcome["said"]) == len(HOSTILE)
    for source, said in zip(HOSTILE, outcome["said"], strict=True):
        assert "The chat template of hostile.gguf does not work: " in said, source[:80]
        assert "\n" not in said and len(said) < 400
    assert outcome["grown"] < 200 << 20


def rendered(source: str, messages: object = USER, **given: object) -> str:
    template = ChatTemplate(source, bos="", eos="", name="tame.gguf")
    return template.render(messages, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a</think>b</think>c'.rsplit('</think>', 1) | last }}", "c"),
        ("{{ '  x\n'.strip() }}{{ 'xyx' | trim('x') }}{{ '<b>t</b>' | striptags }}", "xyt"),
        ("{{ [1, 2, 3, 4] | select('even') | map('string') | join('+') }}", "2+4"),
        ("{{ [1, 2, 3] | reject('in', [1, 3]) | list }}{{ 2 in [2] }}{{ 'a' not in 'abc' }}", "[2]TrueFalse"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ [] | select('odd') | first is undefined }}{{ none | select is defined }}", "TrueTrue"),
        ("{{ [3, 1, 1] | unique | list }}{{ [1, 2, 3] | batch(2) | list }}", "[3, 1][[1, 2], [3]]"),
        ("{{ dict([('a', 1)]) }}{{ 'é'.encode('utf-8') | length }}", "{'a': 1}2"),
        ("{% set x %}a{{ 1 }}{% endset %}{% set y | upper %}b{% endset %}{{ x }}{{ y }}", "a1B"),
        ("{{ messages[::-1] | length }}{{ 'abc'[1:] }}{{ '7' | int + 10 ** 18 }}", "1bc1000000000000000007"),
    ],
)
def test_ordinary_templates_are_rendered(source: str, expected: str) -> None:
    assert rendered(source) == expected


def conversation(turns: int, length: int) -> list[dict[str, str]]:
    roles = [("user", "q"), ("assistant", "r")] * turns
    return [
        *({"role": role, "content": text * length} for role, text in roles),
        {"role": "user", "content": "z"},
    ]


@pytest.mark.parametrize("length", [10, 200])
@pytest.mark.parametrize(
    "made", ["ns.out ~ m.role ~ ':' ~ m.content ~ '|'", "ns.out + m.role + ':' + m.content + '|'"]
)
def test_a_template_may_add_all_to_one_text(made: str, length: int) -> None:
    messages = conversation(2500, length)
    body = f"{{% for m in messages %}}{{% set ns.out = {made} %}}{{% endfor %}}"
    source = f"{{% set ns = namespace(out='') %}}{body}{{{{ ns.out }}}}"
    assert rendered(source, messages) == "".join(f"{m['role']}:{m['content']}|" for m in messages)


def test_a_template_may_go_through_all_for_each_message() -> None:
    source = (
        "{% for m in messages %}{% set ns = namespace(n=0) %}{% for o in messages[:loop.index] %}"
        "{% if o.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }},{% endfor %}"
    )
    assert rendered(source, conversation(500, 2)).endswith(",500,500,501,")


def test_long_texts_of_a_template_are_held_one_at_a_time() -> None:
    many = "".join(f"{{% set b{index} = a ~ '{index}' %}}" for index in range(40))
    with pytest.raises(TemplateError, match="it holds too much at a time"):
        rendered("{% set a = ('a' * 1000) * 3900 %}" + many)
    again = "{% set b = a ~ 'x' %}" * 40
    assert rendered("{% set a = ('a' * 1000) * 3900 %}" + again + "{{ b | length }}") == "3900001"


def test_a_conversation_that_is_too_long_is_said_to_be() -> None:
    source = "{% for a in messages %}{% for b in messages %}{{ b.content }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError) as caught:
        rendered(source, conversation(2500, 200))
    assert caught.value.remedy == "Give fewer or shorter messages, or a plain prompt."
    with pytest.raises(TemplateError) as caught:
        rendered("{{ 'x' * 10**10 }}")
    assert "another file" in caught.value.remedy


def test_errors_of_python_are_no_words_of_the_template() -> None:
    for source in ("{{ '%d' % 'x' }}", "{{ 'abc'.index('x') }}", "{{ (1.5).fromhex('x') }}"):
        with pytest.raises(TemplateError, match="does not work"):
            rendered(source)
    with pytest.raises(TemplateError, match=r"rejects these messages: bad \? role") as caught:
        rendered("{{ raise_exception('bad \\ud800 role') }}")
    str(caught.value).encode()


def test_long_conversations_are_not_bounded() -> None:
    """The same text as the library's own formatter, for tools and thousands of messages of any length."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    source = (
        "{% set ns = namespace(shown='', seen=[]) %}"
        "{% if tools %}{{ tools | tojson(indent=2) }}{{ '%d tools' % (tools | length) }}{% endif %}"
        "{% macro turn(m) %}<{{ m.role | upper }}>{{ m.content.split('</think>')[-1] | trim }}{% endmacro %}"
        "{% for m in messages if m.role != 'system' recursive %}{{ turn(m) }}{{ loop.index ~ '/' ~ loop.length }}"
        "{% set ns.shown = ns.shown + m.role[0] %}{% set ns.seen = (ns.seen + [m.role])[-4:] %}"
        "{{ ns.seen | join(',') }}{% endfor %}{{ ns.shown }}{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": f"f{index}", "note": "é<&>"}} for index in range(50)]
    messages = [{"role": "system", "content": "x"}]
    messages += [
        {"role": ("user", "assistant")[index % 2], "content": f"a</think> {index}" + "y" * 2000}
        for index in range(2000)
    ]
    messages.append({"role": "user", "content": "z" * 5_000_000})
    ours = ChatTemplate(source, bos="<s>", eos="</s>", name="long.gguf").render(messages, tools=tools)
    theirs = Jinja2ChatFormatter(source, bos_token="<s>", eos_token="</s>")(messages=messages, tools=tools)
    assert ours == theirs.prompt


@pytest.mark.real
def test_the_real_template_is_rendered_as_by_the_library(real_paths: tuple[Path, Path]) -> None:
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    from localspec.gguf.metadata import read_metadata

    source = read_metadata(real_paths[0]).chat_template
    assert source is not None
    template = ChatTemplate(source, bos="", eos="<|im_end|>", name="real.gguf")
    messages = [{"role": "user", "content": "x" * 10_000}, {"role": "assistant", "content": "y"}] * 500
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for given in (None, tools):
        theirs = Jinja2ChatFormatter(source, bos_token="", eos_token="<|im_end|>")(
            messages=messages, tools=given
        )
        assert template.render(messages, tools=given) == theirs.prompt


def _peak() -> int:
    """Bytes of memory that this process has had at most."""
    memory = psutil.Process().memory_info()
    if sys.platform == "win32":
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    ChatTemplate("{{ 1 }}", bos="", eos="", name="warm.gguf").render(USER)
    said, start = [], _peak()
    for source in HOSTILE:
        try:
            made = ChatTemplate(source, bos="", eos="", name="hostile.gguf").render(USER)
            said.append(f"it made {len(made)} characters")
        except TemplateError as error:
            said.append(str(error))
    print(json.dumps({"said": said, "grown": _peak() - start}))


if __name__ == "__main__":
    main()
