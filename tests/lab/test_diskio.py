"""The disks and the program that reads and writes them; real boots show that it does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.lab import diskio


def test_the_listing_says_what_its_bytes_are():
    iced = pytest.importorskip("iced_x86")
    rows = [row.partition(";")[0].split(maxsplit=2) for row in diskio.LISTING.strip().splitlines()]
    code = b"".join(bytes.fromhex(row[1]) for row in rows)
    formatter = iced.Formatter(iced.FormatterSyntax.INTEL)
    formatter.hex_prefix, formatter.hex_suffix = "0x", ""
    formatter.uppercase_hex = formatter.branch_leading_zeros = formatter.show_branch_size = False
    formatter.space_after_operand_separator = formatter.small_hex_numbers_in_decimal = True
    read = [
        [f"{one.ip:x}", code[one.ip - diskio.CODE :][: one.len].hex(), formatter.format(one)]
        for one in iced.Decoder(64, code, ip=diskio.CODE)
    ]
    assert read == [[address, data, text.strip()] for address, data, text in rows]


def test_the_program_is_an_elf_file_that_starts_at_its_code():
    program = diskio.program()
    assert program[:4] == b"\x7fELF"
    assert int.from_bytes(program[24:32], "little") == diskio.CODE
    assert program[diskio.CODE - diskio.BASE :][:5] == bytes.fromhex("bf03000000")


@given(st.binary(max_size=2000))
def test_what_is_written_is_read(tmp_path_factory, payload):
    path = tmp_path_factory.mktemp("disk") / "image"
    diskio.write_image(path, payload)
    assert diskio.read_image(path) == payload
    assert path.stat().st_size % diskio.CYLINDER == 0


def test_an_image_nobody_finished_holds_nothing(tmp_path):
    path = tmp_path / "image"
    diskio.empty_image(path, 1 << 20)
    assert diskio.read_image(path) is None
    assert path.stat().st_blocks * 512 < 1 << 16


def test_a_length_beyond_the_image_holds_nothing(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(diskio.HEADER.pack(diskio.MAGIC, 10_000).ljust(2048, b"x"))
    assert diskio.read_image(path) is None
