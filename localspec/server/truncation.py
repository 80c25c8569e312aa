"""`truncation: "auto"`: a conversation without its oldest messages, until it fits."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence

from localspec.errors import TemplateError
from localspec.llm import LLM
from localspec.server.faults import Warnings, warning
from localspec.server.plan import Plan, chat_plan
from localspec.server.schemas import ChatRequest
from localspec.server.settings import Settings

log = logging.getLogger("localspec.server")
SHARE_FOR_ANSWER = 4
"""At most one part in so many of the context is kept free for the answer."""


def dropped_warnings(count: int) -> Warnings:
    """What the answer says of `count` messages that were dropped."""
    if not count:
        return ()
    what = "The oldest message was" if count == 1 else f"The oldest {count} messages were"
    return (warning(f"{what} dropped, so that the conversation fits.", "truncation", "messages_dropped"),)


def fitting_plan(chat: ChatRequest, llm: LLM, settings: Settings) -> tuple[Plan, int]:
    """The plan of `chat` without its oldest messages, as few as can be, and how many those are.

    A system message at the beginning stays, and so does the last message; a tool's result goes with its call. There is
    then room for the longest answer that was asked for, or for a quarter of the context where that is less. What does
    not fit even so is not refused here. Raises what `chat_plan` raises.
    """
    whole = chat_plan(chat, llm, settings)
    with llm.using() as engine:
        n_ctx = engine.target.n_ctx
    asked, most = whole.options["params"].max_tokens, n_ctx // SHARE_FOR_ANSWER
    limit = n_ctx - (most if asked is None else min(asked, most))
    if len(whole.ids) <= limit:
        return whole, 0
    first = 1 if chat.messages[0].role == "system" else 0
    cuts = [cut for cut in range(first + 1, len(chat.messages)) if chat.messages[cut].role != "tool"]

    def plan(cut: int) -> Plan:
        rest = chat.messages[:first] + chat.messages[cut:]
        return chat_plan(chat.model_copy(update={"messages": rest}), llm, settings)

    def fewest(cuts: Sequence[int]) -> int:
        fits = bisect_left(cuts, True, key=lambda cut: len(plan(cut).ids) <= limit)
        return cuts[min(fits, len(cuts) - 1)]

    if not cuts:
        return whole, 0
    try:
        cut = fewest(cuts)
    except TemplateError:  # many templates want a user's message first
        cuts = [cut for cut in cuts if chat.messages[cut].role == "user"]
        if not cuts:
            return whole, 0
        cut = fewest(cuts)
    log.info("truncation: the oldest %d messages were dropped", cut - first)
    return plan(cut), cut - first
