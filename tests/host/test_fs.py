"""A folder that holds a host's tree is read without trusting it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from worldswitch.host import fs
from worldswitch.host.diagnosis import diagnose
from worldswitch.host.gather import gather


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret\n")
    root = tmp_path / "root"
    (root / "proc/sys/kernel").mkdir(parents=True)
    return root


def test_a_file_is_read(tree: Path) -> None:
    (tree / "proc/cmdline").write_text("quiet\n")
    assert fs.Root(str(tree)).read("/proc/cmdline") == b"quiet\n"


@pytest.mark.parametrize("target", ["../../secret", "../../../../../../../../{out}/secret", "/{out}/secret"])
def test_a_link_out_of_the_tree_does_not_lead_out(tree: Path, target: str) -> None:
    (tree / "proc/cmdline").symlink_to(target.format(out=str(tree.parent).lstrip("/")))
    with pytest.raises(fs.NotRead, match="not there"):
        fs.Root(str(tree)).read("/proc/cmdline")


def test_a_link_to_a_folder_outside_does_not_lead_out(tree: Path) -> None:
    (tree / "etc").symlink_to(tree.parent)
    (tree.parent / "group").write_text("secret\n")
    with pytest.raises(fs.NotRead, match="not there"):
        fs.Root(str(tree)).read("/etc/group")
    assert fs.Root(str(tree)).names("/") == ("etc", "proc")


def test_an_absolute_link_starts_at_the_trees_own_root(tree: Path) -> None:
    (tree / "etc").mkdir()
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/os-release").write_text("ID=x\n")
    (tree / "etc/os-release").symlink_to("/usr/lib/os-release")
    assert fs.Root(str(tree)).read("/etc/os-release") == b"ID=x\n"


def test_a_parent_of_a_folder_reached_by_a_link_is_that_folders(tree: Path) -> None:
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/file").write_text("a")
    (tree / "link").symlink_to("a/b")
    assert fs.Root(str(tree)).read("/link/../file") == b"a"


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "proc/one").symlink_to("two")
    (tree / "proc/two").symlink_to("one/..")
    with pytest.raises(fs.NotRead, match="too many levels"):
        fs.Root(str(tree)).read("/proc/one/x")


def test_a_fifo_is_not_opened(tree: Path) -> None:
    os.mkfifo(tree / "proc/cmdline")
    with pytest.raises(fs.NotRead, match="a FIFO, not a regular file"):
        fs.Root(str(tree)).read("/proc/cmdline")


def test_a_link_to_a_device_is_not_opened(tree: Path) -> None:
    (tree / "zero").symlink_to("/dev/zero")
    with pytest.raises(fs.NotRead, match="character device"):
        fs.Live().read("/dev/zero")
    with pytest.raises(fs.NotRead, match="not there"):
        fs.Root(str(tree)).read("/zero")


def test_a_file_too_large_is_not_given_in_part(tree: Path) -> None:
    with (tree / "proc/meminfo").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(fs.NotRead, match="larger than 262,144 bytes"):
        fs.Root(str(tree)).read("/proc/meminfo")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_says_so(tree: Path) -> None:
    (tree / "proc/cmdline").write_text("x")
    (tree / "proc/cmdline").chmod(0)
    with pytest.raises(fs.NotRead, match="permission denied"):
        fs.Root(str(tree)).read("/proc/cmdline")


def test_a_budget_is_spent() -> None:
    budget = fs.Budget(files=2, size=100)
    budget.spend(100)
    with pytest.raises(fs.NotRead):
        budget.spend(1)


def test_a_hostile_tree_is_read_to_its_end_and_says_what_was_not(tree: Path) -> None:
    parameters = tree / "sys/module/kvm/parameters"
    parameters.mkdir(parents=True)
    for number in range(3_000):
        (parameters / f"p{number}").write_bytes(b"\xff")
    vulnerabilities = tree / "sys/devices/system/cpu/vulnerabilities"
    vulnerabilities.mkdir(parents=True)
    os.mkfifo(vulnerabilities / "fifo")
    (vulnerabilities / "itlb_multihit").symlink_to("itlb_multihit")
    (vulnerabilities / "\udcff\udcfe").write_bytes(b"\x1b]0;owned\x07\n")
    (tree / "proc/cpuinfo").mkdir()
    (tree / "proc/config.gz").write_bytes(b"\x1f\x8b" + b"\0" * 100)
    (tree / "proc/sys/kernel/osrelease").write_text("../../../secret\n")
    (tree / "proc/sys/kernel/version").write_bytes(b"\0" * 100 + b"\n\xf0\x9f")
    begin = time.monotonic()
    host = gather(fs.Root(str(tree)))
    assert time.monotonic() - begin < 30  # it ends; a hang is what this finds
    assert host.why("/sys/devices/system/cpu/vulnerabilities/fifo") == "a FIFO, not a regular file"
    assert host.why("/sys/devices/system/cpu/vulnerabilities/itlb_multihit") == "too many levels of symbolic links"
    assert host.why("/proc/cpuinfo") == "a folder, not a regular file"
    assert host.why("/proc/config.gz").startswith("damaged")
    assert host.why("/sys/module/kvm/parameters").startswith("3,000 names, of which the first 2,000")
    assert sum(len(text) for text in host.files.values()) < 100 << 20
    assert not any("secret" in path for path in host.files)
    diagnose(host)


def test_a_tree_of_too_much_is_read_in_part(tree: Path) -> None:
    parameters = tree / "sys/module/kvm/parameters"
    parameters.mkdir(parents=True)
    for number in range(100):
        (parameters / f"p{number:03}").write_bytes(b"1" * (200 << 10))
    host = gather(fs.Root(str(tree)))
    assert len(host.files) == (16 << 20) // (200 << 10)
    assert host.why("/sys/module/kvm/parameters/p099") == "too much was read before it"


def test_an_empty_folder_has_findings_but_no_values(tree: Path) -> None:
    host = gather(fs.Root(str(tree)))
    assert host.files == {}
    assert host.kernel is None
    assert host.kernel_why == "the kernel's release was not read"
    assert host.policy is None
    diagnose(host)


def test_the_live_host_is_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = os.open

    def watch(path: str, flags: int, *rest: object, **named: object) -> int:
        opened.append(flags)
        return real(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watch)
    gather(fs.Live())
    assert opened
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flags in opened)
