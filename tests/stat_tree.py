"""A tree of files like debugfs' of a host with VMs, whose statistics grow as told: something to look at without KVM."""

from __future__ import annotations

import shutil
from pathlib import Path

GROWS = {
    "exits": 12_000, "pf_taken": 900, "pf_fixed": 850, "pf_emulate": 3, "pf_spurious": 1, "pf_guest": 0,
    "pf_mmio_spte_created": 0, "pf_fast": 0, "io_exits": 700, "mmio_exits": 2_400, "halt_exits": 1_800,
    "irq_exits": 1_100, "irq_injections": 1_500, "irq_window_exits": 120, "nmi_window_exits": 0,
    "notify_window_exits": 0, "signal_exits": 4, "request_irq_exits": 0, "hypercalls": 30, "insn_emulation": 3_100,
    "insn_emulation_fail": 0, "tlb_flush": 210, "remote_tlb_flush": 15, "remote_tlb_flush_requests": 20, "invlpg": 0,
    "halt_attempted_poll": 1_700, "halt_successful_poll": 1_200, "halt_poll_invalid": 0, "halt_wakeup": 600,
    "halt_poll_success_ns": 90_000_000, "halt_poll_fail_ns": 40_000_000, "halt_wait_ns": 600_000_000, "nested_run": 0,
    "fpu_reload": 2_500, "host_state_reload": 12_000, "req_event": 5_000, "l1d_flush": 0, "nmi_injections": 0,
    "directed_yield_attempted": 2, "directed_yield_successful": 1, "preemption_reported": 40, "preemption_other": 9,
    "mmu_shadow_zapped": 0, "mmu_pte_write": 0, "mmu_pde_zapped": 0, "mmu_flooded": 0, "mmu_recycled": 0,
    "mmu_cache_miss": 12, "max_mmu_rmap_size": 0, "max_mmu_page_hash_collisions": 0,
}  # fmt: skip
"""Statistic -> how much it grows in a step of a VM of weight 1. The names are those of Linux 6.18."""
STATES = {"pages_4k": 40_000, "pages_2m": 900, "pages_1g": 0, "nx_lpage_splits": 12, "mmu_unsync": 0, "blocking": 0,
          "guest_mode": 0}  # fmt: skip


class StatTree:
    """The tree below *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root / "sys/kernel/debug/kvm"
        self.top.mkdir(parents=True)
        (root / "sys/module/kvm").mkdir(parents=True)
        self.weights: dict[str, float] = {}
        self.values: dict[str, dict[str, int]] = {}

    def add(self, pid: int, fd: int = 11, vcpus: int = 4, weight: float = 1.0, process: str = "qemu-system-x86") -> str:
        """A VM; its name."""
        name = f"{pid}-{fd}"
        folder = self.top / name
        folder.mkdir()
        for number in range(vcpus):
            (folder / f"vcpu{number}").mkdir()
            for file in ("guest_mode", "pid", "tsc-offset"):
                (folder / f"vcpu{number}" / file).write_text("0\n")
        proc = self.root / f"proc/{pid}"
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "comm").write_text(process + "\n")
        (proc / "status").write_text(f"Name:\t{process}\nTgid:\t{pid}\n")
        for file in ("halt_wait_hist", "mmu_rmaps_stat"):
            (folder / file).write_text("not a number\n")
        self.weights[name] = weight
        self.values[name] = {**dict.fromkeys(GROWS, 1_000), **STATES}
        self._write(name)
        return name

    def step(self, **changes: int) -> None:
        """Every VM does what it does in a step; *changes* are values to set in all of them instead."""
        for name, values in self.values.items():
            for statistic, by in GROWS.items():
                values[statistic] += round(by * self.weights[name])
            values.update(changes)
            self._write(name)

    def set(self, name: str, **values: int) -> None:
        """Set statistics of one VM."""
        self.values[name].update(values)
        self._write(name)

    def remove(self, name: str) -> None:
        """The VM ends."""
        shutil.rmtree(self.top / name)
        del self.values[name], self.weights[name]

    def _write(self, name: str) -> None:
        for statistic, value in self.values[name].items():
            (self.top / name / statistic).write_text(f"{value}\n")
