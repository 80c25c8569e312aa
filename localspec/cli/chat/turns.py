"""Commands about what was said: take back, ask again, count, copy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from localspec.checks import check_when_full
from localspec.cli.chat.clipboard import copy as to_clipboard
from localspec.cli.chat.editor import edited
from localspec.cli.chat.figures import explained
from localspec.cli.terminal import checked_text, say
from localspec.errors import InvalidRequest

if TYPE_CHECKING:
    from localspec.cli.chat.talk import Chat

_CODE = re.compile(r"^ *(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ *\1|\Z)", re.MULTILINE | re.DOTALL)


def clear(chat: Chat, _text: str) -> None:
    """Forget what was said."""
    chat.conversation.clear()
    if chat.kept is not None:
        chat.kept.begin_anew()
    say("The conversation is empty.", dim=True)


def retry(chat: Chat, _text: str) -> None:
    """The last question again."""
    if not chat.conversation.turns:
        say("There is no answer to regenerate.")
        return
    say(f"Again: {shortened(chat.conversation.turns[-1].question)}", dim=True)
    chat.answer(chat.conversation.regenerate)


def edit(chat: Chat, text: str) -> None:
    """The last question in the editor, and then another one in its place; or a new one."""
    asked = chat.conversation.turns[-1].question if chat.conversation.turns else ""
    if text not in ("", "new"):
        say(f"/edit takes new, or nothing, not {text!r}.")
        return
    new = text == "new" or not asked
    with chat.lent():
        written = edited("" if new else asked)
    if written is None or not written.strip():
        say("Nothing was saved in the editor, so nothing is asked.", dim=True)
    elif new:
        say(f"Asked: {shortened(written)}", dim=True)
        chat.ask(written)
    else:
        question = checked_text("question", written)
        say(f"Asked instead: {shortened(question)}", dim=True)
        chat.answer_with_files(question, chat.conversation.ask_instead)


def undo(chat: Chat, _text: str) -> None:
    """One turn less."""
    turn = chat.conversation.undo()
    if turn is None:
        say("There is nothing to take back.")
        return
    say(f"Took back: {shortened(turn.question)}", dim=True)
    if turn.dropped != chat.conversation.dropped:
        say(seen(chat), dim=True)
    if chat.kept is not None:
        chat.kept.keep(chat.conversation)


def full(chat: Chat, text: str) -> None:
    """What a full context does."""
    try:
        chat.conversation.when_full = check_when_full(text or chat.conversation.when_full)
    except InvalidRequest:
        say(f"/full takes error or drop_oldest, not {text!r}.")
    else:
        say(f"When the context is full: {chat.conversation.when_full}. {seen(chat)}", dim=True)


def seen(chat: Chat) -> str:
    """How much of the conversation the model sees."""
    first, last = chat.conversation.dropped + 1, len(chat.conversation.turns)
    if first == 1:
        return f"The model sees the whole conversation, {counted(last)}."
    if first >= last:
        return f"The model sees {'the last' if first == last else 'none'} of {counted(last)}."
    return f"The model sees the last {last - first + 1} of {counted(last)}."


def system(chat: Chat, text: str) -> None:
    """The system prompt from the next question on."""
    previous = chat.conversation.system
    chat.conversation.system = checked_text("system prompt", text) if text else ""
    if text:
        say("The system prompt is set.", dim=True)
    else:
        say(f"Removed the system prompt: {previous}" if previous else "There is no system prompt.")


def tokens(chat: Chat, _text: str) -> None:
    """What of the context is taken."""
    taken = _taken(chat)
    with chat.llm.using() as engine:
        n_ctx = engine.target.n_ctx
        coming = sum(len(engine.vocab.tokenize(text, parse_special=False)) for text in chat.files.values())
    say(f"{taken} of {n_ctx} tokens of the context are taken, {max(n_ctx - taken, 0)} are left.", dim=True)
    if coming:
        say(f"The files behind the next question take about {coming} more.", dim=True)
    say(seen(chat), dim=True)


def _taken(chat: Chat) -> int:
    talk = chat.conversation
    if talk.ids or not talk.messages:
        return len(talk.ids)
    if talk.turns:  # another model answered them
        return len(chat.llm.render(talk.seen, ending="nothing"))
    with chat.llm.using() as engine:  # some templates refuse a system prompt that stands alone
        return len(engine.vocab.tokenize(talk.system, parse_special=False))


def copy(chat: Chat, text: str) -> None:
    """The last answer, as the model wrote it."""
    answer = chat.conversation.turns[-1].answer if chat.conversation.turns else ""
    if text not in ("", "code"):
        say(f"/copy takes code, or nothing, not {text!r}.")
    elif not answer:
        say("There is no answer to copy.")
    elif text and not (pieces := _CODE.findall(answer)):
        say("There is no code between ``` and ``` in the last answer; /copy alone copies all of it.")
    else:
        say(to_clipboard(pieces[-1][1] if text else answer), dim=True)


def stats(chat: Chat, _text: str) -> None:
    """The figures of the last answer."""
    if chat.last is None:
        say("There is no answer yet.")
        return
    for line in explained(chat.last):
        say(f"  {line}", hang=33)


def shortened(text: str, width: int = 60) -> str:
    """In one line, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def counted(turns: int) -> str:
    """So many turns, in words."""
    return "1 turn" if turns == 1 else f"{turns} turns"
