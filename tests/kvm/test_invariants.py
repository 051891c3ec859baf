"""What holds for every program of register writes on every host.

Expected: SDM volume 3, "Guest/Host Masks and Read Shadows for CR0 and CR4"; SDM volume 2, MOV to control registers: the
value is there afterwards, or #GP and the old one.
"""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from worldswitch.guest.operations import Operation, ReadCr, WriteCr, WriteMsr
from worldswitch.guest.program import Program, Space, State, Vcpu
from worldswitch.kvm.ownership import owned
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import Run, run
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

START = {CR0: State().cr0, CR4: State().cr4}
ET, PG = bit_mask(CR0, "ET"), bit_mask(CR0, "PG")
KNOWN = bit_mask(CR0, "PE", "MP", "EM", "TS", "ET", "NE", "WP", "AM", "NW", "CD", "PG")
KERNELS = ["5.4", "5.10", "5.15", "6.1.28", "6.1", "6.2.0", "6.4.0", "6.12", "6.17.0", "6.18", "7.2", "7.3"]
# Bits of CR0 but PG, without which no 64-bit code runs; of CR4 those every KVM of the list offers, and two nobody has.
_CR0 = [n for n in range(33) if n != 31]
_CR4 = [bit_mask(CR4, name).bit_length() - 1 for name in
        ("VME", "PVI", "TSD", "DE", "PSE", "PAE", "MCE", "PGE", "PCE", "OSFXSR", "OSXMMEXCPT", "UMIP", "LA57",
         "FSGSBASE", "PCIDE", "SMEP", "SMAP")]  # fmt: skip
_FLIPS = {
    CR0: st.lists(st.sampled_from(_CR0), max_size=3, unique=True),
    CR4: st.lists(st.sampled_from([*_CR4, 15, 29]), max_size=3, unique=True),
}


def _flipped(cr: int, bits: list[int]) -> WriteCr:
    return WriteCr(cr, value=START[cr] ^ sum(1 << bit for bit in bits))


values = st.sampled_from([CR0, CR4]).flatmap(lambda cr: _FLIPS[cr].map(lambda bits: _flipped(cr, bits)))
programs = st.lists(values, min_size=1, max_size=6)
hosts = st.builds(
    Policy.of, st.sampled_from(KERNELS), st.sampled_from(["intel", "amd"]), st.sampled_from(["legacy", "shadow"])
)
intel = st.builds(
    Policy.of, st.sampled_from(KERNELS), st.just("intel"), st.sampled_from(["legacy", "shadow"])
)  # the TDP MMU owns what the legacy MMU does


def _program(*body: Operation, cr4: int = START[CR4]) -> Program:
    return Program("writes", "x", "pass", (Vcpu(body=body),), (Space("main"),), state=State(cr4=cr4))


def _faulted(got: Run) -> set[int]:
    assert got.reports[0] is not None
    assert {(fault.vector, fault.error_code) for fault in got.reports[0].log} <= {(13, 0)}
    return {int(fault.operation.rpartition(" ")[2]) for fault in got.reports[0].log}


def _exits(got: Run) -> int:
    """Exits of MOV to CR0 and CR4, which the programs here have no others than."""
    return got.exits_by_reason.get("CR_ACCESS", 0)


@settings(max_examples=150, deadline=None)
@given(programs, hosts)
def test_the_guest_sees_what_it_wrote_or_gets_gp(writes: list[WriteCr], host: Policy) -> None:
    """CR0's reserved bits below 32 read as 0 and ET as 1, whatever is written."""
    body = [operation for write in writes for operation in (write, ReadCr(write.cr, keep=True))]
    got = run(_program(*body), host, 1)
    report, faulted, now = got.reports[0], _faulted(got), dict(START)
    assert report is not None
    for at, write in enumerate(writes):
        assert write.value is not None
        if 2 * at not in faulted:
            now[write.cr] = write.value & KNOWN | ET if write.cr == CR0 else write.value
        assert report.values[f"vcpu 0 body {2 * at + 1}"] == now[write.cr]
    assert all(at % 2 == 0 for at in faulted)


@settings(max_examples=150, deadline=None)
@given(programs, intel)
def test_owned_bits_never_exit_nor_do_host_bits_that_stay(writes: list[WriteCr], host: Policy) -> None:
    """Each write by itself: it exits exactly if it changes a bit the guest does not own, against what was there."""
    mine, before = owned(host), dict(START)
    expected = 0
    faulted = _faulted(run(_program(*writes), host, 1))
    for at, write in enumerate(writes):
        assert write.value is not None
        own = mine.cr0 if write.cr == CR0 else mine.cr4
        expected += bool((before[write.cr] ^ write.value) & ~own)
        if at not in faulted:
            before[write.cr] = write.value & KNOWN | ET if write.cr == CR0 else write.value
    assert _exits(run(_program(*writes), host, 1)) == expected


LESS_AND_MORE = [
    ("5.4-cr4-tsd-owned", "5.4"),
    ("5.10-cr4-fsgsbase-owned", "5.10"),
    ("5.10", "5.10+cr0-wp-owned"),
    ("6.2.0", "6.4.0"),
    ("6.12-cr0-wp-owned-cr4-tsd-owned", "6.12"),
    ("7.2-cr4-cet-owned", "7.2"),
]


@settings(max_examples=150, deadline=None)
@given(programs, st.sampled_from(LESS_AND_MORE))
def test_more_owned_bits_never_add_exits(writes: list[WriteCr], kernels: tuple[str, str]) -> None:
    less, more = (Policy.of(kernel) for kernel in kernels)
    assert owned(less) != owned(more)
    assert owned(less).cr0 & ~owned(more).cr0 == owned(less).cr4 & ~owned(more).cr4 == 0
    assert _exits(run(_program(*writes), more, 2)) <= _exits(run(_program(*writes), less, 2))


@settings(max_examples=100, deadline=None)
@given(programs, hosts, st.integers(1, 5))
def test_a_second_run_gives_an_identical_trace(writes: list[WriteCr], host: Policy, n: int) -> None:
    program = _program(*writes, WriteMsr(EFER, 0x500), WriteMsr(EFER, 0xD00))
    one, other = (run(program, host, n, record=True) for _ in range(2))
    assert one == other and one.rows == other.rows


cet_writes = st.lists(
    st.one_of(
        st.sampled_from([WriteCr(4, set=("CET",)), WriteCr(4, clear=("CET",)), WriteCr(0, set=("WP",)),
                         WriteCr(0, clear=("WP",)), WriteCr(0, toggle=("AM",)), WriteCr(4, toggle=("MCE",))])
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(cet_writes, st.sampled_from([("7.2", "intel"), ("7.2-cr4-cet-owned", "intel"), ("6.18", "amd"), ("7.3", "amd")]))
def test_cet_is_never_set_without_wp(writes: list[WriteCr], host: tuple[str, str]) -> None:
    """Whoever judges a write, processor or KVM (SDM volume 3, section 2.5: CR4.CET needs CR0.WP)."""
    body = [operation for write in writes for operation in (write, ReadCr(0, keep=True), ReadCr(4, keep=True))]
    report = run(_program(*body), Policy.of(*host), 1).reports[0]
    assert report is not None
    wp, cet = bit_mask(CR0, "WP"), bit_mask(CR4, "CET")
    seen = [(report.values[f"vcpu 0 body {at + 1}"], report.values[f"vcpu 0 body {at + 2}"])
            for at in range(0, len(body), 3)]  # fmt: skip
    assert all(cr0 & wp or not cr4 & cet for cr0, cr4 in seen)
    assume(any(cr4 & cet for _, cr4 in seen))
