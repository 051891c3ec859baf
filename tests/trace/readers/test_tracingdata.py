from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdata_build import ENTRY_TEXT, EXIT_TEXT, tracing_data
from worldswitch.errors import TraceFormatError
from worldswitch.trace.readers.tracingdata import parse_tracing_data


def with_comms(comms: bytes) -> bytes:
    return tracing_data(EXIT_TEXT)[:-8] + struct.pack("<Q", len(comms)) + comms


def test_the_formats_of_each_system() -> None:
    parsed = parse_tracing_data(tracing_data(EXIT_TEXT, ENTRY_TEXT))
    assert [(f.system, f.name, f.id) for f in parsed.formats] == [("kvm", "kvm_exit", 700), ("kvm", "kvm_entry", 701)]
    assert parsed.complete


def test_names_of_threads() -> None:
    comms = parse_tracing_data(with_comms(b"7 qemu-system-x86\n8 CPU 0/KVM\nnonsense\n\n" + "²² x\n".encode())).comms
    assert comms == {7: "qemu-system-x86", 8: "CPU 0/KVM"}


def test_a_thread_of_endless_digits_is_nobody() -> None:
    assert parse_tracing_data(with_comms(b"9" * 5000 + b" x\n7 y\n")).comms == {7: "y"}


def test_every_cut_gives_the_formats_before_it() -> None:
    blob = tracing_data(EXIT_TEXT, ENTRY_TEXT)
    counts = []
    for at in range(10, len(blob)):
        parsed = parse_tracing_data(blob[:at])
        assert not parsed.complete
        counts.append(len(parsed.formats))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_one_bad_format_costs_only_itself() -> None:
    parsed = parse_tracing_data(tracing_data("no format at all", ENTRY_TEXT))
    assert [f.name for f in parsed.formats] == ["kvm_entry"]
    assert not parsed.complete


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (b"", "magic"),
        (b"nothing of the kind", "magic"),
        (tracing_data(EXIT_TEXT).replace(b"0.6\0\0", b"0.6\0\1"), "big-endian"),
    ],
    ids=["empty", "other", "big-endian"],
)
def test_what_is_no_blob_is_refused(blob: bytes, says: str) -> None:
    with pytest.raises(TraceFormatError, match=says):
        parse_tracing_data(blob)


def test_without_its_page_header_nothing_can_be_told() -> None:
    parsed = parse_tracing_data(tracing_data(EXIT_TEXT).replace(b"header_page", b"header_cake"))
    assert not parsed.formats
    assert not parsed.complete


@given(st.binary(max_size=200), st.integers(0, 120))
def test_any_bytes_are_parsed_or_refused(noise: bytes, at: int) -> None:
    blob = tracing_data(EXIT_TEXT)
    try:
        parse_tracing_data(blob[:10] + (blob[10:at] + noise + blob[at:] if at > 10 else noise))
    except TraceFormatError as error:
        assert str(error).isprintable()
