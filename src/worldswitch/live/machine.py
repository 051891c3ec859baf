"""Run the image of a guest program on this host's KVM: one fresh VM, one run, nothing left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from worldswitch.errors import MissingError, UsageError
from worldswitch.guest.image import AREA_SIZE, Entry, Image, N, Report, read_report
from worldswitch.live import alarm, ioctl, module
from worldswitch.live.cpuid import guest_cpuid
from worldswitch.live.device import Kvm, Vcpu, Vm
from worldswitch.live.memory import GuestMemory, copies
from worldswitch.live.pinning import pinned
from worldswitch.live.runloop import Ran, Running, run_vcpu
from worldswitch.live.state import enter_with
from worldswitch.live.statsfd import delta, open_statistics
from worldswitch.live.threads import run_threads
from worldswitch.x86.features import AMD_VENDORS, CpuidEntry, vendor


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        counters: KVM's statistics of the VM and, summed, its vCPUs: what was counted while it ran, and states
            (``pages_2m``, ``nx_lpage_splits``) as they were at its end. Empty where the kernel gives none.
        source: Where they are from: ``"KVM_GET_STATS_FD"``, ``"debugfs"``, None.
        instants: Which of them are states.
        userspace_exits: KVM_EXIT name without the prefix -> how often; KVM_RUN ended by a signal is not among them.
        reports: What each vCPU left behind; None for a bare program.
        wall_ns: From the first entry to the last vCPU's end.
        eintr: How often a signal interrupted KVM_CREATE_VM or KVM_RUN, which was then called again.
        tsc_khz: The guests' TSC frequency; None where KVM does not know it.
        memory: Guest-physical address -> bytes, of the ranges asked for.
    """

    counters: dict[str, int]
    source: str | None
    instants: frozenset[str]
    userspace_exits: dict[str, int]
    reports: tuple[Report | None, ...]
    wall_ns: int
    eintr: int
    tsc_khz: int | None
    memory: dict[int, bytes] = field(default_factory=dict)


def run_image(
    kvm: Kvm,
    image: Image,
    n: int,
    *,
    cpuid_hide: Sequence[str] = (),
    cpuid_show: Sequence[str] = (),
    cpuid: Sequence[CpuidEntry] | None = None,
    deadline_s: float = 10.0,
    cpus: Sequence[int] = (),
    prefault: bool = False,
    keep: Sequence[tuple[int, int]] = (),
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Outcome:
    """Run *image* with *n* passes in a VM of its own. A single vCPU runs in the calling thread, several in one each.

    Args:
        kvm: The device, which may serve any number of runs.
        image: From the assembler, or a file.
        n: Passes of the body.
        cpuid_hide, cpuid_show: CPUID features taken from, and added to, what KVM offers.
        cpuid: The whole CPUID instead; then nothing is checked, hidden or shown.
        deadline_s: Seconds after which a guest that still runs is stopped.
        cpus: Host CPUs to pin the vCPUs to, used in turn; none leaves them where they are.
        prefault: Back the guest's memory before it runs.
        keep: Ranges of guest-physical memory, (address, size), to give back.
        around: Entered just before the guest and left just after it.

    Raises:
        GuestError: The guest did not come to its end.
        NoFeatureError: It needs a CPUID feature this host does not offer.
        NoKvmError, MissingError: KVM, memory or a CPU is lacking.
        UsageError: The image or the arguments contradict themselves.
    """
    if not 0 <= n < 1 << 63:
        raise UsageError(f"n is a number of passes, 0 or more, not {n}")
    if cpuid is None:
        cpuid = guest_cpuid(kvm, image, hidden=cpuid_hide, shown=cpuid_show)
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(GuestMemory(image.regions, prefault=prefault))
        memory.load(image, amd=vendor(cpuid) in AMD_VENDORS)
        vm = stack.enter_context(kvm.create_vm())
        if module.vendor_module() == "kvm_intel":
            vm.reserve_for_real_mode()
        memory.give(vm)
        vcpus = [stack.enter_context(vcpu) for vcpu in _vcpus(vm, image, memory, cpuid, n)]
        statistics = stack.enter_context(open_statistics(vm, vcpus))
        running = Running(image, memory, 0.0, deadline_s)
        with around():
            before = statistics.read() if statistics else {}
            rans, wall = _run(vcpus, running, cpus)
            after = statistics.read() if statistics else {}
        instants = statistics.instants if statistics else frozenset()
        return Outcome(
            counters=delta(before, after, instants),
            source=statistics.source if statistics else None,
            instants=instants,
            userspace_exits=_named(rans),
            reports=tuple(_report(image, entry, memory) for entry in image.entries),
            wall_ns=wall,
            eintr=vm.eintr + sum(ran.eintr for ran in rans),
            tsc_khz=vcpus[0].tsc_khz(),
            memory=copies(memory, keep),
        )


def _vcpus(vm: Vm, image: Image, memory: GuestMemory, cpuid: Sequence[CpuidEntry], n: int) -> Iterator[Vcpu]:
    if not image.entries:
        raise UsageError(f"the image {image.name} has no vCPU")
    for number, entry in enumerate(image.entries):
        vcpu = vm.create_vcpu(number)
        yield vcpu
        try:
            vcpu.set_cpuid(cpuid)
        except OSError as error:
            raise MissingError(
                f"KVM refuses the guest's CPUID: {error.strerror}; show and hide fewer features"
            ) from None
        if entry.area is not None:
            memory.write(entry.area + N, n.to_bytes(8, "little"))
        enter_with(vcpu, entry, n)


def _report(image: Image, entry: Entry, memory: GuestMemory) -> Report | None:
    return None if entry.area is None else read_report(image, entry, memory.read(entry.area, AREA_SIZE))


def _named(rans: Sequence[Ran]) -> dict[str, int]:
    total: dict[str, int] = {}
    for ran in rans:
        for number, count in ran.exits.items():
            name = ioctl.EXITS.get(number, str(number))
            total[name] = total.get(name, 0) + count
    return total


def _run(vcpus: Sequence[Vcpu], running: Running, cpus: Sequence[int]) -> tuple[list[Ran], int]:
    """Run all of them to their ends; how each ran, and the nanoseconds it took."""
    with alarm.kicks() as number:
        if len(vcpus) > 1:
            return run_threads(vcpus, running, cpus, number)
        ran = Ran()
        with pinned(cpus[:1]), alarm.alarm(number, running.seconds):
            running.deadline = time.monotonic() + running.seconds
            start = time.perf_counter_ns()
            run_vcpu(vcpus[0], running.image.entries[0], running, ran)
            return [ran], time.perf_counter_ns() - start
