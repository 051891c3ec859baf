"""Why VMs start slowly. Expected causes: the threads and issues that the lines were copied from, and a host whose
kernel (6.18) waits for nothing in KVM_CREATE_VM."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scripts import event, trace
from texts import read
from worldswitch.cli import wsw
from worldswitch.record.trace import Trace
from worldswitch.trace.account import account
from worldswitch.trace.detect import SLOW_START
from worldswitch.trace.readers import open_source, strace
from worldswitch.trace.slow_start import CONVOY, GRACE_PERIOD, INTERRUPTED, LATE_THREAD, THREAD, WAIT_NS

DATA = Path(__file__).parents[1] / "data"

KVMTOOL = """\
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.023567>
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.076709>
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.109109>
"""
"""Three runs, one line each: thread "Add never option to allow sticky disabling of nx_huge_pages", June 2023; he
who measured them traced it to cgroup_attach_task_all and synchronize_rcu."""
NEVER = """\
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000518>
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000495>
ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000513>
"""
"""The same with nx_huge_pages=never."""
JAILER = "ioctl(12, KVM_CREATE_VM, 0)             = 14 <0.027335>\n"
NO_CGROUP = "ioctl(12, KVM_CREATE_VM, 0)             = 14 <0.000352>\n"
"""firecracker#2129, kernel 5.4: in the jailer's cgroup, and without."""


def seen(made: Trace) -> dict[str, tuple[int, str]]:
    """Cause -> how many calls, and what is said."""
    found = [one for one in account(made).detections if one.id == SLOW_START]
    return {one.detail.partition(": ")[0]: (one.count, one.detail.partition(": ")[2]) for one in found}


def of(text: str) -> dict[str, tuple[int, str]]:
    return seen(read(text, reader=strace.Strace)[0])


def test_a_lone_long_call_waited_for_a_grace_period() -> None:
    found = of(KVMTOOL)
    assert set(found) == {GRACE_PERIOD}
    count, detail = found[GRACE_PERIOD]
    assert count == 3
    assert "23.6 ms to 109 ms" in detail
    for remedy in ("kvm.nx_huge_pages=never (6.5 (6.1.53, 6.4.16))", "favordynmods", "from 6.0", "until 6.13 (6.12.3)"):
        assert remedy in detail


def test_the_cpuset_of_5_4_is_named_too() -> None:
    _, detail = of(JAILER)[GRACE_PERIOD]
    assert "from 5.4 on wait if the VMM is in a cpuset of its own, until 6.5 (5.10.193, 5.15.129, 6.1.50)" in detail


@pytest.mark.parametrize("text", [NEVER, NO_CGROUP])
def test_quick_calls_are_no_slow_start(text: str) -> None:
    assert of(text) == {}


def test_who_comes_during_the_wait_queues_behind_it() -> None:
    """Kernel Bug 217380, in small: a burst of which each VM takes as long as the first, and a little more."""
    found = of(
        "11 10:00:00.000000 ioctl(3, KVM_CREATE_VM <unfinished ...>\n"
        "12 10:00:00.000100 ioctl(3, KVM_CREATE_VM <unfinished ...>\n"
        "13 10:00:00.000200 ioctl(3, KVM_CREATE_VM <unfinished ...>\n"
        "11 10:00:00.050000 <... ioctl resumed>, 0) = 4 <0.050000>\n"
        "12 10:00:00.050150 <... ioctl resumed>, 0) = 4 <0.050050>\n"
        "13 10:00:00.050300 <... ioctl resumed>, 0) = 4 <0.050100>\n"
        "14 10:00:00.052000 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000500>\n"
    )
    assert (found[GRACE_PERIOD][0], found[CONVOY][0]) == (1, 2)
    assert "the next one, 2.00 ms after it, took only 500 µs" in found[GRACE_PERIOD][1]
    assert "cgroup_mutex" in found[CONVOY][1]


def test_waits_one_after_the_other_are_no_convoy() -> None:
    found = of(
        "11 10:00:00.000000 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.050000>\n"
        "11 10:00:01.000000 ioctl(3, KVM_CREATE_VM, 0) = 4 <0.060000>\n"
    )
    assert (found[GRACE_PERIOD][0], CONVOY in found) == (2, False)


def test_interrupted_calls_are_counted_with_what_they_cost() -> None:
    """cloud-hypervisor#711, firecracker#5046: VMMs that had to learn to call again."""
    found = of(
        "ioctl(3, KVM_CREATE_VM, 0) = -1 EINTR (Interrupted system call) <0.000300>\n"
        "ioctl(3, KVM_CREATE_VM, 0) = -1 EINTR (Interrupted system call) <0.000200>\n"
        "ioctl(3, KVM_CREATE_VM, 0) = 4 <0.000400>\n"
    )
    count, detail = found[INTERRUPTED]
    assert (set(found), count) == ({INTERRUPTED}, 2)
    assert "500 µs in all" in detail and "mm_take_all_locks" in detail


