from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdata_build import (
    ADDR,
    CALLCHAIN,
    CPU,
    ENTRY_TEXT,
    EXIT_TEXT,
    ID,
    IDENTIFIER,
    IP,
    PERIOD,
    RAW,
    READ,
    ROUND,
    SOFTWARE,
    STREAM_ID,
    TID,
    TIME,
    USUAL,
    attr_record,
    entry_raw,
    exit_raw,
    formats_record,
    pipe,
    record,
    sample,
)
from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import Trace
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input

DATA = Path(__file__).parents[2] / "data"


def read(data: bytes, selection=None) -> Trace:
    return Trace.read(PerfData(Input.from_bytes(data)), selection)


def times(trace: Trace) -> list[int]:
    return [int(t) for batch in trace.batches() for t in batch.time]


def names(trace: Trace) -> list[str]:
    return [batch.events[index] for batch in trace.batches() for index in batch.order]


HEAD = (attr_record(), formats_record())


def test_a_stream_of_one_attribute() -> None:
    trace = read(
        pipe(*HEAD, sample(exit_raw(12), time=5, cpu=3, tid=7, pid=6), sample(entry_raw(2), time=9, tid=7, pid=6))
    )
    assert names(trace) == ["kvm_exit", "kvm_entry"]
    table = trace.table("kvm_exit")
    assert {key: column.tolist() for key, column in table.items()} == {
        "seq": [0], "time": [5], "cpu": [3], "tid": [7], "pid": [6], "exit_reason": [12], "isa": [1],
        "guest_rip": [0x1000],
    }  # fmt: skip
    assert trace.meta.complete
    assert trace.meta.vm_identity == "tgid"
    assert trace.meta.format == "perf.data (pipe)"


PARTS = [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(PARTS)), st.booleans(), st.lists(st.integers(0, 9), max_size=3), st.integers(0, 31))
def test_any_sample_type(parts: set[int], has_read: bool, chain: list[int], read_format: int) -> None:
    """The parts lie in one order whatever is there: IDENTIFIER, IP, TID, TIME, ADDR, ID, ..., READ, CALLCHAIN, RAW."""
    kind = sum(parts) | RAW | (READ if has_read else 0) | CALLCHAIN
    values = 2 if read_format & 8 else 1
    per_value = 1 + bool(read_format & 4) + bool(read_format & 16)
    words = (1 if read_format & 8 else 0) + bool(read_format & 1) + bool(read_format & 2) + values * per_value
    block = struct.pack("<Q", values) + bytes(8 * (words - 1)) if read_format & 8 else bytes(8 * words)
    made = [sample(exit_raw(n), kind, time=n + 1, cpu=n, read=block, chain=chain) for n in range(3)]
    trace = read(pipe(attr_record(kind=kind, read_format=read_format), formats_record(), *made))
    assert trace.meta.malformed == 0
    table = trace.table("kvm_exit")
    assert table["exit_reason"].tolist() == [0, 1, 2]
    assert table["cpu"].tolist() == ([0, 1, 2] if CPU in parts else [-1] * 3)
    assert table["tid"].tolist() == ([1] * 3 if TID in parts else [-1] * 3)
    if TIME in parts:
        assert table["time"].tolist() == [1, 2, 3]


def test_attributes_of_different_sample_types_are_told_apart_by_id() -> None:
    one, other = IDENTIFIER | TID | TIME | RAW, IDENTIFIER | IP | TID | TIME | ADDR | CPU | PERIOD | CALLCHAIN | RAW
    head = (attr_record([11], kind=one), attr_record([12, 13], kind=other), formats_record())
    body = [sample(exit_raw(1), one, 10, number=11), sample(exit_raw(2), other, 20, cpu=5, number=13, chain=[1, 2])]
    table = read(pipe(*head, *body)).table("kvm_exit")
    assert table["exit_reason"].tolist() == [1, 2]
    assert table["cpu"].tolist() == [-1, 5]


def test_samples_of_no_tracepoint_become_a_table_of_their_own() -> None:
    """kvm events beside cycles: perf record -e kvm:kvm_exit -e cycles."""
    kind = IDENTIFIER | TID | TIME
    name = record(78, struct.pack("<QQ", 2, 12) + b"cpu-clock\0\0\0\0\0\0\0")
    head = (attr_record([11], kind=kind | RAW), attr_record([12], kind=kind, type_=SOFTWARE), name, formats_record())
    trace = read(pipe(*head, sample(exit_raw(1), kind | RAW, 10, number=11), sample(b"", kind, 20, number=12)))
    assert names(trace) == ["kvm_exit", "cpu-clock"]


def test_one_attribute_that_is_no_tracepoint_needs_no_ids() -> None:
    """perf record's default: cycles, whose samples carry no id."""
    trace = read(pipe(attr_record([12], kind=IP | TID | TIME, type_=SOFTWARE), sample(b"", IP | TID | TIME, 7)))
    assert times(trace) == [7]


