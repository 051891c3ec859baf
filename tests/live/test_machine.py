from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from live.fakes import FakeDevice, supported
from live.images import AREA, CODE, MEMORY, TOGGLE_WP, image
from worldswitch.errors import MissingError, UsageError
from worldswitch.guest.image import N, Segment
from worldswitch.live import ioctl
from worldswitch.live.device import Kvm
from worldswitch.live.errors import (
    FailEntryError,
    GuestError,
    GuestHungError,
    InternalErrorError,
    NoCapabilityError,
    NoFeatureError,
    TripleFaultError,
    UnexpectedExitError,
)
from worldswitch.live.machine import run_image

HALT = image("f4")
HANG = image("ebfe f4")
UD2 = image("0f0b f4", operations={0x77: "vcpu 0 body 2"})
HALTS = image("e303 f4 e2fd f4")
"""jrcxz end; L: hlt; loop L; hlt."""
READS = image("e304 e480 e2fc f4")
"""L: in al,0x80; loop L."""
END = HALT.entries[0].end


def faked(*runs: int | tuple[str, bytes], **rest: object) -> Kvm:
    return Kvm(FakeDevice(runs, rip=END, **rest))  # type: ignore[arg-type]


class TestAnswers:
    """What a KVM that nobody has here answers, and what is made of it."""

    def test_a_failed_entry_tells_the_processors_reason(self) -> None:
        # Basic reason 33 with bit 31: VM-entry failure due to invalid guest state (SDM volume 3, section 26.8).
        with (
            faked(("FAIL_ENTRY", struct.pack("<QI", 0x80000021, 3))) as kvm,
            pytest.raises(FailEntryError, match=r"CPU 3.*invalid guest state \(0x80000021\)"),
        ):
            run_image(kvm, HALT, 0)

    def test_amds_invalid_state_has_its_own_number(self) -> None:
        with (
            faked(("FAIL_ENTRY", struct.pack("<QI", 0xFFFFFFFFFFFFFFFF, 0))) as kvm,
            pytest.raises(FailEntryError, match="VMEXIT_INVALID"),
        ):
            run_image(kvm, HALT, 0)

    def test_an_instruction_kvm_cannot_emulate_is_shown(self) -> None:
        # kvm_run.emulation_failure: ndata 3, flags 1 (instruction bytes), their number and 15 of them.
        union = struct.pack("<IIQB15s", 1, 3, 1, 4, bytes.fromhex("66 0f ae f0 90"))
        with (
            faked(("INTERNAL_ERROR", union)) as kvm,
            pytest.raises(
                InternalErrorError, match=r"does not know an instruction \(suberror 1\), at the bytes 66 0f ae f0;"
            ),
        ):
            run_image(kvm, HALT, 0)

    def test_other_internal_errors_show_their_data(self) -> None:
        union = struct.pack("<II2Q", 3, 2, 0x80000B0E, 0x31)
        with (
            faked(("INTERNAL_ERROR", union)) as kvm,
            pytest.raises(
                InternalErrorError, match=r"while an event was delivered \(suberror 3\), data 0x80000b0e 0x31"
            ),
        ):
            run_image(kvm, HALT, 0)

    @pytest.mark.parametrize("name", ["UNKNOWN", "SYSTEM_EVENT", "DIRTY_RING_FULL"])
    def test_exits_nothing_asks_for_are_named(self, name: str) -> None:
        with faked((name, struct.pack("<QQ", 2, 0))) as kvm, pytest.raises(UnexpectedExitError) as caught:
            run_image(kvm, HALT, 0)
        assert (name if name != "SYSTEM_EVENT" else "system event 2") in str(caught.value)

    def test_memory_kvm_cannot_reach_is_told(self) -> None:
        class Faulting(FakeDevice):
            def _run(self) -> int:
                self.runs.insert(0, ("MEMORY_FAULT", struct.pack("<QQQ", 8, 0x200000, 0x1000)))
                super()._run()
                return -errno.EFAULT

        with Kvm(Faulting()) as kvm, pytest.raises(GuestError, match=r"0x1000 bytes of guest memory at 0x200000"):
            run_image(kvm, HALT, 0)

    def test_harmless_exits_are_counted_and_entered_again(self) -> None:
        names = (
            "DEBUG",
            "INTR",
            "IRQ_WINDOW_OPEN",
            "SET_TPR",
            "X86_BUS_LOCK",
            "X86_WRMSR",
            "MMIO",
            "HYPERCALL",
            "NOTIFY",
        )
        with faked(*((name, bytes(32)) for name in names), -errno.EINTR, -errno.EAGAIN, ("HLT", b"")) as kvm:
            outcome = run_image(kvm, HALT, 0)
        assert outcome.userspace_exits == {**dict.fromkeys(names, 1), "HLT": 1}
        assert outcome.eintr == 1

    @pytest.mark.parametrize(
        ("name", "union", "answered"),
        [
            ("X86_RDMSR", struct.pack("<B7xIIQ", 1, 2, 0x10, 5), struct.pack("<B7xIIQ", 0, 2, 0x10, 0)),
            (
                "MMIO",
                struct.pack("<Q8sIB", 0xFEE0, b"\xff" * 8, 4, 0),
                struct.pack("<QI4sI", 0xFEE0, 0, b"\xff" * 4, 4),
            ),
            ("MMIO", struct.pack("<Q8sIB", 0xFEE0, b"\xff" * 8, 4, 1), struct.pack("<Q8sI", 0xFEE0, b"\xff" * 8, 4)),
            ("HYPERCALL", b"\xff" * 64, b"\xff" * 56 + bytes(8)),
        ],
    )
    def test_reads_of_msrs_devices_and_hypercalls_give_0(self, name: str, union: bytes, answered: bytes) -> None:
        device = FakeDevice([(name, union), ("HLT", b"")], rip=END)
        with Kvm(device) as kvm:
            run_image(kvm, HALT, 0)
        assert device.unions[1].startswith(answered)

    def test_a_cpuid_or_a_state_kvm_refuses(self) -> None:
        with faked(refuse={ioctl.SET_CPUID2: errno.EINVAL}) as kvm, pytest.raises(MissingError, match="CPUID"):
            run_image(kvm, HALT, 0)
        with (
            faked(refuse={ioctl.SET_SREGS: errno.EINVAL}) as kvm,
            pytest.raises(GuestError, match=r"CR4 0x20.*bit"),
        ):
            run_image(kvm, HALT, 0)
        with (
            faked(refuse={ioctl.SET_USER_MEMORY_REGION: errno.EEXIST}) as kvm,
            pytest.raises(MissingError, match="slot 0"),
        ):
            run_image(kvm, HALT, 0)

    def test_a_kvm_that_drops_paging_outside_long_mode_is_told(self) -> None:
        # The fake's KVM_GET_SREGS gives zeros, whatever was set.
        entry = replace(HALT.entries[0], long=False, efer=0)
        with faked(("HLT", b"")) as kvm, pytest.raises(NoCapabilityError, match=r"dropped CR0\.PG"):
            run_image(kvm, replace(HALT, entries=(entry,)), 0)

    def test_nothing_stays_open_whatever_fails(self) -> None:
        for refused in (ioctl.SET_CPUID2, ioctl.SET_SREGS, ioctl.SET_USER_MEMORY_REGION, ioctl.CREATE_VCPU, ioctl.RUN):
            with faked(refuse={refused: errno.ENOMEM}) as kvm:
                device = kvm.device
                with pytest.raises(MissingError):
                    run_image(kvm, HALT, 0)
                assert isinstance(device, FakeDevice)
                assert device.opened == [kvm.fd]

    def test_vmcalls_are_made_amds_for_an_amd_guest_only(self) -> None:
        code = image("0f01c1 f4", vmcalls=(CODE,))
        end = code.entries[0].end
        for vendor, wanted in ((b"AuthenticAMD", "0f01d9"), (b"HygonGenuine", "0f01d9"), (b"GenuineIntel", "0f01c1")):
            with Kvm(FakeDevice([("HLT", b"")], rip=end, cpuid=supported(vendor))) as kvm:
                outcome = run_image(kvm, code, 0, keep=[(CODE, 3)])
            assert outcome.memory[CODE].hex() == wanted

    def test_features_that_are_not_offered_are_all_named_with_what_has_them(self) -> None:
        needs = replace(HALT, features=("nx", "smep", "shstk"))
        with faked() as kvm, pytest.raises(NoFeatureError, match=r"smep .*Ivy Bridge.*shstk .*6\.18") as caught:
            run_image(kvm, needs, 0)
        assert caught.value.features == ("smep", "shstk")

    def test_a_feature_may_be_shown_or_hidden(self) -> None:
        needs = replace(HALT, features=("smep",))
        with faked(("HLT", b"")) as kvm:
            run_image(kvm, needs, 0, cpuid_show=["smep"])
        with (
            faked(cpuid=supported(ebx=1 << 7)) as kvm,
            pytest.raises(UsageError, match="smep, which is to be hidden"),
        ):
            run_image(kvm, needs, 0, cpuid_hide=["smep"])
        with faked() as kvm, pytest.raises(UsageError, match="both hidden and shown"):
            run_image(kvm, HALT, 0, cpuid_hide=["nx"], cpuid_show=["nx"])

    def test_a_vm_without_statistics_counts_nothing(self) -> None:
        with faked(("HLT", b"")) as kvm:
            outcome = run_image(kvm, HALT, 0)
        assert (outcome.counters, outcome.source) == ({}, None)

    def test_n_is_no_negative_number(self) -> None:
        with faked() as kvm, pytest.raises(UsageError, match="-1"):
            run_image(kvm, HALT, -1)

    def test_a_segment_outside_the_memory_is_refused(self) -> None:
        outside = replace(HALT, segments=(Segment(1 << 40, b"x"),))
        with faked() as kvm, pytest.raises(UsageError, match="outside the guest's memory"):
            run_image(kvm, outside, 0)


