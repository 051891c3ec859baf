"""The executable KVM: what a guest program does under a policy, in KVM's own counters.

:func:`run` executes the operations of a program as they stand. Of the code the assembler puts around them it takes what
can leave the guest or be seen in it: the pages that code, stack, descriptor tables and results lie on, and how an
exception is recorded, fixed and resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worldswitch.errors import MissingError
from worldswitch.guest.check import features
from worldswitch.guest.image import MAX_FAULTS, Entry, Image, Report
from worldswitch.guest.program import Mode, Program
from worldswitch.kvm.backing import Backing, Slot
from worldswitch.kvm.execute import Guest
from worldswitch.kvm.host import Host
from worldswitch.kvm.intercepts import Reason
from worldswitch.kvm.machine import INSTANTS, GuestFault, Machine, NotModelled
from worldswitch.kvm.offers import offers, why_not
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.recurrence import repeat
from worldswitch.kvm.turns import Turns
from worldswitch.kvm.vectoring import Ended
from worldswitch.kvm.vm import Vm
from worldswitch.x86.control import Registers
from worldswitch.x86.exits import reason_name
from worldswitch.x86.memory import Memory

if TYPE_CHECKING:
    from worldswitch.record.trace import Trace

_PAGE = 4096
_NO_STATISTIC = frozenset(("root_loads", "root_unloads", "mmu_resets"))


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave.

    Attributes:
        n: Passes of the body.
        exits_by_reason: Reason, as kvm_exit prints it -> how often; as all counts, of all vCPUs together.
        counters: Counters by KVM's names, as ``KVM_GET_STATS_FD`` has them from 6.1 on, whatever the kernel, and those
            of its own: ``root_loads``, ``root_unloads``, ``mmu_resets``.
        userspace_exits: KVM_EXIT name without the prefix -> how often.
        reports: What each vCPU left behind, in the form of an image's; None for a bare program. Its cycles are 0, for
            nothing here has a time, and values the model cannot know (CPUID, devices) are absent.
        rows: The events in order, name and fields, if they were asked for.
        ended: What KVM ended the VM of before its program's end, empty if it did not; then there are no reports.
        turns: Where in *rows* those of another vCPU begin, and which it is; the first are vCPU 0's.
        executed: Passes that were executed one by one; the rest repeated states seen before.
    """

    n: int
    exits_by_reason: Mapping[str, int]
    counters: Mapping[str, int]
    userspace_exits: Mapping[str, int]
    reports: tuple[Report | None, ...]
    rows: tuple[tuple[str, Mapping[str, Any]], ...] | None = field(default=None, repr=False)
    executed: int = 0
    turns: tuple[tuple[int, int], ...] = ()
    ended: str = ""

    @property
    def exits(self) -> int:
        """All exits."""
        return self.counters["exits"]

    def trace(self) -> Trace:
        """The events as a recording: numbered, a nanosecond apart, of a thread for each vCPU.

        Raises:
            ValueError: The run kept none.
        """
        from worldswitch.kvm.recording import trace_of

        if self.rows is None:
            raise ValueError("the run kept no events; run it with record=True")
        return trace_of(self.rows, self.turns)


def run(
    program: Program,
    policy: Policy,
    n: int | None = None,
    *,
    host: Host | None = None,
    image: Image | None = None,
    record: bool = False,
    whole: bool = False,
    interrupted: frozenset[int] = frozenset(),
) -> Run:
    """Execute *program* with *n* passes of its body (by default its own).

    Several vCPUs take turns: see :mod:`worldswitch.kvm.turns`.

    Args:
        host: Conditions besides the policy.
        image: Of the same program, where it is assembled already.
        record: Keep the events; then every pass is executed.
        whole: Execute every pass, even where the state recurs and the rest follows.
        interrupted: Numbers of exits, from 0, before which interrupts of the host's led to others, of a single vCPU;
            heard where they decide about what comes next, and then every pass is executed.

    Raises:
        MissingError: The policy's guest lacks a CPUID feature the program needs.
        NotModelled: A program that leaves what is followed here.
        ProgramError: It cannot be assembled.
    """
    _check_features(program, policy)
    if image is None:
        from worldswitch.guest.assemble import assemble

        image = assemble(program)
    n = program.default_n if n is None else n
    vm = _vm(program, policy, host or Host(), image, record)
    whole = whole or record
    machines = [_machine(vm, entry) for entry in image.entries]
    for machine in machines:
        if machine.retries is not None:
            machine.retries.interrupted = interrupted
            whole = whole or bool(interrupted)
    guests = [Guest(machine, program, image, whole) for machine in machines]
    run = guests[0] if len(guests) == 1 else Turns(vm, guests)
    try:
        run.start()
        executed = repeat(run, n, run.body, whole)
        run.finish()
    except Ended as error:
        return _result(guests, vm, n, 0, str(error))
    except GuestFault as fault:
        raise NotModelled(
            f"{program.name}: vector {fault.vector} (error code {fault.code:#x}, address {fault.cr2:#x}) comes where "
            "no handler can be reached, which is a double fault, or outside of any operation"
        ) from None
    return _result(guests, vm, n, executed)


def _check_features(program: Program, policy: Policy) -> None:
    missing = sorted(name for name in features(program) if not offers(policy, name))
    if missing:
        reasons = "; ".join(dict.fromkeys(why_not(policy, name) for name in missing))
        raise MissingError(
            f"program {program.name} needs {', '.join(missing)}, which KVM of {policy.kernel} does not offer to guests "
            f"on {policy.vendor} with mmu {policy.mmu} and these settings: {reasons}"
        )


def _vm(program: Program, policy: Policy, host: Host, image: Image, record: bool) -> Vm:
    segments = [(segment.gpa, segment.data) for segment in image.segments]
    memory = Memory(program.memory, segments)
    loaded = memory.loaded_pages()
    loaded.update(entry.area // _PAGE for entry in image.entries if entry.area is not None)
    slots = [Slot(r.gpa // _PAGE, (r.gpa + r.size) // _PAGE, r.huge and host.huge_pages) for r in image.regions]
    return Vm(policy, host, memory, Backing(slots, loaded), record, program.mode is not Mode.FLAT)


def _machine(vm: Vm, entry: Entry) -> Machine:
    return Machine(vm, Registers(entry.cr0, entry.cr3, entry.cr4, entry.efer))


def _result(guests: Sequence[Guest], vm: Vm, n: int, executed: int, ended: str = "") -> Run:
    reasons: Counter[Reason] = Counter()
    userspace: Counter[str] = Counter()
    found = Counter(vm.counters())
    for guest in guests:
        found.update(guest.m.counters())
        reasons.update(guest.m.reasons)
        userspace.update(guest.m.userspace)
    counters = {"exits": sum(reasons.values()), **dict.fromkeys(sorted(_NO_STATISTIC), 0)}
    counters.update((name, value) for name, value in found.items() if value or name in INSTANTS)
    return Run(
        n,
        {reason_name(*reason): count for reason, count in sorted(reasons.items()) if count},
        counters,
        dict(userspace),
        tuple(None if ended else _report(guest, n) for guest in guests),
        None if vm.events is None else tuple(vm.events),
        executed,
        tuple(vm.turns),
        ended,
    )


def _report(guest: Guest, n: int) -> Report | None:
    if guest.entry.area is None:
        return None
    return Report(n, 0, guest.faults, guest.retries, tuple(guest.log[:MAX_FAULTS]), dict(guest.values))
