"""The executable KVM: guest operations a second, every pass executed, compiled and from its sources in one run.

No program here repeats a state that the model could count instead of execute: ``whole`` says to execute all. And what
people wait for: the published tables, a whole ssdd, a burst of VMs, each a whole process. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

WSW = str(Path(sys.executable).with_name("wsw"))
VA, PAGES = 0x4000_0000, 4096
PASSES = {"compiled": 200_000, "sources": 4_000}
COMMANDS = {
    "wsw tables": ["tables"],
    "ssdd, 500,000 steps, 6.12, Intel, EPT": ["run", "ssdd", "-n", "500000", "--on", "model", "--kernel", "6.12"],
    "ssdd, 500,000 steps, 6.12, AMD, shadow": [
        "run", "ssdd", "-n", "500000", "--on", "model", "--kernel", "6.12", "--cpu", "amd", "--mmu", "shadow",
    ],
    "ssdd, 10 pairs, 50,000 steps each, 5.10, Intel, TDP MMU": [
        "run", "ssdd:pairs=10", "-n", "50000", "--on", "model", "--kernel", "5.10", "--cpu", "intel", "--mmu", "tdp",
    ],
    "ssdd, 10 pairs, 50,000 steps each, 6.12, Intel, shadow": [
        "run", "ssdd:pairs=10", "-n", "50000", "--on", "model", "--kernel", "6.12", "--cpu", "intel", "--mmu", "shadow",
    ],
    "wsw run cr0-wp --on model": ["run", "cr0-wp", "--on", "model", "--kernel", "6.12", "--cpu", "intel"],
    "create-vm, a burst of 6,400 on 64 CPUs": [
        "run", "create-vm", "--on", "model", "--kernel", "6.1", "--burst", "6400", "--set", "sim.cpus=64",
    ],
    "wsw nx timeline, 10,000 VMs for a day": ["nx", "timeline", "--vms", "10000", "--hours", "24", "--kernel", "6.12"],
    "wsw doctor": ["doctor"],
}  # fmt: skip


class _Sources:
    """Finds the .py of each compiled module."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        for folder in path or () if name.startswith("worldswitch.") else ():  # type: ignore[attr-defined]
            source = Path(folder) / f"{name.rpartition('.')[2]}.py"
            if source.exists() and source.with_suffix(".pxd").exists():
                return spec_from_file_location(name, source)
        return None


def operations(form: str) -> dict[str, float]:
    """Operations of each program per second of CPU time, in this process."""
    if form == "sources":
        sys.meta_path.insert(0, _Sources())  # type: ignore[arg-type]
    from worldswitch.guest.assemble import assemble
    from worldswitch.guest.operations import Load, Store, WriteCr
    from worldswitch.guest.program import Pages, Program, Space, Vcpu
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import run

    toggle, flush = WriteCr(0, toggle=("WP",)), WriteCr(4, toggle=("PGE",))
    access = (Load(VA, 4096, PAGES), Store(VA, 4096, PAGES, value=5))
    cases = {
        "CR0.WP, owned": ((toggle,) * 8, ("6.12", "intel", "default")),
        "CR0.WP, intercepted": ((toggle,) * 8, ("6.12", "amd", "default")),
        "loads and stores over 4,096 pages": (access * 4, ("6.12", "intel", "default")),
        "CR0.WP, owned, and loads and stores": ((toggle, *access) * 3, ("6.12", "intel", "default")),
        "the same after TLB flushes (CR4.PGE)": ((flush, *access) * 3, ("6.12", "intel", "default")),
        "CR0.WP, the roots rebuilt each time": ((toggle,) * 8, ("5.10", "intel", "tdp")),
        "CR0.WP and loads and stores, shadow": ((toggle, *access) * 3, ("6.12", "intel", "shadow")),
    }
    pages = (Pages(VA, 0x100_0000, count=PAGES, flags=("W",)),)
    found = {}
    for name, (body, place) in cases.items():
        program = Program("bench", "Measured.", "pass", (Vcpu(body=body),), (Space("main", pages),), memory=64 << 20)
        image, policy = assemble(program), Policy.of(*place)
        # All pages are met once before, so that first touches are not what is measured.
        first = 0 if "rebuilt" in name else PAGES
        begin = time.process_time()
        run(program, policy, first, image=image, whole=True)
        middle = time.process_time()
        n = PASSES[form] // (10 if any(word in name for word in ("rebuilt", "shadow", "flushes")) else 1)
        run(program, policy, first + n, image=image, whole=True)
        found[name] = len(body) * n / max(1e-9, time.process_time() - middle - (middle - begin))
    return found


def main(rounds: int = 3) -> None:
    """Measure and print."""
    from worldswitch.report.tables import table
    from worldswitch.units import format_ns

    rates: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for form in PASSES:
            done = subprocess.run([sys.executable, __file__, form], capture_output=True, text=True, check=True)
            for name, rate in json.loads(done.stdout).items():
                rates.setdefault(name, {}).setdefault(form, []).append(rate)
    rows = []
    for name, by_form in rates.items():
        fast, slow = (sorted(by_form[form])[rounds // 2] for form in ("compiled", "sources"))
        rows.append((name, f"{fast / 1e6:.3g} M/s", f"{slow / 1e6:.3g} M/s", f"{fast / slow:.0f} x"))
    columns = ("program", "compiled", "sources", "ratio")
    print(table(columns, rows, "The model: operations per second of CPU time, each executed", left=("program",)))
    rows = []
    for name, words in COMMANDS.items():
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            subprocess.run([WSW, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            times.append(time.perf_counter() - begin)
        rows.append((name, format_ns(sorted(times)[rounds // 2] * 1e9), format_ns(min(times) * 1e9)))
    print(table(("command", "median", "best"), rows, "Whole processes of the model", left=("command",)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", nargs="?", choices=tuple(PASSES))
    asked = parser.parse_args()
    if asked.form:
        print(json.dumps(operations(asked.form)))
    else:
        main()
