from __future__ import annotations

import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import (
    CPUID,
    CR0_SEL_WRITE,
    CR_ACCESS,
    EPT_VIOLATION,
    HLT,
    IO,
    MSR_WRITE,
    NPF,
    SVM,
    WRITE_CR0,
    batch,
    cr_write,
    emulated,
    entry,
    event,
    exit_,
    trace,
    write_wp,
)
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.trace.account import BY, Account, Filter, account

WP_OFF, WP_ON = 0x80000033, 0x80010033
GP = 13


def only_row(result: Account):
    (row,) = result.exits
    return row


def seen(result: Account) -> dict[str, int]:
    return {detection.id: detection.count for detection in result.detections}


# perf counts from a thread's first entry on (kvm_exit_event's begin needs a vcpu record, which an entry makes), an exit
# lasts to the thread's next entry, and a second exit replaces the first: tools/perf/builtin-kvm.c, handle_kvm_event,
# handle_begin_event, handle_end_event.


def test_an_exit_lasts_to_the_next_entry_of_its_thread() -> None:
    row = only_row(account(trace(entry(10), exit_(30), entry(75))))
    assert (row.count, row.total_ns, row.min_ns, row.max_ns, row.mean_ns, row.open) == (1, 45, 45, 45, 45.0, 0)


def test_an_exit_before_the_first_entry_is_open() -> None:
    result = account(trace(exit_(5), entry(10), exit_(30), entry(75)))
    row = only_row(result)
    assert (row.count, row.total_ns, row.open) == (1, 45, 1)
    assert seen(result) == {"mid-flight": 1}


def test_an_exit_that_another_follows_is_open() -> None:
    result = account(trace(entry(10), exit_(30, reason=CPUID), exit_(40, reason=HLT), entry(75)))
    rows = {row.reason: (row.count, row.total_ns, row.open) for row in result.exits}
    assert rows == {"CPUID": (0, 0, 1), "HLT": (1, 35, 0)}


def test_an_exit_that_the_trace_ends_in_is_open() -> None:
    row = only_row(account(trace(entry(10), exit_(30))))
    assert (row.count, row.total_ns, row.open) == (0, 0, 1)
    assert (row.min_ns, row.p50_ns, row.mean_ns) == (None, None, None)


def test_an_entry_before_its_exit_makes_no_duration() -> None:
    """A clock that jumped back: perf drops it ("End time before begin time")."""
    result = account(trace(entry(10), exit_(50), entry(40), exit_(60), entry(65)))
    row = only_row(result)
    assert (row.count, row.total_ns, row.open) == (1, 5, 1)


def test_equal_stamps_make_an_exit_of_no_time() -> None:
    row = only_row(account(trace(entry(10), exit_(10), entry(10), exit_(10), entry(10))))
    assert (row.count, row.total_ns, row.max_ns, row.open) == (2, 0, 0, 0)


def test_two_entries_in_a_row_count_nothing() -> None:
    row = only_row(account(trace(entry(10), entry(20), exit_(30), entry(40), entry(50))))
    assert (row.count, row.total_ns) == (1, 10)


def test_threads_do_not_mix() -> None:
    events = [entry(1, 1), entry(2, 2), exit_(10, 1), exit_(11, 2), entry(20, 2), entry(40, 1)]
    result = account(trace(events))
    assert {row.vm: row.total_ns for row in result.exits} == {1: 30, 2: 9}


@pytest.mark.parametrize("split", [1, 2, 3, 5])
def test_where_batches_end_does_not_matter(split: int) -> None:
    events = [e for t in range(0, 2000, 100) for e in (entry(t), *write_wp(t + 40, WP_ON if t % 200 else WP_OFF))]
    whole, parts = account(trace(events)), account(trace(events, split=split))
    assert parts.exits == whole.exits
    assert parts.cr_writes == whole.cr_writes
    assert parts.vcpus == whole.vcpus


