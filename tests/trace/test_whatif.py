"""What a what-if answers: on the recordings (tests/data/README.md says what ran), and on made-up guests.

What kernels do is stated by worldswitch.kvm and tested there against its sources; the cases here follow from it.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_build import (
    CD,
    CET,
    CR_ACCESS,
    EPT_VIOLATION,
    EXCEPTION_NMI,
    HLT,
    PE_PG,
    SMEP,
    SVM,
    TS,
    VMX,
    WP,
    WRITE_CR4,
    Guest,
)
from worldswitch.errors import NotTold, UnknownNameError, UsageError
from worldswitch.trace.readers import open_source
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.whatif import Exits, WhatIf, whatif
from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata

DATA = Path(__file__).parents[1] / "data"


def ask(name: str, to: str | None = None, from_: str | None = None, *settings: str) -> WhatIf:
    return whatif(open_source(DATA / name), to, from_, settings)


def of(guest: Guest, to: str | None = None, from_: str | None = "5.10", *settings: str) -> WhatIf:
    return whatif(guest.trace(), to, from_, settings)


def rows(exits: list[Exits]) -> list[tuple[str, str, bool, int, bool]]:
    """Reason, bits, whether refault, count, known; in an order of their own."""
    return sorted(
        (
            e.reason,
            e.register if e.changed is None else f"{e.register}.{'+'.join(e.changed)}",
            e.refault,
            e.count,
            e.known,
        )
        for e in exits
    )


def said(sentences: list[str], *parts: str) -> bool:
    """Whether one sentence has all of *parts*."""
    return any(all(part in sentence for part in parts) for sentence in sentences)


# AMD, 5.10 with the TDP MMU: every toggle of CR0.WP frees the page tables.

TDPMMU = ["wp.perf.data.zst", "kvmstat.perf.data.zst", "wp.trace.dat"]


@pytest.mark.parametrize("file", TDPMMU)
def test_refaults_of_the_tdp_mmu_vanish_and_amds_exits_stay(file: str) -> None:
    result = ask(f"svm-5.10-npt-tdpmmu/{file}", "6.12", "5.10")
    assert rows(result.removed) == [("npf", "CR0.WP", True, 800, False)]
    assert rows(result.stays) == [("cr0_sel_write", "CR0", False, 200, True)]
    assert result.assumed_from == "5.10"
    assert 0 < result.saving_ns.low < result.saving_ns.mid < result.saving_ns.high < result.total_ns
    assert result.saving_ns.mid == result.removed[0].total_ns


@pytest.mark.parametrize("file", TDPMMU)
def test_it_says_which_part_is_inference(file: str) -> None:
    result = ask(f"svm-5.10-npt-tdpmmu/{file}", "6.12", "5.10")
    assert said(result.inferred, "tdp_mmu=1", "5.10.262's default", "again and again")
    assert said(result.inferred, "CR0.WP", "the bits are not in the trace")
    assert said(
        result.cannot_tell, "how much shorter the 200 CR0 exits get", "if they change WP", "frees the page tables"
    )
    assert said(result.cannot_tell, "which bits the 200 CR0 writes changed", "SVM has no mask")


@pytest.mark.parametrize(("file", "refaults"), [("wp.perf-script.head.txt", 99), ("wp.trace-cmd-report.head.txt", 98)])
def test_texts_of_the_same_run_agree(file: str, refaults: int) -> None:
    """The heads are cut after 400 lines: 25 writes, each with 4 faults, of which the first 4 or so are missing."""
    result = ask(f"svm-5.10-npt-tdpmmu/{file}", "6.12", "5.10")
    assert rows(result.removed) == [("npf", "CR0.WP", True, refaults, False)]
    assert rows(result.stays) == [("cr0_sel_write", "CR0", False, 25, True)]


def test_the_legacy_mmu_keeps_all_but_the_other_set_of_page_tables() -> None:
    """svm-5.10-npt ran the same guest with tdp_mmu=0: 4 refaults in all."""
    result = ask("svm-5.10-npt-tdpmmu/wp.trace.dat", None, None, "tdp_mmu=0")
    assert rows(result.removed) == [("npf", "CR0.WP", True, 796, False)]
    assert ("npf", "CR0.WP", True, 4, False) in rows(result.stays)


def test_a_setting_that_has_no_part_in_it_changes_nothing() -> None:
    result = ask("svm-5.10-npt-tdpmmu/wp.trace.dat", None, None, "nx_huge_pages=never")
    assert result.removed == []
    assert result.before.mmu == result.after.mmu == "tdp"
    assert said(result.cannot_tell, "kvm.nx_huge_pages=never", "not told by these events")
    assert said(result.notes, "reads nx_huge_pages=never as off")
    assert said(result.inferred, "would run with tdp_mmu=1 as well", "--set tdp_mmu=0")


def test_amds_other_set_of_page_tables_goes() -> None:
    result = ask("svm-5.10-npt/wp.perf.data.zst", "6.12")
    assert rows(result.removed) == [("npf", "CR0.WP", True, 4, False)]
    assert rows(result.stays) == [("cr0_sel_write", "CR0", False, 2000, True)]
    assert said(result.cannot_tell, "how much shorter the 2,000 CR0 exits get")


def test_amds_exits_are_shorter_from_6_1_on_and_no_shorter_after() -> None:
    result = ask("svm-6.1-npt/wp.perf.data.zst", "6.12")
    assert result.removed == []
    assert not said(result.cannot_tell, "how much")


# Intel


def test_5_10_to_6_12_removes_the_exits_and_half_of_the_ept_violations() -> None:
    result = ask("vmx-5.10-ept/wp.trace.dat", "6.12")
    assert rows(result.removed) == [
        ("CR_ACCESS", "CR0.WP", False, 1, False),
        ("CR_ACCESS", "CR0.WP", False, 299, True),
        ("EPT_VIOLATION", "CR0.WP", True, 4, True),
    ]
    assert result.stays == []
    assert result.assumed_from is None
    assert str(result.before.kernel) == "5.10.223"
    assert result.saving_ns.mid == sum(e.total_ns for e in result.removed)
    assert result.cannot_tell == []


@pytest.mark.parametrize("to", ["6.12", "6.1", "7.2", "7.3-rc7"])
def test_smep_stays(to: str) -> None:
    result = ask("vmx-5.10-ept/smep.trace.dat", to)
    assert result.removed == []
    assert rows(result.stays) == [
        ("CR_ACCESS", "CR4.SMEP", False, 1, False),
        ("CR_ACCESS", "CR4.SMEP", False, 299, True),
    ]


def test_text_removes_four_and_leaves_four() -> None:
    result = ask("vmx-5.10-ept/trace.txt", "6.12", "5.10")
    assert rows(result.removed) == [("CR_ACCESS", "CR0.WP", False, 1, False), ("CR_ACCESS", "CR0.WP", False, 3, True)]
    assert rows(result.stays) == [
        ("CR_ACCESS", "CR4.SMEP", False, 1, False),
        ("CR_ACCESS", "CR4.SMEP", False, 3, True),
    ]
    assert said(result.inferred, "kvm_intel.ept was on", "--set kvm_intel.ept=0 states the opposite")


def test_kvmstat_has_neither_bits_nor_addresses() -> None:
    result = ask("vmx-5.10-ept/kvmstat.perf.data", "6.12")
    assert result.removed == []
    assert rows(result.stays) == [("CR_ACCESS", "CR0", False, 300, False)]
    assert said(result.cannot_tell, "which bits 300 CR0 writes changed", "kvm:kvm_cr", "If all of them change only WP")
    assert said(result.cannot_tell, "which of the 8 EPT violations", "kvm:kvm_page_fault")


@pytest.mark.parametrize("file", ["trace.txt", "wp.trace.dat", "smep.trace.dat", "wp.perf.data", "kvmstat.perf.data"])
def test_a_kernel_that_owns_the_bit_cannot_show_its_toggles(file: str) -> None:
    result = ask(f"vmx-6.1-ept/{file}", "6.12", "6.1")
    assert result.removed == []
    assert said(result.cannot_tell, "how often the guest toggles CR0.WP", "6.1.192 lets the guest own it")


def test_7_2_hides_cet_too() -> None:
    result = ask("vmx-7.2-ept/trace.txt", "7.3-rc7", "7.2")
    assert result.removed == []
    assert said(result.cannot_tell, "CR0.WP and CR4.CET", "own them", "their toggles")


@pytest.mark.parametrize(
    ("to", "exits", "refaults"),
    [
        ("5.10+cr0-wp-init-only", 0, 4),
        ("5.10+tdp-root-role-constant", 0, 4),
        ("5.10+cr0-wp-owned", 300, 4),
        ("6.2.0+cr0-wp-owned", 300, 4),
        ("6.2.0", 0, 0),  # the TDP MMU frees its page tables
        ("6.1.29", 300, 4),
        ("6.1.28", 0, 0),
    ],
)
def test_facts_one_by_one(to: str, exits: int, refaults: int) -> None:
    result = ask("vmx-5.10-ept/wp.trace.dat", to)
    assert sum(e.count for e in result.removed if not e.refault) == exits
    assert sum(e.count for e in result.removed if e.refault) == refaults


def test_a_fact_that_changes_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="changes nothing"):
        ask("vmx-5.10-ept/wp.trace.dat", "6.12+cr0-wp-owned")


# Shadow paging


def test_shadow_paging_keeps_all_and_says_why() -> None:
    result = ask("vmx-5.10-shadow/wp.trace.dat", "6.12")
    assert result.removed == []
    assert result.saving_ns == (0, 0, 0)
    assert ("CR_ACCESS", "CR0.WP", False, 299, True) in rows(result.stays)
    assert all("shadow paging" in e.why for e in result.stays if not e.refault)
    assert said(result.inferred, "shadow paging", "EXCEPTION_NMI", "nothing as EPT_VIOLATION")


def test_shadow_paging_shows_in_kvmstat_by_the_vector() -> None:
    assert ask("vmx-5.10-shadow/kvmstat.perf.data", "6.12").before.mmu == "shadow"


def test_shadow_paging_on_amd() -> None:
    result = ask("svm-5.10-shadow/wp.perf.data.zst", "6.12")
    assert result.removed == []
    assert said(result.inferred, "PF excp", "nothing as npf")
    assert said(result.cannot_tell, "which bits the 2,000 CR0 writes")


@pytest.mark.parametrize("folder", ["vmx-5.10-shadow", "vmx-6.1-shadow", "vmx-7.2-shadow"])
def test_a_setting_states_shadow_paging_where_no_page_fault_shows_it(folder: str) -> None:
    result = ask(f"{folder}/trace.txt", "6.12", folder.split("-")[1], "kvm_intel.ept=0")
    assert result.removed == []
    assert result.before.mmu == result.after.mmu == "shadow"
    assert said(result.inferred, "recorded with shadow paging too", "kvm_intel.ept=0")


def test_turning_ept_off_adds_what_no_trace_shows() -> None:
    result = ask("vmx-5.10-ept/wp.trace.dat", "6.12", None, "kvm_intel.ept=0")
    assert result.removed == []
    assert (result.before.tdp, result.after.tdp) == (True, False)
    assert said(result.cannot_tell, "what shadow paging would add", "CR3 writes")


def test_turning_ept_on_removes_what_ept_lets_the_guest_own() -> None:
    result = ask("vmx-5.10-shadow/wp.trace.dat", "6.12", None, "ept=1")
    assert sum(e.count for e in result.removed) == 300
    assert said(result.cannot_tell, "what EPT would save and add besides", "EPT violations come instead")


def test_exceptions_other_than_page_faults_are_no_shadow_paging() -> None:
    """Host NMIs exit as EXCEPTION_NMI under EPT too: vector 2, type 2."""
    guest = Guest().exit(EXCEPTION_NMI, intr_info=0x80000202).toggle(0, PE_PG | WP, WP, 3)
    assert of(guest, "6.12").before.mmu == "legacy"
    assert of(Guest().exit(EXCEPTION_NMI, intr_info=0x80000B0E).write(0, PE_PG), "6.12").before.mmu == "shadow"


# Where the kernel comes from


def test_text_asks_for_the_kernel() -> None:
    with pytest.raises(NotTold, match="state it, as in --from"):
        ask("vmx-5.10-ept/trace.txt", "6.12")


@pytest.mark.parametrize(
    "release", ["5.15.0-91-generic", "5.14.0-362.8.1.el9_3.x86_64", "6.8.12-4-pve", "6.4.0-150600.23.7-default"]
)
def test_a_distributions_own_number_asks_too(release: str) -> None:
    with pytest.raises(NotTold, match="--from"):
        of(Guest(kernel=release).toggle(0, PE_PG, WP), "6.12", None)


def test_what_is_stated_goes_before_what_the_file_says_and_is_noted() -> None:
    result = ask("vmx-5.10-ept/wp.trace.dat", "6.12", "6.1")
    assert result.assumed_from == "6.1"
    assert "although the file says 5.10.223" in result.source.how
    assert result.removed == []
    assert said(result.cannot_tell, "300 writes of CR0.WP", "is the kernel right?")
    assert said(result.cannot_tell, "why 4 page faults come again")


def test_a_version_with_the_same_facts_is_no_contradiction() -> None:
    assert "although" not in ask("vmx-5.10-ept/wp.trace.dat", "6.12", "5.10").source.how


def test_a_distributions_name_may_be_stated() -> None:
    result = ask("vmx-5.10-ept/trace.txt", "6.12.117+deb13-cloud-amd64", "5.10.0-32-cloud-amd64")
    assert (str(result.before.kernel), str(result.after.kernel)) == ("5.10.223", "6.12.117")
    assert result.assumed_from == "5.10.0-32-cloud-amd64"


@pytest.mark.parametrize(
    ("to", "setting", "message"),
    [
        ("9.1", (), "facts reach from"),
        ("banana", (), "unknown kernel"),
        ("6.2.0+cr0-wp-own", (), "nearest: .*cr0-wp-owned"),
        ("6.12", ("npt=1",), "unknown setting.*nearest: ept"),
        ("6.12", ("tdp_mmuu=1",), "nearest: tdp_mmu"),
    ],
)
def test_unknown_names_get_the_nearest(to: str, setting: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        ask("vmx-5.10-ept/wp.trace.dat", to, None, *setting)


@pytest.mark.parametrize("name", ["svm-5.10-npt/strace.txt", "svm-5.10-npt/kvmstat.txt"])
def test_what_holds_no_events_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="holds no VM-exits"):
        ask(name, "6.12", "5.10")


def test_a_stream_names_its_kernel_before_its_first_event() -> None:
    stream = io.BytesIO()
    write_perfdata(open_source(DATA / "vmx-5.10-ept/wp.trace.dat"), stream, PerfOptions(pipe=True))
    source = PerfData(Input.from_bytes(stream.getvalue()))
    assert source.meta.kernel is None
    result = whatif(source, "6.12")
    assert str(result.before.kernel) == "5.10.223"
    assert sum(e.count for e in result.removed) == 304


def test_exits_of_both_vendors_are_refused() -> None:
    guest = Guest(VMX).exit(HLT)
    guest.isa = SVM
    with pytest.raises(UsageError, match="both VMX and SVM"):
        of(guest.exit(HLT), "6.12")


def test_exits_of_no_known_processor_are_refused() -> None:
    with pytest.raises(UsageError, match="neither VMX nor SVM"):
        of(Guest(isa=3).exit(HLT), "6.12")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["cr0", "cr4", "cr3", "fault", "present", "hlt", "unmap", "silent", "gp", "nested"]),
        st.integers(0, 7),
        st.integers(1, 2),
    ),
    max_size=60,
)
KERNELS = st.sampled_from(["5.4", "5.10", "5.15.0", "6.1.0", "6.1", "6.2.0+cr0-wp-init-only", "6.12", "7.2"])


def guest_of(isa: int, steps: list[tuple[str, int, int]]) -> Guest:
    """A guest that does *steps*, on one of two vCPUs each."""
    guest = Guest(isa)
    bits = (0, WP, TS, CD, WP | TS, 1 << 18, WP | CD, 1 << 31)
    also = {"gp": ("kvm_inj_exception", {"exception": 13}), "nested": ("kvm_nested_vmexit", {})}
    for kind, n, tid in steps:
        if kind in ("fault", "present"):
            guest.fault(n << 12, tid, present=kind == "present")
        elif kind == "hlt":
            guest.exit(HLT, tid)
        elif kind == "unmap":
            guest.add("kvm_unmap_hva_range", tid=9)
        elif kind == "silent":
            guest.exit(CR_ACCESS if isa == VMX else WRITE_CR4, tid, info1=4)
        elif kind in ("cr3", "cr4"):
            guest.write(int(kind[2]), n << 18, tid)
        else:
            guest.write(0, PE_PG ^ bits[n], tid, also=(also[kind],) if kind in also else ())
    return guest


@given(
    st.sampled_from([VMX, SVM]), STEPS, KERNELS, KERNELS, st.sampled_from([(), ("tdp_mmu=0",), ("nx_huge_pages=off",)])
)
def test_every_write_is_either_removed_or_stays(
    isa: int, steps: list[tuple[str, int, int]], before: str, after: str, settings: tuple[str, ...]
) -> None:
    if "5.4" in after:
        settings = ()
    result = of(guest_of(isa, [*steps, ("hlt", 0, 1)]), after, before, *settings)
    writes = sum(kind in ("cr0", "cr3", "cr4", "silent", "gp", "nested") for kind, _, _ in steps)
    assert sum(e.count for e in (*result.removed, *result.stays) if not e.refault) == writes
    low, mid, high = result.saving_ns
    assert low <= mid <= high
    assert mid == sum(e.total_ns for e in result.removed) <= result.total_ns
    assert isa == VMX or all(e.refault for e in result.removed)


@given(st.sampled_from([VMX, SVM]), STEPS, KERNELS)
def test_the_same_host_removes_nothing(isa: int, steps: list[tuple[str, int, int]], kernel: str) -> None:
    result = of(guest_of(isa, [*steps, ("hlt", 0, 1)]), kernel, kernel)
    assert result.removed == []
    assert not said(result.cannot_tell, "would add")
    assert not said(result.cannot_tell, "how much")


# Made-up guests


def test_cet_toggles_vanish_where_the_guest_owns_the_bit() -> None:
    """Both merged in v6.18; an intercepting kernel that offers CET is 6.18 without the commit."""
    guest = Guest().toggle(4, CET, CET, 3).toggle(0, PE_PG | WP, WP, 3)
    result = of(guest, "7.2", "6.18.0-cr4-cet-owned")
    assert ("CR_ACCESS", "CR4.CET", False, 5, True) in rows(result.removed)
    assert ("CR_ACCESS", "CR4.CET", False, 1, False) in rows(result.removed)
    assert all(e.register == "CR0" for e in result.stays)


def test_refaults_between_writes_of_both_registers_belong_to_the_one_that_causes_them() -> None:
    guest = Guest().write(4, CET).write(0, PE_PG | WP).fault(0x1000)
    for _ in range(4):
        guest.write(4, 0).write(0, PE_PG).write(0, PE_PG | WP).write(4, CET).fault(0x1000)
    result = of(guest, "6.12", "6.2.0")
    assert ("EPT_VIOLATION", "CR0.WP", True, 4, True) in rows(result.removed)


def test_a_write_of_wp_and_another_bit_is_judged_as_a_whole() -> None:
    """TS is the guest's in both; AM is nobody's."""
    guest = Guest().write(0, PE_PG).write(0, PE_PG | WP | TS).write(0, PE_PG).write(0, PE_PG | WP | 1 << 18)
    result = of(guest, "6.12")
    assert ("CR_ACCESS", "CR0.TS+WP", False, 2, True) in rows(result.removed)
    assert ("CR_ACCESS", "CR0.WP+AM", False, 1, True) in rows(result.stays)


def test_cd_and_pg_stay() -> None:
    guest = Guest().write(0, PE_PG).write(0, PE_PG | CD).write(0, PE_PG & ~(1 << 31))
    result = of(guest, "6.12")
    assert result.removed == []
    assert ("CR_ACCESS", "CR0.CD", False, 1, True) in rows(result.stays)
    assert ("CR_ACCESS", "CR0.CD+PG", False, 1, True) in rows(result.stays)


def test_first_writes_that_nothing_tells_stay_unknown() -> None:
    result = of(Guest().write(0, PE_PG).toggle(0, PE_PG | WP, WP).write(0, PE_PG | CD), "6.12")
    assert ("CR_ACCESS", "CR0", False, 1, False) in rows(result.stays)
    assert said(result.cannot_tell, "which bits 1 CR0 write changed", "start before", "If it changes only WP")


def test_only_the_first_writes_that_go_are_in_the_saving() -> None:
    """Two vCPUs: one toggles WP, the other SMAP's neighbour CD; their first writes are of one reason and register."""
    guest = Guest().toggle(0, PE_PG | WP, WP, 2, tid=1, ns=100)
    for value in (CD, 0, CD):
        guest.write(0, PE_PG | value, tid=2, ns=100_000)
    result = of(guest, "6.12")
    assert sum(e.count for e in result.removed) == 4
    assert result.saving_ns == (400, 400, 400)


