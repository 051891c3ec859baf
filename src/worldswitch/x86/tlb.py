# cython: annotation_typing=False, auto_pickle=False
"""Translations the processor remembers, and what makes it forget them.

One entry per 4 KiB of linear addresses, none is ever evicted: only flushes decide. Source: Intel SDM volume 3, section
4.10 "Caching Translation Information".
"""

from __future__ import annotations

from worldswitch.x86.verdicts import D_BIT, H_BIT, KEY_AT, U_BIT, W_BIT, X_BIT

FRONT = 4096
"""Places of the table that is looked at first, by the low bits of the page number."""
RECENT = 8
"""Translations that are searched one by one before they are put in order: often a flush comes first."""


class Translation:
    """A remembered translation: guest-physical page, rights combined over the walk, and the size of the page.

    Attributes:
        rights: As :mod:`~worldswitch.x86.verdicts` packs them. Dirty: the D bit was set when it was remembered; a
            write through one without walks again. Host-executable: a second dimension of paging lets it be executed.
        span: log2 of the size of the page it is part of.
        may_be_global: Its leaf has G.
    """

    __slots__ = ("generation", "linear", "may_be_global", "page", "rights", "span")

    def __init__(self, page: int, rights: int, span: int = 12, may_be_global: bool = False) -> None:
        self.page, self.rights, self.span, self.may_be_global = page, rights, span, may_be_global
        self.linear = self.generation = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Translation):
            return NotImplemented
        mine = (self.page, self.rights, self.span, self.may_be_global)
        return mine == (other.page, other.rights, other.span, other.may_be_global)

    def __hash__(self) -> int:
        return hash((self.page, self.rights, self.span, self.may_be_global))


def rights_of(
    writable: bool, user: bool, executable: bool, dirty: bool, key: int = 0, host_executable: bool = True
) -> int:
    """The rights of a translation, packed."""
    return (
        (W_BIT if writable else 0) | (U_BIT if user else 0) | (X_BIT if executable else 0)
        | (D_BIT if dirty else 0) | (H_BIT if host_executable else 0) | key << KEY_AT
    )  # fmt: skip


def translation(page: int, rights: int, span: int, may_be_global: bool) -> Translation:
    """A translation, made fast."""
    one = Translation.__new__(Translation)
    one.page, one.rights, one.span, one.may_be_global = page, rights, span, may_be_global
    one.linear = one.generation = 0
    return one


class Tlb:
    """All translations of one vCPU, by PCID.

    Attributes:
        generation: Grows whenever a translation may have gone or become another one: what was found in one generation
            is still so while that lasts.
        flushes: How often everything was forgotten.
    """

    __slots__ = ("_by_pcid", "_front", "_now", "_pcid", "_recent", "_used", "flushes", "generation")

    def __init__(self) -> None:
        self._now: dict[int, Translation] = {}  # of the current PCID, by linear page number
        self._recent: list[Translation | None] = [None] * RECENT  # likewise, the first *used*; not in there yet
        self._used = 0
        self.generation = 1
        self.flushes = 0
        self._front: list[Translation | None] = [None] * FRONT
        self._pcid = 0
        self._by_pcid: dict[int, dict[int, Translation]] = {0: self._now}

    def find(self, linear: int) -> Translation | None:
        """The translation of a linear page, None if there is none."""
        one = self._front[linear & _LAST]
        if one is not None and one.linear == linear and one.generation == self.generation:
            return one
        one = None
        for place in range(self._used):
            one = self._recent[place]
            if one.linear == linear:  # type: ignore[union-attr]
                break
            one = None
        if one is None:
            if not self._now:
                return None
            one = self._now.get(linear)
            if one is None:
                return None
            one.linear = linear
        one.generation = self.generation
        self._front[linear & _LAST] = one
        return one

    def keep(self, linear: int, one: Translation) -> None:
        """Remember the translation of a linear page."""
        if self.find(linear) is not None:
            self._order()
            self.generation += 1
            self._now[linear] = one
            one.linear, one.generation = linear, self.generation
            self._front[linear & _LAST] = one
        else:
            self.add(linear, one)

    def add(self, linear: int, one: Translation) -> None:
        """Remember the translation of a linear page that has none."""
        one.linear, one.generation = linear, self.generation
        self._front[linear & _LAST] = one
        if self._used >= _RECENT:
            self._order()
        self._recent[self._used] = one
        self._used += 1

    def _order(self) -> None:
        for place in range(self._used):
            one = self._recent[place]
            self._now[one.linear] = one  # type: ignore[assignment, union-attr]
        self._used = 0

    def drop(self, linear: int) -> None:
        """Forget the translation of one linear page, whatever it is part of."""
        self._order()
        self.generation += 1
        self._now.pop(linear, None)

    def flush_all(self) -> None:
        """Forget everything, global translations too."""
        self.generation += 1
        self.flushes += 1
        self._used = 0
        if self._now or len(self._by_pcid) > 1:
            self._now = {}
            self._by_pcid = {self._pcid: self._now}

    def load(self, pcid: int, keep: bool, global_pages: bool) -> None:
        """A load of CR3: the translations of *pcid* count from now on; they are forgotten unless *keep*.

        Global translations (with CR4.PGE, *global_pages*) stay, and count under every PCID.
        """
        self._order()
        self.generation += 1
        staying = {page: one for page, one in self._now.items() if one.may_be_global} if global_pages else {}
        if not keep:
            self._by_pcid[pcid] = {}
        self._pcid = pcid
        self._now = self._by_pcid.setdefault(pcid, {})
        self._now.update(staying)

    def forget(self, va: int) -> None:
        """INVLPG: forget the page around *va*, and global translations of it under any PCID."""
        self._order()
        self.generation += 1
        for entries in self._by_pcid.values():
            _forget(entries, va, everything=entries is self._now)

    def forget_pcid(self, pcid: int) -> None:
        """INVPCID of one PCID: its translations but global ones."""
        self._order()
        self.generation += 1
        if pcid == self._pcid:
            for page in [page for page, one in self._now.items() if not one.may_be_global]:
                del self._now[page]
        else:
            self._by_pcid.pop(pcid, None)

    def forget_va(self, va: int, pcid: int) -> None:
        """INVPCID of one address under one PCID."""
        self._order()
        self.generation += 1
        if pcid in self._by_pcid:
            _forget(self._by_pcid[pcid], va, everything=True)

    def state(self) -> object:
        """A value that is equal whenever all translations are."""
        self._order()
        return self._pcid, {pcid: dict(entries) for pcid, entries in self._by_pcid.items() if entries}


def _forget(entries: dict[int, Translation], va: int, everything: bool) -> None:
    page = va >> 12
    found = entries.get(page)
    if found is None:
        # Another part of the same large page may be remembered.
        gone = [one for one, held in entries.items() if held.span > 12 and one << 12 >> held.span == va >> held.span]
    elif found.span == 12:
        gone = [page]
    else:
        gone = [one for one in entries if one << 12 >> found.span == va >> found.span]
    for one in gone:
        if everything or entries[one].may_be_global:
            del entries[one]


_LAST, _RECENT = FRONT - 1, RECENT