def test_a_thread_that_moves_cpus_stays_one_vcpu() -> None:
    first, second = batch([entry(10), exit_(30)], cpu=0), batch([entry(75), exit_(80), entry(81)], cpu=3)
    row = only_row(account(Trace([first, second], Meta())))
    assert (row.count, row.total_ns) == (2, 46)


def test_vcpus_of_a_vm_are_told_apart() -> None:
    events = [
        entry(1, 11, 0),
        entry(2, 12, 1),
        exit_(10, 11, vcpu_id=0),
        exit_(11, 12, vcpu_id=1),
        entry(20, 12, 1),
        entry(40, 11, 0),
    ]
    result = account(trace(events, pid=9))
    assert {(row.vm, row.vcpu): row.total_ns for row in result.exits} == {(9, 0): 30, (9, 1): 9}


def test_without_processes_a_vm_is_a_thread() -> None:
    assert only_row(account(trace(entry(1, 7), exit_(2, 7), entry(3, 7)))).vm == 7


def test_a_vcpu_is_known_from_its_entries_where_exits_do_not_say() -> None:
    """5.10's kvm_exit has no vcpu_id in text, 6.1's kvm_entry has."""
    events = [entry(1, vcpu=3), exit_(2), entry(3, vcpu=3)]
    for one in events:
        if one[2] == "kvm_exit":
            del one[3]["vcpu_id"]
    assert only_row(account(trace(events))).vcpu == 3


def test_guest_host_and_userspace_time() -> None:
    events = [
        entry(100),
        exit_(150, reason=IO),
        event(160, "kvm_userspace_exit", reason=2, errno=0),
        event(190, "kvm_fpu", load=1),
        entry(200),
        exit_(260),
        entry(265),
    ]
    (vcpu,) = account(trace(events)).vcpus
    assert (vcpu.exits, vcpu.guest_ns, vcpu.host_ns, vcpu.user_ns) == (2, 110, 25, 30)


def test_userspace_lasts_to_the_entry_where_no_fpu_event_tells() -> None:
    events = [entry(100), exit_(150, reason=IO), event(160, "kvm_userspace_exit", reason=2, errno=0), entry(200)]
    row = only_row(account(trace(events)))
    assert (row.total_ns, row.user_ns) == (50, 40)


def test_unloading_the_fpu_does_not_end_userspace() -> None:
    events = [entry(1), exit_(50), event(60, "kvm_userspace_exit", reason=2, errno=0)]
    events += [event(61, "kvm_fpu", load=0), event(80, "kvm_fpu", load=1), entry(90)]
    assert only_row(account(trace(events))).user_ns == 20


def test_nested_exits_are_counted_beside() -> None:
    events = [entry(1), exit_(50), event(51, "kvm_nested_vmexit"), entry(60), exit_(70), entry(75)]
    row = only_row(account(trace(events)))
    assert (row.count, row.nested) == (2, 1)


def test_a_write_changes_what_differs_from_the_one_before() -> None:
    result = account(trace(entry(1), write_wp(10, WP_ON), write_wp(30, WP_OFF), write_wp(50, WP_ON)))
    (write,) = result.cr_writes
    assert (write.cr, write.changed, write.count, write.inferred, write.total_ns) == (0, ("WP",), 3, 1, 30)


def test_a_first_write_is_not_inferred_from_writes_that_differ() -> None:
    result = account(trace(entry(1), write_wp(10, WP_ON), write_wp(30, WP_OFF), write_wp(50, WP_OFF | 8)))
    told = {write.changed: (write.count, write.inferred, write.why_unknown) for write in result.cr_writes}
    assert told == {("WP",): (1, 0, None), ("TS",): (1, 0, None), None: (1, 0, "first write")}


def test_a_first_write_is_inferred_from_its_own_instruction() -> None:
    events = [entry(1), write_wp(10, WP_ON, rip=1), write_wp(30, WP_OFF, rip=1), write_wp(50, WP_OFF | 8, rip=2)]
    result = account(trace(*events))
    told = {write.changed: (write.count, write.inferred) for write in result.cr_writes}
    assert told == {("WP",): (2, 1), ("TS",): (1, 0)}