def test_a_faulted_write_changes_nothing_after_it() -> None:
    """A write that would set SMEP in a guest without it gets #GP: it exits, and no refault is due to it."""
    fault = ("kvm_inj_exception", {"exception": 13})
    guest = Guest().write(4, 0).fault(0x1000).write(4, SMEP, also=(fault,)).fault(0x1000)
    result = of(guest, "6.12", "6.2.0")
    assert ("CR_ACCESS", "CR4.SMEP", False, 1, True) in rows(result.stays)
    assert not any(e.refault for e in result.removed)
    assert not said(result.cannot_tell, "how much")


def test_a_faulted_write_of_an_owned_bit_does_not_exit() -> None:
    """Clearing WP with CET set: the processor raises #GP itself where the guest owns WP."""
    fault = ("kvm_inj_exception", {"exception": 13})
    result = of(Guest().write(0, PE_PG | WP).write(0, PE_PG, also=(fault,)), "7.2", "6.2.0")
    assert ("CR_ACCESS", "CR0.WP", False, 1, True) in rows(result.removed)
    assert "raises the #GP" in result.removed[0].why


def test_writes_of_other_registers_are_counted_and_not_judged() -> None:
    result = of(Guest().write(3, 0x1000).write(3, 0x2000).write(8, 5), "6.12")
    assert result.removed == []
    assert {(e.register, e.count) for e in result.stays} == {("CR3", 2), ("CR8", 1)}
    assert all("nothing is known here" in e.why for e in result.stays)


