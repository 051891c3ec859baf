# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""A vCPU of a VM: how its instructions reach memory, and how exceptions reach it.

The processor runs guest instructions by the manuals (:mod:`worldswitch.x86`); where it leaves the guest,
:mod:`worldswitch.kvm.switch` says what comes next.
"""

from __future__ import annotations

from worldswitch.errors import UsageError
from worldswitch.kvm.guest_walk import Walk, walk
from worldswitch.kvm.intercepts import exception_exit, violation_code
from worldswitch.kvm.mmu_events import fault_begins, page_mapped
from worldswitch.kvm.permissions import RSVD, P, U, W
from worldswitch.kvm.policy import Mmu, Vendor
from worldswitch.kvm.shadow import EMULATE, FIXED, INVALID
from worldswitch.kvm.shadow_table import index_of
from worldswitch.kvm.switch import Switch
from worldswitch.kvm.tdp import Mapped
from worldswitch.x86.access import page_fault, pdpte_reserved
from worldswitch.x86.control import PCID
from worldswitch.x86.paging import (
    ACCESSED,
    ADDRESS,
    DIRTY,
    GLOBAL,
    KEY_SHIFT,
    NO_EXECUTE,
    PAGE_SIZE,
    PDPT,
    PRESENT,
    USER,
    WRITABLE,
)  # fmt: skip
from worldswitch.x86.registers import CR4, bit_mask
from worldswitch.x86.tlb import Translation, translation
from worldswitch.x86.verdicts import D_BIT, FETCH, FROM_USER, H_BIT, KEY_AT, KINDS, READ, U_BIT, W_BIT, WRITE, X_BIT

GP, PF = 13, 14
_MOST_FAULTS = 64
"""One access needs a fault for each level at most; more are a fault of the model."""
# Constants of loops are C variables, declared in the .pxd.
_PGE, _LA57 = bit_mask(CR4, "PGE"), bit_mask(CR4, "LA57")
_P, _W, _U, _NX = PRESENT, WRITABLE, USER, NO_EXECUTE
_A, _D, _PS, _G, _ADDRESS, _PDPT, _KEY_SHIFT = ACCESSED, DIRTY, PAGE_SIZE, GLOBAL, ADDRESS, PDPT, KEY_SHIFT
_FAULTS = _MOST_FAULTS
_READ, _WRITE, _FETCH, _FROM_USER = READ, WRITE, FETCH, FROM_USER
_MAY_W, _MAY_U, _MAY_X, _IS_D, _MAY_H, _KEY_AT = W_BIT, U_BIT, X_BIT, D_BIT, H_BIT, KEY_AT
INSTANTS = frozenset(("pages_4k", "pages_2m", "nx_lpage_splits", "mmu_unsync", "mmu_shadow_pages"))
"""Counters that say what there is, not how often something happened."""


class GuestFault(Exception):
    """An exception that reaches the guest."""

    def __init__(self, vector: int, code: int = 0, cr2: int = 0) -> None:
        super().__init__(vector, code, cr2)
        self.vector, self.code, self.cr2 = vector, code, cr2


class NotModelled(UsageError):
    """A guest that does what this model does not follow: names it."""


class Machine(Switch):
    """The vCPU."""

    __slots__ = ()

    # ---- memory, as instructions reach it

    def translate(self, va: int, kind: int, user: bool) -> int:
        """The guest-physical address that an access reaches.

        Args:
            kind: READ, WRITE or FETCH.
            user: From CPL 3.

        Raises:
            GuestFault: #PF, or #GP for an address that is not canonical.
        """
        one = self.tlb.find(va >> 12)
        if one is not None and self._lets(one.rights, kind, user):
            return one.page << 12 | va & 0xFFF
        if self.flat:
            return self._translate_flat(va, kind)
        known = one is not None
        top, all_set = va >> (56 if self.cr4 & _LA57 else 47), 0xFF if self.cr4 & _LA57 else 0x1FFFF
        if top and top != all_set:
            raise GuestFault(GP)
        one = self._walk_tdp(va, kind, user) if self.tdp is not None else self._walk_shadow(va, kind, user)
        if known:
            self.tlb.keep(va >> 12, one)
        else:
            self.tlb.add(va >> 12, one)
        return one.page << 12 | va & 0xFFF

    def _translate_flat(self, va: int, kind: int) -> int:
        """Without paging an address is where it says, for everybody."""
        gfn = va >> 12
        one = self.tlb.find(gfn)
        if one is None or (kind == _FETCH and not one.rights & _MAY_H):
            if not self.tdp.reaches(gfn, kind == _FETCH):  # type: ignore[union-attr]
                self._reach(gfn, va, kind, False)
            executable = _MAY_H if self.tdp.reaches(gfn, True) else 0  # type: ignore[union-attr]
            self.tlb.keep(gfn, Translation(gfn, _MAY_W | _MAY_X | _IS_D | executable))
        return va

    def _lets(self, rights: int, kind: int, user: bool) -> bool:
        """Whether a remembered translation is enough for an access; if not, the processor walks again."""
        if self._hardware is None:
            self._find_mode()
        return self._hardware.lets(rights, kind + (_FROM_USER if user else 0))  # type: ignore[union-attr]

    def fetches(self, pages: tuple[int, ...]) -> bool:
        """Fetch code for CPL 0 on each of *pages*; True if what the processor remembers was enough in any mode."""
        enough = True
        for va in pages:
            one = self.tlb.find(va >> 12)
            if one is None or one.rights & (_MAY_U | _MAY_X | _MAY_H) != _MAY_X | _MAY_H:
                self.translate(va, _FETCH, False)
                enough = False
        return enough

    def _walk_tdp(self, va: int, kind: int, user: bool) -> Translation:
        if self.pae:
            level, table = 2, self._pdpte(va, kind, user) & _ADDRESS
        else:
            level, table = 5 if self.cr4 & _LA57 else 4, self.cr3 & _ADDRESS
        if self._guest is None:
            self._find_mode()
        mode = self._guest
        entry, some = 0, 0
        every = _A | _W | _U
        good = True
        while True:
            place = table + 8 * (va >> 12 + 9 * (level - 1) & 511)
            if not self.tdp.reaches(place >> 12, False):  # type: ignore[union-attr]
                self._reach(place >> 12, place, _WRITE, True)
            entry = self.memory.word(place)
            every &= entry
            some |= entry
            if not entry & _P or entry & mode.reserved(level, entry):  # type: ignore[union-attr]
                good = False
                break
            if level == 1 or entry & _PS:
                break
            table, level = entry & _ADDRESS, level - 1
        rights = (_MAY_W if every & _W else 0) | (_MAY_U if every & _U else 0) | (0 if some & _NX else _MAY_X)
        rights |= (entry >> _KEY_SHIFT & 15) << _KEY_AT
        access = kind + (_FROM_USER if user else 0)
        if not good or not mode.lets(rights | _IS_D | _MAY_H, access):  # type: ignore[union-attr]
            raise GuestFault(PF, self._fault_code(va, kind, user), va)
        if not every & _A or (kind == _WRITE and not entry & _D):
            entry = self._mark(va, kind == _WRITE)
        span = 9 * (level - 1)
        below = (1 << span) - 1
        gfn = (entry & _ADDRESS) >> 12 & ~below | va >> 12 & below
        if not self.tdp.reaches(gfn, kind == _FETCH):  # type: ignore[union-attr]
            self._reach(gfn, gfn << 12 | va & 0xFFF, kind, False)
        rights |= _IS_D if entry & _D else 0
        rights |= _MAY_H if self.tdp.reaches(gfn, True) else 0  # type: ignore[union-attr]
        return translation(gfn, rights, 12 + span, entry & _G != 0)

    def _pdpte(self, va: int, kind: int, user: bool) -> int:
        """The PDPTE that a walk of PAE tables starts with.

        Raises:
            GuestFault: #PF: it is not present, or with NPT, where none refused it before, has reserved bits.
        """
        pdpte = self.pdptes[va >> 30]
        if self.policy.vendor is Vendor.AMD:
            place = (self.cr3 & _PDPT) + 8 * (va >> 30)
            if not self.tdp.reaches(place >> 12, False):  # type: ignore[union-attr]
                self._reach(place >> 12, place, _WRITE, True)
            pdpte = self.memory.word(place)
        reserved = pdpte & _P and pdpte_reserved(pdpte, self.controls)
        if not pdpte & _P or reserved:
            code = page_fault((0,), KINDS[kind], user, self.controls, 2)
            assert code is not None
            raise GuestFault(PF, code | (P | RSVD if reserved else 0), va)
        entry: int = pdpte
        return entry

    def processor_loads_pdptes(self, cr3: int) -> None:
        """What the processor does where no hypervisor looks at a write: with EPT it loads the PDPTEs at *cr3*.

        Raises:
            GuestFault: #GP: one has reserved bits.
        """
        if self.policy.vendor is Vendor.AMD:
            return
        place = cr3 & _PDPT
        if not self.tdp.reaches(place >> 12, False):  # type: ignore[union-attr]
            self._reach(place >> 12, place, _READ, False, linear=False)
        if not self.load_pdptes(cr3):
            raise GuestFault(GP)

    def _places(self, va: int) -> list[int]:
        """Where the entries lie that translate *va*, from the root down, to the leaf or what is not present."""
        level, places = self.levels, []
        table = self.cr3 & _ADDRESS
        if self.pae:
            at_walk = self.policy.vendor is Vendor.AMD
            table = self.memory.word((self.cr3 & _PDPT) + 8 * (va >> 30)) if at_walk else self.pdptes[va >> 30]
            table &= _ADDRESS
        while True:
            place = table + 8 * (va >> 12 + 9 * (level - 1) & 511)
            places.append(place)
            entry = self.memory.word(place)
            if level == 1 or not entry & _P or entry & _PS:
                return places
            table, level = entry & _ADDRESS, level - 1

    def _fault_code(self, va: int, kind: int, user: bool) -> int:
        entries = [self.memory.word(place) for place in self._places(va)]
        code = page_fault(entries, KINDS[kind], user, self.controls, self.levels)
        assert code is not None
        return code

    def _mark(self, va: int, write: bool) -> int:
        """Set A in every entry, and D in the leaf on a write; the leaf."""
        places = self._places(va)
        wanted = 0
        for place in places:
            entry = self.memory.word(place)
            wanted = entry | _A | (_D if write and place == places[-1] else 0)
            if wanted != entry:
                self.memory.set_word(place, wanted)
        return wanted

    def _reach(self, gfn: int, gpa: int, kind: int, table: bool, linear: bool = True) -> None:
        """Make a frame reachable that is not: an exit.

        Args:
            table: The walk of the guest's tables needs it.
            linear: There is a linear address that led here.
        """
        fetch = kind == _FETCH
        assert self.tdp is not None
        self.mmu_calls += 1
        if not self.backing.exists(gfn):
            raise NotModelled(f"the guest reaches {gpa:#x}, where it has no memory; the model has no devices")
        if self.events is None:
            self.exit(self.reaching)
            mapped = self.tdp.map(gfn, fetch)
        else:
            code = violation_code(self.policy, kind, table, linear)
            intel = self.policy.tdp and self.policy.vendor is Vendor.INTEL
            self.exit(self.reaching, code, 0 if intel else gpa)
            self._page_fault_event(gpa, code)
            mapped = self._mapped(gfn, gpa, fetch, code) if self.policy.tdp else self.tdp.map(gfn, fetch)
        self.stats["pf_taken"] += 1
        self.stats["pf_fixed"] += 1
        if mapped.flushed:
            self.flush_all()
        self.enter()

    def _mapped(self, gfn: int, gpa: int, fetch: bool, code: int) -> Mapped:
        """Map a frame, and say what KVM says of it."""
        assert self.tdp is not None and self.events is not None
        tree = self.tdp.tree
        self.events += fault_begins(self.policy, self.number, gpa, code)
        tables, small = set(tree.tables), set(tree.small)  # type: ignore[union-attr]
        mapped = self.tdp.map(gfn, fetch)
        tables, small = tree.tables - tables, tree.small - small - {gfn}  # type: ignore[union-attr]
        besides = small if self.policy.mmu is Mmu.LEGACY else set()
        executable = tree.allows(gfn, True)  # type: ignore[union-attr]
        self.events += page_mapped(self.policy, self.host, self.now, gfn, mapped.level, executable, tables, besides)
        return mapped

    def _page_fault_event(self, address: int, code: int) -> None:
        if self.events is not None:
            # The field had 32 bits before the event said which vCPU.
            shown = code if self.policy.has("trace-page-fault-vcpu") else code & 0xFFFF_FFFF
            self.event("kvm_page_fault", {"vcpu_id": self.number, "fault_address": address, "error_code": shown})

    def _walk_shadow(self, va: int, kind: int, user: bool) -> Translation:
        assert self.shadow is not None
        if self._hardware is None:
            self._find_mode()
        for _ in range(_FAULTS):
            page = self.shadow.last(va)
            index = index_of(va, page.level)
            leaf = page.leaf(index)
            entry = 0
            if leaf is not None:
                rights = _of_spte(leaf.rights)
                if self._lets(rights, kind, user):
                    if not leaf.accessed or (kind == _WRITE and not leaf.dirty):
                        page.put(index, leaf.used(kind == _WRITE))
                    span = 9 * (page.level - 1)
                    return translation(leaf.gfn | va >> 12 & (1 << span) - 1, rights, 12 + span, False)
                entry = _P | (_W if rights & _MAY_W else 0) | (_U if rights & _MAY_U else 0)
                entry |= 0 if rights & _MAY_X else _NX
            code = page_fault([entry], KINDS[kind], user, self._hardware.controls, 1)  # type: ignore[union-attr]
            assert code is not None
            if self._shadow_fault(va, code, kind, user):
                return self._emulated(va, user)
        raise NotModelled(f"an access to {va:#x} does not get through its page faults; this is a fault of the model")

    def _shadow_fault(self, va: int, code: int, kind: int, user: bool) -> bool:
        """Exit for a page fault and have KVM answer it; True if the instruction is to be emulated.

        Raises:
            GuestFault: It is the guest's own.
        """
        assert self.shadow is not None
        self.mmu_calls += 1
        vectoring, own = self.delivered and self._uninterrupted(), False
        self.exit(self.reaching, code, va)
        self._page_fault_event(va, code)
        self.stats["pf_taken"] += 1
        if self.retries is not None and vectoring:
            own = self.retries.own_table(self.walker(), va, code)
        outcome, guest_code = self.shadow.fault(va, code)
        if outcome == EMULATE:
            if kind != _WRITE:
                raise NotModelled(f"the guest reaches {va:#x}, where it has no memory; the model has no devices")
            self.stats["pf_emulate"] += 1
            if self.retries is not None and self._tried_again(va, user, own, vectoring):
                self.enter()
                # Zapped pages take the translation of the code with them, if a root was among them.
                self.fetch(self.retries.store_at, user)
                return False
            self.emulated_instruction()
            return True
        if outcome == INVALID:
            self.stats["pf_guest"] += 1
            if guest_code & (P | RSVD) == P:
                # As the processor forgets the translation that faulted (kvm_inject_emulated_page_fault).
                self.shadow.invalidate(va, previous=False)
                self.tlb.forget(va)
            self.inject(PF, guest_code)
            raise GuestFault(PF, guest_code, va)
        self.stats["pf_fixed" if outcome == FIXED else "pf_spurious"] += 1
        self.enter()
        return False

    def _uninterrupted(self) -> bool:
        """Whether no interrupt of the host's led to an exit since the last that is counted."""
        assert self.retries is not None
        self.settle()
        return sum(self.reasons.values()) not in self.retries.interrupted

    def _tried_again(self, va: int, user: bool, own: bool, vectoring: bool) -> bool:
        assert self.retries is not None
        found = walk(self.memory, self.walker(), va, W | (U if user else 0))
        assert isinstance(found, Walk)
        again: bool = self.retries.again(self.rip, va, found.gfn, own, vectoring)
        return again

    def _emulated(self, va: int, user: bool) -> Translation:
        """Where KVM's emulator writes; the caller stores, then says :meth:`wrote`."""
        found = walk(self.memory, self.walker(), va, W | (4 if user else 0))
        if not isinstance(found, Walk):
            self.inject(PF, found)
            raise GuestFault(PF, found, va)
        self.emulating = True
        return Translation(found.gfn, _MAY_U if user else 0)

    def load(self, va: int, size: int, user: bool = False) -> int:
        """Read *size* bytes."""
        gpa, first = self.translate(va, _READ, user), 0x1000 - (va & 0xFFF)
        if size <= first:
            return self.memory.read(gpa, size)
        high = self.translate(va + first, _READ, user)
        return self.memory.read(gpa, first) | self.memory.read(high, size - first) << 8 * first

    def store(self, va: int, value: int, size: int, user: bool = False) -> None:
        """Write the low *size* bytes of *value*."""
        gpa, first = self.translate(va, _WRITE, user), 0x1000 - (va & 0xFFF)
        high = self.translate(va + first, _WRITE, user) if size > first else 0
        emulating, self.emulating = self.emulating, False
        self._written(gpa, value, min(size, first), emulating)
        if size > first:
            self._written(high, value >> 8 * first, size - first, emulating)
        if emulating:
            self.tlb.drop(va >> 12)
            self.enter()

    def fetch(self, va: int, user: bool = False) -> None:
        """Fetch an instruction."""
        self.translate(va, _FETCH, user)

    def _written(self, gpa: int, value: int, size: int, emulating: bool) -> None:
        self.memory.write(gpa, value, size)
        if emulating and self.shadow is not None:
            self.shadow.pages.written(gpa, size)

    # ---- exceptions and emulation

    def skip_instruction(self, enter: bool = True) -> None:
        """KVM goes on behind the instruction that exited, and to the guest again unless userspace comes first."""
        if self.policy.vendor is Vendor.AMD and not self.host.next_rip:
            self.emulated_instruction()
        if enter:
            self.enter()

    def inject(self, vector: int, code: int) -> None:
        """Enter the guest with an exception."""
        if self.events is not None:
            row = {"exception": vector, "has_error": vector in (GP, PF), "error_code": code, "reinjected": False}
            self.event("kvm_inj_exception", row)
        self.enter()

    def raise_in_guest(self, vector: int) -> None:
        """An exception the processor raises without an error code, through KVM where that intercepts it.

        Raises:
            GuestFault: Always.
        """
        reason = exception_exit(self.policy, vector)
        if reason is not None:
            self.exit(reason)
            if vector == 6:
                self.emulated_instruction()
            self.inject(vector, 0)
        raise GuestFault(vector)

    # ---- recurrence

    def registers_state(self) -> tuple[object, ...]:
        """All registers, as one value to compare."""
        return (
            self.pdptes, self.cr0, self.cr2, self.cr3, self.cr4, self.cr8, self.efer, self.pkru, self.ac, self.dr_given,
            self.delivered, tuple(sorted(self.msrs.items())),
        )  # fmt: skip

    def rest_state(self) -> tuple[object, ...]:
        """What else of this vCPU decides what happens next: translations, roots loaded, requests."""
        mmu = self.tdp.state() if self.tdp is not None else self.shadow.state() if self.shadow is not None else None
        retries = self.retries.state() if self.retries is not None else None
        return self.tlb.state(), mmu, self.asked, retries


def _of_spte(rights: int) -> int:
    """X, W and U as KVM has them, as those of a translation; the dirty bits of shadow entries are KVM's own affair."""
    return (
        (_MAY_W if rights & 2 else 0) | (_MAY_U if rights & 4 else 0) | (_MAY_X if rights & 1 else 0) | _IS_D | _MAY_H
    )


def pcid_of(cr3: int) -> int:
    """Bits 11:0."""
    return cr3 & PCID


def keeps_global(cr4: int) -> bool:
    """Whether a load of CR3 leaves global translations."""
    return bool(cr4 & _PGE)
