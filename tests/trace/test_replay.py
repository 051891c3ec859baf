"""What a replay answers: against recordings of the kernel asked about, and on made-up guests.

``svm-*-lab`` and ``vmx-*-lab`` in tests/data are the same program run on several kernels: what a what-if predicts from
the one is held against what the other recorded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from guest_build import PE_PG, SVM, WP, Guest
from worldswitch.trace.readers import open_source
from worldswitch.trace.whatif import WhatIf, whatif

DATA = Path(__file__).parents[1] / "data"
AM = 1 << 18


def ask(name: str, to: str, from_: str | None = None, *settings: str) -> WhatIf:
    return whatif(open_source(DATA / name), to, from_, settings)


def of(guest: Guest, to: str = "6.12", from_: str = "5.10") -> WhatIf:
    return whatif(guest.trace(), to, from_)


def recorded(name: str) -> dict[str, int]:
    """Exits by reason of a recording; interrupts of the host are left out, which come when they come."""
    counts = whatif(open_source(DATA / name), None, None, ("nx_huge_pages=never",)).by_reason
    return {reason: here for reason, (here, _) in counts.items() if reason not in _INTERRUPTS}


def predicted(result: WhatIf) -> dict[str, int]:
    return {reason: there for reason, (_, there) in result.by_reason.items() if there and reason not in _INTERRUPTS}


_INTERRUPTS = ("interrupt", "EXTERNAL_INTERRUPT")


def refaults(result: WhatIf) -> tuple[int, int]:
    """How many would go and how many would stay."""
    removed, stays = (sum(e.count for e in exits if e.refault) for exits in (result.removed, result.stays))
    return removed, stays


# Against recordings


@pytest.mark.parametrize("vendor", ["svm", "vmx"])
@pytest.mark.parametrize(("before", "after"), [("5.10", "6.1"), ("5.10", "6.12"), ("5.10", "7.2")])
def test_what_5_10_predicts_is_what_later_kernels_recorded(vendor: str, before: str, after: str) -> None:
    """6.1's recording is of 6.1.176, later than 6.1.29, which keeps the TDP MMU's roots."""
    result = ask(f"{vendor}-{before}-lab/wp.perf.data.zst", after)
    assert result.method == "replay"
    assert predicted(result) == recorded(f"{vendor}-{after}-lab/wp.perf.data.zst")


@pytest.mark.parametrize("vendor", ["svm", "vmx"])
@pytest.mark.parametrize(("before", "after"), [("6.1", "6.12"), ("6.12", "7.2"), ("7.2", "6.1")])
def test_later_kernels_predict_each_other(vendor: str, before: str, after: str) -> None:
    result = ask(f"{vendor}-{before}-lab/wp.perf.data.zst", after)
    assert predicted(result) == recorded(f"{vendor}-{after}-lab/wp.perf.data.zst")


def test_the_legacy_mmu_is_predicted_from_the_tdp_mmu() -> None:
    """The same guest ran 200 writes with tdp_mmu=1 (804 faults) and 2,000 with tdp_mmu=0 (8 faults)."""
    result = ask("svm-5.10-npt-tdpmmu/wp.trace.dat", "5.10", None, "tdp_mmu=0")
    assert result.method == "replay"
    assert predicted(result)["npf"] == recorded("svm-5.10-npt/wp.perf.data.zst")["npf"] == 8


@pytest.mark.parametrize(
    ("file", "to", "here", "there"),
    [
        ("svm-5.10-npt-tdpmmu/wp.trace.dat", "6.12", (200, 200), (0, 0)),
        ("svm-5.10-npt/wp.perf.data.zst", "6.12", (2000, 0), (0, 0)),
        ("vmx-5.10-ept/smep.trace.dat", "6.12", (300, 0), (300, 0)),
        ("vmx-5.10-shadow/wp.trace.dat", "6.12", (300, 0), (300, 0)),
    ],
)
def test_root_work(file: str, to: str, here: tuple[int, int], there: tuple[int, int]) -> None:
    """From 6.1 on a change of WP alone unloads nothing with two-dimensional paging; SMEP resets the MMU everywhere."""
    result = ask(file, to)
    assert result.roots is not None
    assert tuple((work.unloads, work.freed) for work in result.roots) == (here, there)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("vmx-5.10-ept/kvmstat.perf.data", "addresses of page faults are not in the trace"),
        ("svm-6.12-npt-300k/wp.trace.dat", "no page in it faults twice"),
        ("vmx-6.1-ept/wp.trace.dat", "no CR0 or CR4 writes"),
    ],
)
def test_why_facts_have_to_do(file: str, why: str) -> None:
    result = ask(file, "7.2")
    assert result.method == "facts"
    assert why in result.method_why


# Made-up guests


def test_a_process_that_runs_one_vm_after_another() -> None:
    """The second VM's first faults are no refaults, and its first write does not follow the first one's last."""
    guest = Guest()
    for _ in range(2):
        guest.add("kvm_track_tsc", vcpu_id=0).fault(0x1000).toggle(0, PE_PG | WP, WP, 3)
    result = of(guest)
    assert (result.method, len(result.vms)) == ("replay", 2)
    assert refaults(result) == (0, 0)
    assert {e.changed for e in result.removed} == {("WP",)}
    assert sum(e.count for e in result.removed) == 12


def test_tables_that_another_vcpu_holds_are_not_freed() -> None:
    """KVM's TDP MMU up to 6.1.28 frees a tree with its last user (<ZSXdYcMUds-DrHAd@google.com>).

    On 5.10 trees differ by WP: vCPU 2 keeps that of WP=1, so vCPU 1 loses only that of WP=0.
    """
    guest = Guest().exit(12, tid=2).fault(0x1000, tid=1)
    for _ in range(4):
        guest.write(0, PE_PG).fault(0x1000).write(0, PE_PG | WP)
    result = of(guest, "6.12", "5.10.262+tdp-mmu-default")
    assert result.method == "replay"
    assert result.vms[0].threads == 2
    assert refaults(result) == (4, 0)
    assert result.roots is not None
    assert result.roots[0].freed == 4


def test_without_that_vcpu_the_same_exits_are_not_the_kernels() -> None:
    guest = Guest().fault(0x1000)
    for _ in range(4):
        guest.write(0, PE_PG).fault(0x1000).write(0, PE_PG | WP)
    result = of(guest, "6.12", "5.10.262+tdp-mmu-default")
    assert result.method == "facts"
    assert "no page fault follows" in result.method_why


def test_faults_at_pages_that_should_be_mapped_are_left_to_facts() -> None:
    guest = Guest().write(0, PE_PG | WP).fault(0x1000).toggle(0, PE_PG | WP, WP, 20).fault(0x1000)
    result = of(guest)
    assert result.method == "facts"
    assert "1 of its page faults are at pages that by the rules of 5.10.262 are mapped" in result.method_why


def test_each_vm_is_judged_for_itself() -> None:
    guest = Guest().add("kvm_track_tsc", vcpu_id=0)
    guest.fault(0x1000).write(0, PE_PG).fault(0x1000).toggle(0, PE_PG | WP, WP, 3)
    guest.add("kvm_track_tsc", vcpu_id=0)
    guest.write(0, PE_PG | WP).fault(0x1000).toggle(0, PE_PG | WP, WP, 20).fault(0x1000)
    result = of(guest)
    assert result.method == "replay and facts"
    assert [vm.method for vm in result.vms] == ["replay", "facts"]
    assert "1 VM: " in result.method_why
    assert sum(refaults(result)) == 2


def test_writes_without_a_value_are_taken_for_what_gives_the_trace() -> None:
    """AMD without decode assists: of all single bits only WP has tables of its own on 5.10."""
    guest = Guest(SVM, without=("kvm_cr",)).fault(0x1000).write(0, PE_PG).fault(0x1000).write(0, PE_PG | WP)
    result = of(guest)
    assert result.method == "replay"
    assert refaults(result) == (1, 0)
    assert any("that 2 CR0 writes changed CR0.WP" in sentence for sentence in result.inferred)


def test_faults_that_no_bit_explains_are_left_to_facts() -> None:
    """A page that faults at every toggle: the legacy MMU has two sets of tables, not more."""
    guest = Guest(SVM, without=("kvm_cr",)).fault(0x1000)
    for value in (0, WP) * 8:
        guest.write(0, PE_PG | value, ns=10)
        if value:
            guest.fault(0x1000)
    assert of(guest, "6.12", "5.10+tdp-root-role-constant").method == "facts"


def test_intels_writes_without_a_value_are_not_replayed() -> None:
    guest = Guest(without=("kvm_cr",)).fault(0x1000).write(0, PE_PG).fault(0x1000)
    result = of(guest)
    assert result.method == "facts"
    assert "the values of its CR0 writes are not in the trace" in result.method_why


def test_memory_the_host_took_away_contradicts_nothing() -> None:
    guest = Guest().fault(0x1000).toggle(0, PE_PG | WP, WP, 2)
    guest.add("kvm_unmap_hva_range", tid=9)
    guest.now += 10
    result = of(guest.fault(0x1000))
    assert result.method == "replay"
    assert refaults(result) == (0, 0)
    assert any("kvm_unmap_hva_range" in sentence for sentence in result.cannot_tell)


def test_what_unloading_roots_takes_shows_where_other_writes_do_not() -> None:
    """CR0.AM has no part in the MMU's role: its writes exit, and the roots stay."""
    guest = Guest().toggle(0, PE_PG | WP | AM, WP, 20, ns=5000).toggle(0, PE_PG | WP | AM, AM, 20, ns=2000)
    (reloads,) = of(guest).reloads
    assert (reloads.reason, reloads.unloading_ns, reloads.other_ns) == ("CR_ACCESS", 5000, 2000)
    assert (reloads.unloading, reloads.other) == (39, 40)  # what the very first write changed is not told


def test_lost_events_are_no_sequence_to_replay() -> None:
    result = of(Guest(meta={"lost": 3}).toggle(0, PE_PG, WP))
    assert (result.method, result.method_why) == ("facts", "parts of the trace are missing")


def test_a_guests_own_guest_is_not_replayed() -> None:
    result = of(Guest().write(0, PE_PG, also=(("kvm_nested_vmexit", {}),)).toggle(0, PE_PG | WP, WP))
    assert result.method == "facts"
    assert "a guest of its own" in result.method_why
