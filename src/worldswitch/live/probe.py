"""What this host's KVM can do, found by asking it; nothing is changed but VMs made for the question and closed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from worldswitch.live import ioctl, permissions
from worldswitch.live.cpuid import offered
from worldswitch.live.device import Kvm, Vm
from worldswitch.live.errors import NoCapabilityError

DISABLE_NX = ioctl.CAPABILITIES["VM_DISABLE_NX_HUGE_PAGES"]
SYS_BOOT = 22
"""CAP_SYS_BOOT: include/uapi/linux/capability.h."""
OK = "ok"


class Probe(NamedTuple):
    """What a KVM can do.

    Attributes:
        capabilities: Names of :data:`worldswitch.live.ioctl.CAPABILITIES` -> what KVM_CHECK_EXTENSION answers for a VM.
        features: CPUID feature -> whether guests can have it.
        disable_nx: What KVM_CAP_VM_DISABLE_NX_HUGE_PAGES answers, see :func:`disable_nx_answers`.
    """

    capabilities: dict[str, int]
    features: dict[str, bool]
    disable_nx: dict[str, str]


def probe(kvm: Kvm) -> Probe:
    """Ask *kvm*. Raises NoKvmError if it cannot make a VM."""
    with kvm.create_vm() as vm:
        capabilities = {name: vm.check_extension(number) for name, number in ioctl.CAPABILITIES.items()}
    return Probe(capabilities, offered(kvm), disable_nx_answers(kvm))


def disable_nx_answers(kvm: Kvm) -> dict[str, str]:
    """What KVM_ENABLE_CAP answers for KVM_CAP_VM_DISABLE_NX_HUGE_PAGES: :data:`OK` or the name of the error, by case.

    Linux (kvm_vm_ioctl_enable_cap, arch/x86/kvm/x86.c; since commit 084cc29f8bbb, v6.0) looks at the flags first
    (EINVAL), then at CAP_SYS_BOOT (EPERM), then at the argument and at vCPUs that exist (EINVAL). Older kernels do not
    know the capability: EINVAL throughout.
    """
    cases: dict[str, Callable[[Vm], None]] = {
        "flags": lambda vm: vm.enable_cap(DISABLE_NX, flags=1),
        "argument": lambda vm: vm.enable_cap(DISABLE_NX, 1),
        "plain": lambda vm: vm.enable_cap(DISABLE_NX),
        "after a vCPU": _after_a_vcpu,
    }
    found = {}
    for case, ask in cases.items():
        with kvm.create_vm() as vm:
            try:
                ask(vm)
                found[case] = OK
            except OSError as error:
                found[case] = errno.errorcode.get(error.errno or 0, str(error.errno))
    return found


def _after_a_vcpu(vm: Vm) -> None:
    with vm.create_vcpu(0):
        vm.enable_cap(DISABLE_NX)


def disable_nx_huge_pages(vm: Vm) -> None:
    """Let *vm*, which must have no vCPU yet, map huge pages executable in spite of ``nx_huge_pages``. For good.

    Raises:
        NoCapabilityError: The kernel is older than 6.0, or CAP_SYS_BOOT is lacking.
    """
    if not vm.check_extension(DISABLE_NX):
        raise NoCapabilityError(
            "this KVM has no KVM_CAP_VM_DISABLE_NX_HUGE_PAGES, which came with Linux 6.0; a newer kernel has it"
        )
    try:
        vm.enable_cap(DISABLE_NX)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise NoCapabilityError(
                "KVM_CAP_VM_DISABLE_NX_HUGE_PAGES needs CAP_SYS_BOOT in the first user namespace"
                + ("" if permissions.capable(SYS_BOOT) else "; run as root")
            ) from None
        raise NoCapabilityError(
            f"KVM_CAP_VM_DISABLE_NX_HUGE_PAGES is refused ({error.strerror}); it must come before the first vCPU"
        ) from None
