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
    assert {(e["pid"], e["tid"]) for e in recording["traceEvents"]} == {(103, 103)}


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
    events = [(e["ph"], e["name"]) for e in document(Trace([batch]))["traceEvents"] if e["ph"] != "M"]
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
