"""Inputs of reports, one of each kind; and hostile ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from guest_build import CR_ACCESS, VMX, Guest
from worldswitch.record.result import Cell, Environment, Metric, Provenance, Result, Spread
from worldswitch.record.resultfile import save

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[1] / "docs"
IMG = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=1</script>"


def result(path: Path, program: str = "cr0-wp", note: str = "a note") -> Path:
    """Two kernels on the model, and a burst of VMs."""
    cells = [
        Cell(
            {"on": "model", "kernel": kernel, "cpu": "intel", "mmu": "tdp", "program": program},
            n=10,
            unit="pair",
            per_op={"exits": count, "exits_by_reason": {"CR_ACCESS": count}},
            time_ns=Spread(100.0 * count + 1, 200.0 * count + 2, 300.0 * count + 3),
            notes=(note,),
        )
        for kernel, count in (("5.10.262", 2), ("6.12.117", 0))
    ]
    latencies = (188_000, 190_000, 250_000, 3_190_000)
    created = Cell(
        {"on": "kvm", "kernel": "6.18", "cpu": "amd", "mmu": "shadow", "program": "create-vm"},
        n=4,
        unit="VM",
        create_vm_ns=latencies,
        metrics=(Metric("create_vm", "ns", latencies),),
    )
    made = Provenance("0.1.0", ("run", program), started="2026-01-01T00:00:00Z", costs={"exit": "measured"})
    save(Result((*cells, created), made, Environment(cpu_model="AMD EPYC", parameters={"kvm.tdp_mmu": "Y"})), path)
    return path


def doctor(path: Path, text: str = "guest memory never gets huge pages", command: str = "echo fix") -> Path:
    """What wsw doctor --json prints of a host with one finding."""
    change = {"text": "Do it.", "commands": [command], "files": [], "needs_reboot": False}
    finding = {
        "id": "thp", "severity": "warning", "title": text, "evidence": [{"path": "/sys/x", "value": text}],
        "gain": {"text": text, "inputs": [], "formula": None, "origin": None}, "fix": change, "undo": change,
        "risk": text, "rule": text,
    }  # fmt: skip
    document: dict[str, Any] = {
        "host": "host one", "profile": "default", "kernel": {"release": text}, "cpu": {"count": 2},
        "worst": "warning", "findings": [finding], "unreadable": [], "notes": [text],
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def mixed(folder: Path) -> list[str]:
    """A trace, a result, a doctor's document, a snapshot, a conformance table."""
    given = [
        DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat",
        DATA / "create-vm" / "firecracker-2129.txt",
        result(folder / "result.json"),
        doctor(folder / "doctor.json"),
        DATA / "hosts" / "intel-6.1.tar.xz",
        DOCS / "conformance.json",
    ]
    return [str(path) for path in given]


def hostile(folder: Path) -> list[str]:
    """Inputs that try to be code: in names of files, threads, programs, kernels, notes, findings and commands."""
    text = f"{IMG}{SCRIPT}<!--\u2028\x1b[31m"
    trace = Guest(VMX, kernel="5.10.0").exit(CR_ACCESS).toggle(0, 0x80000033, 1 << 16, 5).trace()
    trace.meta.comms = {1: text}
    trace.meta.notes = [text]
    trace.meta.command = text
    trace.save(folder / IMG)
    shutil.copy(DATA / "vmx-5.10-ept" / "trace.txt", folder / f"{IMG}.txt")
    conformance = {
        "format": "worldswitch-conformance", "version": 1,
        "rows": [{"kernel": text, "cpu": text, "mmu": text, "emulator": text, "run": 1, "equal": 1, "named": 0,
                  "unexplained": 0, "statistics_run": 0, "statistics_equal": 0, "seed": 1, "by_name": {text: 1}}],
    }  # fmt: skip
    (folder / "conformance.json").write_text(json.dumps(conformance))
    given = [
        folder / IMG,
        folder / f"{IMG}.txt",
        result(folder / "result.json", program=text, note=text),
        doctor(folder / "doctor.json", text, text),
        folder / "conformance.json",
    ]
    return [str(path) for path in given]