def test_amd_with_decode_assists_has_the_bits() -> None:
    result = of(Guest(SVM).toggle(0, PE_PG | WP, WP, 3), "6.12")
    assert rows(result.stays) == [
        ("cr0_sel_write", "CR0.WP", False, 1, False),
        ("cr0_sel_write", "CR0.WP", False, 5, True),
    ]
    assert said(result.cannot_tell, "how much shorter the 6 CR0.WP exits get", "only recomputes the MMU's role")


def test_amds_pge_toggles_get_cheaper() -> None:
    """Up to 5.10 PGE is a role bit, so a toggle resets the MMU; later it is a TLB flush."""
    result = of(Guest(SVM).toggle(4, 1 << 7, 1 << 7, 2), "6.12")
    assert result.removed == []
    assert said(result.cannot_tell, "CR4.PGE exits get", "6.12.117 leaves the MMU alone")


def test_a_nested_guests_writes_are_its_hypervisors_too() -> None:
    result = of(Guest().write(0, PE_PG, also=(("kvm_nested_vmexit", {}),)).write(0, PE_PG | WP), "6.12")
    assert said(result.cannot_tell, "1 exit of nested guests")


def test_pages_the_host_took_away_are_not_counted() -> None:
    guest = Guest().write(0, PE_PG | WP).fault(0x1000).fault(0x2000).toggle(0, PE_PG | WP, WP).fault(0x1000)
    guest.add("kvm_unmap_hva_range", tid=9)
    guest.now += 10
    result = of(guest.fault(0x2000), "6.12")
    assert ("EPT_VIOLATION", "CR0.WP", True, 1, True) in rows(result.removed)
    assert said(result.cannot_tell, "1 more page fault would go", "kvm_unmap_hva_range")


