"""Control groups: found by path or name in a made /sys, joined and removed for real where this host lets us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worldswitch.errors import MissingError, UsageError
from worldswitch.live import cgroups
from worldswitch.live.cgroups import Mount


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with both versions mounted, as systemd's hybrid layout has them, and a mount point with a blank."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n"
        "cgroup /mnt/a\\040b cgroup rw,relatime,pids 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime,favordynmods 0 0\n"
    )
    for folder in ("sys/fs/cgroup/memory/old", "sys/fs/cgroup/unified/new", "mnt/a b/pids"):
        for place in (tmp_path / folder, (tmp_path / folder).parent):
            place.mkdir(parents=True, exist_ok=True)
            (place / "cgroup.procs").touch()
    return tmp_path


def test_mounts_are_read_with_their_version_and_options(host: Path) -> None:
    assert cgroups.mounts(host) == [
        Mount(host / "sys/fs/cgroup/unified", 2, ("rw", "relatime", "favordynmods")),
        Mount(host / "sys/fs/cgroup/memory", 1, ("rw", "relatime", "memory")),
        Mount(host / "mnt/a b", 1, ("rw", "relatime", "pids")),
    ]


def test_favordynmods_is_an_option_of_the_v2_mount(host: Path) -> None:
    assert cgroups.favordynmods(host) is True
    mounts = host / "proc/self/mounts"
    mounts.write_text(mounts.read_text().replace(",favordynmods", ""))
    assert cgroups.favordynmods(host) is False
    mounts.write_text("")
    assert cgroups.favordynmods(host) is None


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("/sys/fs/cgroup/memory/old", "sys/fs/cgroup/memory/old"),
        ("new", "sys/fs/cgroup/unified/new"),
        ("/new", "sys/fs/cgroup/unified/new"),  # as /proc/self/cgroup writes it
        ("old", "sys/fs/cgroup/memory/old"),
        ("pids", "mnt/a b/pids"),
    ],
)
def test_a_group_is_found_by_path_and_by_name(host: Path, name: str, place: str) -> None:
    assert cgroups.find(name, host) == host / place


def test_what_is_not_there_is_told_with_the_command_that_makes_it(host: Path) -> None:
    with pytest.raises(MissingError, match=r"no control group 'vms'.*mkdir -p .*unified/vms"):
        cgroups.find("vms", host)


def test_a_folder_that_is_no_group_is_not_one(host: Path) -> None:
    (host / "tmp").mkdir()
    with pytest.raises(MissingError, match="no control group '/tmp'"):
        cgroups.find("/tmp", host)


def test_nothing_mounted(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no hierarchy of control groups is mounted; mount -t cgroup2"):
        cgroups.find("vms", tmp_path)


@pytest.mark.parametrize("name", ["", "/"])
def test_a_group_needs_a_name(host: Path, name: str) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        cgroups.find(name, host)


def test_hostile_names_do_not_reach_the_terminal(host: Path) -> None:
    with pytest.raises(MissingError) as refused:
        cgroups.find("a\x1b[2Jb", host)
    assert "\x1b" not in str(refused.value)


def test_joining_what_is_gone(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="it is gone"):
        cgroups.join(tmp_path / "nowhere")


@pytest.mark.needs("cgroups")
def test_a_group_is_made_joined_and_removed() -> None:
    name = f"wsw-test-{os.getpid()}"
    place = cgroups.find(name, make=True)
    try:
        pid = os.fork()
        if pid == 0:
            cgroups.join(place)
            os._exit(f"/{name}\n" not in Path("/proc/self/cgroup").read_text())
        assert os.waitpid(pid, 0) == (pid, 0)
    finally:
        assert cgroups.remove(place)
    assert not place.exists()
    assert cgroups.remove(place), "what is gone is removed"


@pytest.mark.needs("cgroups")
def test_a_group_in_use_is_not_removed() -> None:
    place = cgroups.find(f"wsw-test-{os.getpid()}", make=True)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        cgroups.join(place)
        os.read(read, 1)
        os._exit(0)
    try:
        while str(pid) not in (place / "cgroup.procs").read_text().split():
            pass
        assert not cgroups.remove(place, patience=0.05)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)
        assert cgroups.remove(place)