def test_one_write_alone_tells_nothing() -> None:
    (write,) = account(trace(entry(1), write_wp(10, WP_ON))).cr_writes
    assert (write.changed, write.why_unknown, write.count) == (None, "first write", 1)


def test_a_write_of_the_same_value_changes_nothing() -> None:
    result = account(trace(entry(1), write_wp(10, WP_ON), write_wp(30, WP_ON), write_wp(50, WP_ON)))
    assert [(write.changed, write.count) for write in result.cr_writes] == [((), 3)]


def test_each_vcpu_has_its_own_previous_value() -> None:
    events = [entry(1, 1), entry(2, 2)]
    events += (
        write_wp(10, WP_ON, tid=1)
        + write_wp(30, WP_OFF, tid=2)
        + write_wp(50, WP_OFF, tid=1)
        + write_wp(70, WP_ON, tid=2)
    )
    (write,) = account(trace(events)).cr_writes
    assert (write.changed, write.count, write.inferred) == (("WP",), 4, 2)


def test_a_write_that_faults_leaves_the_value() -> None:
    """#GP: the register keeps its value, so the next write is compared with the one before the fault."""
    bad = [
        exit_(30, reason=CR_ACCESS),
        cr_write(31, 0, WP_ON | 1 << 62),
        event(32, "kvm_inj_exception", exception=GP),
        entry(40),
    ]
    result = account(trace(entry(1), write_wp(10, WP_ON), bad, write_wp(50, WP_OFF), write_wp(70, WP_ON)))
    told = {write.changed: (write.count, write.faulted) for write in result.cr_writes}
    assert told["WP",] == (3, 0)
    assert sum(faulted for _, faulted in told.values()) == 1


def test_a_cr_write_outside_an_exit_is_a_write_but_no_exit() -> None:
    """The exit was lost, or the event alone was recorded."""
    result = account(trace(cr_write(10, 4, 0x20), cr_write(20, 4, 0x100020), cr_write(30, 4, 0x20)))
    (write,) = result.cr_writes
    assert (write.cr, write.changed, write.count, write.total_ns) == (4, ("SMEP",), 3, 0)
    assert result.exits == []


def test_a_read_is_no_write() -> None:
    result = account(
        trace(entry(1), exit_(10, reason=CR_ACCESS, info1=1 << 4 | 3), cr_write(11, 3, 0, rw=0), entry(20))
    )
    assert result.cr_writes == []


def test_a_register_no_processor_has_is_ignored() -> None:
    result = account(trace(entry(1), exit_(10), cr_write(11, 0xFFFFFFFE, 0), cr_write(12, 16, 0), entry(20)))
    assert result.cr_writes == []
    assert result.count == 1


@pytest.mark.parametrize(
    ("reason", "code", "cr"),
    [
        (CR0_SEL_WRITE, b"\x0f\x22\xc0", 0),
        (WRITE_CR0, b"\x0f\x22\xc0", 0),
        (0x14, b"\x0f\x22\xe0", 4),
        (0x41, b"\x0f\x22\xd8", 3),  # from an intercept that names no register: the bytes tell
    ],
)
def test_amd_writes_are_told_by_the_exit_or_the_instruction(reason: int, code: bytes, cr: int) -> None:
    events = [entry(1), exit_(10, reason=reason, isa=SVM), emulated(12, code), entry(20)]
    (write,) = account(trace(events)).cr_writes
    assert (write.cr, write.changed, write.count, write.why_unknown) == (cr, None, 1, "no value in the trace")
    assert write.total_ns == 10


def test_other_emulated_instructions_write_nothing() -> None:
    events = [entry(1), exit_(10, reason=NPF, isa=SVM, info2=0x5000), emulated(12, b"\x8b\x07"), entry(20)]
    assert account(trace(events)).cr_writes == []


