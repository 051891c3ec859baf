from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from traces import perf_recording, traces
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.report.perfetto import write_perfetto


def document(trace: Trace) -> dict[str, Any]:
    stream = io.StringIO()
    assert write_perfetto(trace, stream).events == len(trace)
    made: dict[str, Any] = json.loads(stream.getvalue())
    return made


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return document(perf_recording("vmx-5.10-ept/wp.perf.data"))


def test_each_exit_with_its_entry_is_a_slice_named_by_its_reason(recording: dict[str, Any]) -> None:
    slices = [event for event in recording["traceEvents"] if event["ph"] == "X"]
    counts = {name: sum(event["name"] == name for event in slices) for name in {event["name"] for event in slices}}
    # 300 single writes of CR0.WP and one HLT, which no entry follows; see tests/data/README.md.
    assert counts["CR_ACCESS"] == 300
    assert "HLT" not in counts
    assert [event["name"] for event in recording["traceEvents"] if event["name"].startswith("HLT")] == [
        "HLT (no entry)"
    ]
    assert all(event["dur"] > 0 for event in slices)


def test_a_register_write_tells_its_slice_which_bits_changed(recording: dict[str, Any]) -> None:
    changed = [e["args"].get("changed") for e in recording["traceEvents"] if e["name"] == "CR_ACCESS"]
    assert changed[0] is None
    assert set(changed[1:]) == {"WP"}


def test_one_process_per_vm_and_one_named_track_per_vcpu(recording: dict[str, Any]) -> None:
    named = {(e["name"], e["args"]["name"]) for e in recording["traceEvents"] if e["ph"] == "M"}
    assert ("process_name", "VM 103 kt") in named
    assert ("thread_name", "vCPU 0 (kt)") in named
    assert {(e["pid"], e["tid"]) for e in recording["traceEvents"] if e["ph"] != "C"} == {(103, 103)}
    assert {e["pid"] for e in recording["traceEvents"]} == {103}


def test_times_are_microseconds_with_every_nanosecond() -> None:
    zeros = np.zeros(2, np.int32)
    batch = Batch(
        ("kvm_exit", "kvm_entry"),
        np.array([0, 1], np.uint16),
        np.array([1_234_567_891, 1_234_568_000]),
        zeros,
        zeros + 5,
        zeros - 1,
        (
            {
                "exit_reason": np.array([12], "u4"),
                "isa": np.array([1], "u4"),
                "guest_rip": np.array([2**64 - 1], "u8"),
            },
            {},
        ),
    )
    stream = io.StringIO()
    write_perfetto(Trace([batch]), stream)
    (made,) = [e for e in json.loads(stream.getvalue(), parse_float=str)["traceEvents"] if e["ph"] == "X"]
    assert (made["name"], made["ts"], made["dur"]) == ("HLT", "1234567.891", "0.109")
    assert made["args"] == {"guest_rip": "0xffffffffffffffff"}


def test_two_exits_in_a_row_leave_one_without_entry() -> None:
    zeros = np.zeros(3, np.int32)
    table = {"exit_reason": np.array([12, 10], "u4"), "isa": np.array([1, 1], "u4")}
    batch = Batch(
        ("kvm_exit", "kvm_entry"),
        np.array([0, 0, 1], np.uint16),
        np.arange(3) * 1000,
        zeros,
        zeros,
        zeros,
        (table, {}),
    )
    events = [(e["ph"], e["name"]) for e in document(Trace([batch]))["traceEvents"] if e["ph"] in "Xi"]
    assert events == [("i", "HLT (no entry)"), ("X", "CPUID")]


def test_hostile_names_are_escaped() -> None:
    zeros = np.zeros(1, np.int32)
    texts = np.array(['</script>"\\\x1b'], object)
    batch = Batch(('e"\n',), np.zeros(1, np.uint16), np.ones(1, int), zeros, zeros + 7, zeros - 1, ({'te"xt': texts},))
    events = document(Trace([batch], Meta(comms={7: 'a"\x1b'})))["traceEvents"]
    assert events[-1]["name"] == 'e"\\n'
    assert events[-1]["args"] == {'te"xt': '</script>"\\\\x1b'}
    assert events[0]["args"]["name"] == 'VM 7 a"\\x1b'


