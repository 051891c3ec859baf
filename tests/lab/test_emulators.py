"""The exact commands, and the files they name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from worldswitch.errors import MissingError, UnknownNameError
from worldswitch.lab.artifacts import BochsFiles, IsoTools, Program, QemuFiles
from worldswitch.lab.bochs import NEWER, OLDER, Bochs, model_for
from worldswitch.lab.emulator import Boot, emulator
from worldswitch.lab.qemu import Qemu

BOOT = Boot(Path("/k/vmlinuz"), Path("/w/initrd"), ("extra=1",), Path("/w"), smp=2, memory=640)
FAST = BochsFiles(("/b/bochs",), "3.0", bios=Path("/b/bios"), vgabios=Path("/b/vga"), debugger=False, display="nogui")
PACKAGED = BochsFiles(("/usr/bin/bochs",), "2.7", {"BXSHARE": "/s"}, bios=Path("/b/bios"), vgabios=Path("/b/vga"))


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    return dict(pairwise(words))


def test_qemu_emulates_svm_without_kvm_network_or_defaults():
    words = Qemu(QemuFiles(("/usr/bin/qemu-system-x86_64",), "7.2")).command(BOOT).words
    options = pairs(words)
    assert options["-accel"] == "tcg,thread=multi"
    assert options["-cpu"] == "EPYC,+svm,+npt"
    assert (options["-nic"], options["-smp"], options["-m"]) == ("none", "2", "640M")
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(words)
    assert not any("kvm" in word for word in words)
    assert options["-append"].split()[-1] == "extra=1"


def test_a_comma_in_a_path_does_not_end_qemus_option():
    boot = Boot(BOOT.vmlinuz, BOOT.initrd, (), Path("/a,b"))
    words = Qemu(QemuFiles(("qemu",), "7.2")).command(boot).words
    assert any(word.startswith("file=/a,,b/jobs.img,format=raw") for word in words)


def test_a_restored_machine_keeps_its_writes_to_itself():
    qemu = Qemu(QemuFiles(("qemu",), "7.2"))
    saving, restoring = (getattr(qemu, name)(BOOT, Path("/s/memory"), 5).words for name in ("saving", "restoring"))
    assert any("mem-path=/s/memory,share=on" in word for word in saving)
    assert any("mem-path=/s/memory,share=off" in word for word in restoring)
    assert restoring[-2:] == ("-incoming", "defer")
    same = [word for word in saving if "share=" not in word]
    assert [word for word in restoring[:-2] if "share=" not in word] == same


def test_the_command_is_one_line_for_a_shell():
    import shlex

    command = Bochs(PACKAGED).command(Boot(BOOT.vmlinuz, BOOT.initrd, (), Path("/a b")))
    assert shlex.split(command.shell()) == ["BXSHARE=/s", "TERM=vt100", *command.words]


def test_bochs_gets_a_processor_with_vmx_and_quiet_logs():
    files = {path.name: data.decode() for path, data in Bochs(FAST, OLDER).files(BOOT).items()}
    lines = files["bochsrc"].splitlines()
    assert f"cpu: model={OLDER}, count=2, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1" in lines
    assert "memory: guest=640, host=640" in lines
    # With either of these on "report" it was seen to hang, its timer waiting for the logger's lock.
    assert {"error: action=ignore", "info: action=ignore"} <= set(lines)
    assert not any(line.startswith(("ne2k", "e1000", "pcipnic")) for line in lines)
    assert "extra=1" in files["isolinux.cfg"]
    assert "tsc_early_khz=50000" in files["isolinux.cfg"]


def test_each_processor_of_bochs_goes_on_after_a_panic_and_only_one_panic_is_none():
    """The two lines are as Bochs 3.0 writes them, on tigerlake and on a triple fault."""
    bochs = Bochs(FAST, OLDER)
    lines = bochs.files(BOOT)[Path("/w/bochsrc")].decode().splitlines()
    assert "panic: action=fatal, cpu0=report, cpu1=report" in lines
    given_up = bochs.command(BOOT).given_up
    assert not given_up.search(
        "02912108105p[CPU0  ] >>PANIC<< PAE: asked to set dirty on paging leaf entry with R/W bit clear"
    )
    found = given_up.search("00091405313p[CPU0  ] >>PANIC<< exception(): 3rd (13) exception with no resolution")
    assert found[1] == "exception(): 3rd (13) exception with no resolution"


def test_the_packaged_bochs_is_started_out_of_its_debugger():
    bochs = Bochs(PACKAGED)
    assert bochs.command(BOOT).words[-2:] == ("-rc", "/w/bochs.start")
    assert bochs.command(BOOT).screen
    assert bochs.files(BOOT)[Path("/w/bochs.start")] == b"c\n"
    assert "-rc" not in Bochs(FAST).command(BOOT).words


def test_a_boot_cd_that_finds_no_space_says_so(tmp_path, monkeypatch):
    """xorriso's own last line is "Image write cancelled"."""
    files = {name: tmp_path / name for name in ("bin", "ldlinux", "vmlinuz", "initrd")}
    for file in files.values():
        file.write_bytes(bytes(1 << 20))
    tools = IsoTools(Program(("false",), "1.5"), files["bin"], files["ldlinux"])
    monkeypatch.setattr("worldswitch.lab.artifacts.iso_tools", lambda: tools)
    boot = Boot(files["vmlinuz"], files["initrd"], (), tmp_path)
    with pytest.raises(MissingError, match="xorriso could not make the boot CD: status 1"):
        Bochs(FAST).prepare(boot)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(MissingError, match=r"has no 4 MiB left for the boot CD; .*set TMPDIR"):
        Bochs(FAST).prepare(boot)


def test_more_cpus_than_the_fast_bochs_has_are_refused_before_it_starts():
    fast = replace(FAST, fast=True)
    with pytest.raises(MissingError, match="has one CPU, not 2; leave --smp out, or use --cpu amd"):
        Bochs(fast).files(BOOT)
    assert Bochs(fast).files(replace(BOOT, smp=1))


@pytest.mark.parametrize(
    ("release", "model"),
    [("5.10.0-32-cloud-amd64", OLDER), ("6.1.190", OLDER), ("6.12.117+deb13-cloud-amd64", NEWER), ("7.2.13", NEWER)],
)
def test_each_kernel_gets_a_processor_it_boots_on(release, model):
    assert model_for(release) == model


def test_there_are_two_vendors():
    with pytest.raises(UnknownNameError, match="amd"):
        emulator("amdd", "6.12")
