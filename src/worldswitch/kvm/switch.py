# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""The world switch of one vCPU: its registers, what KVM keeps beside them, and the way out of the guest and back.

Where the processor leaves the guest, :meth:`Switch.exit` and :meth:`Switch.enter` stand around what KVM does, and
count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from worldswitch.kvm.control_registers import Flush, Outcome
from worldswitch.kvm.effects import Effect
from worldswitch.kvm.guest_walk import Walker
from worldswitch.kvm.intercepts import Reason, exception_exit, violation_exit
from worldswitch.kvm.mmu_events import root_loaded
from worldswitch.kvm.permissions import Permissions
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import permissions, shadow_root_role, tree_role
from worldswitch.kvm.shadow import Shadow
from worldswitch.kvm.shadow_events import fetch_told
from worldswitch.kvm.tdp import Tdp
from worldswitch.kvm.vectoring import Retries, taken_for_vectoring
from worldswitch.kvm.vm import Vm
from worldswitch.x86.access import Controls, pdpte_reserved
from worldswitch.x86.control import Registers
from worldswitch.x86.exceptions import PAGE_FAULT
from worldswitch.x86.paging import ADDRESS, PDPT, PRESENT
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask
from worldswitch.x86.tlb import Tlb
from worldswitch.x86.verdicts import Verdicts

T = TypeVar("T")
REQUESTS = {"reload": 1, "flush": 2, "sync": 4, "guest": 8, "current": 16}
"""What may be asked to be done before the next entry, as bits."""
# Constants of loops are C variables, declared in the .pxd.
_WP = bit_mask(CR0, "WP")
_LA57, _SMEP = bit_mask(CR4, "LA57"), bit_mask(CR4, "SMEP")
_SMAP, _PKE = bit_mask(CR4, "SMAP"), bit_mask(CR4, "PKE")
_NXE = bit_mask(EFER, "NXE")
_RELOAD, _FLUSH, _SYNC, _GUEST, _CURRENT = (REQUESTS[name] for name in ("reload", "flush", "sync", "guest", "current"))
_MODES = 64
"""Settings of the six bits that decide about accesses, PKRU aside."""
_MOST_ROLES = 8
_COUNTED_APART = ("tlb_flush", "root_loads", "root_unloads", "mmu_resets", "remote_tlb_flush_requests")
"""What the MMU counts when it does something, again too; all else is part of an instruction's effect."""


class Noted:
    """What an instruction has the MMU do: roots unloaded, requests, a flush of the processor's, then an entry.

    Attributes:
        entered: How often the guest was entered.
        simple: All of it was in that order, so it can be repeated.
    """

    __slots__ = ("_calls", "_flushes", "entered", "flushed", "requests", "reset", "simple", "unloaded")

    def __init__(self, m: Switch) -> None:
        self.requests = self.entered = 0
        self.unloaded = self.reset = self.flushed = False
        self.simple = not m.injects_again and not m.asked
        self._flushes, self._calls = m.tlb.flushes, m.mmu_calls

    def unloads(self, reset: bool) -> None:
        """Roots are unloaded, at most once and before anything is requested."""
        self.simple = self.simple and not (self.unloaded or self.requests or self.entered)
        self.unloaded, self.reset = True, reset
        self._calls += 1

    def asks(self, bit: int) -> None:
        """Something is requested; not what concerns other vCPUs too."""
        self.simple = self.simple and not bit & (_RELOAD | _FLUSH)
        self.requests |= bit
        self._calls += 1

    def enters(self, m: Switch) -> None:
        """The guest is entered, the last thing to happen to the MMU."""
        self.simple = self.simple and self.entered == 0 and m.asked == self.requests and m.mmu_calls == self._calls
        self.entered += 1
        self.flushed = m.tlb.flushes != self._flushes

    def has_entered(self, m: Switch) -> None:
        """All that was to be done before the entry is done."""
        self._calls = m.mmu_calls

    def ends(self, m: Switch) -> None:
        """The instruction is over."""
        self.simple = self.simple and m.mmu_calls == self._calls
        if not self.entered:
            self.flushed = m.tlb.flushes != self._flushes
            self.simple = self.simple and not self.unloaded and not self.requests


