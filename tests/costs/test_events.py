"""Events that have costs, from counters of either vendor."""

from __future__ import annotations

import pytest

from traces import DATA
from worldswitch.costs.events import OTHER, events, exit_kind, trace_events


@pytest.mark.parametrize(
    ("vmx", "svm", "kind"),
    [
        ("CR_ACCESS", "cr0_sel_write", "exit.cr"),
        ("CR_ACCESS", "write_cr3", "exit.cr"),
        ("EXCEPTION_NMI", "DB excp", "exit.exception"),
        ("DR_ACCESS", "read_dr6", "exit.dr"),
        ("EPT_VIOLATION", "npf", "exit.violation"),
        ("CPUID", "cpuid", "exit.cpuid"),
        ("VMCALL", "hypercall", "exit.hypercall"),
        ("TRIPLE_FAULT", "shutdown", OTHER),
    ],
)
def test_both_vendors_have_the_same_kinds(vmx: str, svm: str, kind: str) -> None:
    assert exit_kind(vmx) == exit_kind(svm) == kind


def test_every_reason_the_model_can_give_has_a_kind_by_a_known_name() -> None:
    """The names here are those of the tables of exit reasons, so that no kind is lost to a spelling."""
    from worldswitch.costs import events as module
    from worldswitch.x86.exits import builtin

    known = {name for isa in builtin().isas.values() for name in isa.numbers}
    assert set(module._KINDS) <= known


def test_reasons_of_one_kind_add_up_and_roots_go_by_mmu() -> None:
    counters = {"root_unloads": 8, "root_loads": 12}
    by_reason = {"write_cr0": 4, "cr0_sel_write": 4, "write_cr3": 10}
    assert events(counters, by_reason, "legacy") == {"exit.cr": 18, "root_reload.legacy": 8}
    assert events(counters, by_reason, "shadow") == {"exit.cr": 18, "root_reload.shadow": 12}
    assert events({"root_unloads": 0}, {}, "tdp") == {}


@pytest.mark.parametrize(
    ("recording", "least"),
    [
        # 200 writes of WP by the TDP MMU of 5.10: 200 exits and 804 page faults; 2000 writes on 6.1: 2000 and 4.
        ("svm-5.10-npt-tdpmmu/wp.trace.dat", {"exit.cr": 200, "exit.violation": 804}),
        ("svm-6.1-npt/wp.trace.dat", {"exit.cr": 2000, "exit.violation": 4}),
    ],
)
def test_exits_of_a_recording_by_kind(recording: str, least: dict[str, float]) -> None:
    from worldswitch.trace import open_source

    found = trace_events(open_source(DATA / recording))
    assert {name: found[name] for name in least} == least


def test_a_trace_of_the_model_has_the_exits_its_counters_have() -> None:
    from worldswitch.guest import library
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import run

    for cpu in ("intel", "amd"):
        done = run(library.program("ssdd"), Policy.of("5.10", cpu, "tdp"), 20, record=True)
        counted = events(done.counters, done.exits_by_reason, "tdp")
        assert trace_events(done.trace()) == {name: n for name, n in counted.items() if name.startswith("exit.")}
