"""A VM with one vCPU: the processor's state, KVM's, and the ways between them.

The processor runs guest instructions by the manuals (:mod:`worldswitch.x86`); where it leaves the guest,
:meth:`Machine.exit` and :meth:`Machine.enter` stand around what KVM does, and count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from worldswitch.errors import UsageError
from worldswitch.kvm.backing import Backing
from worldswitch.kvm.control_registers import Flush, Outcome
from worldswitch.kvm.guest_walk import Walk, Walker, walk
from worldswitch.kvm.host import Host
from worldswitch.kvm.intercepts import Reason, exception_exit, violation_exit
from worldswitch.kvm.permissions import RSVD, P, Permissions, W
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.roles import permissions, shadow_root_role, tdp_root_role
from worldswitch.kvm.shadow import EMULATE, FIXED, INVALID, Shadow
from worldswitch.kvm.tdp import Tdp
from worldswitch.x86.access import Controls, Kind, page_fault
from worldswitch.x86.control import PCID, Registers
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import (
    ACCESSED,
    ADDRESS,
    DIRTY,
    GLOBAL,
    KEY,
    KEY_SHIFT,
    NO_EXECUTE,
    PAGE_SIZE,
    PRESENT,
    USER,
    WRITABLE,
)  # fmt: skip
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask
from worldswitch.x86.tlb import Tlb, Translation

GP, PF = 13, 14
_WP = bit_mask(CR0, "WP")
_PGE, _LA57, _SMEP, _SMAP, _PKE = (bit_mask(CR4, name) for name in ("PGE", "LA57", "SMEP", "SMAP", "PKE"))
_DECIDING = _SMEP | _SMAP | _PKE
_NXE = bit_mask(EFER, "NXE")
INSTANTS = frozenset(("pages_4k", "pages_2m", "nx_lpage_splits", "mmu_unsync", "mmu_shadow_pages"))
"""Counters that say what there is, not how often something happened."""
_MOST_FAULTS = 64
"""One access needs a fault for each level at most; more are a fault of the model."""


class GuestFault(Exception):
    """An exception that reaches the guest."""

    def __init__(self, vector: int, code: int = 0, cr2: int = 0) -> None:
        super().__init__(vector, code, cr2)
        self.vector, self.code, self.cr2 = vector, code, cr2


class NotModelled(UsageError):
    """A guest that does what this model does not follow: names it."""


class Machine:
    """The VM.

    Args:
        now: The registers it is entered with.
        record: Keep a row for each event.

    Attributes:
        reasons: Exits by reason; their sum is the statistic ``exits``.
        stats: KVM's statistics by name, and root_loads, root_unloads, mmu_resets.
        userspace: Exits to userspace by KVM_EXIT name.
        events: Rows (event, fields) in order, None if they are not kept.
        rip: What events give as guest_rip.
        dr_given: The guest has the debug registers since the last exit.
        judged: Register writes judged before, by all that decides about them.
    """

    def __init__(
        self, policy: Policy, host: Host, memory: Memory, backing: Backing, now: Registers, record: bool = False
    ) -> None:
        self.policy, self.host, self.memory, self.backing = policy, host, memory, backing
        self.cr0, self.cr3, self.cr4, self.efer = now.cr0, now.cr3, now.cr4, now.efer
        self.cr2 = self.cr8 = self.pkru = 0
        self.ac = self.dr_given = self.emulating = False
        self.msrs: dict[int, int] = {}
        self.reasons: Counter[Reason] = Counter()
        self.stats: Counter[str] = Counter()
        self.userspace: Counter[str] = Counter()
        self.events: list[tuple[str, dict[str, Any]]] | None = [] if record else None
        self.rip = 0
        self.tlb = Tlb()
        self._requests: set[str] = set()
        self._controls: Controls | None = None
        self._in_hardware: Controls | None = None
        self._seen: dict[tuple[int, ...], Controls] = {}
        self.judged: dict[tuple[int, ...], tuple[Outcome, bool]] = {}
        self._permissions: Permissions | None = None
        self.tdp = Tdp(policy, host, backing) if policy.tdp else None
        self.shadow = (
            None if policy.tdp else Shadow(policy, host, backing, memory, self.walker, self.flush_all, self.request)
        )

    # ---- registers

    @property
    def now(self) -> Registers:
        """The registers that judge each other."""
        return Registers(self.cr0, self.cr3, self.cr4, self.efer)

    def mode_changed(self) -> None:
        """Some bit that decides about accesses is another one now."""
        self._controls = self._in_hardware = self._permissions = None

    @property
    def controls(self) -> Controls:
        """The guest's bits that decide about accesses."""
        if self._controls is None:
            key = (self.cr0 & _WP, self.cr4 & _DECIDING, self.efer & _NXE, self.ac, self.pkru)
            self._controls = self._seen.get(key)
            if self._controls is None:
                smep, smap, pke = (bool(self.cr4 & bit) for bit in (_SMEP, _SMAP, _PKE))
                wp, nxe = bool(self.cr0 & _WP), bool(self.efer & _NXE)
                self._controls = self._seen[key] = Controls(wp, smep, smap, pke, nxe, self.ac, self.pkru)
        return self._controls

    @property
    def levels(self) -> int:
        """Levels of the guest's page tables."""
        return 5 if self.cr4 & _LA57 else 4

    def walker(self) -> Walker:
        """What KVM needs to walk the guest's tables now."""
        if self._permissions is None:
            self._permissions = permissions(self.policy, self.now)
        c = self.controls
        return Walker(self.cr3 & ADDRESS, self.levels, c, self._permissions, c.nxe or c.smep)

    # ---- leaving and entering the guest

    def exit(self, reason: Reason, info1: int = 0, info2: int = 0) -> None:
        """Leave the guest."""
        self.reasons[reason] += 1
        self.dr_given = False
        if self.events is not None:
            row = {"exit_reason": reason[1], "guest_rip": self.rip, "isa": reason[0], "info1": info1, "info2": info2}
            self.event("kvm_exit", {**row, "vcpu_id": 0})

    def enter(self) -> None:
        """Enter the guest, once all that was asked for has been done."""
        while self._requests or not self._loaded():
            self._serve()
        if self.events is not None:
            self.event("kvm_entry", {"vcpu_id": 0, "rip": self.rip})

    def event(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row, if rows are kept."""
        if self.events is not None:
            self.events.append((name, row))

    def to_userspace(self, name: str) -> None:
        """Leave for userspace, which enters again at once."""
        self.userspace[name] += 1
        self.event("kvm_userspace_exit", {"reason": name, "errno": 0})

    def request(self, what: str) -> None:
        """Have something done before the next entry: flush, current, guest (flushes), sync, reload."""
        self._requests.add(what)

    def flush(self, flush: Flush) -> None:
        """Request the flush a register write asks for."""
        if flush is not Flush.NONE:
            self.request("current" if flush is Flush.CURRENT else "guest")

    def flush_all(self) -> None:
        """KVM has every vCPU flush: kvm_flush_remote_tlbs."""
        self.stats["remote_tlb_flush_requests"] += 1
        self.request("flush")

    def unload(self, reset: bool = False) -> None:
        """Drop all roots; *reset*: as part of kvm_mmu_reset_context."""
        self.stats["mmu_resets"] += reset
        self.stats["root_unloads"] += self._loaded()
        if self.tdp is not None:
            self.tdp.unload()
        else:
            assert self.shadow is not None
            self.shadow.roots.free_all()

    def _loaded(self) -> bool:
        if self.tdp is not None:
            return self.tdp.tree is not None
        assert self.shadow is not None
        return self.shadow.roots.current is not None

    def _serve(self) -> None:
        """What vcpu_enter_guest does first, in its order; a load of roots flushes without being counted."""
        requests, self._requests = self._requests, set()
        if "reload" in requests:
            self.unload()
        if "flush" in requests:
            self._flush_now()
            requests.discard("current")
        if self.shadow is not None and self._loaded():
            if "sync" in requests:
                self.shadow.sync()
            if "guest" in requests:
                self.shadow.sync(previous=True)
        for _ in requests & {"current", "guest"}:
            self._flush_now()
        if not self._loaded():
            self._load()

    def _flush_now(self) -> None:
        self.stats["tlb_flush"] += 1
        self.tlb.flush_all()

    def _load(self) -> None:
        self.stats["root_loads"] += 1
        if self.tdp is not None:
            self.tdp.load(tdp_root_role(self.policy, self.now))
        else:
            assert self.shadow is not None
            self.shadow.load(self.cr3, shadow_root_role(self.policy, self.now))
        self.tlb.flush_all()

    # ---- memory, as instructions reach it

    def translate(self, va: int, kind: Kind, user: bool) -> int:
        """The guest-physical address that an access reaches.

        Raises:
            GuestFault: #PF, or #GP for an address that is not canonical.
        """
        known = self.tlb.now.get(va >> 12)
        if known is not None and self._lets(known, kind, user):
            return known.page << 12 | va & 0xFFF
        top = va >> (56 if self.levels == 5 else 47)
        if top and top + 1 != 1 << (8 if self.levels == 5 else 17):
            raise GuestFault(GP)
        known = self._walk_tdp(va, kind, user) if self.tdp is not None else self._walk_shadow(va, kind, user)
        self.tlb.now[va >> 12] = known
        return known.page << 12 | va & 0xFFF

    def _lets(self, known: Translation, kind: Kind, user: bool) -> bool:
        """Whether a remembered translation is enough for an access; if not, the processor walks again."""
        c = self._hardware
        if known.user:
            entry = PRESENT | USER | (WRITABLE if known.writable else 0) | (0 if known.executable else NO_EXECUTE)
            if page_fault([entry | known.key << KEY_SHIFT], kind, user, c, 1) is not None:
                return False
        elif (
            user
            or (kind is Kind.FETCH and not known.executable and c.nxe)
            or (kind is Kind.WRITE and not known.writable and c.wp)
        ):
            return False
        return kind is Kind.READ or (known.dirty if kind is Kind.WRITE else known.host_executable)

    @property
    def _hardware(self) -> Controls:
        """The bits as the processor has them: with shadow paging WP and NXE are set in any case."""
        if self._in_hardware is None:
            self._in_hardware = self.controls if self.tdp is not None else self.controls._replace(wp=True, nxe=True)
        return self._in_hardware

    def _walk_tdp(self, va: int, kind: Kind, user: bool) -> Translation:
        places, entries, level = [], [], self.levels
        table = self.cr3 & ADDRESS
        while True:
            place = table + 8 * (va >> 12 + 9 * (level - 1) & 511)
            self._reach(place >> 12, place, fetch=False, table=True)
            entry = self.memory.word(place)
            places.append(place)
            entries.append(entry)
            if level == 1 or not entry & PRESENT or entry & PAGE_SIZE:
                break
            table, level = entry & ADDRESS, level - 1
        code = page_fault(entries, kind, user, self.controls, self.levels)
        if code is not None:
            raise GuestFault(PF, code, va)
        self._mark(places, entries, kind is Kind.WRITE)
        span = 9 * (level - 1)
        gfn = (entry & ADDRESS) >> 12 >> span << span | va >> 12 & (1 << span) - 1
        self._reach(gfn, gfn << 12 | va & 0xFFF, kind is Kind.FETCH)
        assert self.tdp is not None and self.tdp.tree is not None
        return _combined(entries, gfn, span, self.memory.word(places[-1]), self.tdp.tree.allows(gfn, True))

    def _mark(self, places: list[int], entries: list[int], write: bool) -> None:
        """Set A in every entry, and D in the leaf on a write."""
        for place, entry in zip(places, entries, strict=True):
            wanted = entry | ACCESSED | (DIRTY if write and place == places[-1] else 0)
            if wanted != entry:
                self.memory.set_word(place, wanted)

    def _reach(self, gfn: int, gpa: int, fetch: bool, table: bool = False) -> None:
        """Make the frame reachable: what is not mapped is an exit."""
        assert self.tdp is not None and self.tdp.tree is not None
        if self.tdp.tree.allows(gfn, fetch):
            return
        if not self.backing.exists(gfn):
            raise NotModelled(f"the guest reaches {gpa:#x}, where it has no memory; the model has no devices")
        code = self._violation_code(fetch, table)
        self.exit(violation_exit(self.policy), *self._violation_info(code, gpa))
        self._page_fault_event(gpa, code)
        self.stats["pf_taken"] += 1
        mapped = self.tdp.map(gfn, fetch)
        self.stats["pf_fixed"] += 1
        if mapped.flushed:
            self.flush_all()
        self.enter()

    def _violation_code(self, fetch: bool, table: bool) -> int:
        """Exit qualification, or EXITINFO1: what was done. The walk itself writes, for A and D."""
        if self.policy.vendor is Vendor.INTEL:
            return 0x4 if fetch else 0x83 if table else 0x181
        return (0x1_0000_0000 | 0x14 if fetch else 0x2_0000_0006) if fetch or table else 0x1_0000_0004

    def _violation_info(self, code: int, gpa: int) -> tuple[int, int]:
        return (code, 0) if self.policy.vendor is Vendor.INTEL else (code, gpa)

    def _page_fault_event(self, address: int, code: int) -> None:
        if self.events is not None:
            self.event("kvm_page_fault", {"vcpu_id": 0, "fault_address": address, "error_code": code & 0xFFFF_FFFF})

    def _walk_shadow(self, va: int, kind: Kind, user: bool) -> Translation:
        assert self.shadow is not None
        for _ in range(_MOST_FAULTS):
            found = self.shadow.find(va)
            entry = 0
            if found is not None:
                rights = found.leaf.rights
                entry = PRESENT | (WRITABLE if rights & 2 else 0) | (USER if rights & 4 else 0)
                entry |= 0 if rights & 1 else NO_EXECUTE
            code = page_fault([entry], kind, user, self._hardware, 1)
            if code is None:
                assert found is not None
                self.shadow.used(found, kind is Kind.WRITE)
                span = 9 * (found.level - 1)
                gfn = found.leaf.gfn | va >> 12 & (1 << span) - 1
                return Translation(gfn, bool(rights & 2), bool(rights & 4), bool(rights & 1), True, span=12 + span)
            if self._shadow_fault(va, code, kind, user):
                return self._emulated(va, user)
        raise NotModelled(f"an access to {va:#x} does not get through its page faults; this is a fault of the model")

    def _shadow_fault(self, va: int, code: int, kind: Kind, user: bool) -> bool:
        """Exit for a page fault and have KVM answer it; True if the instruction is to be emulated.

        Raises:
            GuestFault: It is the guest's own.
        """
        assert self.shadow is not None
        reason = exception_exit(self.policy, PF)
        assert reason is not None
        self.exit(reason, code, va)
        self._page_fault_event(va, code)
        self.stats["pf_taken"] += 1
        outcome, guest_code = self.shadow.fault(va, code)
        if outcome == EMULATE:
            if kind is not Kind.WRITE:
                raise NotModelled(f"the guest reaches {va:#x}, where it has no memory; the model has no devices")
            self.stats["pf_emulate"] += 1
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

    def _emulated(self, va: int, user: bool) -> Translation:
        """Where KVM's emulator writes; the caller stores, then says :meth:`wrote`."""
        found = walk(self.memory, self.walker(), va, W | (4 if user else 0))
        if not isinstance(found, Walk):
            self.inject(PF, found)
            raise GuestFault(PF, found, va)
        self.emulating = True
        return Translation(found.gfn, False, user, False, False)

    def load(self, va: int, size: int, user: bool = False) -> int:
        """Read *size* bytes."""
        gpa = self.translate(va, Kind.READ, user)
        if (va & 0xFFF) + size <= 0x1000:
            return self.memory.read(gpa, size)
        first = 0x1000 - (va & 0xFFF)
        high = self.translate(va + first, Kind.READ, user)
        return self.memory.read(gpa, first) | self.memory.read(high, size - first) << 8 * first

    def store(self, va: int, value: int, size: int, user: bool = False) -> None:
        """Write the low *size* bytes of *value*."""
        first = min(size, 0x1000 - (va & 0xFFF))
        pieces = [(va, first)] if first == size else [(va, first), (va + first, size - first)]
        targets = [self.translate(at, Kind.WRITE, user) for at, _ in pieces]
        emulating, self.emulating = self.emulating, False
        for gpa, (at, length) in zip(targets, pieces, strict=True):
            self.memory.write(gpa, value >> 8 * (at - va), length)
            if emulating and self.shadow is not None:
                self.shadow.pages.written(gpa, length)
        if emulating:
            self.tlb.now.pop(va >> 12, None)
            self.enter()

    def fetch(self, va: int, user: bool = False) -> None:
        """Fetch an instruction."""
        self.translate(va, Kind.FETCH, user)

    # ---- exceptions and emulation

    def emulated_instruction(self) -> None:
        """KVM's emulator runs an instruction."""
        self.stats["insn_emulation"] += 1
        self.event("kvm_emulate_insn", {"rip": self.rip, "csbase": 0, "flags": 9, "failed": False})

    def skip_instruction(self) -> None:
        """KVM goes on behind the instruction that exited."""
        if self.policy.vendor is Vendor.AMD and not self.host.next_rip:
            self.emulated_instruction()
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
            self.cr0, self.cr2, self.cr3, self.cr4, self.cr8, self.efer, self.pkru, self.ac, self.dr_given,
            tuple(sorted(self.msrs.items())),
        )  # fmt: skip

    def rest_state(self) -> tuple[object, ...]:
        """All else that decides what happens next: translations, KVM's tables, memory."""
        mmu = self.tdp.state() if self.tdp is not None else self.shadow.state() if self.shadow is not None else None
        return self.tlb.state(), mmu, dict(self.memory.stored), self.backing.count(), frozenset(self._requests)

    def counters(self) -> dict[str, int]:
        """KVM's statistics by name: what is counted, and what there is now."""
        found = dict(self.stats)
        if self.tdp is not None:
            found["pages_4k"], found["pages_2m"], found["nx_lpage_splits"] = self.tdp.pages()
            found["mmu_cache_miss"] = self.tdp.made()
        elif self.shadow is not None:
            pages = self.shadow.pages
            found.update(pages.counts)
            found["pages_4k"], found["pages_2m"] = pages.leaves()
            found["nx_lpage_splits"] = pages.splits()
        return found


def _combined(entries: Iterable[int], gfn: int, span: int, leaf: int, host_executable: bool) -> Translation:
    writable = user = executable = True
    for entry in entries:
        writable &= bool(entry & WRITABLE)
        user &= bool(entry & USER)
        executable &= not entry & NO_EXECUTE
    return Translation(
        gfn, writable, user, executable, bool(leaf & DIRTY), (leaf & KEY) >> KEY_SHIFT, 12 + span,
        bool(leaf & GLOBAL), host_executable,
    )  # fmt: skip


def pcid_of(cr3: int) -> int:
    """Bits 11:0."""
    return cr3 & PCID


def keeps_global(cr4: int) -> bool:
    """Whether a load of CR3 leaves global translations."""
    return bool(cr4 & _PGE)
