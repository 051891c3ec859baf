"""Results and traces as metrics, read back by the letter of the OpenMetrics specification."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from record.openmetrics_spec import Series, parse
from traces import perf_recording, traces
from worldswitch.record.openmetrics import exposition
from worldswitch.record.result import Cell, Provenance, Result, Spread
from worldswitch.record.trace import Trace
from worldswitch.report.metrics import of_account, of_result
from worldswitch.trace.account import account

CELL = Cell(
    {"on": "kvm", "program": "cr0-wp", "kernel": "6.1", "parameters": {"single": False}, "cpuid": {"pcid": True}},
    n=500,
    unit="pair",
    per_op={"exits": 2, "exits_by_reason": {"CR_ACCESS": 2}, "root_loads": 0.5},
    time_ns=Spread(900.0, 1000.0, 1100.0),
)
WHERE = {"on": "kvm", "program": "cr0-wp", "kernel": "6.1", "parameters_single": "0", "cpuid_pcid": "1"}


def series(*cells: Cell) -> list[Series]:
    return parse(exposition(of_result(Result(cells, Provenance("1")))))


def test_a_cell() -> None:
    found = {(one.family, *sorted(set(one.labels.items()) - set(WHERE.items()))): one.value for one in series(CELL)}
    assert found == {
        ("wsw_run_exits",): 2,
        ("wsw_run_exits_by_reason", ("reason", "CR_ACCESS")): 2,
        ("wsw_run_events", ("counter", "root_loads")): 0.5,
        ("wsw_run_time_seconds", ("bound", "low")): 9e-7,
        ("wsw_run_time_seconds", ("bound", "mid")): 1e-6,
        ("wsw_run_time_seconds", ("bound", "high")): 1.1e-6,
        ("wsw_run_steady",): 1,
        ("wsw_run_units",): 500,
    }
    assert all(one.labels.items() >= WHERE.items() for one in series(CELL))


def test_cells_of_the_same_conditions_are_numbered() -> None:
    again = [one.labels.get("again") for one in series(CELL, CELL, CELL) if one.family == "wsw_run_exits"]
    assert again == [None, "2", "3"]


@given(
    st.lists(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.booleans() | st.none()), max_size=3)
)
def test_any_dimensions_make_a_valid_page(several: list[dict[str, str]]) -> None:
    series(*(Cell(dimensions, per_op={"exits": 1}) for dimensions in several))


def test_a_recording() -> None:
    """tests/data/README.md: 300 writes of CR0.WP, each an exit that an entry follows."""
    found = parse(exposition(of_account(account(perf_recording("vmx-5.10-ept/wp.perf.data")))))
    (writes,) = [one for one in found if one.family == "wsw_trace_exits" and one.labels["reason"] == "CR_ACCESS"]
    assert (writes.value, writes.labels["vm"], writes.labels["vcpu"]) == (300, "103", "0")
    (events,) = [one for one in found if one.family == "wsw_trace_events" and one.labels["event"] == "kvm_cr"]
    assert events.value == 300


@settings(max_examples=40, deadline=None)
@given(traces())
def test_any_trace_makes_a_valid_page(trace: Trace) -> None:
    parse(exposition(of_account(account(trace))))