def test_lost_huge_pages_may_hide_refaults() -> None:
    guest = Guest().write(0, PE_PG | WP).fault(0x1000).toggle(0, PE_PG | WP, WP).fault(0x1000).fault(0x3000)
    assert said(of(guest, "6.12").cannot_tell, "pages not seen before", "huge page")


def test_pages_mapped_before_the_trace_began_may_hide_refaults() -> None:
    guest = Guest().toggle(0, PE_PG | WP, WP).fault(0x1000)
    assert said(of(guest, "6.12").cannot_tell, "1 page fault on pages not seen before", "before the trace began")
    assert not said(of(guest, "6.12", "6.1").cannot_tell, "before the trace began")


def test_repeated_refaults_need_the_tdp_mmu_to_be_on() -> None:
    """A few refaults of the same page among many writes are no sign of it; then they are unexplained."""
    guest = Guest().write(0, PE_PG | WP).fault(0x1000)
    for _ in range(2):
        guest.toggle(0, PE_PG | WP, WP, 20).fault(0x1000)
    result = of(guest, "6.12")
    assert result.before.mmu == "legacy"
    assert ("EPT_VIOLATION", "CR0", True, 1, False) in rows(result.stays)
    assert said(result.cannot_tell, "why 1 page fault comes again", "--from 5.10.262+tdp-mmu-default")
    stated = of(guest, "6.12", "5.10.262+tdp-mmu-default")
    assert ("EPT_VIOLATION", "CR0.WP", True, 2, True) in rows(stated.removed)


