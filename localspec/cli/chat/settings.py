"""Commands that change how answers are drawn and shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.chat.showing import say_legend
from localspec.cli.options import DRAFT_TOKENS
from localspec.cli.terminal import say
from localspec.errors import InvalidRequest

if TYPE_CHECKING:
    from localspec.cli.chat.talk import Chat

OPTIONS = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical": "typical_p",
    "top_nsigma": "top_n_sigma", "repeat_penalty": "repeat_penalty", "repeat_last_n": "repeat_last_n",
    "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty", "seed": "seed",
    "max_tokens": "max_tokens", "min_tokens": "min_tokens", "ignore_eos": "ignore_eos",
}  # fmt: skip
"""Options of sampling as they are called here, and in `SamplingParams`."""
LOOKS = ("markdown", "color")
OTHERWISE = {
    "temperature": "temp", "typical_p": "typical", "top_n_sigma": "top_nsigma", "colour": "color", "n": "max_tokens",
    "colors": "color",
}  # fmt: skip
_SWITCH = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
_NONE = ("none", "off", "random")
"""What takes a seed or a longest answer away."""


def names() -> list[str]:
    """All options, as they are typed."""
    return [name.replace("_", "-") for name in (*OPTIONS, *LOOKS)]


def set_option(chat: Chat, text: str) -> None:
    """Show options, or change one from the next answer on."""
    typed, _, value = text.replace("=", " ", 1).partition(" ")
    name = typed.lower().lstrip("-").replace("-", "_")
    name, value = OTHERWISE.get(name, name), value.strip()
    if not typed:
        for known in names():
            say(f"  {known:<23} {_now(chat, known.replace('-', '_'))}", hang=26)
    elif name not in OPTIONS and name not in LOOKS:
        near = difflib.get_close_matches(name.replace("_", "-"), names(), n=1)
        say(f"/set knows no {typed}{f': did you mean {near[0]}?' if near else '.'} /set alone lists all.")
    elif not value:
        say(f"{name.replace('_', '-')} is {_now(chat, name)}.", dim=True)
    else:
        (_set_look if name in LOOKS else _set_sampling)(chat, name, value)


def _now(chat: Chat, name: str) -> str:
    value = getattr(chat.look, name) if name in LOOKS else _params(chat, OPTIONS[name])
    if value is None:
        return "another one each time" if name == "seed" else "none: until the end"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _params(chat: Chat, field: str) -> Any:
    return getattr(chat.conversation.defaults["params"], field)


def _set_look(chat: Chat, name: str, value: str) -> None:
    if value.lower() not in _SWITCH:
        say(f"/set {name} takes on or off, not {value!r}.")
        return
    setattr(chat.look, name, _SWITCH[value.lower()])
    say(f"{name} is {_now(chat, name)} from the next answer on.", dim=True)
    if name == "color" and chat.look.color:
        chat.look.explained = True
        say_legend()


def _set_sampling(chat: Chat, name: str, value: str) -> None:
    from localspec.decoding.params import sampling_params

    field = OPTIONS[name]
    try:
        if field == "max_tokens" and value == "0":
            raise InvalidRequest("max_tokens is 0.", "It must be at least 1, or none.")
        params = sampling_params(chat.conversation.defaults["params"], {field: _parsed(field, value)})
    except InvalidRequest as error:
        say(f"{error.message} {error.command}".replace(field, name.replace("_", "-"), 1))
        return
    chat.conversation.defaults["params"] = params
    say(f"{name.replace('_', '-')} is {_now(chat, name)} from the next answer on.", dim=True)


def _parsed(field: str, value: str) -> object:
    """The value, or the text itself where it is none: that is refused with what is allowed."""
    if field == "ignore_eos":
        return _SWITCH.get(value.lower(), value)
    if field in ("seed", "max_tokens") and value.lower() in _NONE:
        return None
    kinds: tuple[Callable[[str], object], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def draft(chat: Chat, text: str) -> None:
    """How many tokens are drafted."""
    if not text:
        now = _drafted(chat.conversation.defaults["draft_tokens"])
        say(f"Draft tokens: {now}. /draft auto, off or a whole number changes it.", dim=True)
        return
    try:
        draft_tokens = DRAFT_TOKENS.convert(text, None, None)
    except click.BadParameter:
        say(f"/draft takes auto, off or a whole number, not {text!r}.")
    else:
        chat.conversation.defaults["draft_tokens"] = draft_tokens
        with chat.llm.using() as engine:
            most = engine.most_draft_tokens
        beyond = isinstance(draft_tokens, int) and draft_tokens > most
        used = f"{most}, for a pass checks no more" if beyond else _drafted(draft_tokens)
        say(f"Draft tokens from the next answer on: {used}.", dim=True)


def _drafted(draft_tokens: object) -> object:
    return "off" if draft_tokens == 0 else draft_tokens
