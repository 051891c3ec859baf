from __future__ import annotations

import os
from pathlib import Path

import pytest

from live.images import TOGGLE_WP, image
from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.live.bench import measure
from worldswitch.live.pinning import choose
from worldswitch.live.reasons import COUNTED, TRACED

TOUCH = image("48c7c700002000 e30c 48890f 4881c700100000 e2f4 f4", default_n=100)
"""mov rdi,0x200000; L: mov [rdi],rcx; add rdi,0x1000; loop L: one page a pass."""
HALTS = image("e303 f4 e2fd f4", default_n=16)

pytestmark = pytest.mark.needs("kvm")


def test_what_a_pass_counts_is_the_same_again() -> None:
    first, second = (measure(TOGGLE_WP, n=200, repeat=0, reasons=False) for _ in range(2))
    assert first.steady
    assert first.per_op == second.per_op
    assert first.counters["exits"] == second.counters["exits"]
    # Each write of CR0 is an exit, or, where the guest owns CR0.WP, none is; both with the first one's faults.
    assert first.per_op["exits"] - round(first.per_op["exits"]) < 0.05
    assert round(first.per_op["exits"]) in (0, 1)


def test_halts_are_told_as_such() -> None:
    found = measure(HALTS, repeat=0)
    assert found.reasons_from in (TRACED, COUNTED)
    assert found.userspace_exits == {"HLT": 17}
    per_op = {name.upper(): value for name, value in found.reasons_per_op.items()}
    assert per_op == {"HLT": 1}


def test_first_touches_are_divided_by_the_passes() -> None:
    found = measure(TOUCH, n=100, count_n=100, repeat=0, reasons=False)
    assert found.count_n == 100
    touched = [value for name, value in found.per_op.items() if name in ("pf_fixed", "mmu_pte_write")]
    # Each first touch is a fault KVM fixes, or, where KVM follows the guest's own tables, a write to one.
    assert 1 in [round(value, 1) for value in touched]


def test_times_have_all_their_values_and_a_median_between() -> None:
    found = measure(TOGGLE_WP, n=100, repeat=5, warmup=2, reasons=False)
    assert found.times is not None
    assert len(found.times.wall_values) == 5
    assert len(found.times.warmups) == 2
    assert found.times.tsc is None  # a bare program has no time stamps
    assert min(found.times.wall_values) == found.times.wall.low
    assert found.times.wall.low <= found.times.wall.mid <= found.times.wall.high
    assert found.times.best == found.times.wall


def test_progress_ends_at_what_was_foreseen() -> None:
    seen: list[tuple[int, int]] = []
    measure(HALTS, repeat=2, reasons=False, on_progress=lambda done, total: seen.append((done, total)))
    runs = seen[-1][0]
    assert list(dict.fromkeys(done for done, _ in seen)) == list(range(1, runs + 1))
    assert seen[-1][0] == seen[-1][1]


def test_nothing_of_the_host_is_changed() -> None:
    def parameters() -> dict[str, str]:
        found = {}
        for path in Path("/sys/module").glob("kvm*/parameters/*"):
            if os.access(path, os.R_OK):
                found[str(path)] = path.read_text()
        return found

    before, affinity = parameters(), os.sched_getaffinity(0)
    measure(HALTS, repeat=1)
    assert (parameters(), os.sched_getaffinity(0)) == (before, affinity)
    assert list(Path("/sys/kernel/tracing/instances").glob(f"wsw-{os.getpid()}")) == []


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="repeat"):
        measure(HALTS, repeat=-1)
    with pytest.raises(UsageError, match="count_n"):
        measure(HALTS, count_n=0)
    with pytest.raises(MissingError, match="CPU 4000"):
        measure(HALTS, cpu=4000)
    with pytest.raises(UnknownNameError, match="CPUID feature"):
        measure(HALTS, hide=["no-such-feature"])


def test_no_passes_have_no_times() -> None:
    found = measure(HALTS, n=0, reasons=False)
    assert found.times is None
    assert found.per_op == {}


def test_cpus_are_those_the_thread_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert set(choose(None, 1)) <= allowed
    assert choose(max(allowed), 1) == (max(allowed),)
    assert set(choose(None, 1000)) == allowed