@pytest.mark.parametrize(
    ("before", "after", "isa", "parts"),
    [
        ("6.12", "5.10", VMX, ("how many exits 5.10.262 would add", "CR0.WP")),
        ("6.12", "5.10", SVM, ("how many page faults 5.10.262 with the legacy MMU would add", "once")),
        ("6.12", "6.2.0", SVM, ("how many page faults 6.2.0 with the TDP MMU would add", "each time")),
        ("5.10", "6.2.0", VMX, ("how many page faults 6.2.0", "frees its page tables each time", "goes over to other")),
        ("6.12", "5.10", SVM, ("how much longer the 4 CR0.WP exits get",)),
    ],
)
def test_what_would_be_added_cannot_be_told(before: str, after: str, isa: int, parts: tuple[str, ...]) -> None:
    result = of(Guest(isa).toggle(0, PE_PG | WP, WP, 2), after, before)
    assert result.removed == []
    assert said(result.cannot_tell, *parts)


def test_refaults_that_should_be_there_and_are_not() -> None:
    """6.2.0 with the TDP MMU frees the page tables at each toggle (<ZSXdYcMUds-DrHAd@google.com>)."""
    guest = Guest().toggle(0, PE_PG | WP, WP, 5)
    assert said(
        of(guest, "6.12", "6.2.0").cannot_tell, "why no page faults follow the 10 CR0.WP writes", "another vCPU"
    )
    guest.fault(0x1000).toggle(0, PE_PG | WP, WP).fault(0x1000)
    assert not said(of(guest, "6.12", "6.2.0").cannot_tell, "why no page faults follow")


