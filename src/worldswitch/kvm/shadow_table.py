# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""One shadow page and what its entries hold."""

from __future__ import annotations

from worldswitch.kvm.permissions import W_RIGHT
from worldswitch.kvm.roles import PageRole

ENTRIES = 512
# Constants of loops are C variables, declared in the .pxd.
_W_RIGHT = W_RIGHT


class Leaf:
    """A shadow entry that maps: the first frame, and the rights granted. Never changed: another takes its place.

    Attributes:
        accessed, dirty: A and D, which a fault sets at once and else the processor.
    """

    __slots__ = ("accessed", "dirty", "gfn", "rights")

    def __init__(self, gfn: int, rights: int, accessed: bool = False, dirty: bool = False) -> None:
        self.gfn, self.rights, self.accessed, self.dirty = gfn, rights, accessed, dirty

    def used(self, write: bool) -> Leaf:
        """As the processor marks it on an access."""
        return Leaf(self.gfn, self.rights, True, self.dirty or write)

    def read_only(self) -> Leaf:
        """Without the right to write."""
        return Leaf(self.gfn, self.rights & ~_W_RIGHT, self.accessed, self.dirty)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[int, int, bool, bool]:
        """All of it."""
        return self.gfn, self.rights, self.accessed, self.dirty


class Page:
    """One shadow page.

    Attributes:
        gfn: The guest table it shadows; of a direct page the first frame it maps.
        level, direct: Of its role.
        entries: Index -> leaf, or the page below; :meth:`put` and :meth:`take` change it.
        slots: The same, by index.
        parents: Pages and indexes that point here.
        users: Roots that are this page.
        floods: Emulated writes since it was last used.
        valid: Not zapped.
        split: It is there only since what it maps may not be executed when whole.
    """

    __slots__ = (
        "direct", "entries", "floods", "gfn", "level", "parents", "role", "slots", "split", "unsync", "users", "valid",
    )  # fmt: skip

    def __init__(self, gfn: int, role: PageRole) -> None:
        self.gfn, self.role, self.level, self.direct = gfn, role, role.level, role.direct
        self.entries: dict[int, Leaf | Page] = {}
        self.slots: list[Leaf | Page | None] = [None] * ENTRIES
        self.parents: set[tuple[Page, int]] = set()
        self.unsync = False
        self.users = 0
        self.floods = 0
        self.valid = True
        self.split = False

    def put(self, index: int, entry: Leaf | Page) -> None:
        """Set an entry."""
        self.entries[index] = self.slots[index] = entry

    def take(self, index: int) -> Leaf | Page | None:
        """Clear an entry, and give what was there."""
        entry = self.slots[index]
        if entry is not None:
            self.slots[index] = None
            del self.entries[index]
        return entry

    def leaf(self, index: int) -> Leaf | None:
        """The entry, if it maps."""
        entry = self.slots[index]
        return entry if isinstance(entry, Leaf) else None


def index_of(va: int, level: int) -> int:
    """Which entry of a table of *level* translates *va*."""
    return va >> 12 + 9 * (level - 1) & 511
