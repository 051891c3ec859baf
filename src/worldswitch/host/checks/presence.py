"""Is there a KVM, whose, who may use it, and is this host a guest itself?"""

from __future__ import annotations

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import by_hand
from worldswitch.host.checks.terms import (
    CRITICAL,
    INFO,
    NOTICE,
    VENDOR_FLAGS,
    WARNING,
    by,
    fine,
    software_module,
    unreadable,
    vendor_module,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Change,
    DropIn,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Remove,
    Run,
    check,
    unknown_gain,
)

CPUINFO, DEVICE = "/proc/cpuinfo", "/dev/kvm"
_AT_ALL = Gain("VMs can be created at all.", unknown="without it there is no KVM to compare with")
_MODULES_LOAD = "/etc/modules-load.d/worldswitch-kvm.conf"
_RULES = "/etc/udev/rules.d/99-worldswitch-kvm.rules"


@check(
    id="kvm-module",
    rule="arch/x86/kvm/vmx/vmx.c and svm/svm.c, the modules' init: kvm_intel needs vmx, kvm_amd needs svm",
    about="the vendor's module is loaded and fits the processor",
)
def kvm_module(host: Host, profile: Profile) -> Found:
    """Critical where the processor can virtualize in hardware and nothing uses it."""
    module = vendor_module(host)
    if module is not None:
        return fine(host, "kvm-module", f"{module} is loaded and fits the processor", CPUINFO)
    if software_module(host):
        return None  # another module stands on kvm: kvm-software tells
    if not host.cpu.flags:
        return unreadable(host, "kvm-module", CPUINFO, "whether the processor can virtualize")
    wanted = next((name for name, flag in VENDOR_FLAGS.items() if flag in host.cpu.flags), None)
    shown = " ".join(flag for flag in VENDOR_FLAGS.values() if flag in host.cpu.flags) or "neither vmx nor svm"
    seen = (Evidence(CPUINFO, f"flags: {shown}"), host.evidence("/proc/modules", "no vendor's module of KVM"))
    if wanted is None:
        cure = "in the firmware, or, as this host is a VM itself, in the settings of the hypervisor below"
        text = f"Switch hardware virtualization on {cure if host.hypervisor else 'in the firmware'}."
        fix, undo = by_hand(text, "Switch hardware virtualization off again.")
        title = "the processor shows neither vmx nor svm, so KVM cannot run guests here"
        risk = "Guests of a VM's guests run slower, see nested-host." if host.hypervisor else "None known."
        return Finding("kvm-module", CRITICAL, title, seen, _AT_ALL, fix, undo, risk)
    fix = Change(
        f"Load {wanted}, now and at each boot.",
        (Run(("modprobe", wanted)), DropIn(_MODULES_LOAD, f"{wanted}\n")),
    )
    undo = Change(f"Unload {wanted} again.", (Run(("modprobe", "-r", wanted)), Remove(_MODULES_LOAD)))
    title = f"the processor can virtualize, but {wanted} is not loaded"
    return Finding("kvm-module", CRITICAL, title, seen, _AT_ALL, fix, undo, "None: it takes memory while it is loaded.")


@check(
    id="kvm-software",
    rule="https://github.com/virt-pvm/linux",
    about="guests run by a software KVM, such as kvm_pvm, without hardware virtualization",
)
def kvm_software(host: Host, profile: Profile) -> Found:
    """A notice where a module other than the vendors' does KVM's work; told too where the hardware could."""
    module = software_module(host)
    if module is None:
        return None
    can = sorted(flag for flag in VENDOR_FLAGS.values() if flag in host.cpu.flags)
    seen = (
        Evidence(f"/sys/module/{module}", "there"),
        Evidence(CPUINFO, f"flags: {' '.join(can) or 'neither vmx nor svm'}"),
    )
    gain = unknown_gain("nobody has published this module and hardware virtualization on one machine")
    fix, undo = by_hand(
        "Where hardware virtualization can be had (another instance type, or nested virtualization), use it.",
        f"Go back to {module}.",
    )
    title = f"guests are run by {module}, in software: shadow paging, and exits of another price"
    severity = by(profile, NOTICE, realtime=WARNING)
    return Finding("kvm-software", severity, title, seen, gain, fix, undo, "Nested virtualization has its own price.")


