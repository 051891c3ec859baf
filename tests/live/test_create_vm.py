"""create-vm on this host's KVM: what it gives, that nothing is left, and what is said when something is missing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from worldswitch.errors import MissingError, UsageError
from worldswitch.live import create_vm, ioctl
from worldswitch.live.create_vm import PROCESSES, THREADS, Plan, files_needed, measure
from worldswitch.live.device import HostDevice, Kvm
from worldswitch.live.vms import Vm, of_process

QUICK = {"rounds": 3, "warmups": 1, "pause_s": 0}


@pytest.fixture
def kvm() -> Iterator[Kvm]:
    with Kvm() as device:
        yield device


def held() -> tuple[set[str], list[str], list[str]]:
    """Files, mappings and children of this process."""
    files = {one.name for one in Path("/proc/self/fd").iterdir()}
    # The heap and what the C library maps for threads come and go by themselves; what we map is shared or executable.
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/zero" in line or " rwx" in line]
    return files, maps, children()


def children() -> list[str]:
    """The processes we started that are still there."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def holders() -> list[Vm]:
    """Those of them that hold VMs; the rest of the host has its own."""
    return [vm for pid in children() if (vm := of_process(int(pid))) is not None]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.needs("kvm")
@pytest.mark.parametrize("workers", [PROCESSES, THREADS])
@pytest.mark.parametrize("first_run", [False, True])
def test_every_vm_of_every_round_is_measured(kvm: Kvm, workers: str, first_run: bool) -> None:
    found = measure(Plan(burst=3, workers=workers, first_run=first_run, **QUICK), kvm)
    assert [(one.round, one.worker) for one in found.creations] == [(r, w) for r in range(3) for w in range(3)]
    assert len(found.warmups) == 3
    assert (found.rounds, found.stopped, found.eintr) == (3, None, 0)
    assert found.create_ns == tuple(one.create_ns for one in found.creations)
    for one in (*found.creations, *found.warmups):
        # No KVM takes less than a microsecond for any of it, and this test would have no patience for more.
        assert 1000 < one.create_ns < 60e9
        assert 1000 < one.close_ns < 60e9
        assert (one.first_run_ns is not None) == first_run
        assert one.first_run_ns is None or 1000 < one.first_run_ns < 60e9


@pytest.mark.needs("kvm")
def test_calls_of_a_burst_begin_within_one_round(kvm: Kvm) -> None:
    found = measure(Plan(burst=4, **QUICK), kvm)
    rounds = [[one for one in found.creations if one.round == number] for number in range(3)]
    for earlier, later in pairwise(rounds):
        assert max(one.start_ns + one.create_ns for one in earlier) < min(one.start_ns for one in later)