def test_hot_places() -> None:
    events = [
        entry(1),
        *(exit_(10, reason=MSR_WRITE, rip=0x10), event(11, "kvm_msr", write=1, ecx=0x6E0), entry(20)),
        *(exit_(30, reason=CPUID, rip=0x20), event(31, "kvm_cpuid", function=0xD), entry(35)),
        *(exit_(40, reason=IO, rip=0x30), event(41, "kvm_pio", rw=1, port=0x3F8), entry(43)),
        *(exit_(50, reason=EPT_VIOLATION, rip=0x40), event(51, "kvm_page_fault", fault_address=0xABC), entry(52)),
        *(exit_(60, isa=SVM, reason=NPF, rip=0x50, info2=0xFEE00300), entry(61)),
    ]
    result = account(trace(events))
    hot = {(place.kind, place.value): (place.detail, place.count, place.total_ns) for place in result.hot}
    assert hot["msr", 0x6E0] == ("write", 1, 10)
    assert hot["cpuid", 0xD] == ("", 1, 5)
    assert hot["port", 0x3F8] == ("write", 1, 3)
    assert hot["address", 0xABC] == ("", 1, 2)
    assert hot["address", 0xFEE00300] == ("", 1, 1)
    assert hot["rip", 0x10] == ("MSR_WRITE", 1, 10)


def test_unknown_reasons_are_named_by_number_and_reported() -> None:
    result = account(trace(entry(1), exit_(10, reason=0x7777), entry(20)))
    assert only_row(result).reason == "0x7777"
    assert seen(result) == {"unknown-reason": 1}


def test_lost_events_and_damage_are_reported() -> None:
    made = trace(entry(1), exit_(10), entry(20))
    made.meta.lost = 3
    made.meta.damaged("the end is gone")
    assert seen(account(made)) == {"lost-events": 3, "incomplete": 1}


durations = st.lists(
    st.one_of(st.integers(0, 100), st.integers(0, 1 << 50), st.sampled_from([(1 << 44) - 1, 1 << 44])),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(durations, min_size=1, max_size=3))
def test_percentiles_are_by_nearest_rank(by_reason: list[list[int]]) -> None:
    """Against numpy's inverted_cdf, which is the nearest rank; longer than 2^44 ns included."""
    now, events = 10, [entry(5)]
    for reason, values in enumerate(by_reason):
        for value in values:
            events += [exit_(now, reason=reason), entry(now + value)]
            now += value + 1
    for row in account(trace(events)).exits:
        values = by_reason[["EXCEPTION_NMI", "EXTERNAL_INTERRUPT", "TRIPLE_FAULT"].index(row.reason)]
        assert (row.count, row.total_ns, row.min_ns, row.max_ns) == (len(values), sum(values), min(values), max(values))
        assert row.mean_ns == pytest.approx(sum(values) / len(values))
        for percent, given_value in ((50, row.p50_ns), (95, row.p95_ns), (99, row.p99_ns)):
            assert given_value == np.percentile(np.array(values), percent, method="inverted_cdf")


reasons = st.sampled_from([CPUID, HLT, CR_ACCESS])
steps = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["exit", "exit", "entry", "entry", "user", "nested"]),
        reasons,
        st.integers(0, 50),
    ),
    max_size=80,
)


def walk(taken) -> Trace:
    now, events = 1, []
    for tid, what, reason, gap in taken:
        now += gap
        vcpu = tid % 2
        events.append(
            exit_(now, tid, reason, vcpu_id=vcpu) if what == "exit"
            else entry(now, tid, vcpu) if what == "entry"
            else event(now, "kvm_userspace_exit", tid, reason=0, errno=0) if what == "user"
            else event(now, "kvm_nested_vmexit", tid)
        )  # fmt: skip
    return trace(events, split=7) if events else Trace([], Meta())