def test_two_attributes_of_one_name_are_one_table() -> None:
    kind = IDENTIFIER | TID | TIME
    head = (attr_record([1], kind=kind, type_=SOFTWARE), attr_record([2], kind=kind, type_=SOFTWARE))
    trace = read(pipe(*head, sample(b"", kind, 5, number=1), sample(b"", kind, 6, number=2)))
    assert len(trace.table("type 1 config 0x0")["time"]) == 2


def test_a_tracepoint_sampled_without_its_record_is_told_apart() -> None:
    kind = IDENTIFIER | TID | TIME
    head = (attr_record([1], kind=kind | RAW, config=700), attr_record([2], kind=kind, config=700), formats_record())
    trace = read(pipe(*head, sample(exit_raw(3), kind | RAW, 5, number=1), sample(b"", kind, 6, number=2)))
    assert sorted(len(trace.table(event)) for event in trace.events) == [5, 8]


def test_samples_without_ids_cannot_be_told_apart() -> None:
    head = (attr_record([1], kind=TID | TIME, type_=SOFTWARE), attr_record([2], kind=IP | TID | TIME, type_=SOFTWARE))
    with pytest.raises(TraceFormatError, match="cannot be told apart"):
        read(pipe(*head, sample(b"", TID | TIME, 5)))


def test_cpus_are_merged_by_time_at_the_ends_of_rounds() -> None:
    """What a round brings may be earlier than the round before's latest, but not than the one before that."""
    rounds = [[10, 40, 5, 30], [35, 60, 50], [55, 90, 70], [65]]
    body = [part for stamps in rounds for part in (*(sample(exit_raw(1), time=t) for t in stamps), ROUND)]
    trace = read(pipe(*HEAD, *body))
    assert times(trace) == sorted(t for stamps in rounds for t in stamps)
    assert trace.meta.out_of_order == 0


def test_without_rounds_all_is_sorted() -> None:
    stamps = [9, 3, 7, 1, 8]
    assert times(read(pipe(*HEAD, *(sample(exit_raw(1), time=t) for t in stamps)))) == sorted(stamps)


def compressed(data: bytes, sizes: list[int], second: bool = False) -> list[bytes]:
    """*data* as one zstd stream, cut into COMPRESSED (81) or COMPRESSED2 (83) records of *sizes* bytes."""
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(data) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    parts, at, sizes = [], 0, list(sizes)
    while at < len(packed):
        size = sizes.pop(0) if sizes else 20
        piece = packed[at : at + size]
        at += size
        padding = bytes(-len(piece) % 8)
        parts.append(record(83, struct.pack("<Q", len(piece)) + piece + padding) if second else record(81, piece))
    return parts


@pytest.mark.parametrize("second", [False, True], ids=["COMPRESSED", "COMPRESSED2"])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=20))
def test_compressed_records_may_straddle_anywhere(second: bool, sizes: list[int]) -> None:
    body = b"".join(sample(exit_raw(n % 50, n * 7919), time=n + 1) for n in range(60)) + ROUND
    trace = read(pipe(*HEAD, *compressed(body, sizes, second), sample(exit_raw(51), time=100)))
    assert trace.meta.complete
    assert trace.table("kvm_exit")["exit_reason"].tolist() == [*(n % 50 for n in range(60)), 51]


def test_a_damaged_compressed_record_costs_only_itself() -> None:
    body = b"".join(sample(exit_raw(1), time=n) for n in range(50))
    trace = read(pipe(*HEAD, record(81, b"not zstd at all!"), *compressed(body, [30])))
    assert "compressed record is damaged" in trace.meta.damage[0]
    assert len(trace) == 50


def test_a_compressed_stream_that_stops_in_a_record_says_so() -> None:
    trace = read(pipe(*HEAD, *compressed(sample(exit_raw(1), time=5) + sample(exit_raw(1), time=6)[:-8], [])))
    assert len(trace) == 1
    assert "into a record" in trace.meta.damage[0]


def test_events_lost_on_the_way_and_told_again_at_the_end_count_once() -> None:
    """perf from 6.1 on ends a recording with LOST_SAMPLES records that repeat what the LOST records said."""
    on_the_way = record(2, struct.pack("<QQ", 1, 40)) + record(2, struct.pack("<QQ", 2, 2))
    at_the_end = record(13, struct.pack("<Q", 40)) + record(13, struct.pack("<Q", 2))
    assert read(pipe(*HEAD, on_the_way, sample(exit_raw(1), time=5), at_the_end)).meta.lost == 42


def test_events_lost_in_one_kind_of_record_count() -> None:
    assert read(pipe(*HEAD, record(13, struct.pack("<Q", 7)))).meta.lost == 7
    assert read(pipe(*HEAD, record(2, struct.pack("<QQ", 1, 40)))).meta.lost == 40


def test_threads_get_their_names() -> None:
    comm = record(3, struct.pack("<ii", 6, 7) + b"CPU 0/KVM\0\0\0\0\0\0\0")
    assert read(pipe(*HEAD, comm)).meta.comms == {7: "CPU 0/KVM"}