@pytest.mark.needs("kvm")
def test_nothing_is_left_after_200_idle_vms_and_bursts_of_20(kvm: Kvm) -> None:
    measure(Plan(**QUICK), kvm)  # what is loaded and kept once
    before, memory = held(), resident()
    seen = []

    def look(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == 1:
            (holder,) = holders()
            links = [link.readlink().name for link in Path(f"/proc/{holder.pid}/fd").iterdir()]
            seen.append((sum(link.startswith("anon_inode:kvm-vm") for link in links), len(children())))

    found = measure(Plan(vms=200, burst=20, **QUICK), kvm, look)
    assert len(found.creations) == 60
    assert seen == [(200, 21)]
    assert held() == before
    # All VMs were other processes', which are gone; a process with a VM in it would show here.
    assert of_process(os.getpid()) is None
    assert resident() < memory + (4 << 20)


@pytest.mark.needs("kvm")
def test_idle_vms_have_run_where_first_runs_are_measured(kvm: Kvm) -> None:
    counts = []

    def look(what: str, done: int, total: int) -> None:
        if what == "rounds":
            counts.append([vm.vcpus for vm in holders()])

    measure(Plan(vms=1, first_run=True, rounds=1, warmups=0, pause_s=0), kvm, look)
    assert counts == [[1]]


@pytest.mark.needs("kvm", "cgroups")
def test_vms_are_made_in_the_control_group_which_is_gone_afterwards(kvm: Kvm) -> None:
    name = f"wsw-test-create-{os.getpid()}"
    inside = []

    def look(what: str, done: int, total: int) -> None:
        if what == "rounds":
            place = create_vm.cgroups.find(name)
            inside.append(len((place / "cgroup.procs").read_text().split()))

    with pytest.raises(MissingError, match="there is no control group"):
        measure(Plan(cgroup=name, **QUICK), kvm)
    found = measure(Plan(vms=2, burst=2, cgroup=name, make_cgroup=True, rounds=1, warmups=0), kvm, look)
    assert found.rounds == 1
    assert inside == [3]
    with pytest.raises(MissingError, match="there is no control group"):
        create_vm.cgroups.find(name)
    assert name not in Path("/proc/self/cgroup").read_text()


@pytest.mark.needs("kvm")
def test_workers_are_pinned_in_turn(kvm: Kvm) -> None:
    cpu = min(os.sched_getaffinity(0))
    seen = set()

    def look(what: str, done: int, total: int) -> None:
        for pid in children():
            seen.add(tuple(os.sched_getaffinity(int(pid))))

    measure(Plan(burst=2, cpus=(cpu,), rounds=1, warmups=0, pause_s=0), kvm, look)
    assert seen == {(cpu,)}
    assert cpu in os.sched_getaffinity(0)


class Interrupting(HostDevice):
    """A KVM whose file is no KVM at all, so that KVM_CREATE_VM fails as the file's driver has it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def ioctl(self, fd: int, request: int, arg: int = 0, /) -> int:
        return ioctl.API_VERSION if request == ioctl.GET_API_VERSION else super().ioctl(fd, request, arg)


@pytest.mark.parametrize("workers", [PROCESSES, THREADS])
def test_a_kvm_that_makes_no_vm(workers: str) -> None:
    before = held()
    with Kvm(Interrupting("/dev/null")) as broken, pytest.raises(MissingError, match=r"KVM cannot make a VM: .*ENOTTY"):
        measure(Plan(workers=workers, burst=2, **QUICK), broken)
    assert held() == before


def test_idle_vms_that_cannot_be_made_say_how_many_there_are() -> None:
    with Kvm(Interrupting("/dev/null")) as broken, pytest.raises(MissingError, match="after 0 idle VMs: KVM cannot"):
        measure(Plan(vms=3, **QUICK), broken)


def in_child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)


LIMITED = """
import resource
from worldswitch.errors import MissingError
from worldswitch.live.create_vm import Plan, measure
from worldswitch.live.device import Kvm
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    with Kvm() as kvm:
        print(measure(Plan(vms={vms}, rounds=1, warmups=0, pause_s=0), kvm).rounds)
except MissingError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.needs("kvm")
def test_too_few_files_are_told_before_anything_is_made() -> None:
    done = in_child(LIMITED.format(soft=60, hard=100, vms=200))
    said, limits = done.stdout.splitlines()
    assert "needs 2" in said and "the limit here is 100" in said and "ulimit -n" in said
    assert (limits, done.stderr) == ("(60, 100)", "")


@pytest.mark.needs("kvm")
def test_a_soft_limit_is_no_obstacle_and_stays() -> None:
    done = in_child(LIMITED.format(soft=40, hard=400, vms=100))
    assert (done.stdout, done.stderr) == ("1\n(40, 400)\n", "")


def test_files_needed_count_a_vcpu_where_guests_run() -> None:
    own = files_needed(Plan())
    assert files_needed(Plan(vms=800)) == own + 799
    assert files_needed(Plan(vms=800, first_run=True)) == own + 1599
    assert files_needed(Plan(burst=100)) == own
    assert files_needed(Plan(burst=100, workers=THREADS)) == own + 99


INTERRUPTED = """
import json, os, sys
from worldswitch.live.create_vm import Plan, measure
from worldswitch.live.device import Kvm
def look(what, done, total):
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    print(json.dumps([what, done, children]), flush=True)
with Kvm() as kvm:
    try:
        found = measure(Plan(vms=5, burst=4, rounds=100000, warmups=WARMUPS, workers="WORKERS"), kvm, look)
        print(json.dumps([found.rounds, found.stopped, len(found.creations)]))
    except KeyboardInterrupt:
        print(json.dumps("nothing"))
"""


def interrupt(workers: str, warmups: int) -> tuple[object, list[str]]:
    """Start, send Ctrl-C after the second round; what is said last, and the children there were."""
    program = INTERRUPTED.replace("WORKERS", workers).replace("WARMUPS", str(warmups), 1).replace("WARMUPS", "0")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children: list[str] = []
        for line in process.stdout:
            what, done, children = json.loads(line)
            if what == "rounds" and done == 2:
                break
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
        assert process.wait(20) == 0
    return json.loads(last), children


@pytest.mark.needs("kvm")
@pytest.mark.parametrize("workers", [PROCESSES, THREADS])
def test_ctrl_c_keeps_finished_rounds_and_leaves_no_process(workers: str) -> None:
    found, children = interrupt(workers, 0)
    assert isinstance(found, list)
    rounds, stopped, creations = found
    assert rounds >= 2
    assert (stopped, creations) == ("interrupted", 4 * rounds)
    assert len(children) == (5 if workers == PROCESSES else 2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.needs("kvm")
def test_ctrl_c_before_the_first_measured_round_gives_nothing() -> None:
    found, children = interrupt(PROCESSES, 50000)
    assert found == "nothing"
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.needs("kvm")
def test_a_worker_killed_in_the_middle_ends_it_with_what_was_finished(kvm: Kvm) -> None:
    def kill(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == 2:
            pid = children()[0]
            os.kill(int(pid), signal.SIGKILL)

    found = measure(Plan(burst=2, rounds=50, warmups=0, pause_s=0.01), kvm, kill)
    assert found.rounds == 2
    assert "ended by signal 9" in str(found.stopped)


@pytest.mark.needs("kvm")
def test_several_at_once(kvm: Kvm) -> None:
    program = (
        "from worldswitch.live.create_vm import Plan, measure\nfrom worldswitch.live.device import Kvm\n"
        "with Kvm() as kvm: print(measure(Plan(vms=5, burst=3, rounds=3, warmups=0), kvm).rounds)"
    )
    others = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert measure(Plan(vms=5, burst=3, rounds=3, warmups=0), kvm).rounds == 3
    assert [other.communicate(timeout=60)[0] for other in others] == ["3\n", "3\n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vms": -1}, "vms is -1; it must be from 0"),
        ({"burst": 0}, "burst is 0; it must be from 1 to 10,000"),
        ({"rounds": 0}, "rounds is 0"),
        ({"pause_s": float("nan")}, "pause_s is nan"),
        ({"workers": "fibers"}, "workers is 'fibers'; it must be processes or threads"),
        ({"make_cgroup": True}, "needs the name of a control group"),
        ({"cpus": (100_000,)}, "CPU 100000 is not among those"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan(**options)  # type: ignore[arg-type]