@settings(max_examples=60, deadline=None)
@given(steps)
def test_every_grouping_adds_up(taken) -> None:
    whole = account(walk(taken))
    for by in ((), ("reason",), ("vm",), ("vcpu",), ("vm", "reason"), BY):
        grouped = account(walk(taken), by=by)
        for what in ("count", "total_ns", "open", "user_ns", "nested"):
            assert sum(getattr(row, what) for row in grouped.exits) == sum(getattr(row, what) for row in whole.exits)
        keys = [(row.isa, row.vm, row.vcpu, row.reason) for row in grouped.exits]
        assert len(set(keys)) == len(keys)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_counts_are_perfs(taken) -> None:
    """The rule of builtin-kvm.c in a few plain lines: the oracle."""
    begun: dict[int, tuple[int, int] | None] = {}
    expected: dict[int, list[int]] = {}
    now = 1
    for tid, what, reason, gap in taken:
        now += gap
        if what == "entry":
            if begun.get(tid) is not None:
                start, why = begun[tid]
                expected.setdefault(why, []).append(now - start)
            begun[tid] = None
        elif what == "exit" and tid in begun:
            begun[tid] = (now, reason)
    names = {CPUID: "CPUID", HLT: "HLT", CR_ACCESS: "CR_ACCESS"}
    result = account(walk(taken), by=("reason",))
    got = {row.reason: (row.count, row.total_ns) for row in result.exits if row.count}
    assert got == {names[why]: (len(values), sum(values)) for why, values in expected.items()}


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(0, 2000), st.integers(0, 2000))
def test_time_filters_part_the_exits(taken, one: int, other: int) -> None:
    first, last = sorted((one, other))
    parts = [(None, first - 1), (first, last), (last + 1, None)]
    whole = account(walk(taken)).count
    assert sum(account(walk(taken), Filter(time=part)).count for part in parts) == whole


@pytest.mark.parametrize(
    ("only", "total"),
    [
        (Filter(vm=1), 10),
        (Filter(vm=2), 200),
        (Filter(tid=2), 200),
        (Filter(vcpu=1), 200),
        (Filter(vcpu=5), 0),
        (Filter(longer_than=10), 200),
        (Filter(longer_than=9), 210),
        (Filter(reasons=frozenset([(1, HLT)])), 10),
        (Filter(time=(60, None)), 200),
        (Filter(time=(None, 50)), 10),
        (Filter(time=(10**30, None)), 0),
        (Filter(vm=10**30), 0),
    ],
    ids=str,
)
def test_filters(only: Filter, total: int) -> None:
    events = [
        entry(1, 1, 0),
        entry(2, 2, 1),
        exit_(50, 1, HLT),
        entry(60, 1),
        exit_(70, 2, CPUID, vcpu_id=1),
        entry(270, 2, 1),
    ]
    assert account(trace(events), only).total_ns == total


def crowd(threads: int) -> Trace:
    """One exit of each of many threads."""
    kinds = ("kvm_entry", "kvm_exit")
    batches = []
    for first in range(0, threads, 16384):
        n = min(16384, threads - first)
        tid = np.repeat(np.arange(first, first + n, dtype=np.int32) + 1, 3)
        order = np.tile(np.array([0, 1, 0], np.uint16), n)
        when = np.arange(3 * n, dtype=np.int64) + 3 * first + 1
        ones = np.ones(n, np.uint32)
        exits = {"exit_reason": ones * HLT, "guest_rip": np.full(n, 64, np.uint64), "isa": ones, "vcpu_id": ones * 0}
        exits |= {"info1": np.zeros(n, np.uint64), "info2": np.zeros(n, np.uint64)}
        entries = {"vcpu_id": np.zeros(2 * n, np.uint32)}
        batches.append(Batch(kinds, order, when, tid * 0, tid, tid, (entries, exits)))
    return Trace(batches, Meta())


def test_a_million_vms_fit() -> None:
    """Bounded: a hundred bytes or so for each, and no more than linear time."""
    made = crowd(1_000_000)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result = account(made, by=("reason",))
    assert only_row(result).count == 1_000_000
    assert len(result.vcpus) == 1_000_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20, f"{grown} KiB"
    # A bound on hanging, not on speed.
    assert time.process_time() - started < 120


def test_many_vms_are_many_rows() -> None:
    result = account(crowd(3000))
    assert len(result.exits) == 3000
    assert {row.count for row in result.exits} == {1}
