"""Translations the processor remembers, and what makes it forget them.

One entry per 4 KiB of linear addresses, none is ever evicted: only flushes decide. Source: Intel SDM volume 3, section
4.10 "Caching Translation Information".
"""

from __future__ import annotations

from typing import NamedTuple


class Translation(NamedTuple):
    """A remembered translation: guest-physical page, rights combined over the walk, and the size of the page.

    Attributes:
        dirty: The D bit was set when it was remembered; a write through one without walks again.
        span: log2 of the size of the page it is part of.
        may_be_global: Its leaf has G.
        host_executable: A second dimension of paging lets it be executed.
    """

    page: int
    writable: bool
    user: bool
    executable: bool
    dirty: bool
    key: int = 0
    span: int = 12
    may_be_global: bool = False
    host_executable: bool = True


class Tlb:
    """All translations of one vCPU, by PCID.

    Attributes:
        now: Those of the current PCID, by linear page number.
    """

    __slots__ = ("_by_pcid", "_pcid", "now")

    def __init__(self) -> None:
        self.now: dict[int, Translation] = {}
        self._pcid = 0
        self._by_pcid: dict[int, dict[int, Translation]] = {0: self.now}

    def flush_all(self) -> None:
        """Forget everything, global translations too."""
        self.now = {}
        self._by_pcid = {self._pcid: self.now}

    def load(self, pcid: int, keep: bool, global_pages: bool) -> None:
        """A load of CR3: the translations of *pcid* count from now on; they are forgotten unless *keep*.

        Global translations (with CR4.PGE, *global_pages*) stay, and count under every PCID.
        """
        staying = {page: one for page, one in self.now.items() if one.may_be_global} if global_pages else {}
        if not keep:
            self._by_pcid[pcid] = {}
        self._pcid = pcid
        self.now = self._by_pcid.setdefault(pcid, {})
        self.now.update(staying)

    def forget(self, va: int) -> None:
        """INVLPG: forget the page around *va*, and global translations of it under any PCID."""
        for entries in self._by_pcid.values():
            _forget(entries, va, everything=entries is self.now)

    def forget_pcid(self, pcid: int) -> None:
        """INVPCID of one PCID: its translations but global ones."""
        if pcid == self._pcid:
            for page in [page for page, one in self.now.items() if not one.may_be_global]:
                del self.now[page]
        else:
            self._by_pcid.pop(pcid, None)

    def forget_va(self, va: int, pcid: int) -> None:
        """INVPCID of one address under one PCID."""
        if pcid in self._by_pcid:
            _forget(self._by_pcid[pcid], va, everything=True)

    def state(self) -> object:
        """A value that is equal whenever all translations are."""
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
