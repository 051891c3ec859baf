"""What can go wrong when this host runs a guest, as a tree.

::

    MissingError
    ├── NoKvmError                  no /dev/kvm, no permission, or not the API this package speaks
    ├── NoCapabilityError           a KVM without an ability that is needed
    ├── NoFeatureError              a processor, or a KVM, without a CPUID feature the guest needs
    └── GuestError                  the guest did not come to its end
        ├── TripleFaultError        it shut down
        ├── GuestHungError          it was still running at its deadline
        ├── InternalErrorError      KVM_EXIT_INTERNAL_ERROR
        ├── FailEntryError          KVM_EXIT_FAIL_ENTRY: the processor refused the guest's state
        └── UnexpectedExitError     an exit to userspace that no guest of ours should make
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from worldswitch.errors import MissingError
from worldswitch.live.permissions import ROOT, no_kvm_module

DEVICE = "/dev/kvm"


class NoKvmError(MissingError):
    """/dev/kvm cannot be used."""


class NoCapabilityError(MissingError):
    """This KVM lacks a capability."""


class NoFeatureError(MissingError):
    """A CPUID feature the guest needs is not offered here.

    Attributes:
        features: Their names.
    """

    def __init__(self, message: str, features: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.features = tuple(features)


class GuestError(MissingError):
    """The guest did not come to its end; the message says where it was.

    Attributes:
        rip: Where the vCPU was, None if it could not be read.
        vcpu: Which vCPU.
    """

    def __init__(self, message: str, *, rip: int | None = None, vcpu: int = 0) -> None:
        super().__init__(message)
        self.rip = rip
        self.vcpu = vcpu


class TripleFaultError(GuestError):
    """KVM_EXIT_SHUTDOWN: a fault while a double fault was delivered (SDM volume 3, section 6.15, vector 8)."""


class GuestHungError(GuestError):
    """The guest was still running at its deadline, and was stopped."""


class InternalErrorError(GuestError):
    """KVM_EXIT_INTERNAL_ERROR: KVM could not go on (Documentation/virt/kvm/api.rst, section 5).

    Attributes:
        suberror, data: What KVM says of it (struct kvm_run, internal).
    """

    suberror: int = 0
    data: tuple[int, ...] = ()


class FailEntryError(GuestError):
    """KVM_EXIT_FAIL_ENTRY: the processor refused to enter the guest."""


class UnexpectedExitError(GuestError):
    """An exit to userspace that nothing in a guest program asks for."""


def cannot_open(number: int, root: Path = ROOT) -> NoKvmError:
    """Why opening /dev/kvm failed with *number* (errno), and the remedy."""
    if number in (errno.EACCES, errno.EPERM):
        return NoKvmError(
            f"{DEVICE} may not be opened by this user; join its group (sudo usermod -aG kvm $USER, then log in "
            "again) or run as root; in a container, pass the device in (--device /dev/kvm)"
        )
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        if (root / "sys/module/kvm").exists():
            return NoKvmError(
                f"there is no {DEVICE} although the kvm module is loaded; load the vendor's module too (modprobe "
                "kvm_intel or kvm_amd; dmesg says why it refuses), or, in a container, pass the device in "
                "(--device /dev/kvm)"
            )
        return NoKvmError(f"there is no {DEVICE}: {no_kvm_module(root)}")
    return NoKvmError(f"{DEVICE} cannot be opened: {_why(number)}")


def cannot_create(number: int, what: str = "a VM") -> NoKvmError:
    """Why KVM_CREATE_VM (or what follows it) failed with *number*, and the remedy."""
    remedies = {
        errno.EBUSY: "another hypervisor holds the processor's virtualization; stop it (VirtualBox, VMware)",
        errno.ENOMEM: "the host has too little memory, or a memory cgroup's limit is reached",
        errno.EMFILE: "this process holds too many files open; raise ulimit -n",
        errno.ENFILE: "the host holds too many files open; raise fs.file-max",
        errno.EIO: "virtualization could not be switched on, perhaps locked by the firmware; see dmesg",
        errno.EOPNOTSUPP: "virtualization could not be switched on; see dmesg",
    }
    return NoKvmError(f"KVM cannot make {what}: {_why(number)}; {remedies.get(number, 'see dmesg')}")


def _why(number: int) -> str:
    import os

    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
