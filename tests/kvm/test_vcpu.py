"""The executable KVM against what real KVM did: the recordings in tests/data, the counts in vmx_counts.txt (Bochs, real
kvm_intel), the access cases of the manuals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import MissingError
from worldswitch.guest import library
from worldswitch.guest.library import access
from worldswitch.guest.operations import Load, Operation, Store, WriteCr, WriteEntry
from worldswitch.guest.program import Pages, Program, Space, State, Vcpu
from worldswitch.kvm.host import Host
from worldswitch.kvm.machine import INSTANTS
from worldswitch.kvm.offers import offers
from worldswitch.kvm.ownership import owned_cr0
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import Run, run
from worldswitch.x86.registers import CR0, CR4, bit_mask

# tests/data/README.md: kernel, processor, MMU, bit, writes; then the exits.
RECORDED = [
    ("5.10.223", "amd", "legacy", "CR0.WP", 2000, {"cr0_sel_write": 2000, "npf": 8}),
    ("5.10.223", "amd", "tdp", "CR0.WP", 200, {"cr0_sel_write": 200, "npf": 804}),
    ("6.1.190", "amd", "default", "CR0.WP", 2000, {"cr0_sel_write": 2000, "npf": 4}),
    ("6.12.117", "amd", "default", "CR0.WP", 300_000, {"cr0_sel_write": 300_000, "npf": 4}),
    ("7.2.13", "amd", "default", "CR0.WP", 2000, {"cr0_sel_write": 2000, "npf": 4}),
    ("5.10.223", "amd", "shadow", "CR0.WP", 2000, {"write_cr0": 1000, "cr0_sel_write": 1000, "PF excp": 2}),
    ("6.1.190", "amd", "default", "CR4.PGE", 2000, {"write_cr4": 2000, "npf": 4}),
    ("5.10.223", "intel", "default", "CR0.WP", 300, {"CR_ACCESS": 300, "EPT_VIOLATION": 8}),
    ("6.1.190", "intel", "default", "CR0.WP", 300, {"EPT_VIOLATION": 4}),
    ("5.10.223", "intel", "shadow", "CR0.WP", 300, {"CR_ACCESS": 300, "EXCEPTION_NMI": 2}),
    ("6.1.190", "intel", "shadow", "CR0.WP", 300, {"CR_ACCESS": 300, "EXCEPTION_NMI": 2}),
]


@pytest.mark.parametrize(("kernel", "cpu", "mmu", "bit", "n", "expected"), RECORDED)
def test_the_recorded_program(kernel: str, cpu: str, mmu: str, bit: str, n: int, expected: dict[str, int]) -> None:
    got = run(library.program(f"recorded-wp:bit={bit}"), Policy.of(kernel, cpu, mmu), n)
    halt = "HLT" if cpu == "intel" else "hlt"  # the last exit, which no entry follows
    assert got.exits_by_reason == {**expected, halt: 1}
    assert got.exits == sum(expected.values()) + 1


@pytest.mark.parametrize(("bit", "flushes"), [("CR0.WP", 0), ("CR4.PGE", 2000)])
def test_the_statistics_of_the_recorded_program(bit: str, flushes: int) -> None:
    """tests/data/svm-6.1-npt: tlb_flush and pf_taken as KVM_GET_STATS_FD gave them."""
    got = run(library.program(f"recorded-wp:bit={bit}"), Policy.of("6.1.190", "amd"), 2000)
    assert got.counters.get("tlb_flush", 0) == flushes
    assert got.counters["pf_taken"] == 4
    assert got.counters.get("mmu_shadow_zapped", 0) == 0


def test_the_faults_of_the_recording_in_their_order() -> None:
    """tests/data/svm-5.10-npt-tdpmmu, wp.trace-cmd-report: addresses and EXITINFO1 of the first nested page faults."""
    got = run(library.program("recorded-wp"), Policy.of("5.10.223", "amd", "tdp"), 1, record=True)
    trace = got.trace()
    faults = trace.table("kvm_page_fault")
    assert faults["fault_address"].tolist()[:4] == [0x2000, 0x3000, 0x4000, 0x1000]
    assert faults["error_code"].tolist()[:4] == [6, 6, 6, 0x14]
    exits = trace.table("kvm_exit")
    assert exits["info1"].tolist()[:4] == [0x2_0000_0006, 0x2_0000_0006, 0x2_0000_0006, 0x1_0000_0014]
    assert len(trace.table("kvm_entry")["rip"]) == len(exits["isa"])


COUNTED = ("5.10.223", "6.1.190", "6.12.117", "7.2.13", "7.3-rc7")


def _counted() -> list[tuple[str, str, str, str]]:
    rows = []
    for line in (Path(__file__).parent / "vmx_counts.txt").read_text().splitlines():
        if not line.startswith("#"):
            bit, ept, *cells = line.split()
            rows += [(bit, ept, kernel, cell) for kernel, cell in zip(COUNTED, cells, strict=True)]
    return rows


def _pairs(bit: str) -> Program:
    """The shipped program that makes pairs of this bit."""
    return library.program(bit.lower().replace(".", "-"))


@pytest.mark.parametrize(("bit", "ept", "kernel", "cell"), _counted())
def test_exits_and_flushes_per_pair_of_real_kvm_intel(bit: str, ept: str, kernel: str, cell: str) -> None:
    policy, n = Policy.of(kernel, mmu="default" if ept == "on" else "shadow"), 50
    if cell == "-":
        # PKE is missing on 5.10 and 6.1 for want of the emulated processor's, not of KVM's.
        if not (bit == "CR4.PKE" and ept == "on"):
            with pytest.raises(MissingError, match="does not offer"):
                run(_pairs(bit), policy, n)
        return
    empty, got = run(_pairs(bit), policy, 0), run(_pairs(bit), policy, n)
    exits, flushes = cell.split("/")
    # The first pair may reach pages for the first time; from the second on nothing is new.
    first = run(_pairs(bit), policy, 1)
    assert got.exits - first.exits == int(exits) * (n - 1)
    assert first.exits >= empty.exits + int(exits)
    if flushes != "?":
        assert got.counters.get("tlb_flush", 0) - empty.counters.get("tlb_flush", 0) == int(flushes) * n


@pytest.mark.parametrize("kernel", COUNTED)
@pytest.mark.parametrize("mmu", ["default", "shadow"])
def test_cpuid_exits_once_and_an_empty_loop_never(kernel: str, mmu: str) -> None:
    policy = Policy.of(kernel, mmu=mmu)
    for name, each in (("cpuid", 1), ("nop", 0)):
        counts = [run(library.program(name), policy, n).exits for n in (0, 100)]
        assert counts[1] - counts[0] == 100 * each


HOSTS = [
    (k, cpu, mmu)
    for k in ("5.10", "6.1", "6.12", "7.2")
    for cpu in ("intel", "amd")
    for mmu in ("legacy", "tdp", "shadow")
]


@pytest.mark.parametrize(("kernel", "cpu", "mmu"), HOSTS)
def test_every_access_faults_as_the_manuals_say(kernel: str, cpu: str, mmu: str) -> None:
    """Intel SDM volume 3, sections 4.6 and 4.7: 912 cases, with protection keys 1,980."""
    features = "smep+smap" if mmu == "shadow" else "all"
    program = library.program(f"access:features={features}")
    report = run(program, Policy.of(kernel, cpu, mmu), 1).reports[0]
    assert report is not None
    judgement = access.judge(access.cases(access.parse_features(features)), report.log)
    assert [str(verdict.case) for verdict in judgement.verdicts if not verdict.agrees] == []
    assert len(judgement.verdicts) == (912 if mmu == "shadow" else 1980)


def test_events_are_those_that_were_counted() -> None:
    for mmu in ("legacy", "tdp", "shadow"):
        for cpu in ("intel", "amd"):
            got = run(library.program("cr0-wp"), Policy.of("5.10", cpu, mmu), 20, record=True)
            trace = got.trace()
            assert len(trace.table("kvm_exit")["isa"]) == got.exits
            assert trace.meta.events["kvm_exit"] == got.exits
            values = trace.table("kvm_cr")["val"].tolist()
            wp = bit_mask(CR0, "WP")
            assert values == [State().cr0 & ~wp, State().cr0] * 20


# ---- what cannot be run


@pytest.mark.parametrize(
    ("spec", "kernel", "mmu"),
    [
        ("cr4-cet", "5.10", "default"),
        ("cr4-cet", "7.2", "shadow"),
        ("cr4-pke", "6.1", "shadow"),
        ("cr0-wp+cet", "6.12", "default"),
    ],
)
def test_a_program_whose_features_are_not_offered(spec: str, kernel: str, mmu: str) -> None:
    with pytest.raises(MissingError, match=r"needs (ibt, )?(shstk|pku), which KVM of .* does not offer"):
        run(library.program(spec), Policy.of(kernel, mmu=mmu))


def test_features_by_vendor_and_mmu() -> None:
    assert offers(Policy.of("7.2"), "ibt") and not offers(Policy.of("7.2", "amd"), "ibt")
    assert offers(Policy.of("7.2", "amd"), "shstk") and not offers(Policy.of("7.2", "amd", "shadow"), "shstk")
    assert offers(Policy.of("6.1"), "pku") and not offers(Policy.of("6.1", mmu="shadow"), "pku")
    assert not offers(Policy.of("6.1", settings=["cpuid.smep=0"]), "smep")
    assert offers(Policy.of("6.12"), "lam") and not offers(Policy.of("6.1"), "lam")
    assert not offers(Policy.of("6.12", "amd"), "lam")
    assert offers(Policy.of("5.10"), "pdpe1gb") and not offers(Policy.of("5.10"), "uintr")


def test_huge_pages_are_a_condition_of_the_run() -> None:
    program, policy = library.program("page-touch:size=2M,pages=4,huge=true"), Policy.of("6.12")
    with_them = run(program, policy, 4)
    without = run(program, policy, 4, host=Host(huge_pages=False))
    assert with_them.counters["pages_2m"] == 4 and without.counters["pages_2m"] == 0
    assert with_them.exits == without.exits


# ---- invariants

VA, PA = 0x4000_0000, 0x200000
_BITS = {0: ("WP", "AM", "TS", "MP", "NE"), 4: ("PGE", "TSD", "SMEP", "SMAP", "FSGSBASE", "UMIP")}
toggles = st.sampled_from([0, 4]).flatmap(
    lambda cr: st.lists(st.sampled_from(_BITS[cr]), min_size=1, max_size=3, unique=True).map(
        lambda bits: WriteCr(cr, toggle=tuple(bits))
    )
)
touches = st.sampled_from(
    [Load(VA), Store(VA, value=7), Load(VA + 0x1000, user=True), Store(VA + 0x1000, user=True), Store(VA + 0x2000)]
)
entry_writes = st.sampled_from(
    [
        WriteEntry("main", VA, toggle=("W",)),
        WriteEntry("main", VA + 0x1000, toggle=("U",)),
        WriteEntry("main", VA, 2, toggle=("U",)),
    ]
)
bodies = st.lists(st.one_of(toggles, touches, entry_writes), min_size=1, max_size=8)
policies = st.builds(
    Policy.of,
    st.sampled_from(["5.10", "6.1", "6.4.0", "6.12", "7.2"]),
    st.sampled_from(["intel", "amd"]),
    st.sampled_from(["legacy", "tdp", "shadow"]),
)


def _program(body: list[Operation]) -> Program:
    pages = (
        Pages(VA, PA, flags=("W", "U")),
        Pages(VA + 0x1000, PA + 0x1000, flags=("W", "U")),
        Pages(VA + 0x2000, PA + 0x2000, flags=()),
    )
    return Program("random", "x", "pass", (Vcpu(body=tuple(body)),), (Space("main", pages),))


def _seen(got: Run) -> object:
    report = got.reports[0]
    assert report is not None
    return report.faults, report.log, report.values


@settings(max_examples=60, deadline=None)
@given(bodies, policies)
def test_a_second_run_gives_an_identical_trace(body: list[Operation], policy: Policy) -> None:
    program = _program(body)
    one, other = (run(program, policy, 3, record=True) for _ in range(2))
    assert one.rows == other.rows
    assert (one.counters, one.exits_by_reason, one.reports) == (other.counters, other.exits_by_reason, other.reports)


@settings(max_examples=60, deadline=None)
@given(bodies, policies, st.integers(1, 40))
def test_a_shortcut_never_shows(body: list[Operation], policy: Policy, n: int) -> None:
    program = _program(body)
    short, whole = run(program, policy, n), run(program, policy, n, whole=True)
    for part in ("exits_by_reason", "counters", "userspace_exits", "reports"):
        assert getattr(short, part) == getattr(whole, part), part


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(toggles, touches), min_size=1, max_size=8), st.lists(policies, min_size=2, max_size=4))
def test_the_guest_sees_the_same_on_every_host(body: list[Operation], hosts: list[Policy]) -> None:
    """Without writes to tables, whose effect before a flush is the processor's choice."""
    program = _program(body)
    assert len({str(_seen(run(program, policy, 2))) for policy in hosts}) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(toggles, min_size=1, max_size=6), st.sampled_from(["5.10", "6.1.28", "6.4.0", "6.17.0", "7.2"]))
