"""KeptPrefixes: the cells of conversations that another one pushed out, for when they go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.checks import checked_amount
from localspec.decoding.session import Session, common_prefix
from localspec.errors import LocalspecError
from localspec.system.ram import free_memory

log = logging.getLogger(__name__)

MIN_TOKENS = 64
"""Fewer tokens are read again. The 115 MB that 4096 tokens of a 1.5B model take are copied and summed in a few tenths
of a second, in which a CPU of two cores reads about as many tokens as this: from here on a copy is cheaper."""
MIN_SHARE = 0.25
"""A smaller part of the cells is not kept: the end of a conversation that was edited or answered anew, most likely,
whose copies would push the other conversations out."""
SPARE = 4
"""Nothing is kept unless so many times its bytes are free: a machine that swaps is slower than reading again."""


@dataclass(frozen=True)
class Kept:
    """Saved cells of one model. owner: which one; tokens: what the cells hold."""

    owner: int
    tokens: tuple[int, ...] = field(repr=False)
    data: bytes = field(repr=False)


Reads = Callable[[Sequence[int]], Sequence[int]]
"""The ids that a model reads for a prompt."""


@dataclass(frozen=True)
class _Owner:
    """A session, whether its cells and their copies can only be used whole, and what it reads for a prompt."""

    session: Session
    whole: bool
    whole_copies: bool
    read_by: Reads | None


class KeptPrefixes:
    """Keeps cells of the sessions it was given, the latest `count` of each and `max_bytes` in all.

    Only for whoever has the engine's turn. Raises `InvalidRequest` for other numbers than 0 and more.
    """

    def __init__(self, count: int, max_bytes: int) -> None:
        self.count = checked_amount("keep_prefixes", count)
        self.max_bytes = checked_amount("prefix_bytes", max_bytes)
        self._owners: list[_Owner] = []
        self._kept: list[Kept] = []  # the least recently used first

    def keep_cells_of(
        self,
        session: Session,
        *,
        whole: bool = False,
        whole_copies: bool = False,
        read_by: Reads | None = None,
    ) -> None:
        """Keep the cells of this session too.

        whole: they cannot be cut, as those of recurrent models. whole_copies: copies of them cannot, which is also so
        where they hold no more than the last cells (sliding attention windows). read_by: what it reads for a
        prompt; None: the prompt's own ids.
        """
        self._owners.append(_Owner(session, whole, whole or whole_copies, read_by))

    def beside(self) -> KeptPrefixes:
        """For other sessions of the same models: what is kept is kept for all of them."""
        other = KeptPrefixes(self.count, self.max_bytes)
        other._kept = self._kept
        return other

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        return sum(len(kept.data) for kept in list(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def switch(self, prompt: Sequence[int]) -> None:
        """Before an answer to `prompt`: keep cells that it would push out, and take back those that begin as it does.

        What cannot be kept or taken back is read again; nothing is raised.
        """
        if not self.count:
            return
        for owner in range(len(self._owners)):
            try:
                self._switch(owner, prompt)
            except (LocalspecError, MemoryError) as error:
                log.debug("Cells are read again: %s", error)

    def set_aside(self) -> None:
        """Keep what the cells hold, and empty them. What cannot be kept stays in them; nothing is raised."""
        if not self.count:
            return
        for owner, owned in enumerate(self._owners):
            try:
                if len(owned.session.tokens) >= MIN_TOKENS and self._keep(owner):
                    owned.session.rollback(0)
            except (LocalspecError, MemoryError) as error:
                log.debug("Cells stay where they are: %s", error)

    def _switch(self, owner: int, prompt: Sequence[int]) -> None:
        owned = self._owners[owner]
        session = owned.session
        if owned.read_by is not None:
            prompt = owned.read_by(prompt)
        here = _usable(session.tokens, prompt, owned.whole)
        best = self._best(owner, prompt)
        there = _usable(best.tokens, prompt, owned.whole_copies) if best else 0
        if there < here + MIN_TOKENS:
            best = None
        if best and not _is_worth_keeping(len(best.tokens), there):
            self._kept.remove(best)  # not to be pushed out by what comes in
        if _is_worth_keeping(len(session.tokens), here):
            self._keep(owner)
        if best:
            session.restore(best.tokens, best.data)

    def _best(self, owner: int, prompt: Sequence[int]) -> Kept | None:
        whole = self._owners[owner].whole_copies
        own = [kept for kept in self._kept if kept.owner == owner]
        return max(own, key=lambda kept: _usable(kept.tokens, prompt, whole), default=None)

    def _keep(self, owner: int) -> bool:
        owned = self._owners[owner]
        size = owned.session.state_bytes()
        if not 0 < size <= self.max_bytes or free_memory() < SPARE * size:
            return False
        tokens, data = owned.session.save()
        if len(tokens) < MIN_TOKENS:  # a failed pass took the cells with it
            return False
        if not owned.whole_copies:
            self._kept[:] = [one for one in self._kept if one.owner != owner or not _covers(tokens, one)]
        kept = Kept(owner, tokens, data)
        self._kept.append(kept)
        while sum(one.owner == owner for one in self._kept) > self.count:
            self._kept.remove(next(one for one in self._kept if one.owner == owner))
        while self.num_bytes > self.max_bytes:
            del self._kept[0]
        return any(one is kept for one in self._kept)


def _usable(tokens: Sequence[int], prompt: Sequence[int], whole: bool) -> int:
    """How many of the tokens' cells an answer to `prompt` could start from."""
    shared = min(common_prefix(tokens, prompt), max(len(prompt) - 1, 0))
    return 0 if whole and shared < len(tokens) else shared


def _is_worth_keeping(count: int, used: int) -> bool:
    """Whether what is lost of so many cells, of which an answer uses some, would be missed."""
    lost = count - used
    return lost >= MIN_TOKENS and lost >= MIN_SHARE * count


def _covers(tokens: Sequence[int], kept: Kept) -> bool:
    """Whether cells of `tokens` are about as good as the kept ones, whatever is asked."""
    return len(kept.tokens) - common_prefix(tokens, kept.tokens) < MIN_TOKENS
