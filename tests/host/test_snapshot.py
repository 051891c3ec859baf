"""A snapshot gives what was read, whatever archive it is in; hostile ones give what they can."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.machines import machine, made
from worldswitch.errors import MissingError
from worldswitch.host import fs, tar
from worldswitch.host.diagnosis import diagnose
from worldswitch.host.facts import Host, Unreadable
from worldswitch.host.gather import gather
from worldswitch.host.snapshot import INDEX, Snapshot, snapshot


def reread(tmp_path: Path, data: bytes) -> Host:
    (tmp_path / "host.tar").write_bytes(data)
    return gather(Snapshot(str(tmp_path / "host.tar")))


def test_a_snapshot_gives_the_host_it_was_made_of(tmp_path: Path) -> None:
    host = made(machine())
    again = reread(tmp_path, snapshot(host))
    assert (again.files, again.devices, again.folders) == (host.files, host.devices, host.folders)
    assert diagnose(again) == diagnose(host)
    assert snapshot(again) == snapshot(host)


def test_what_could_not_be_read_there_is_still_unread(tmp_path: Path) -> None:
    path = "/sys/kernel/debug/kvm"
    host = Host("x", {}, {}, {}, (Unreadable(path, "permission denied"),))
    again = reread(tmp_path, snapshot(host))
    assert again.why(path) == "permission denied"
    assert again.missing == (Unreadable(path, "permission denied"),)


def test_a_tar_of_parts_of_a_root_tree_will_do(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "parts.tar.gz", "w:gz") as archive:
        for name, data in (("./proc/cmdline", b"mitigations=off\n"), ("./usr/lib/os-release", b"ID=x\n")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("./etc/os-release")
        link.type, link.linkname = tarfile.SYMTYPE, "../usr/lib/os-release"
        archive.addfile(link)
    host = gather(Snapshot(str(tmp_path / "parts.tar.gz")))
    assert host.cmdline == {"mitigations": ("off",)}
    assert host.os_release == {"ID": "x"}
    assert host.why("/proc/cpuinfo") == "not there"


def hostile() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:

        def add(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(data)
            archive.addfile(info, io.BytesIO(data))

        add("../../etc/passwd", b"out")
        add("/proc/cmdline", b"quiet\n")
        add("proc/cmdline", b"mitigations=off\n")
        add("proc/meminfo", b"\xff" * (300 << 10))
        add("proc/cpuinfo", kind=tarfile.SYMTYPE, target="/../../../../etc/passwd")
        add("proc/sys/kernel/osrelease", kind=tarfile.SYMTYPE, target="osrelease")
        add("proc/modules", kind=tarfile.LNKTYPE, target="/etc/shadow")
        add("proc/misc", kind=tarfile.FIFOTYPE)
        add("dev/kvm", kind=tarfile.CHRTYPE)
        add(INDEX, b'{"version": [], "devices": {"/dev/kvm": [1]}, "folders": 3, "unreadable": [[1, 2], "x"]}')
    return out.getvalue()


def test_a_hostile_snapshot_stays_inside_and_says_what_is_odd(tmp_path: Path) -> None:
    host = reread(tmp_path, hostile())
    assert host.cmdline == {"mitigations": ("off",)}
    assert set(host.notes) == {
        "members whose path leads out of the archive were left out",
        "/proc/cmdline is in it more than once; the last one counts",
    }
    assert {path: host.why(path) for path in ("/proc/meminfo", "/proc/cpuinfo", "/proc/modules", "/proc/misc")} == {
        "/proc/meminfo": "larger than 262,144 bytes",
        "/proc/cpuinfo": "not there",
        "/proc/modules": "not there",
        "/proc/misc": "a FIFO, not a regular file",
    }
    assert host.why("/proc/sys/kernel/osrelease") == "too many levels of symbolic links"
    assert host.device("/dev/kvm") is None
    diagnose(host)


def test_a_truncated_snapshot_gives_what_came_before_and_says_so(tmp_path: Path) -> None:
    host = reread(tmp_path, snapshot(made(machine()))[:20_000])
    assert host.files
    assert host.notes[-1].startswith("the archive is not whole: truncated")


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "empty"), (b"x" * 5000, "no tar archive"), (b"\x1f\x8b" + b"x" * 500, "damaged"), (b"\0" * 1024, "no tar")],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(MissingError, match=why):
        reread(tmp_path, data)


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(MissingError, match="is no file"):
        Snapshot(str(tmp_path / "fifo"))
    with pytest.raises(MissingError, match="--root"):
        Snapshot(str(tmp_path))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["devices", "folders", "unreadable", "version", "/dev/kvm", "/sys/module"]), x)))  # fmt: skip
def test_any_index_is_read(tmp_path_factory: pytest.TempPathFactory, index: object) -> None:
    path = tmp_path_factory.mktemp("index") / "host.tar"
    path.write_bytes(tar.pack({INDEX: json.dumps(index).encode()}))
    host = gather(Snapshot(str(path)))
    assert all(isinstance(name, str) for names in host.folders.values() for name in names)
    assert all(isinstance(one, fs.Device) for one in host.devices.values())