def test_owned_bits_never_exit_and_more_owned_bits_never_add_exits(body: list[WriteCr], kernel: str) -> None:
    policy = Policy.of(kernel, mmu="tdp")
    program = _program(list(body))
    got, newest = run(program, policy, 4), run(program, Policy.of("7.3", mmu="tdp"), 4)
    assert newest.exits_by_reason.get("CR_ACCESS", 0) <= got.exits_by_reason.get("CR_ACCESS", 0)
    owned = {name for name in _BITS[0] if owned_cr0(policy) & bit_mask(CR0, name)} | {"PGE", "TSD", "FSGSBASE"}
    if all(set(write.toggle) <= owned for write in body):
        assert "CR_ACCESS" not in got.exits_by_reason


def test_a_write_that_changes_nothing_the_host_owns_does_not_exit() -> None:
    same = (WriteCr(0, value=State().cr0), WriteCr(4, value=bit_mask(CR4, "PAE")))
    assert "CR_ACCESS" not in run(_program(list(same)), Policy.of("5.10"), 10).exits_by_reason


def test_gauges_are_what_there_is_at_the_end() -> None:
    policy = Policy.of("6.12")
    once, often = (run(library.program("page-touch"), policy, n) for n in (64, 1000))
    assert {name: once.counters.get(name) for name in INSTANTS} == {name: often.counters.get(name) for name in INSTANTS}
