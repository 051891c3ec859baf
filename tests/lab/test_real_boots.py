"""Real kernels in real emulators: what runs in them, how they fail, and that counts are those of a recording.

Expected counts: real KVM in the same emulators, counted by a program of its own (single CR0.WP writes exit on SVM each;
on VMX with EPT none since Linux commit fb509f76acc8 ("KVM: VMX: Make CR0.WP a guest owned bit"), and each without EPT).
"""

from __future__ import annotations

import json
from functools import cache as once

import pytest

from worldswitch.lab import artifacts, cache
from worldswitch.lab.failures import MachineCrashed, MachineHung, MachineRefused
from worldswitch.lab.jobs import Job, traced
from worldswitch.lab.machine import Machine, Run, run

PAIRS = 50
CR_WRITES = ("CR_ACCESS", "write_cr0", "cr0_sel_write")
"""Their exit reasons, as the kernel's tracepoint names them."""


@once
def image(spec: str) -> bytes:
    from worldswitch.cli.work import assembled

    return assembled(spec).to_bytes()


def kernels() -> list[str]:
    """Lines of the kernels that are fetched, such as 6.12."""
    return sorted({".".join(str(e.about["version"]).split(".")[:2]) for e in cache.entries("kernels")})


def kernel(wanted: str) -> artifacts.KernelFiles:
    try:
        return artifacts.kernel(wanted)
    except artifacts.MissingError as missing:
        pytest.skip(str(missing))


def machine(line: str, cpu: str, **settings: str) -> Machine:
    from worldswitch.cli.lab_kit import lab_kit

    return Machine(kernel(line), cpu, settings, kit=lab_kit())


def counting(spec: str = "cr0-wp") -> Job:
    words = ("wsw", "run", "--image", "program.img", "-n", str(PAIRS), "--repeat", "1", "--save", "out/result.json")
    return Job(words, {"program.img": image(spec)})


def writes_that_exit(done: Run) -> float:
    """Exits per pair for writes to a control register, from the result the kit saved.

    Others are left out: 5.10 keeps a second set of page tables for CR0.WP = 0, which costs page faults once.
    """
    result = done.results[0]
    assert result.status in (0, 4), result.stderr.decode()
    reasons = json.loads(result.files["result.json"])["results"][0]["per_op"]["exits_by_reason"]
    counts = [count for reason, count in reasons.items() if reason in CR_WRITES]
    return sum(counts)


@pytest.mark.needs("lab-amd")
def test_amd_counts_are_the_same_booted_saved_and_restored():
    chosen = machine("6.12", "amd")
    fresh = run(chosen, [counting()], saved=False)
    first, second = (run(chosen, [counting()]) for _ in range(2))
    assert (fresh.restored, second.restored) == (False, True)
    assert [writes_that_exit(done) for done in (fresh, first, second)] == [2, 2, 2]


@pytest.mark.needs("lab-amd")
def test_a_setting_reaches_the_module():
    chosen = machine("6.12", "amd", npt="0", nx_huge_pages="never")
    done = run(chosen, [Job(("cat", "/sys/module/kvm_amd/parameters/npt"))])
    assert done.results[0].stdout == b"N\n"
    assert (done.about.parameters["kvm_amd.npt"], done.about.parameters["kvm.nx_huge_pages"]) == ("N", "never")


@pytest.mark.needs("lab-amd")
def test_jobs_bring_their_files_and_leave_theirs():
    jobs = [
        Job(("sh", "-c", "cat given >out/copy; echo said; echo warned >&2; exit 7"), {"given": b"x" * 100_000}),
        Job(("sh", "-c", 'test ! -e given && python3 -c "import sys; print(sys.version_info[:1])"')),
        Job(("no-such-program",)),
        Job(("sleep", "100"), limit=1.0),
    ]
    first, second, third, fourth = run(machine("6.12", "amd"), jobs).results
    assert (first.status, first.stdout, first.stderr) == (7, b"said\n", b"warned\n")
    assert first.files["copy"] == b"x" * 100_000
    assert (second.status, second.stdout) == (0, b"(3,)\n")
    assert third.status == 127
    assert fourth.status == 137


@pytest.mark.needs("lab-amd")
def test_a_panic_a_hang_and_a_refusal_are_three_errors():
    chosen = machine("6.12", "amd")
    with pytest.raises(MachineCrashed, match="Kernel panic - not syncing: sysrq"):
        run(chosen, [Job(("sh", "-c", "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 9"))])
    with pytest.raises(MachineHung, match="still running after 6 s"):
        run(chosen, [Job(("sleep", "1000"))], deadline=6.0)
    with pytest.raises(MachineRefused, match="cgroup2 with favordynmods"):
        run(machine("5.10", "amd", favordynmods="1"), [Job(("true",))])


@pytest.mark.needs("lab-amd")
def test_events_are_recorded_inside(tmp_path):
    from worldswitch.trace import open_source

    done = run(machine("6.12", "amd"), [traced(counting(), "tracefs")])
    path = tmp_path / "trace.txt"
    path.write_bytes(done.results[0].files["trace.txt"])
    source = open_source(path)
    for _ in source.batches({}):
        pass
    assert source.meta.events["kvm_exit"] >= 2 * PAIRS
    assert source.meta.lost == 0


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("line", kernels())
def test_every_kernel_boots_on_amd(line):
    assert writes_that_exit(run(machine(line, "amd"), [counting()])) == 2


@pytest.mark.needs("lab-intel")
@pytest.mark.parametrize(
    ("line", "ept", "exits"),
    [("5.10", "1", 2), ("6.1", "1", 0), ("6.1", "0", 2), ("6.12", "1", 0), ("7.2", "1", 0)],
)
def test_intel_counts_are_those_of_the_processors_own_ownership(line, ept, exits):
    assert writes_that_exit(run(machine(line, "intel", ept=ept), [counting()])) == exits


@pytest.mark.needs("lab-intel")
def test_cet_is_owned_by_the_guest_on_the_kernel_that_has_it():
    assert writes_that_exit(run(machine("7.2", "intel"), [counting("cr4-cet")])) == 0
