# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""What an instruction did that reaches nothing but registers: it does the same whenever they are the same again.

Such an instruction is a function of the registers, the policy and the host. So the rules are asked once; after that its
effect is repeated, and counted when somebody asks. What it has the MMU do (roots unloaded, flushes) is noted, and done
again each time, for that depends on more than registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldswitch.kvm.switch import Noted, Switch


class Registers:
    """All registers of a machine at a moment; *cr0* and *cr4* besides as the program believes them to be."""

    __slots__ = (
        "ac", "believed_cr0", "believed_cr4", "cr0", "cr2", "cr3", "cr4", "cr8", "delivered", "dr_given", "efer",
        "msrs", "pkru",
    )  # fmt: skip

    def __init__(self, m: Switch, believed_cr0: int, believed_cr4: int) -> None:
        self.cr0, self.cr2, self.cr3, self.cr4, self.cr8 = m.cr0, m.cr2, m.cr3, m.cr4, m.cr8
        self.efer, self.pkru, self.ac, self.dr_given = m.efer, m.pkru, m.ac, m.dr_given
        self.delivered = m.delivered
        self.believed_cr0, self.believed_cr4 = believed_cr0, believed_cr4
        self.msrs = dict(m.msrs)

    def are(self, m: Switch, believed_cr0: int, believed_cr4: int) -> bool:
        """Whether the machine's are these."""
        return (
            self.cr0 == m.cr0
            and self.cr4 == m.cr4
            and self.believed_cr0 == believed_cr0
            and self.believed_cr4 == believed_cr4
            and self.cr3 == m.cr3
            and self.efer == m.efer
            and self.dr_given == m.dr_given
            and self.delivered == m.delivered
            and self.ac == m.ac
            and self.pkru == m.pkru
            and self.cr2 == m.cr2
            and self.cr8 == m.cr8
            and ((not self.msrs and not m.msrs) or self.msrs == m.msrs)
        )


class Before:
    """A machine before an instruction whose effect is of interest."""

    __slots__ = ("_calls", "_flushes", "_generation", "_noted", "_reasons", "_stats", "_userspace", "registers")

    def __init__(self, m: Switch, believed_cr0: int, believed_cr4: int) -> None:
        self.registers = Registers(m, believed_cr0, believed_cr4)
        self._calls, self._generation, self._flushes = m.mmu_calls, m.tlb.generation, m.tlb.flushes
        self._noted = m.note()
        self._reasons, self._stats, self._userspace = Counter(m.reasons), Counter(m.stats), Counter(m.userspace)

    def effect(self, m: Switch, believed_cr0: int, believed_cr4: int) -> Effect | None:
        """What has happened since; None if it went beyond registers and what a :class:`Noted` holds."""
        noted: Noted | None = self._noted
        self._noted.ends(m)
        m.noted = None
        if m.mmu_calls == self._calls and m.tlb.generation == self._generation:
            noted = None
        elif not self._noted.simple or m.tlb.generation - self._generation != m.tlb.flushes - self._flushes:
            return None
        after = Registers(m, believed_cr0, believed_cr4)
        counted = (
            _difference(m.reasons, self._reasons),
            _difference(m.stats, self._stats),
            _difference(m.userspace, self._userspace),
        )
        return Effect(self.registers, after, counted, noted)


def _difference(now: Mapping[Any, int], before: Mapping[Any, int]) -> list[tuple[Any, int]]:
    return [(name, value - before.get(name, 0)) for name, value in now.items() if value != before.get(name, 0)]


class Effect:
    """From some registers to others.

    Args:
        counted: By how much it raises reasons, statistics and exits to userspace.
        noted: What it has the MMU do, which counts itself; None for nothing.
    """

    __slots__ = ("_counted", "_noted", "_times", "after", "before", "same_mode")

    def __init__(
        self,
        before: Registers,
        after: Registers,
        counted: tuple[list[tuple[Any, int]], ...],
        noted: Noted | None = None,
    ) -> None:
        self._noted = noted
        self.before, self.after, self._counted, self._times = before, after, counted, 0
        self.same_mode = (before.cr0, before.cr4, before.efer, before.ac, before.pkru) == (
            after.cr0, after.cr4, after.efer, after.ac, after.pkru
        )  # fmt: skip

    def again(self, m: Switch) -> None:
        """Repeat it."""
        after = self.after
        m.cr0, m.cr4, m.cr8, m.efer = after.cr0, after.cr4, after.cr8, after.efer
        m.pkru, m.ac, m.dr_given, m.delivered = after.pkru, after.ac, after.dr_given, after.delivered
        if after.msrs:
            m.msrs = dict(after.msrs)
        if not self.same_mode:
            m.mode_changed()
        self._times += 1
        if self._noted is not None:
            m.repeat_noted(self._noted)

    def settle(self, m: Switch) -> None:
        """Count the repetitions that are not counted yet."""
        if self._times:
            all_counts: tuple[Counter[Any], ...] = (m.reasons, m.stats, m.userspace)
            for counts, counted in zip(all_counts, self._counted, strict=True):
                for name, value in counted:
                    counts[name] += value * self._times
            self._times = 0