@pytest.mark.needs("kvm")
class TestReal:
    @pytest.fixture
    def kvm(self):
        with Kvm() as kvm:
            yield kvm

    def test_passes_are_done(self, kvm: Kvm) -> None:
        # n stores of RCX: mov [0x200000], rcx; loop. The last one stores 1.
        stores = image("e30a 48890c2500002000 e2f6 f4")
        outcome = run_image(kvm, stores, 5, keep=[(0x200000, 8)])
        assert outcome.memory[0x200000] == (1).to_bytes(8, "little")
        assert outcome.userspace_exits == {"HLT": 1}
        assert outcome.reports == (None,)

    def test_n_is_written_to_the_result_area(self, kvm: Kvm) -> None:
        outcome = run_image(kvm, image("f4", bare=False), 77, keep=[(AREA + N, 8)])
        assert outcome.memory[AREA + N] == (77).to_bytes(8, "little")
        assert outcome.reports[0] is not None

    def test_every_other_halt_is_entered_again(self, kvm: Kvm) -> None:
        assert run_image(kvm, HALTS, 10).userspace_exits == {"HLT": 11}

    def test_ports_are_answered(self, kvm: Kvm) -> None:
        outcome = run_image(kvm, image("b8ffffffff e480 a20000200000000000 f4"), 0, keep=[(0x200000, 1)])
        assert outcome.memory[0x200000] == b"\0"
        assert run_image(kvm, READS, 10).userspace_exits == {"IO": 10, "HLT": 1}

    def test_cr0_writes_are_counted_and_timed(self, kvm: Kvm) -> None:
        outcome = run_image(kvm, TOGGLE_WP, 100)
        assert outcome.source in ("KVM_GET_STATS_FD", "debugfs")
        assert outcome.counters["exits"] >= 1
        assert outcome.wall_ns > 0
        assert outcome.tsc_khz is None or outcome.tsc_khz > 100_000

    def test_a_triple_fault_is_told(self, kvm: Kvm) -> None:
        with pytest.raises(TripleFaultError, match="program by-hand shut down with a triple fault"):
            run_image(kvm, UD2, 0)

    def test_a_guest_that_hangs_is_stopped_at_its_deadline(self, kvm: Kvm) -> None:
        start = time.monotonic()
        with pytest.raises(GuestHungError, match=r"within 0.2 s .*RIP 0x1000") as caught:
            run_image(kvm, HANG, 0, deadline_s=0.2)
        assert 0.2 <= time.monotonic() - start < 5
        assert caught.value.rip == CODE

    def test_so_is_one_that_exits_all_the_time(self, kvm: Kvm) -> None:
        with pytest.raises(GuestHungError):
            run_image(kvm, image("f4 ebfd f4"), 0, deadline_s=0.2)

    def test_the_deadline_works_in_any_thread(self, kvm: Kvm) -> None:
        seen: list[BaseException] = []

        def run() -> None:
            try:
                run_image(kvm, HANG, 0, deadline_s=0.2)
            except GuestHungError as error:
                seen.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(seen) == 3

    def test_signals_are_as_before(self, kvm: Kvm) -> None:
        def caught() -> str:
            return Path("/proc/self/status").read_text().split("SigCgt:")[1].split()[0]

        before = caught(), signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
        with pytest.raises(GuestHungError):
            run_image(kvm, HANG, 0, deadline_s=0.05)
        assert (caught(), signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)) == before

    def test_several_vcpus_run_at_once_and_are_summed(self, kvm: Kvm) -> None:
        outcome = run_image(kvm, image("e303 f4 e2fd f4", entries=2), 5)
        assert outcome.userspace_exits == {"HLT": 12}
        assert outcome.counters["halt_exits"] == 12
        assert outcome.wall_ns > 0

    def test_one_vcpus_fault_stops_the_others(self, kvm: Kvm) -> None:
        two = image("ebfe 0f0b f4", entries=2)
        entries = (replace(two.entries[0], rip=CODE), replace(two.entries[1], rip=CODE + 2))
        start = time.monotonic()
        with pytest.raises(TripleFaultError) as caught:
            run_image(kvm, replace(two, entries=entries), 0, deadline_s=60)
        assert caught.value.vcpu == 1
        assert time.monotonic() - start < 20
        assert threading.active_count() == 1

    def test_one_that_hangs_among_several_is_named(self, kvm: Kvm) -> None:
        two = image("ebfe f4", entries=2)
        entries = (replace(two.entries[0], rip=CODE + 2), replace(two.entries[1], rip=CODE))
        with pytest.raises(GuestHungError, match="vCPU 1"):
            run_image(kvm, replace(two, entries=entries), 0, deadline_s=0.2)

    @pytest.mark.parametrize("entries", [1, 2])
    def test_ctrl_c_ends_a_guest_and_leaves_nothing(self, kvm: Kvm, entries: int) -> None:
        before = _open_files()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run_image(kvm, image("ebfe f4", entries=entries), 0, deadline_s=60)
        assert _open_files() == before
        assert [t for t in threading.enumerate() if t.daemon] == []

    def test_two_hundred_runs_leave_no_file_and_no_mapping(self, kvm: Kvm) -> None:
        def run(times: int) -> None:
            for i in range(times):
                if i % 10 == 0:
                    with pytest.raises(TripleFaultError):
                        run_image(kvm, UD2, 0)
                run_image(kvm, TOGGLE_WP, 2)

        run(20)
        files, size = _open_files(), _address_space()
        run(200)
        assert _open_files() == files
        # The interpreter's own memory may grow a little; one guest's is 4 MiB.
        assert _address_space() - size < MEMORY

    def test_processes_share_the_device(self) -> None:
        code = (
            f"import sys; sys.path[:0] = {sys.path!r}\n"
            "from live.images import TOGGLE_WP\nfrom worldswitch.live.device import Kvm\n"
            "from worldswitch.live.machine import run_image\n"
            "with Kvm() as kvm:\n for _ in range(10): print(run_image(kvm, TOGGLE_WP, 10).userspace_exits)\n"
        )
        started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
        for process in started:
            out, _ = process.communicate(timeout=120)
            assert (process.returncode, out.splitlines()) == (0, ["{'HLT': 1}"] * 10)

    def test_a_cpu_this_process_may_not_use(self, kvm: Kvm) -> None:
        before = os.sched_getaffinity(0)
        with pytest.raises(MissingError, match="may not run on CPU 4000"):
            run_image(kvm, HALT, 0, cpus=[4000])
        run_image(kvm, HALT, 0, cpus=[max(before)])
        assert os.sched_getaffinity(0) == before

    def test_more_memory_than_an_address_space_holds(self, kvm: Kvm) -> None:
        huge = replace(HALT, regions=(replace(HALT.regions[0], size=1 << 62),))
        with pytest.raises(MissingError, match="memory"):
            run_image(kvm, huge, 0)

    def test_prefaulted_memory_runs_the_same(self, kvm: Kvm) -> None:
        assert run_image(kvm, replace(HALT), 0, prefault=True).userspace_exits == {"HLT": 1}


def _open_files() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        # The folder's own descriptor is gone by now.
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(found)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
