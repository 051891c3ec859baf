"""``wsw run --on lab`` on real kernels: exits are those that were counted before, by another program.

The table for Intel is from runs in Bochs 3.0 of a guest that was assembled by hand and counted by KVM's binary
statistics (5.10: debugfs); that for AMD from recordings of kvm_exit (tests/data, svm-*). What a kernel does once, such
as faults on its first pages, is spread over the passes and below :data:`ONCE`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import cache as once
from pathlib import Path
from typing import Any

import pytest

from fetched import needs_kernel
from worldswitch.cli import INTERRUPTED
from worldswitch.cli.conditions import Conditions
from worldswitch.cli.lab_kit import lab_kit
from worldswitch.cli.lab_programs import Task, outcomes, tasks
from worldswitch.cli.lab_spots import spots
from worldswitch.cli.work import prepare
from worldswitch.kit.running import Settings
from worldswitch.lab import cache
from worldswitch.lab import machine as lab

ONCE = 0.1
PASSES = "200"
WSW = [sys.executable, "-c", "from worldswitch.cli import main; main()"]

# Exits and TLB flushes per unit with EPT and without: (exits, flushes), or one pair for both.
_NONE, _BOTH = (0, 0), (2, 0)
INTEL: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {
    "5.10": {
        "nop": (_NONE,), "cpuid": ((1, 0),), "cr0-wp": (_BOTH,), "cr0-ts": (_NONE,), "cr0-am": (_BOTH,),
        "cr4-pge": (_NONE, _BOTH), "cr4-tsd": (_NONE,), "cr4-fsgsbase": (_NONE,), "cr4-smep": (_BOTH,),
        "cr4-smap": (_BOTH,),
    },
    "6.1": {
        "nop": (_NONE,), "cpuid": ((1, 0),), "cr0-wp": (_NONE, _BOTH), "cr0-ts": (_NONE,), "cr0-am": (_BOTH,),
        "cr4-pge": (_NONE, (2, 2)), "cr4-tsd": (_NONE,), "cr4-fsgsbase": (_NONE,), "cr4-smep": ((2, 1),),
        "cr4-smap": (_BOTH,),
    },
}  # fmt: skip
INTEL["6.12"] = {**INTEL["6.1"], "cr4-pke": (_BOTH,)}
INTEL["7.2"] = {**INTEL["6.12"], "cr4-cet": (_NONE,)}
NOT_WITH_SHADOW_PAGING = ("cr4-pke", "cr4-cet")
AMD = {"nop": 0, "cpuid": 1, "cr0-wp": 2, "cr0-ts": 0, "cr0-am": 2, "cr4-pge": 2, "cr4-smep": 2, "cr4-smap": 2}


@once
def results(kernel: str, cpu: str, mmu: str, programs: tuple[str, ...], *more: str) -> dict[str, dict[str, Any]]:
    """What each program counted, by its name."""
    words = ["run", ",".join(programs), "--on", "lab", "--kernel", kernel, "--cpu", cpu, "--mmu", mmu, "--json", *more]
    done = subprocess.run([*WSW, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {one["program"]: one for one in json.loads(done.stdout)["results"]}


@pytest.mark.needs("lab-intel")
@pytest.mark.parametrize(
    ("kernel", "mmu"),
    [("5.10", "default"), ("6.1", "default"), ("6.1", "shadow"), ("6.12", "default"), ("7.2", "default")],
)
def test_intel_exits_as_counted_before(kernel: str, mmu: str) -> None:
    needs_kernel(kernel)
    shadow = mmu == "shadow"
    expected = {
        name: pairs[-1 if shadow else 0]
        for name, pairs in INTEL[kernel].items()
        if not (shadow and name in NOT_WITH_SHADOW_PAGING)
    }
    found = results(kernel, "intel", mmu, tuple(expected), "-n", PASSES)
    for name, (exits, flushes) in expected.items():
        each = found[name]["per_op"]
        assert exits <= each["exits"] < exits + ONCE, name
        reason = "CPUID" if name == "cpuid" else "CR_ACCESS"
        assert each["exits_by_reason"].get(reason, 0) == exits, name
        if kernel != "5.10":  # which does not count this kind of flush
            assert flushes <= each["tlb_flushes"] < flushes + ONCE, name


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("mmu", ["default", "shadow"])
@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12", "7.2"])
def test_amd_exits_as_recorded_before(kernel: str, mmu: str) -> None:
    needs_kernel(kernel)
    found = results(kernel, "amd", mmu, tuple(AMD), "-n", PASSES)
    for name, exits in AMD.items():
        each = found[name]["per_op"]["exits_by_reason"]
        assert exits == sum(n for reason, n in each.items() if reason not in ("npf", "PF excp")), (name, each)
    assert found["nop"]["environment"]["machine"]["emulator"].startswith("qemu ")
    assert found["nop"]["environment"]["kernel"].startswith(f"{kernel}.")


@pytest.mark.needs("lab-amd")
def test_5_10_with_the_tdp_mmu_rebuilds_its_tables_at_each_write() -> None:
    needs_kernel("5.10")
    (each,) = (one["per_op"] for one in results("5.10", "amd", "tdp", ("recorded-wp",), "-n", PASSES).values())
    # tests/data/svm-5.10-npt-tdpmmu: 4 + 4 page-fault exits per write once both roles' tables were there.
    assert each["exits_by_reason"]["cr0_sel_write"] == 1
    assert each["exits_by_reason"]["npf"] == pytest.approx(4, abs=ONCE)


@pytest.mark.needs("lab-amd")
def test_counts_are_the_same_booted_or_restored() -> None:
    kernel = str(cache.entries("kernels")[-1].about["version"])
    (spot,) = spots(Conditions((kernel,), ("amd",)))
    ((work, job),) = tasks(prepare(["cr0-wp,cr4-pge,page-touch"]), Settings(n=100))
    machine = spot.machine((), lab_kit())
    found = {}
    for saved in (True, False, True):
        done = lab.run(machine, [job], saved=saved)
        cells = outcomes(Task(work, job), done.results[0], spot, machine, done)
        found[saved, done.restored] = [cell.per_op for cell in cells]
    assert (False, False) in found
    assert (True, True) in found
    assert len({str(counts) for counts in found.values()}) == 1


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize(("name", "tool"), [("out.data", "perf"), ("out.dat", "trace-cmd")])
def test_a_recording_has_the_exits_the_run_counted(tmp_path: Path, name: str, tool: str) -> None:
    from worldswitch.trace import open_source
    from worldswitch.trace.account import account

    if not cache.find("tools", tool):
        pytest.skip(f"{tool} is not fetched for the guest; `wsw lab fetch --tool {tool}`")
    kernel = str(cache.entries("kernels")[-1].about["version"])
    out = tmp_path / name
    words = ["run", "recorded-wp", "-n", "50", "--on", "lab", "--kernel", kernel, "--trace", str(out), "--json"]
    done = subprocess.run([*WSW, *words], capture_output=True, text=True, check=True)
    (cell,) = json.loads(done.stdout)["results"]
    counted = {row.reason: row.count for row in account(open_source(out)).exits}
    whole = cell["counters"]["exits_by_reason"]["cr0_sel_write"]
    assert whole == 50
    assert counted["cr0_sel_write"] % whole == 0  # once for each run of the program
    assert counted["cr0_sel_write"] > 0


def descendants(pid: int) -> list[int]:
    """Processes below *pid*, from the process table."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return [below for child in found for below in (child, *descendants(child))]


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("at_once", [1, 2])
def test_ctrl_c_leaves_no_emulator_behind(at_once: int) -> None:
    kernel = str(cache.entries("kernels")[-1].about["version"])
    words = ["run", "cr0-wp", "--on", "lab", "--kernel", kernel, "--mmu", "default,shadow", "-j", str(at_once)]
    # As on a terminal: Ctrl-C reaches the whole process group.
    with subprocess.Popen(
        [*WSW, *words, "-n", "1000000"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (started := [pid for pid in descendants(process.pid) if "qemu" in command_of(pid)]):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    assert "Traceback" not in said
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