class RoleThen:
    """The role of roots that went with some registers."""

    __slots__ = ("cr0", "cr3", "cr4", "efer", "role")

    def __init__(self, m: Switch, role: Any) -> None:
        self.cr0, self.cr3, self.cr4, self.efer, self.role = m.cr0, m.cr3, m.cr4, m.efer, role


class Switch:
    """A vCPU.

    Args:
        vm: Its VM, which takes it up.
        now: The registers it is entered with.

    Attributes:
        number: Which of the VM's it is.
        flat: The guest has paging off.
        pae: It has PAE paging.
        pdptes: Then its four PDPTEs, as the processor loaded them or, of shadow paging and registers KVM sees, KVM did;
            with NPT the processor reads them from memory at each walk (APM volume 2, "Legacy PAE Mode").
        reasons: Exits by reason; their sum is the statistic ``exits``.
        stats: KVM's statistics by name, and root_loads, root_unloads, mmu_resets.
        userspace: Exits to userspace by KVM_EXIT name.
        events: Rows (event, fields) of the VM in order, None if they are not kept.
        rip: What events give as guest_rip.
        reaching: The exit of an access to a frame that is not mapped.
        dr_given: The guest has the debug registers since the last exit.
        delivered: An event was delivered since the last exit, and *retries* asks whether.
        retries: Where KVM may take exits for those while an event is delivered: what comes of them.
        judged: Register writes judged before, by all that decides about them.
        mmu_calls: How often KVM was asked for a flush, roots or a mapping.
        noted: What an instruction has the MMU do, while that is noted.
        effects: What instructions were seen to do, not all of it counted yet; see :meth:`settle`.
    """

    def __init__(self, vm: Vm, now: Registers) -> None:
        self.vm, self.number = vm, vm.add(self)
        policy, host, memory, backing = vm.policy, vm.host, vm.memory, vm.backing
        self.policy, self.host, self.memory, self.backing = policy, host, memory, backing
        self.cr0, self.cr3, self.cr4, self.efer = now.cr0, now.cr3, now.cr4, now.efer
        self.cr2 = self.cr8 = self.pkru = self.rip = self.mmu_calls = 0
        self.ac = self.dr_given = self.emulating = self.injects_again = self.delivered = False
        self.msrs: dict[int, int] = {}
        self.reasons: Counter[Reason] = Counter()
        self.stats: Counter[str] = Counter()
        self.userspace: Counter[str] = Counter()
        self.effects: list[Effect] = []
        self.events = vm.events
        self.tlb = Tlb()
        self.asked = 0
        self.noted: Noted | None = None
        self._flushes = self._loads = self._unloads = self._resets = self._remote = 0
        self._roles: list[RoleThen] = []
        self.pae = now.pae
        self.pdptes = self._pdptes_at(now.cr3) if self.pae else ()
        self._guest: Verdicts | None = None
        self._hardware: Verdicts | None = None
        self._modes: dict[tuple[int, int], tuple[Verdicts, Verdicts]] = {}
        self._recent: list[tuple[Verdicts, Verdicts] | None] = [None] * _MODES
        self._recent_pkru = 0
        self.judged: dict[tuple[int, ...], tuple[Outcome, bool]] = {}
        self._answers: dict[object, Any] = {}
        self._permissions: Permissions | None = None
        self.reaching = exception_exit(policy, PAGE_FAULT) or violation_exit(policy)
        self.flat = not vm.paging
        self.tdp = Tdp(policy, host, backing, vm.trees) if vm.pages is None else None
        self.shadow = None if vm.pages is None else Shadow(policy, host, backing, memory, self.walker, vm.pages)
        asks = self.shadow is not None and taken_for_vectoring(policy, host)
        self.retries = Retries(self.shadow, memory) if asks and self.shadow is not None else None

    # ---- registers

    @property
    def now(self) -> Registers:
        """The registers that judge each other."""
        return Registers(self.cr0, self.cr3, self.cr4, self.efer, not self.flat)

    def mode_changed(self) -> None:
        """Some bit that decides about accesses is another one now."""
        self._guest = self._hardware = self._permissions = None

    @property
    def controls(self) -> Controls:
        """The guest's bits that decide about accesses."""
        if self._guest is None:
            self._find_mode()
        assert self._guest is not None
        return self._guest.controls

    def _find_mode(self) -> None:
        """The answers for the guest's bits, and for those as the processor has them.

        With shadow paging that has WP and NXE set in any case.
        """
        bits = (1 if self.cr0 & _WP else 0) | (2 if self.cr4 & _SMEP else 0) | (4 if self.cr4 & _SMAP else 0)
        bits |= (8 if self.cr4 & _PKE else 0) | (16 if self.efer & _NXE else 0) | (32 if self.ac else 0)
        if self._recent_pkru != self.pkru:
            self._recent, self._recent_pkru = [None] * _MODES, self.pkru
        found = self._recent[bits]
        if found is None:
            found = self._modes.get((bits, self.pkru))
            if found is None:
                wp, smep, smap, pke, nxe = (bool(bits & 1 << place) for place in range(5))
                guest = Controls(wp, smep, smap, pke, nxe, self.ac, self.pkru, keys=not self.pae)
                hardware = guest if self.tdp is not None else guest._replace(wp=True, nxe=True)
                found = self._modes[bits, self.pkru] = (Verdicts(guest), Verdicts(hardware))
            self._recent[bits] = found
        self._guest, self._hardware = found

    @property
    def levels(self) -> int:
        """Levels of the guest's page tables; with PAE paging those below its PDPTEs."""
        if self.pae:
            return 2
        return 5 if self.cr4 & _LA57 else 4

    @property
    def linear_bits(self) -> int:
        """Bits of a canonical address.

        For WRMSR it is the processor that says how many, not CR4.LA57 (SDM volume 1, 3.3.7.1); here it has 5-level
        paging if the guest has it on.
        """
        return 57 if self.cr4 & _LA57 else 48

    def walker(self) -> Walker:
        """What KVM needs to walk the guest's tables now."""
        if self._permissions is None:
            self._permissions = self._of_registers(permissions)
        c = self.controls
        return Walker(self.cr3 & ADDRESS, self.levels, c, self._permissions, c.nxe or c.smep, self.pdptes)

    def _pdptes_at(self, cr3: int) -> tuple[int, ...]:
        return tuple([self.memory.word((cr3 & PDPT) + 8 * i) for i in range(4)])

    def load_pdptes(self, cr3: int) -> bool:
        """Take the PDPTEs that lie at *cr3*; False, and none taken, if a present one has a reserved bit set."""
        found = self._pdptes_at(cr3)
        if any(one & PRESENT and pdpte_reserved(one, self.controls) for one in found):
            return False
        self.mmu_calls += 1
        self.pdptes = found
        return True

    def _of_registers(self, rule: Callable[[Policy, Registers], T]) -> T:
        """What a rule makes of the registers now; it is asked once for each setting of them."""
        key = (rule, self.cr0, self.cr3, self.cr4, self.efer)
        if key not in self._answers:
            self._answers[key] = rule(self.policy, self.now)
        found: T = self._answers[key]
        return found

    def _role(self, rule: Callable[[Policy, Registers], T]) -> T:
        """What *rule* makes of the registers now, of which a switch asks one; as before if they were so lately."""
        for then in self._roles:
            if then.cr0 == self.cr0 and then.cr4 == self.cr4 and then.cr3 == self.cr3 and then.efer == self.efer:
                same: T = then.role
                return same
        if len(self._roles) >= _MOST_ROLES:
            self._roles.clear()
        role = self._of_registers(rule)
        self._roles.append(RoleThen(self, role))
        return role

    # ---- leaving and entering the guest

    def exit(self, reason: Reason, info1: int = 0, info2: int = 0) -> None:
        """Leave the guest."""
        self.reasons[reason] += 1
        self.dr_given = self.delivered = False
        if self.events is not None:
            row = {"exit_reason": reason[1], "guest_rip": self.rip, "isa": reason[0], "info1": info1, "info2": info2}
            self.event("kvm_exit", {**row, "vcpu_id": self.number})

    def enter(self) -> None:
        """Enter the guest, once all that was asked for has been done."""
        noted, self.noted = self.noted, None
        if noted is not None:
            noted.enters(self)
        while self.asked or not self._loaded():
            self._serve()
        if noted is not None:
            noted.has_entered(self)
            self.noted = noted
        if self.injects_again:
            self.emulated_instruction()
        if self.events is not None:
            self.event("kvm_entry", {"vcpu_id": self.number, "rip": self.rip})

    def kicked(self) -> None:
        """Do what was asked for meanwhile by other vCPUs."""
        if self.asked and self._loaded():
            self.dr_given = self.delivered = False
            while self.asked or not self._loaded():
                self._serve()

    def emulated_instruction(self) -> None:
        """KVM's emulator runs an instruction."""
        self.stats["insn_emulation"] += 1
        if self.events is not None and self.shadow is not None and not self.host.decode_assists:
            fetch_told(self.events, self.memory, self.walker(), self.rip)
        self.event("kvm_emulate_insn", {"rip": self.rip, "csbase": 0, "flags": 9, "failed": False})

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
        self.mmu_calls += 1
        bit: int = REQUESTS[what]
        self.asked |= bit
        if self.noted is not None:
            self.noted.asks(bit)

    def flush(self, flush: Flush) -> None:
        """Request the flush a register write asks for."""
        if flush is not Flush.NONE:
            self.request("current" if flush is Flush.CURRENT else "guest")

    def flush_all(self) -> None:
        """KVM has every vCPU flush: kvm_flush_remote_tlbs."""
        self._remote += 1
        for vcpu in self.vm.vcpus:
            vcpu.request("flush")

    def unload(self, reset: bool = False) -> None:
        """Drop all roots; *reset*: as part of kvm_mmu_reset_context."""
        self.mmu_calls += 1
        if self.noted is not None:
            self.noted.unloads(reset)
        self._resets += reset
        self._unloads += self._loaded()
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
        requests, self.asked = self.asked, 0
        if requests & _RELOAD:
            self.unload()
        if requests & _FLUSH:
            self._flush_now()
            requests &= ~_CURRENT
        if self.shadow is not None and self._loaded():
            if requests & _SYNC:
                self.shadow.sync()
            if requests & _GUEST:
                self.shadow.sync()
                self.shadow.sync_previous()
        if requests & _CURRENT:
            self._flush_now()
        if requests & _GUEST:
            self._flush_now()
        if not self._loaded():
            self._load()

    def _flush_now(self) -> None:
        self._flushes += 1
        self.tlb.flush_all()

    def _load(self) -> None:
        self.mmu_calls += 1
        self._loads += 1
        if self.tdp is not None:
            self.tdp.load(self._role(tree_role))
            if self.events is not None and self.policy.tdp and self.tdp.tree is not None:
                self.events += root_loaded(self.policy, self.host, self.now, self.tdp.tree)
        else:
            assert self.shadow is not None
            self.shadow.load(self.cr3, self._role(shadow_root_role), self.pdptes)
        self.tlb.flush_all()

    # ---- counters

    def settle(self) -> None:
        """Count what effects that repeated themselves have not counted yet; before reading any counter."""
        for effect in self.effects:
            effect.settle(self)
        done = (self._flushes, self._loads, self._unloads, self._resets, self._remote)
        for name, value in zip(_COUNTED_APART, done, strict=True):
            if value:
                self.stats[name] += value
        self._flushes = self._loads = self._unloads = self._resets = self._remote = 0

    def note(self) -> Noted:
        """Note what the next instruction has the MMU do."""
        self.noted = Noted(self)
        return self.noted

    def repeat_noted(self, noted: Noted) -> None:
        """Have the MMU do again what an instruction had it do."""
        if noted.unloaded:
            self.unload(noted.reset)
        if noted.requests:
            self.mmu_calls += 1
            self.asked |= noted.requests
        if noted.flushed:
            self.tlb.flush_all()
        if noted.entered:
            self.enter()

    def counters(self) -> dict[str, int]:
        """KVM's statistics by name, of this vCPU: what is counted."""
        self.settle()
        return dict(self.stats)
