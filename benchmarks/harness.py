"""What measuring from Python adds to what a C program with the same ioctls measures: pairs in turn, in one run.

The C program is benchmarks/kvm_peer.c, built here. Guests leave only for exits that the kernel handles, so both sides
make the same few ioctls; what differs is who makes them. Nothing here passes or fails.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from worldswitch.live import ioctl
from worldswitch.live.create_vm import Plan, measure
from worldswitch.live.device import Kvm
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.guest.image import Image

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "bench"
PAIRS = 40
PASSES = {"cr0-wp": 5000, "cpuid": 5000}
"""Guest programs whose exits all stay in the kernel -> passes of one run."""
WSW = str(Path(sys.executable).with_name("wsw"))


@dataclass
class Row:
    """One quantity on both sides, pair by pair, in ns."""

    what: str
    ours: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)

    def cells(self) -> tuple[str, str, str, str, str]:
        """For the table: medians, and the median of the ratios with those that half of them lie between."""
        ratios = sorted(mine / other for mine, other in zip(self.ours, self.peers, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        return (
            self.what,
            format_ns(statistics.median(self.ours)),
            format_ns(statistics.median(self.peers)),
            f"{statistics.median(ratios):.3f}",
            f"{low:.2f} to {high:.2f}",
        )


class Peer:
    """The C program, waiting for commands."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str) -> list[int]:
        """Its answer to *command*.

        Raises:
            RuntimeError: It ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"the C program ended with status {self._process.wait()}")
        return [int(word) for word in answer]

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def peer(*images: Path) -> Iterator[Peer]:
    """The C program, built, with an image loaded if there is one."""
    CACHE.mkdir(parents=True, exist_ok=True)
    built, source = CACHE / "kvm_peer", Path(__file__).with_name("kvm_peer.c")
    subprocess.run(["gcc", "-O2", "-o", str(built), str(source)], check=True)
    one = Peer([str(built), *map(str, images)])
    try:
        yield one
    finally:
        one.close()


def write_flat(kvm: Kvm, image: Image) -> Path:
    """A file of *image*, with its state and CPUID for this host, as kvm_peer.c reads it: 64-bit words and bytes."""
    from worldswitch.live.cpuid import guest_cpuid
    from worldswitch.live.state import special_registers

    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{image.name}.flat"
    (entry,) = image.entries
    assert entry.area is not None
    cpuid = b"".join(ioctl.CPUID_ENTRY.pack(*one) for one in guest_cpuid(kvm, image))
    with kvm.create_vm() as vm, vm.create_vcpu() as vcpu:
        special = special_registers(vcpu.special_registers(), entry)
    counts = (len(image.regions), len(image.segments), len(cpuid) // ioctl.CPUID_ENTRY.size)
    parts = [struct.pack("<7Q", *counts, entry.rip, entry.rsp, entry.end, entry.area)]
    parts += [struct.pack("<2Q", region.gpa, region.size) for region in image.regions]
    parts += [struct.pack("<2Q", one.gpa, len(one.data)) + one.data for one in image.segments]
    path.write_bytes(b"".join([*parts, special, cpuid]))
    return path


def compare_create(kvm: Kvm, pairs: int) -> list[Row]:
    """KVM_CREATE_VM and closing, one VM at a time, ours and the peer's in turn."""
    create, close = Row("KVM_CREATE_VM"), Row("closing the VM")
    with peer() as other:

        def in_turn(what: str, done: int, _total: int) -> None:
            if what == "rounds":
                made, closed = other.ask("create")
                if done > plan.warmups:
                    create.peers.append(made)
                    close.peers.append(closed)

        plan = Plan(rounds=pairs, warmups=3, pause_s=0)
        found = measure(plan, kvm, in_turn)
    create.ours += found.create_ns
    close.ours += [one.close_ns for one in found.creations]
    return [create, close]


def compare_runs(kvm: Kvm, name: str, n: int, pairs: int) -> Iterator[Row]:
    """One pass of a guest program: by the host's clock around the run, and by the guest's own time stamps."""
    from worldswitch.guest.assemble import assemble
    from worldswitch.guest.library import program
    from worldswitch.live.cpuid import guest_cpuid
    from worldswitch.live.machine import run_image

    image = assemble(program(name))
    cpuid = guest_cpuid(kvm, image)
    wall, inside = Row(f"{name}, a pass, host's clock"), Row(f"{name}, a pass, guest's time stamps")
    with peer(write_flat(kvm, image)) as other:
        for pair in range(-2, pairs):
            mine = run_image(kvm, image, n, cpuid=cpuid)
            theirs = other.ask(f"run {n}")
            (report,) = mine.reports
            if pair < 0 or report is None:
                continue
            wall.ours.append(mine.wall_ns / n)
            wall.peers.append(theirs[0] / n)
            # Both guests have the same TSC frequency; where KVM does not tell it, cycles are shown as if at 1 GHz.
            ns = 1e6 / (mine.tsc_khz or 10**6)
            inside.ours.append(report.cycles * ns / n)
            inside.peers.append(theirs[1] * ns / n)
    yield from (wall, inside)


def whole_processes(rounds: int = 9) -> Iterator[tuple[str, str, str]]:
    """Whole processes, start-up included: the command, and the field kit with -I -S; wall and CPU time."""
    kit = CACHE / "wsw.pyz"
    subprocess.run([WSW, "bundle", "-o", str(kit)], check=True, capture_output=True)
    run = ["run", "cr0-wp", "--on", "kvm"]
    for name, command in (
        ("wsw run cr0-wp --on kvm", [WSW, *run]),
        ("python3 -I -S wsw.pyz run cr0-wp --on kvm", [sys.executable, "-I", "-S", str(kit), *run]),
    ):
        taken = []
        for _ in range(rounds + 1):
            start, before = time.perf_counter_ns(), os.times()
            subprocess.run(command, check=True, capture_output=True)
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            taken.append((time.perf_counter_ns() - start, used * 1e9))
        wall, used = (statistics.median(values) for values in zip(*taken[1:], strict=True))
        yield name, format_ns(wall), format_ns(used)


def main(pairs: int = PAIRS) -> None:
    """Measure and print; says what it skips, and why."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or shutil.which("gcc") is None:
        print("skipped: the harness against a C program, which needs /dev/kvm and gcc")
        return
    from worldswitch.report.tables import table

    with Kvm() as kvm:
        rows = compare_create(kvm, pairs)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(before)})  # both sides on one CPU, which the peer inherits
        for name, n in PASSES.items():
            rows += compare_runs(kvm, name, n, pairs)
        os.sched_setaffinity(0, before)
    columns = ("what", "Python", "C", "ratio", "half of the ratios")
    title = f"The harness against C with the same ioctls: medians of {pairs} pairs in turn"
    print(table(columns, [row.cells() for row in rows], title, left=("what",)))
    print(table(("what", "time", "CPU"), whole_processes(), "Whole processes, medians", left=("what",)))


if __name__ == "__main__":
    main()
