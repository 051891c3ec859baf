from __future__ import annotations

import re
from pathlib import Path

import pytest

from live.images import image
from worldswitch.errors import MissingError, UsageError
from worldswitch.guest.image import Region
from worldswitch.live.device import Kvm
from worldswitch.live.machine import run_image
from worldswitch.live.memory import HUGE, GuestMemory


def test_what_is_written_is_read_at_its_address() -> None:
    with GuestMemory([Region(0, 0x2000), Region(1 << 30, 0x1000)]) as memory:
        memory.write(0x1FFE, b"ab")
        memory.write(1 << 30, b"xyz")
        assert memory.read(0x1FFC, 4) == b"\0\0ab"
        assert memory.read(1 << 30, 3) == b"xyz"


@pytest.mark.parametrize("gpa", [0x2000, 0x1FFF, (1 << 30) - 1, (1 << 30) + 0xFFF])
def test_nothing_lies_outside(gpa: int) -> None:
    outside = pytest.raises(UsageError, match=r"outside the guest's memory \(0x0-0x1fff, 0x40000000-0x40000fff\)")
    with GuestMemory([Region(0, 0x2000), Region(1 << 30, 0x1000)]) as memory, outside:
        memory.write(gpa, b"ab")


def test_huge_regions_are_aligned_as_the_guest_sees_them() -> None:
    with GuestMemory([Region(0x200000, 2 * HUGE, huge=True), Region(HUGE * 9 + 0x1000, HUGE, huge=True)]) as memory:
        for piece in memory._pieces:
            assert (piece.address - piece.gpa) % HUGE == 0
            assert piece.offset + piece.size <= len(piece.backing)


def test_only_huge_regions_ask_for_huge_pages() -> None:
    with GuestMemory([Region(0, 4 * HUGE), Region(0x40000000, 4 * HUGE, huge=True)]) as memory:
        flags = [_flags(piece.address) for piece in memory._pieces]
    if "nh" not in flags[0] and "hg" not in flags[1]:
        pytest.skip("this kernel has no transparent huge pages")
    # VmFlags: hg is MADV_HUGEPAGE's, nh MADV_NOHUGEPAGE's (Documentation/filesystems/proc.rst).
    assert "nh" in flags[0]
    assert "hg" in flags[1]


def _flags(address: int) -> list[str]:
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"{address:#x} is not mapped")


def test_prefaulted_memory_is_there() -> None:
    with GuestMemory([Region(0, 8 * HUGE)]) as memory:
        before = _resident()
        memory.write(0, b"x")
        assert _resident() - before < HUGE
    with GuestMemory([Region(0, 8 * HUGE)], prefault=True):
        assert _resident() - before > 7 * HUGE
    assert _resident() - before < HUGE


def _resident() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def test_memory_no_process_has_room_for() -> None:
    with pytest.raises(MissingError, match="the host has no"):
        GuestMemory([Region(0, 0x1000), Region(0x1000, 1 << 60)])


@pytest.mark.needs("kvm")
def test_regions_that_overlap_are_refused() -> None:
    overlapping = image("f4")
    twice = (*overlapping.regions, Region(0x1000, 0x1000))
    from dataclasses import replace

    with Kvm() as kvm, pytest.raises(MissingError, match="KVM refuses guest memory at 0x1000"):
        run_image(kvm, replace(overlapping, regions=twice), 0)