def test_a_kernel_without_cet_is_noted() -> None:
    result = of(Guest().toggle(4, SMEP, SMEP), "6.12", "7.2")
    assert said(result.notes, "6.12.117 offers its guests no CR4.CET")
    assert not said(result.cannot_tell, "would add", "CR4.CET")


def test_exits_without_an_entry_have_no_time() -> None:
    guest = Guest().write(0, PE_PG).write(0, PE_PG | WP)
    guest.events.pop()  # the last entry
    result = of(guest, "6.12")
    assert sum(e.count for e in result.removed) == 2
    assert result.saving_ns.mid == 1000
    assert said(result.cannot_tell, "what 1 removed exit took")


def test_writes_without_any_exit_are_judged_with_the_vendor_of_the_file() -> None:
    guest = Guest(without=("kvm_exit",), meta={"vendor": "intel"}).toggle(0, PE_PG | WP, WP, 2)
    result = of(guest, "6.12")
    assert sum(e.count for e in result.removed) == 4
    assert result.saving_ns == (0, 0, 0)
    assert said(result.cannot_tell, "what 4 removed exits took")


def test_lost_events_and_damage_are_told() -> None:
    meta = {"lost": 7, "complete": False, "damage": ["cut off at byte 100"]}
    result = of(Guest(meta=meta).toggle(0, PE_PG, WP), "6.12")
    assert said(result.cannot_tell, "7 lost events")
    assert said(result.cannot_tell, "cut off at byte 100")


