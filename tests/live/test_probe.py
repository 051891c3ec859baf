from __future__ import annotations

import errno
import struct

import pytest

from live.fakes import FakeDevice
from worldswitch.live import ioctl
from worldswitch.live.device import Kvm
from worldswitch.live.errors import NoCapabilityError
from worldswitch.live.probe import DISABLE_NX, OK, disable_nx_answers, disable_nx_huge_pages, probe


class Linux(FakeDevice):
    """Answers as kvm_vm_ioctl_enable_cap does since Linux 6.0 (arch/x86/kvm/x86.c)."""

    allowed = True

    def exchange(self, fd: int, request: int, data: bytearray) -> int:
        if request == ioctl.ENABLE_CAP:
            _cap, flags, argument = struct.unpack_from("<IIQ", data)
            bad = errno.EINVAL if flags else 0
            bad = bad or (0 if self.allowed else errno.EPERM)
            bad = bad or (errno.EINVAL if argument or ioctl.CREATE_VCPU in self.calls[-3:] else 0)
            if bad:
                raise OSError(bad, "no")
        return super().exchange(fd, request, data)


def test_flags_are_looked_at_before_the_permission_and_the_argument_after_it() -> None:
    with Kvm(Linux()) as kvm:
        assert disable_nx_answers(kvm) == {
            "flags": "EINVAL", "argument": "EINVAL", "plain": OK, "after a vCPU": "EINVAL",
        }  # fmt: skip
    device = Linux()
    device.allowed = False
    with Kvm(device) as kvm:
        assert disable_nx_answers(kvm) == {
            "flags": "EINVAL", "argument": "EPERM", "plain": "EPERM", "after a vCPU": "EPERM",
        }  # fmt: skip


def test_a_kernel_that_lacks_it_is_told() -> None:
    with Kvm(FakeDevice()) as kvm, kvm.create_vm() as vm, pytest.raises(NoCapabilityError, match=r"Linux 6\.0"):
        disable_nx_huge_pages(vm)


def test_a_missing_permission_is_named() -> None:
    device = Linux(capabilities={DISABLE_NX: 1})
    device.allowed = False
    with Kvm(device) as kvm, kvm.create_vm() as vm, pytest.raises(NoCapabilityError, match="CAP_SYS_BOOT"):
        disable_nx_huge_pages(vm)


@pytest.mark.needs("kvm")
def test_the_real_kvm_answers_in_the_kernels_order() -> None:
    with Kvm() as kvm:
        found = probe(kvm)
    assert found.capabilities["USER_MEMORY"] == 1
    if found.capabilities["VM_DISABLE_NX_HUGE_PAGES"]:
        assert found.disable_nx["flags"] == "EINVAL"
        may = found.disable_nx["plain"]
        assert may in (OK, "EPERM")
        assert found.disable_nx["argument"] == found.disable_nx["after a vCPU"] == ("EINVAL" if may == OK else "EPERM")
    else:
        assert set(found.disable_nx.values()) == {"EINVAL"}