@check(
    id="kvm-device",
    rule="virt/kvm/kvm_main.c, kvm_dev: whoever may open /dev/kvm may create VMs",
    about="/dev/kvm is there, and who may open it",
)
def kvm_device(host: Host, profile: Profile) -> Found:
    """Critical if it is missing although kvm is loaded; a matter of taste who may open it, but for hostile users."""
    loaded = any(name.startswith("kvm_") for name in host.modules)
    device = host.device(DEVICE)
    if device is None:
        if not loaded:
            return None
        # A copy of a root tree may lack device nodes; what /proc/misc names, has one where it is at home.
        if host.why(DEVICE) not in ("", "not there") or host.text("/proc/misc") is None:
            return unreadable(host, "kvm-device", DEVICE, "who may open /dev/kvm")
        fix = Change("Make the device node.", (Run(("mknod", "-m", "660", DEVICE, "c", "10", "232")),))
        undo = Change("Remove the device node.", (Run(("rm", DEVICE)),))
        title = "kvm is loaded, but /dev/kvm is not there, as in a container without the device"
        nodes = (host.evidence(DEVICE), host.evidence("/proc/misc"))
        return Finding("kvm-device", CRITICAL, title, nodes, _AT_ALL, fix, undo, "Who is in its group may create VMs.")
    mode, group = device.mode & 0o777, device.group or str(device.gid)
    seen = (Evidence(DEVICE, f"mode {mode:04o}, owner {device.uid}, group {group}"),)
    if mode & 0o006:
        severity = by(profile, INFO, faas=NOTICE, hardened=WARNING)
        title = "every user and every service of this host may create VMs"
        gain = Gain("No speed: fewer can reach KVM's interface.", unknown="it is no matter of time")
        risk = "Users outside the group kvm, and VMMs run by them, lose access."
        return Finding("kvm-device", severity, title, seen, gain, *_access(host, mode, group), risk=risk)
    if not mode & 0o060:
        if profile is Profile.HARDENED:
            return fine(host, "kvm-device", "only its owner may open /dev/kvm")._replace(evidence=seen)
        title = "only its owner may open /dev/kvm, so VMMs have to start as root"
        gain = Gain("No speed: VMMs need not be started as root.", unknown="it is no matter of time")
        risk = "Members of the group kvm may create VMs."
        return Finding("kvm-device", INFO, title, seen, gain, *_access(host, mode, group), risk=risk)
    if device.usable is False:
        fix, undo = by_hand(
            f"Add the user that runs VMMs to the group {group} (usermod -aG), if it is to create VMs.",
            f"Take the user from the group {group} again.",
        )
        title = f"the user that asked may not open /dev/kvm: it is not in the group {group}"
        gain = unknown_gain("it is no matter of time")
        return Finding("kvm-device", INFO, title, seen, gain, fix, undo, "That user may create VMs.")
    return fine(host, "kvm-device", f"/dev/kvm is there for its owner and the group {group}")._replace(evidence=seen)


def _access(host: Host, old: int, group: str) -> tuple[Change, Change]:
    made: tuple[Run, ...] = () if host.kvm_group is not None else (Run(("groupadd", "--system", "kvm")),)
    gone: tuple[Run, ...] = () if host.kvm_group is not None else (Run(("groupdel", "kvm")),)
    fix = Change(
        "Let the owner and the group kvm open it, and nobody else, now and at each boot.",
        (
            *made,
            Run(("chgrp", "kvm", DEVICE)),
            Run(("chmod", "0660", DEVICE)),
            DropIn(_RULES, 'KERNEL=="kvm", GROUP="kvm", MODE="0660"\n'),
        ),
    )
    undo = Change(
        "Give the device node its old group and mode again.",
        (Run(("chgrp", group, DEVICE)), Run(("chmod", f"{old:04o}", DEVICE)), Remove(_RULES), *gone),
    )
    return fix, undo


@check(
    id="nested-host",
    rule="Documentation/virt/kvm/x86/running-nested-guests.rst",
    about="this host is a VM itself, so that exits of its guests pass through the hypervisor below",
)
def nested_host(host: Host, profile: Profile) -> Found:
    """A notice, and more for those who count on start-up or worst-case times."""
    if vendor_module(host) is None:
        return None  # a software KVM's exits stay in this host
    if not host.hypervisor:
        return fine(host, "nested-host", "nothing shows a hypervisor below this host", CPUINFO)
    kind = "" if host.hypervisor == "unknown" else f" ({host.hypervisor})"
    seen = [Evidence(CPUINFO, "flags: hypervisor" if "hypervisor" in host.cpu.flags else "no flag hypervisor")]
    seen += [host.evidence(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name") if name in host.dmi]
    fix, undo = by_hand("Run the guests on bare metal.", "Go back to the VM.")
    return Finding(
        "nested-host",
        by(profile, NOTICE, faas=WARNING, realtime=WARNING),
        f"this host is a VM itself{kind}: each exit of a guest is handled by two hypervisors",
        tuple(seen),
        gains.nested_exit(),
        fix,
        undo,
        "A bare-metal host costs more and takes longer to replace.",
    )