def test_an_empty_trace_is_refused_unless_its_vendor_is_known() -> None:
    with pytest.raises(UsageError, match="holds no VM-exits"):
        of(Guest(), "6.12")
    assert of(Guest(meta={"vendor": "amd"}), "6.12").removed == []


def test_other_exits_have_no_part_in_it() -> None:
    guest = Guest().exit(HLT, ns=10**9).exit(EPT_VIOLATION).exit(CR_ACCESS, info1=0x10)
    result = of(guest, "6.12")
    assert (result.removed, result.stays) == ([], [])
    assert (result.exits, result.total_ns) == (3, 10**9 + 2000)


def test_a_write_that_changes_nothing_is_not_explained() -> None:
    result = of(Guest().write(0, PE_PG).write(0, PE_PG), "6.12")
    assert said([e.why for e in result.stays], "no bit differs")


def test_unknown_cr4_writes_on_amd() -> None:
    result = of(Guest(SVM).exit(WRITE_CR4).exit(WRITE_CR4), "6.12")
    assert said(result.cannot_tell, "which bits the 2 CR4 writes changed")
    assert said(result.cannot_tell, "how much shorter the 2 CR4 exits get, if they change PGE")


def test_unknown_bits_that_lose_the_same_are_said_together() -> None:
    result = of(Guest(SVM).exit(WRITE_CR4).exit(WRITE_CR4), "6.2.0", "6.12")
    assert said(result.cannot_tell, "how many page faults 6.2.0", "2 CR4 writes, if they change SMEP or SMAP or PKE:")
    one = of(Guest(SVM).exit(WRITE_CR4), "6.2.0", "6.12")
    assert said(one.cannot_tell, "1 CR4 write, if it changes SMEP or SMAP or PKE:")


def test_kernel_notes_are_passed_on() -> None:
    result = of(Guest().toggle(0, PE_PG, WP), "6.12.999")
    assert said(result.notes, "6.12.999", "newer than 6.12.117")
