"""Results and traces as rows: CSV as its reader reads it, Parquet as Polars does."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import perf_recording, traces
from worldswitch.record.result import Cell, Metric, Provenance, Result, Spread
from worldswitch.record.trace import Trace
from worldswitch.report.sheets import events_of, rows_of, write_csv, write_parquet

RESULT = Result(
    (
        Cell(
            {"on": "kvm", "program": "cr0-wp", "parameters": {"single": False}},
            unit="pair",
            per_op={"exits": 2, "exits_by_reason": {"CR_ACCESS": 2}},
            metrics=(Metric("tsc", "ns", (10.5, 11.5)),),
            time_ns=Spread(10, 11, 12),
        ),
        Cell({"on": "model", "program": "cpuid", "parameters": {"leaf": 0}}, per_op={"exits": 1}),
    ),
    Provenance("1"),
)


def sheet(columns: list[str], rows: object) -> list[dict[str, str]]:
    out = io.StringIO(newline="")
    write_csv(columns, rows, out)  # type: ignore[arg-type]
    return list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))


def test_a_row_for_each_number_of_a_result() -> None:
    rows = sheet(*rows_of(RESULT))
    assert [(row["cell"], row["kind"], row["name"], row["run"], row["value"]) for row in rows] == [
        ("0", "count", "exits", "", "2"),
        ("0", "count", "exits_by_reason.CR_ACCESS", "", "2"),
        ("0", "time", "tsc", "0", "10.5"),
        ("0", "time", "tsc", "1", "11.5"),
        ("0", "spread", "time_low", "", "10"),
        ("0", "spread", "time_mid", "", "11"),
        ("0", "spread", "time_high", "", "12"),
        ("1", "count", "exits", "", "1"),
    ]
    assert (rows[0]["parameters.single"], rows[0]["parameters.leaf"], rows[-1]["parameters.leaf"]) == ("0", "", "0")


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    columns, rows = rows_of(RESULT)
    write_parquet(columns, rows, tmp_path / "r.parquet")
    frame = pl.read_parquet(tmp_path / "r.parquet")
    assert frame.columns == columns
    assert [list(row) for row in frame.rows()] == rows
    assert frame["value"].dtype == pl.Float64


def test_a_condition_of_several_kinds_becomes_text(tmp_path: Path) -> None:
    write_parquet(["x"], [[1], ["a"], [None]], tmp_path / "x.parquet")
    assert pl.read_parquet(tmp_path / "x.parquet")["x"].to_list() == ["1", "a", None]


def test_a_row_for_each_event_of_a_trace() -> None:
    trace = perf_recording("vmx-5.10-ept/wp.perf.data")
    rows = sheet(*events_of(trace))
    assert len(rows) == len(trace)
    writes = [row for row in rows if row["event"] == "kvm_cr"]
    assert len(writes) == 300
    assert {(row["cr"], row["rw"], row["tid"]) for row in writes} == {("0", "1", "103")}
    assert all(row["exit_reason"] == "" for row in writes)
    assert "kvm_hypercall" not in rows[0], "only fields of events that are there have a column"


@settings(max_examples=40, deadline=None)
@given(traces())
def test_any_trace_has_as_many_rows_as_events(trace: Trace) -> None:
    columns, rows = events_of(trace)
    assert [len(row) for row in rows] == [len(columns)] * len(trace)


@given(st.text())
def test_no_spreadsheet_takes_a_text_for_a_formula(text: str) -> None:
    (row,) = sheet(["x"], [[text or "-"]])
    assert not row["x"].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_numbers_below_zero_stay_numbers() -> None:
    assert sheet(["x"], [[-1]]) == [{"x": "-1"}]