def test_an_empty_trace_is_still_a_document() -> None:
    assert document(Trace())["traceEvents"] == []


@settings(max_examples=60, deadline=None)
@given(traces())
def test_any_trace_makes_valid_json(trace: Trace) -> None:
    made = document(trace)
    assert sum(event["ph"] in "Xi" for event in made["traceEvents"]) <= len(trace)


def counted(made: dict[str, Any], track: str, name: str) -> float:
    """The sum of a series of a counter: events in all, each value standing for 10 ms."""
    values = [e["args"][name] for e in made["traceEvents"] if e["ph"] == "C" and e["name"] == track]
    assert values[-1] == 0, "it ends at nothing"
    return sum(values) * 0.01


def test_counters_have_every_exit_and_fault(recording: dict[str, Any]) -> None:
    """tests/data/README.md: 309 exits, 300 of them CR_ACCESS, and 8 page faults."""
    assert counted(recording, "exits per second", "CR_ACCESS") == pytest.approx(300)
    names = next(e["args"] for e in recording["traceEvents"] if e["ph"] == "C" and e["name"] == "exits per second")
    assert sum(counted(recording, "exits per second", name) for name in names) == pytest.approx(309)
    assert counted(recording, "pages per second", "faults") == pytest.approx(8)


def test_counters_of_two_vms_are_two() -> None:
    zeros = np.zeros(3, np.int32)
    table = {"exit_reason": np.array([12, 12, 10], "u4"), "isa": np.ones(3, "u4")}
    tids = np.array([5, 6, 6], np.int32)
    times = np.array([0, 1, 30_000_000])
    made = document(Trace([Batch(("kvm_exit",), zeros.astype(np.uint16), times, zeros, tids, zeros - 1, (table,))]))
    seen = [(e["pid"], e["ts"], e["args"]) for e in made["traceEvents"] if e["ph"] == "C"]
    assert seen == [
        (5, 0, {"HLT": 100}), (5, 10_000, {"HLT": 0}),
        (6, 0, {"HLT": 100, "CPUID": 0}), (6, 10_000, {"HLT": 0, "CPUID": 0}),
        (6, 30_000, {"HLT": 0, "CPUID": 100}), (6, 40_000, {"HLT": 0, "CPUID": 0}),
    ]  # fmt: skip


def arrows(made: dict[str, Any]) -> list[tuple[float, float]]:
    """Where each arrow begins and ends; the ends of one have the same id, category and name."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for event in made["traceEvents"]:
        if event["ph"] in "sf":
            found.setdefault((event["cat"], event["name"], event["id"]), {})[event["ph"]] = event["ts"]
    assert all(set(ends) == {"s", "f"} for ends in found.values())
    return [(ends["s"], ends["f"]) for ends in found.values()]


def test_arrows_lead_from_register_writes_to_the_faults_they_caused() -> None:
    """With tdp_mmu on 5.10 each of 200 writes of CR0.WP unloads the root: of 804 faults (tests/data/README.md) on the
    program's 4 pages the first 4 are new."""
    made = document(perf_recording("svm-5.10-npt-tdpmmu/wp.perf.data.zst"))
    found = arrows(made)
    slices = {e["ts"]: e["name"] for e in made["traceEvents"] if e["ph"] == "X"}
    assert {slices[begin] for begin, _ in found} == {"cr0_sel_write"}
    assert {slices[end] for _, end in found} == {"npf"}
    assert all(begin < end for begin, end in found)
    assert len(found) == 800


def test_faults_on_new_pages_have_no_arrow() -> None:
    assert arrows(document(perf_recording("vmx-6.1-ept/wp.perf.data"))) == []