def test_a_first_run_that_fails_for_a_signal() -> None:
    """firecracker#5179: "Out of memory" of the first KVM_RUN, though there was enough."""
    found = of("ioctl(13, KVM_RUN, 0) = -1 ENOMEM (Cannot allocate memory) <0.000030>\n")
    assert "until 6.14 (6.12.44)" in found[LATE_THREAD][1]
    assert of("ioctl(13, KVM_RUN, 0) = -1 EINTR (Interrupted system call) <0.003>\n") == {}


def test_what_is_between_is_no_grace_period() -> None:
    found = of("ioctl(3, KVM_CREATE_VM, 0) = 4 <0.001900>\n")
    assert set(found) == {THREAD}
    assert "until 6.14 (6.12.14)" in found[THREAD][1]


def test_without_durations_nothing_is_said() -> None:
    assert of("ioctl(3, KVM_CREATE_VM, 0) = 4\n") == {}


def test_a_kernel_that_never_waits_is_not_accused() -> None:
    """Two runs on Linux 6.18 here: VMs one by one, and four at a time on two busy CPUs under strace -f."""
    for name in ("strace-6.18.txt", "strace-6.18-burst.txt"):
        found = seen(Trace.read(open_source(DATA / "create-vm" / name)))
        assert GRACE_PERIOD not in found and CONVOY not in found


@pytest.mark.parametrize(
    "name", ["svm-5.10-npt", "svm-5.10-npt-tdpmmu", "svm-5.10-shadow", "svm-6.1-npt", "svm-7.2-npt"]
)
def test_where_all_is_slow_nothing_can_be_told(name: str) -> None:
    """Recorded inside an emulator: milliseconds for any ioctl, on kernels that wait and on those that do not."""
    assert seen(Trace.read(open_source(DATA / name / "strace.txt"))) == {}


def calls(*times: tuple[int, int, int], ret: int = 4) -> Trace:
    """A trace of system calls: (thread, begin, end) in ns of each KVM_CREATE_VM, and another ioctl after it."""
    parts = []
    for tid, begin, end in times:
        parts += [event(begin, "sys_enter_ioctl", tid, cmd=0xAE01), event(end, "sys_exit_ioctl", tid, ret=ret)]
        parts += [
            event(end + 1, "sys_enter_ioctl", tid, cmd=0xAE80),
            event(end + 90_000_000, "sys_exit_ioctl", tid, ret=0),
        ]
    return trace(*sorted(parts, key=lambda one: one[0]))


def test_events_of_system_calls_tell_the_same() -> None:
    found = seen(calls((1, 0, 30_000_000), (2, 1_000_000, 30_100_000)))
    assert (found[GRACE_PERIOD][0], found[CONVOY][0]) == (1, 1)
    assert set(seen(calls((1, 0, 300_000)))) == set()
    assert set(seen(calls((1, 0, 300_000), ret=-4))) == {INTERRUPTED}


@pytest.mark.parametrize(
    ("kernel", "said", "not_said"),
    [
        ("6.1.190", "favordynmods", "look elsewhere"),
        ("5.4", "cpuset of its own", "nx_huge_pages=never"),
        ("6.12", "look elsewhere", "favordynmods"),
        ("no kernel at all", "from 6.0 on", "The trace's kernel"),
    ],
)
def test_the_kernel_of_a_trace_narrows_it(kernel: str, said: str, not_said: str) -> None:
    made = calls((1, 0, 30_000_000))
    made.meta.kernel = kernel
    _, detail = seen(made)[GRACE_PERIOD]
    assert said in detail and not_said not in detail


def test_it_can_fail_a_pipeline_and_fits_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "strace.txt"
    file.write_text(JAILER)
    done = CliRunner().invoke(wsw, ["analyze", str(file), "--fail-on", "slow-start"], standalone_mode=False)
    assert done.return_value == 1
    said = done.stdout[done.stdout.index("slow-start: ") :].splitlines()
    assert len(said) > 1 and max(map(len, said)) <= 100
    file.write_text(NO_CGROUP)
    done = CliRunner().invoke(wsw, ["analyze", str(file), "--fail-on", "slow-start"], standalone_mode=False)
    assert done.return_value == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10**9), st.integers(0, 10**8)), max_size=12))
def test_every_slow_call_is_told_once(made: list[tuple[int, int, int]]) -> None:
    """One thread has one call at a time; whatever the calls, each that waits is a wait of its own or queues."""
    clock: dict[int, int] = {}
    lines = []
    for tid, gap, ns in made:
        begin = clock.get(tid, 0) + gap + 1
        clock[tid] = begin + ns
        lines.append(f"{tid} 1{begin / 1e9:017.9f} ioctl(3, KVM_CREATE_VM, 0) = 4 <{ns / 1e9:.9f}>\n")
    found = of("".join(lines)) if lines else {}
    waits = sum(ns >= WAIT_NS for _, _, ns in made)
    assert sum(found[cause][0] for cause in (GRACE_PERIOD, CONVOY) if cause in found) == waits
    assert (CONVOY in found) <= (GRACE_PERIOD in found)
