from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces import dtypes, flat, perf_recording, traces
from worldswitch.errors import MissingError, TraceFormatError, UsageError
from worldswitch.record import parquet
from worldswitch.record.trace import Batch, Meta, Trace

RECORDING = "svm-7.2-npt/wp.perf.data.zst"


def one_event(name: str = "kvm_x", **columns: object) -> Trace:
    n = len(next(iter(columns.values())))  # type: ignore[arg-type]
    zeros = np.zeros(n, np.int32)
    batch = Batch((name,), np.zeros(n, np.uint16), np.arange(n), zeros, zeros, zeros, (dict(columns),))  # type: ignore[arg-type]
    return Trace([batch])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces())
def test_any_trace_comes_back_equal(tmp_path: Path, trace: Trace) -> None:
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert flat(loaded) == flat(trace)
    assert dtypes(loaded) == dtypes(trace)
    assert loaded.meta == trace.meta
    assert loaded.formats == trace.formats


def test_a_recording_comes_back_equal(tmp_path: Path) -> None:
    trace = perf_recording(RECORDING)
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert flat(loaded) == flat(trace)
    assert loaded.meta == trace.meta
    assert loaded.formats == trace.formats


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.text(), st.text(st.characters(categories=["Cs", "Cn"]))), min_size=1))
def test_texts_of_any_characters_come_back(tmp_path: Path, texts: list[str]) -> None:
    column = np.empty(len(texts), object)
    column[:] = texts
    one_event(name_=column).save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").table("kvm_x")["name_"].tolist() == texts


@pytest.mark.parametrize("name", ["kvm:kvm_exit", "a/b", "..", "Kvm_Exit", "\0", "x" * 400, "\udc80", "é%2F"])
def test_any_event_name_makes_a_file(tmp_path: Path, name: str) -> None:
    one_event(name, value=np.array([1], "u8")).save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").events == (name,)
    assert all(file.parent == tmp_path / "t" for file in tmp_path.rglob("*") if file.is_file())


def test_two_events_that_differ_in_case_stay_two(tmp_path: Path) -> None:
    zeros = np.zeros(2, np.int32)
    tables = ({"v": np.array([1], "u1")}, {"v": np.array([2], "u1")})
    order = np.array([0, 1], np.uint16)
    Trace([Batch(("a", "A"), order, np.arange(2), zeros, zeros, zeros, tables)]).save(tmp_path / "t")
    assert len({file.name.lower() for file in (tmp_path / "t").glob("*.parquet")}) == 2


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    Trace([], Meta(source="nothing")).save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert len(loaded) == 0
    assert loaded.meta.source == "nothing"


def test_frame_of_bytes_is_an_array_column() -> None:
    frame = one_event(insn=np.arange(6, dtype=np.uint8).reshape(2, 3)).frame("kvm_x")
    assert frame.schema["insn"] == pl.Array(pl.UInt8, 3)


def test_largest_u64_comes_back(tmp_path: Path) -> None:
    one_event(v=np.array([2**64 - 1], "u8")).save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").table("kvm_x")["v"].tolist() == [2**64 - 1]


def cut_up(batch: Batch, size: int) -> Iterator[Batch]:
    while len(batch) > size:
        first, batch = batch.cut(size)
        yield first
    yield batch


def test_many_pieces_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_SPILL", 100)
    trace = perf_recording(RECORDING)
    pieces = Trace([part for batch in trace.batches() for part in cut_up(batch, 70)], trace.meta, trace.formats)
    pieces.save(tmp_path / "t")
    assert flat(Trace.load(tmp_path / "t")) == flat(trace)


def test_a_trace_saved_before_is_replaced(tmp_path: Path) -> None:
    one_event("kvm_a", v=np.array([1])).save(tmp_path / "t")
    one_event("kvm_b", v=np.array([1])).save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").events == ("kvm_b",)
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "precious").write_text("x")
    with pytest.raises(UsageError, match="exists and is no saved trace"):
        one_event(v=np.array([1])).save(tmp_path / "t")
    assert (tmp_path / "t" / "precious").read_text() == "x"


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Failing(Trace):
        def batches(self, selection=None):  # type: ignore[no-untyped-def]
            yield from one_event(v=np.array([1])).batches()
            raise TraceFormatError("broken")

    with pytest.raises(TraceFormatError, match="broken"):
        Failing().save(tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="does not exist"):
        Trace.load(tmp_path / "none")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    one_event("kvm_x", v=np.array([1, 2, 3], "u4")).save(tmp_path / "t")
    return tmp_path / "t"


def test_a_lost_file_is_damage(saved: Path) -> None:
    (saved / "kvm_x.parquet").unlink()
    with pytest.raises(TraceFormatError, match=r"damaged trace folder: kvm_x\.parquet"):
        Trace.load(saved)


def test_a_changed_file_is_damage(saved: Path) -> None:
    pl.DataFrame({"x": [1]}).write_parquet(saved / "kvm_x.parquet")
    with pytest.raises(TraceFormatError, match="checksum differs"):
        Trace.load(saved)


def rewrite(saved: Path, table: pl.DataFrame) -> None:
    """Another table in the place of the saved one, with a checksum that fits."""
    table.write_parquet(saved / "kvm_x.parquet")
    document = json.loads((saved / "meta.json").read_text())
    document["events"][0]["crc32"] = zlib.crc32((saved / "kvm_x.parquet").read_bytes())
    (saved / "meta.json").write_text(json.dumps(document))


def test_rows_that_are_missing_are_damage(saved: Path) -> None:
    file = saved / "kvm_x.parquet"
    rewrite(saved, pl.read_parquet(file).head(2))
    with pytest.raises(TraceFormatError, match=r"has 2 rows, meta\.json says 3"):
        Trace.load(saved)


def test_a_seq_that_numbers_nothing_is_damage(saved: Path) -> None:
    file = saved / "kvm_x.parquet"
    rewrite(saved, pl.read_parquet(file).with_columns(seq=pl.lit(7, pl.UInt64)))
    with pytest.raises(TraceFormatError, match="seq column of kvm_x"):
        Trace.load(saved)


def test_a_version_of_the_future_is_refused(saved: Path) -> None:
    document = json.loads((saved / "meta.json").read_text()) | {"version": 99}
    (saved / "meta.json").write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match="version 99"):
        Trace.load(saved)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_of_any_byte_is_a_sentence_or_harmless(saved: Path, data: st.DataObject) -> None:
    file = saved / data.draw(st.sampled_from(["meta.json", "kvm_x.parquet"]))
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole[: at + 1] if data.draw(st.booleans()) else whole)
    bad[at] = data.draw(st.integers(0, 255))
    file.write_bytes(bad)
    try:
        Trace.load(saved)
    except TraceFormatError as error:
        assert "\n" not in str(error)
    finally:
        file.write_bytes(whole)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_meta_of_any_shape_is_a_sentence(saved: Path, data: st.DataObject) -> None:
    document = json.loads((saved / "meta.json").read_text())
    anything = st.recursive(
        st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
    document[data.draw(st.sampled_from(["meta", "events", "formats"]))] = data.draw(anything)
    before = (saved / "meta.json").read_text()
    (saved / "meta.json").write_text(json.dumps(document))
    try:
        Trace.load(saved)
    except TraceFormatError as error:
        assert "\n" not in str(error)
    finally:
        (saved / "meta.json").write_text(before)