def test_unknown_records_are_skipped() -> None:
    unknown = record(200, bytes(40)) + record(40, bytes(16))
    trace = read(pipe(*HEAD, unknown, sample(exit_raw(1), time=5)))
    assert len(trace) == 1
    assert trace.meta.complete


def test_data_behind_an_aux_record_is_skipped() -> None:
    aux = record(71, struct.pack("<QQQIIII", 100, 0, 0, 0, 0, 0, 0)) + sample(exit_raw(9))[:100].ljust(100, b"\0")
    assert len(read(pipe(*HEAD, aux, sample(exit_raw(1), time=5)))) == 1


def test_an_event_nobody_described_is_counted() -> None:
    raw = struct.pack("<HBBiQ", 999, 0, 0, 1, 5)
    trace = read(pipe(*HEAD, sample(raw, time=3), sample(exit_raw(1), time=5)))
    assert names(trace) == ["kvm_exit"]
    assert "ids 999" in trace.meta.notes[0]


def test_an_event_nobody_has_heard_of_becomes_a_table() -> None:
    text = "name: kvm_brand_new\nID: 900\nformat:\n\tfield:s16 depth;\toffset:8;\tsize:2;\tsigned:1;\n"
    trace = read(pipe(attr_record(), formats_record(text), sample(struct.pack("<HBBih", 900, 0, 0, 1, -5), time=3)))
    assert trace.frame("kvm_brand_new")["depth"].to_list() == [-5]


def test_what_is_not_selected_is_counted_but_not_decoded() -> None:
    source = PerfData(Input.from_bytes(pipe(*HEAD, sample(exit_raw(1), time=5), sample(entry_raw(), time=6))))
    trace = Trace.read(source, {"kvm_exit": ("exit_reason",)})
    assert names(trace) == ["kvm_exit"]
    assert "guest_rip" not in trace.table("kvm_exit")
    assert trace.meta.events == {"kvm_exit": 1, "kvm_entry": 1}


def test_attributes_may_follow_formats_and_samples() -> None:
    kind = IDENTIFIER | TID | TIME | RAW
    late = (attr_record([2], kind=kind | CPU), sample(exit_raw(2), kind | CPU, 20, cpu=4, number=2))
    trace = read(pipe(formats_record(), attr_record([1], kind=kind), sample(exit_raw(1), kind, 10, number=1), *late))
    assert trace.table("kvm_exit")["exit_reason"].tolist() == [1, 2]


def test_two_thousand_attributes_are_read_once() -> None:
    """perf record -e '*:*' in a pipe: the tables are built when a sample needs them, not for each attribute."""
    kind = IDENTIFIER | TID | TIME | RAW
    attrs = [attr_record([n], kind=kind | (CPU if n % 2 else 0)) for n in range(1, 2001)]
    trace = read(pipe(*attrs, formats_record(), sample(exit_raw(1), kind, 10, number=2)))
    assert len(trace) == 1


def test_a_stream_that_describes_itself_over_and_over_is_refused() -> None:
    again = [part for n in range(400) for part in (attr_record([n]), sample(exit_raw(1), time=n))]
    with pytest.raises(TraceFormatError, match="over and over"):
        read(pipe(formats_record(EXIT_TEXT, ENTRY_TEXT), *again))


def test_the_first_description_of_an_event_stays() -> None:
    other = EXIT_TEXT.replace("exit_reason", "something_else").replace("ID: 700", "ID: 750")
    trace = read(
        pipe(
            attr_record(),
            formats_record(),
            sample(exit_raw(1), time=1),
            formats_record(other),
            sample(exit_raw(2), time=2),
        )
    )
    assert trace.table("kvm_exit")["exit_reason"].tolist() == [1, 2]


def test_lying_sizes_in_a_stream_allocate_nothing() -> None:
    for lie in (struct.pack("<IHHI", 66, 0, 12, 0xFFFFFFFF), struct.pack("<IHHQ", 71, 0, 16, 1 << 62)):
        trace = read(pipe(*HEAD, sample(exit_raw(1), time=5), lie + bytes(100)))
        assert len(trace) == 1
        assert not trace.meta.complete


@pytest.mark.needs("perf")
def test_perf_records_into_a_pipe(tmp_path: Path) -> None:
    made = subprocess.run(
        ["perf", "record", "-q", "-e", "dummy,cpu-clock", "-o", "-", "true"], capture_output=True, check=False
    )
    if made.returncode or len(made.stdout) < 200:
        pytest.skip(f"perf may not record here: {made.stderr.decode()[:200]!r}")
    trace = read(made.stdout)
    assert trace.meta.complete
    assert trace.meta.format == "perf.data (pipe)"


def test_usual_is_what_perf_record_writes() -> None:
    """The sample_type of perf record -e 'kvm:*' in the recordings, ids and period aside."""
    data = (DATA / "vmx-5.10-ept" / "wp.perf.data").read_bytes()
    attrs_at = struct.unpack_from("<Q", data, 24)[0]
    assert struct.unpack_from("<Q", data, attrs_at + 24)[0] & USUAL == USUAL
