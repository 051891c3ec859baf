from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from live.fakes import FakeDevice, supported
from worldswitch.errors import MissingError
from worldswitch.live import ioctl
from worldswitch.live.device import Kvm
from worldswitch.live.errors import NoCapabilityError, NoKvmError, cannot_create, cannot_open
from worldswitch.x86.features import has, vendor


def cpuinfo(root: Path, flags: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"flags\t\t: {flags}\n")
    return root


@pytest.mark.parametrize(
    ("flags", "remedy"), [("fpu vmx", "modprobe kvm_intel"), ("fpu svm", "modprobe kvm_amd"), ("fpu", "firmware")]
)
def test_without_the_module_the_message_says_which_to_load(tmp_path: Path, flags: str, remedy: str) -> None:
    assert remedy in str(cannot_open(errno.ENOENT, cpuinfo(tmp_path, flags)))


def test_a_device_that_is_not_there_although_kvm_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "sys/module/kvm").mkdir(parents=True)
    assert "--device /dev/kvm" in str(cannot_open(errno.ENOENT, tmp_path))


def test_no_permission_names_the_group() -> None:
    with pytest.raises(NoKvmError, match="usermod -aG kvm"):
        Kvm(FakeDevice(open_error=errno.EACCES))


def test_another_api_version_is_refused_and_the_device_closed() -> None:
    device = FakeDevice(version=11)
    with pytest.raises(NoKvmError, match="version 11, not 12"):
        Kvm(device)
    assert device.opened == []


def test_a_processor_another_hypervisor_holds_is_told() -> None:
    with Kvm(FakeDevice(refuse={ioctl.CREATE_VM: errno.EBUSY})) as kvm, pytest.raises(NoKvmError, match="VirtualBox"):
        kvm.create_vm()
    assert isinstance(cannot_create(errno.EBUSY), MissingError)


def test_interrupted_calls_are_made_again_and_counted() -> None:
    device = FakeDevice()
    interruptions = [errno.EINTR, errno.EINTR]
    plain = device.ioctl

    def answer(fd: int, request: int, arg: int = 0) -> int:
        if request == ioctl.CREATE_VM and interruptions:
            return -interruptions.pop()
        return plain(fd, request, arg)

    device.ioctl = answer  # type: ignore[method-assign]
    with Kvm(device) as kvm, kvm.create_vm() as vm:
        assert vm.eintr == 2
    assert device.opened == []


def test_a_vcpu_that_cannot_be_mapped_leaves_nothing_open() -> None:
    device = FakeDevice()
    with Kvm(device) as kvm, kvm.create_vm() as vm:
        before = list(device.opened)

        def refuse(fd: int, size: int) -> None:
            raise OSError(errno.ENOMEM, "no")

        device.map = refuse  # type: ignore[assignment]
        with pytest.raises(OSError, match="no"):
            vm.create_vcpu(0)
        assert device.opened == before


def test_the_supported_cpuid_is_read_in_full() -> None:
    with Kvm(FakeDevice(cpuid=supported(b"AuthenticAMD", ebx=1 << 7))) as kvm:
        entries = kvm.supported_cpuid()
    assert vendor(entries) == "AuthenticAMD"
    assert has(entries, "smep")
    assert not has(entries, "smap")


def test_a_kvm_that_cannot_say_its_cpuid() -> None:
    device = FakeDevice(refuse={ioctl.GET_SUPPORTED_CPUID: errno.EINVAL})
    with Kvm(device) as kvm, pytest.raises(NoCapabilityError, match="KVM_GET_SUPPORTED_CPUID"):
        kvm.supported_cpuid()


def test_capabilities_are_enabled_with_all_four_arguments() -> None:
    device = FakeDevice()
    with Kvm(device) as kvm, kvm.create_vm() as vm:
        vm.enable_cap(220, 7, flags=1)
    sent = dict(device.buffers)[ioctl.ENABLE_CAP]
    assert struct.unpack("<II4Q", sent[:40]) == (220, 1, 7, 0, 0, 0)
    assert len(sent) == 104


@pytest.mark.needs("kvm")
class TestReal:
    def test_a_vm_and_a_vcpu_open_and_close(self) -> None:
        before = set(Path("/proc/self/fd").iterdir())
        with Kvm() as kvm, kvm.create_vm() as vm, vm.create_vcpu(0) as vcpu:
            # SDM volume 3, table 9-1: after reset RIP is 0xfff0 and RFLAGS 2.
            registers = vcpu.registers()
            assert (registers["rip"], registers["rflags"]) == (0xFFF0, 2)
            assert vm.name == f"{os.getpid()}-{vm.fd}"
            assert vendor(kvm.supported_cpuid())
        assert set(Path("/proc/self/fd").iterdir()) == before

    def test_registers_come_back_as_set(self) -> None:
        with Kvm() as kvm, kvm.create_vm() as vm, vm.create_vcpu(0) as vcpu:
            vcpu.set_registers({"rip": 0x1234, "r15": 1 << 63, "rax": 5})
            registers = vcpu.registers()
        assert (registers["rip"], registers["r15"], registers["rax"], registers["rbx"]) == (0x1234, 1 << 63, 5, 0)

    def test_without_memory_nothing_translates(self) -> None:
        with Kvm() as kvm, kvm.create_vm() as vm, vm.create_vcpu(0) as vcpu:
            assert vcpu.translate(0x1000) == 0x1000  # no paging after reset

    def test_memory_that_is_not_whole_pages_is_refused(self) -> None:
        with Kvm() as kvm, kvm.create_vm() as vm, pytest.raises(OSError, match="Invalid"):
            vm.set_memory(0, 0, 100, 0x1000)
