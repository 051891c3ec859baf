"""What ``wsw top`` takes of a core with 100 VMs of 4 vCPUs, a sample a second: sampling alone, and with its screen.

Once on a tree of files like debugfs', in which every statistic changes each second, and once on real VMs whose
processes keep KVM's binary statistics open, as QEMU does. CPU time, user and system, of whole processes after their
start. Nothing here passes or fails.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VMS, VCPUS, SECONDS = 100, 4, 20
SIZE = (200, 50)
TESTS = Path(__file__).resolve().parent.parent / "tests"


def used() -> float:
    """CPU seconds of this process so far."""
    taken = os.times()
    return taken.user + taken.system


def sampling(root: Path) -> float:
    """CPU seconds a second of sampling and of the rates, without a screen."""
    from worldswitch.live.rates import between
    from worldswitch.live.sampling import Host

    host = Host(root)
    before = host.sample()
    for _ in range(3):
        before = host.sample()
    begin = used()
    for _ in range(SECONDS):
        time.sleep(0.2)
        after = host.sample()
        between(before, after)
        before = after
    host.close()
    return (used() - begin) / SECONDS


def screen(root: Path) -> float:
    """CPU seconds a second of the whole program, drawn to a terminal that nobody sees."""
    from worldswitch.cli.top_app import Top
    from worldswitch.live.sampling import Host

    async def run() -> float:
        app = Top(Host(root), 1.0)
        async with app.run_test(size=SIZE):
            await asyncio.sleep(5)
            begin = used()
            await asyncio.sleep(SECONDS)
            return (used() - begin) / SECONDS

    return asyncio.run(run())


def grow(root: Path) -> None:
    """Make the tree, and every statistic of it grow each second, until killed."""
    sys.path.insert(0, str(TESTS))
    from stat_tree import StatTree

    tree = StatTree(root / "tree")
    for number in range(VMS):
        tree.add(4000 + 7 * number, vcpus=VCPUS, weight=0.1 * (1 + number))
    print("ready", flush=True)
    while True:
        time.sleep(1)
        tree.step()


def hold() -> None:
    """Be a VMM of one VM, with its statistics open, that leaves the guest a thousand times a second."""
    import struct

    from worldswitch.guest.image import Region
    from worldswitch.live import ioctl
    from worldswitch.live.device import Kvm
    from worldswitch.live.memory import GuestMemory

    with Kvm() as kvm, GuestMemory([Region(0, 0x10000)]) as memory, kvm.create_vm() as vm:
        memory.write(0x1000, bytes.fromhex("e680 ebfc"))  # out 0x80, al; jmp back
        memory.give(vm)
        vcpus = [vm.create_vcpu(number) for number in range(VCPUS)]
        files = [one.stats_fd() for one in (vm, *vcpus)]
        special = vcpus[0].special_registers()
        struct.pack_into("<Q", special, ioctl.SEGMENTS["cs"], 0)
        struct.pack_into("<H", special, ioctl.SEGMENTS["cs"] + 12, 0)
        vcpus[0].set_special_registers(special)
        vcpus[0].set_registers({"rip": 0x1000})
        print("ready" if None not in files else "no statistics", flush=True)
        while True:
            for _ in range(20):
                vcpus[0].enter()
            time.sleep(0.5)


@contextmanager
def others(count: int, *words: str) -> Iterator[None]:
    """So many processes of this file, ready and running."""
    processes = [
        subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready"), "a process did not start"
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def measured(what: str, root: Path) -> float:
    """In a process of its own, so that nothing else is counted."""
    done = subprocess.run([sys.executable, __file__, what, str(root)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    from worldswitch.report.tables import table

    rows = []
    with tempfile.TemporaryDirectory() as folder, others(1, "grow", folder):
        tree = Path(folder) / "tree"
        for what, name in (("sampling", "sampling"), ("screen", "the whole program")):
            rows.append((name, "a tree of files", f"{measured(what, tree):.1%}"))
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        with others(VMS, "hold"):
            for what, name in (("sampling", "sampling"), ("screen", "the whole program")):
                rows.append((name, "real VMs", f"{measured(what, Path('/')):.1%}"))
    else:
        print("skipped: wsw top with real VMs, which needs /dev/kvm")
    title = f"wsw top, {VMS} VMs of {VCPUS} vCPUs, a sample a second: CPU time of one core"
    print(table(("what", "of", "a core"), rows, title, left=("what", "of")))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sampling", root]:
            print(sampling(Path(root)))
        case ["screen", root]:
            print(screen(Path(root)))
        case ["grow", root]:
            grow(Path(root))
        case ["hold"]:
            hold()
        case _:
            main()
