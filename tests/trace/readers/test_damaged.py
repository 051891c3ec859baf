"""Bad input: one clear sentence, or everything up to the damage; never another exception."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import TraceFormatError, WorldswitchError
from worldswitch.record.trace import Trace
from worldswitch.trace import open_trace
from worldswitch.trace.account import Account, account
from worldswitch.trace.readers import open_input, source
from worldswitch.trace.readers.source import Input
from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata
from worldswitch.trace.writers.tracedat import TraceDatOptions, write_tracedat

DATA = Path(__file__).parents[2] / "data"
PERF = DATA / "vmx-6.1-ept" / "kvmstat.perf.data"
PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}


@cache
def short() -> Trace:
    """The first events of a recording."""
    trace = open_trace(DATA / "vmx-5.10-ept" / "kvmstat.perf.data")
    return Trace([next(iter(trace.batches())).cut(40)[0]], trace.meta, trace.formats)


def written(write, options) -> bytes:
    stream = io.BytesIO()
    write(short(), stream, options)
    return stream.getvalue()


@cache
def whole() -> dict[str, bytes]:
    """A small whole input of each kind."""
    return {
        "perf": PERF.read_bytes(),
        "perf-pipe": written(write_perfdata, PerfOptions(pipe=True)),
        "perf-zstd": written(write_perfdata, PerfOptions(level=1)),
        "trace-dat-6": written(write_tracedat, TraceDatOptions(version=6)),
        "trace-dat-7": written(write_tracedat, TraceDatOptions(version=7, compression="zstd")),
        "tracefs": (DATA / "vmx-6.1-ept" / "trace.txt").read_bytes(),
        "perf-script": (DATA / "svm-6.1-npt" / "wp.perf-script.head.txt").read_bytes()[:6000],
        "strace": (DATA / "svm-5.10-npt" / "strace.txt").read_bytes(),
        "perf-table": (DATA / "svm-5.10-npt" / "kvmstat.txt").read_bytes(),
        "pasted": (DATA / "pasted" / "vmx-broken-after-time.eml").read_bytes(),
    }


MAGICS = [
    *(b"", b"PERFILE2", b"PERFILE2" + struct.pack("<Q", 16), b"\x17\x08\x44tracing7\0", b"# tracer: nop\n"),
    *(b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"),
]
KINDS = list(whole())
BINARY = KINDS[:5]


def read(data: bytes) -> Account | str:
    """The account, or the sentence of the error."""
    try:
        return account(open_input(Input.from_bytes(data)))
    except WorldswitchError as error:
        sentence = str(error)
        assert sentence
        assert sentence.isprintable()
        return sentence


def events(result: Account | str) -> int:
    return 0 if isinstance(result, str) else sum(result.meta.events.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_inputs_are_whole(kind: str) -> None:
    result = read(whole()[kind])
    assert not isinstance(result, str)
    assert result.meta.complete
    assert events(result) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_many_places(kind: str) -> None:
    data = whole()[kind]
    most = events(read(data))
    for at in {*range(1, len(data), max(1, len(data) // 120)), len(data) - 1, len(data) - 7}:
        result = read(data[:at])
        assert events(result) <= most
        if kind in BINARY and not isinstance(result, str) and events(result) < most:
            assert not result.meta.complete, f"cut at {at}"
            assert result.meta.damage
            assert "incomplete" in {seen.id for seen in result.detections}


def test_perf_data_cut_at_every_byte_of_its_header() -> None:
    data = whole()["perf"]
    for at in range(1, 700):
        assert isinstance(read(data[:at]), str) or not read(data[:at]).meta.complete


def test_perf_data_cut_before_its_event_formats_says_so() -> None:
    """perf writes them behind the events."""
    data = whole()["perf"]
    sentence = read(data[: struct.unpack_from("<Q", data, 40)[0] + 100])
    assert isinstance(sentence, str)
    assert "holds no event formats" in sentence
    assert "ends" in sentence


def test_a_cut_stream_gives_the_events_before_the_cut() -> None:
    """In pipe mode the event formats come first."""
    result = read(whole()["perf-pipe"][:-3500])
    assert not isinstance(result, str)
    assert 0 < events(result) < 40
    assert "into a record" in result.meta.damage[0]


@pytest.mark.parametrize("kind", BINARY)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_number_anywhere_may_lie(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(whole()[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        # Mostly in the headers, where sizes and offsets are.
        at = data.draw(st.integers(0, min(len(damaged), data.draw(st.sampled_from([200, 4000, 1 << 20]))) - size))
        lie = data.draw(st.sampled_from([0, 1, 7, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]))
        damaged[at : at + size] = (lie & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    read(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(MAGICS))
def test_random_bytes_behind_any_magic(data: bytes, magic: bytes) -> None:
    result = read(magic + data)
    assert isinstance(result, str) or not result.count


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\0" * 5000, "no reader knows"),
        (b"2ELIFREP" + bytes(200), "big-endian"),
        (b"PERFILE3" + bytes(200), "no reader knows"),
        (b"PERFILE2", "cut short in its header"),
        (b"\x7fELF" + bytes(60), "no reader knows"),
        (gzip.compress(b"", mtime=0), "holds nothing"),
        (b"\x1f\x8b" + bytes(100), "holds nothing"),
    ],
)
def test_what_is_no_trace_is_told_in_one_sentence(data: bytes, says: str) -> None:
    sentence = read(data)
    assert isinstance(sentence, str)
    assert says in sentence


def header(data: bytes, **lies: int) -> bytes:
    """A perf.data whose header says something else."""
    names = ("size", "attr_size", "attrs_at", "attrs_size", "data_at", "data_size")
    fields = dict(zip(names, struct.unpack_from("<6Q", data, 8), strict=True)) | lies
    return data[:8] + struct.pack("<6Q", *(fields[name] for name in names)) + data[56:]


@pytest.mark.parametrize(
    "lies",
    [
        {"attr_size": 0},
        {"attr_size": 1 << 40},
        {"attrs_at": 1 << 62},
        {"attrs_size": 1 << 62},
        {"attrs_size": 0},
        {"data_at": 1 << 62},
    ],
    ids=str,
)
def test_impossible_perf_headers_are_refused(lies: dict[str, int]) -> None:
    sentence = read(header(whole()["perf"], **lies))
    assert isinstance(sentence, str)
    assert "perf.data" in sentence


def test_ids_beyond_the_file_are_refused() -> None:
    data = bytearray(whole()["perf"])
    attr_size, attrs_at = struct.unpack_from("<QQ", data, 16)
    struct.pack_into("<Q", data, attrs_at + attr_size - 8, 1 << 50)
    sentence = read(bytes(data))
    assert isinstance(sentence, str)
    assert "more ids" in sentence


def record_at(data: bytes, number: int) -> int:
    """Where a record of a perf.data begins."""
    at = struct.unpack_from("<Q", data, 40)[0]
    for _ in range(number):
        at += struct.unpack_from("<H", data, at + 6)[0]
    return at


def test_a_record_of_no_size_ends_the_reading() -> None:
    data = bytearray(written(write_perfdata, PerfOptions()))
    struct.pack_into("<H", data, record_at(data, 30) + 6, 0)
    result = read(bytes(data))
    assert not isinstance(result, str)
    assert 0 < events(result) < 40
    assert "impossible size 0" in result.meta.damage[0]


def test_a_record_shorter_than_its_format_is_malformed() -> None:
    data = bytearray(written(write_perfdata, PerfOptions()))
    at = record_at(data, 20)
    # The raw size of a sample lies behind IP or IDENTIFIER, TID, TIME, CPU, PERIOD.
    kind, _, size = struct.unpack_from("<IHH", data, at)
    assert kind == 9
    raw = next(o for o in range(at + 8, at + size, 4) if struct.unpack_from("<I", data, o)[0] == at + size - o - 4)
    struct.pack_into("<I", data, raw, 9)
    result = read(bytes(data))
    assert not isinstance(result, str)
    assert result.meta.malformed == 1


def test_perf_that_was_killed_left_no_size() -> None:
    result = read(header(whole()["perf"], data_size=0))
    sentence = result if isinstance(result, str) else " ".join(result.meta.damage)
    assert "did not finish" in sentence


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_compressed_input_is_the_same(kind: str, packer: str) -> None:
    plain, packed = read(whole()[kind]), read(PACKERS[packer](whole()[kind]))
    assert not isinstance(plain, str)
    assert not isinstance(packed, str)
    assert packed.exits == plain.exits
    assert packed.meta == plain.meta


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kind", ["perf-pipe", "trace-dat-7", "tracefs", "strace"])
def test_a_cut_compressed_file_gives_what_stands_before_the_cut(kind: str, packer: str) -> None:
    packed = PACKERS[packer](whole()[kind])
    result = read(packed[:-20])
    if isinstance(result, str):
        assert "compressed data is damaged" in result
        return
    assert not result.meta.complete
    assert any("compressed data is damaged" in sentence for sentence in result.meta.damage)


def test_what_a_cut_zstd_stream_holds_is_not_lost() -> None:
    text = b"".join(
        b"qemu-7 [000] .... %d.000001: kvm_entry: vcpu 0, rip 0x%x\n" % (i, i * 7919) for i in range(1, 60000)
    )
    packed = zstandard.ZstdCompressor().compress(text)
    result = read(packed[: len(packed) // 2])
    assert not isinstance(result, str)
    assert events(result) > 20000
    assert not result.meta.complete


def test_several_zstd_frames_are_one_stream() -> None:
    text = whole()["tracefs"]
    pack = zstandard.ZstdCompressor().compress
    result = read(pack(text[:1500]) + pack(text[1500:]))
    assert not isinstance(result, str)
    assert result.exits == read(text).exits


@pytest.mark.parametrize("packer", PACKERS)
def test_a_bomb_is_not_unpacked_to_its_end(packer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_FREELY", 1 << 20)
    monkeypatch.setattr(source, "_EXPANDS", 10)
    bomb = PACKERS[packer](whole()["tracefs"] + b"\n" * (64 << 20))
    result = read(bomb)
    assert not isinstance(result, str)
    assert not result.meta.complete
    assert "expands more than" in result.meta.damage[0]


def test_a_kernels_lost_records_are_counted() -> None:
    trace = short()
    trace.meta.lost, before = 5, trace.meta.lost
    try:
        data = written(write_perfdata, PerfOptions())
    finally:
        trace.meta.lost = before
    result = read(data)
    assert not isinstance(result, str)
    assert result.meta.lost == 5
    assert "lost-events" in {seen.id for seen in result.detections}


def test_a_lying_dynamic_length_copies_no_more_than_its_record() -> None:
    from worldswitch.record.formats import parse_format
    from worldswitch.trace.readers import gather

    text = "name: x\nID: 7\nformat:\n\tfield:__data_loc char[] s;\toffset:8;\tsize:4;\tsigned:0;\n"
    field = parse_format(text).fields[0]
    records = struct.pack("<8xI4s", 0xFFFF << 16 | 12, b"abcd") * 1000
    words = np.frombuffer(records, np.uint32)
    values = gather.column(memoryview(words), np.arange(0, 4000, 4), field)
    assert set(values.tolist()) == {"abcd"}


def test_a_format_that_declares_nonsense_is_refused() -> None:
    from worldswitch.record.formats import parse_format

    for text in (
        "",
        "name: x\n",
        "name: x\nID: " + "9" * 5000,
        "name: x\nID: 1\n\tfield:int;\toffset:70000;\tsize:4;\n",
    ):
        with pytest.raises(TraceFormatError):
            parse_format(text)


def test_a_format_of_endless_fields_is_read_in_time() -> None:
    from worldswitch.record.formats import parse_format

    assert parse_format("name: x\nID: 1\n" + "field:" * 200_000).fields == ()
