"""Control groups: what moves between them, and KVM's kthreads, wait for."""

from __future__ import annotations

import re

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import Pair, by_hand, no_unit, unit
from worldswitch.host.checks.terms import INFO, NOTICE, OK, UNKNOWN, WARNING, by, fine, kernel_evidence, kvm_works
from worldswitch.host.checks.vm_creation import Setting, creation_gain, kernel_unknown, may_never, setting
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Amount,
    BootParameter,
    Change,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Run,
    check,
    unknown_gain,
)
from worldswitch.kvm.vmcreate import create_vm, recovery_thread

_SERVICE = "worldswitch-favordynmods"


@check(
    id="favordynmods",
    rule="cgroup-attach-wait",
    about="whether moves between control groups, and KVM's kthreads, wait for RCU grace periods",
)
def favordynmods(host: Host, profile: Profile) -> Found:
    """The other remedy, and the only one on processors with the bug; forks and exits pay for it."""
    here = setting(host)
    if here is None:
        return None if not kvm_works(host) else kernel_unknown(host, "favordynmods", "whether favordynmods exists")
    if not here.has("cgroup-favordynmods"):
        title = "this kernel never waits so: its lock favours writers from boot on"
        return Finding("favordynmods", OK, title, kernel_evidence(host))
    if host.favordynmods is None:
        return Finding(
            "favordynmods", UNKNOWN, "no hierarchy of control groups is seen", (host.evidence(host.mounts_path),)
        )
    if host.favordynmods:
        return _favored(host, profile, here)
    if profile is Profile.REALTIME:
        title = "favordynmods is off: moves between control groups wait, forks and exits do not pay"
        return Finding("favordynmods", OK, title, (Evidence(host.mounts_path, _mount_line(host)),))
    v2 = next((mount for mount in host.mounts if mount.fstype == "cgroup2"), None)
    seen = (*kernel_evidence(host), Evidence(host.mounts_path, _mount_line(host)))
    waits = create_vm(here).waits_for_rcu
    free = waits and may_never(host) and profile is not Profile.HARDENED
    helps_kvm = waits and not free
    gain = creation_gain(host, create_vm(here)) if waits else move_gain()
    # A path of a snapshot is not trusted to be one that a service may name.
    if v2 is None or not re.fullmatch(r"/[\w./-]*", v2.path, re.ASCII):
        text = "Mount a v2 hierarchy with favordynmods (or build with CONFIG_CGROUP_FAVOR_DYNMODS)."
        fix, undo = by_hand(text, "Boot without it.")
    else:
        fix, undo = _remount(here, v2.path, _options(v2.options))
    severity = by(
        profile, INFO, faas=WARNING if helps_kvm else INFO if free else NOTICE, hardened=NOTICE if helps_kvm else INFO
    )
    title = "favordynmods is off: each move between control groups waits for an RCU grace period"
    if waits:
        title += ", and so does each KVM_CREATE_VM"
    if free:
        title += ", which nx_huge_pages=never spares at no cost to forks (nx-recovery-thread)"
    risk = f"Each fork with its exit takes up to {gains.FORK_US:g} us more ({gains.DYNMODS}, inconclusive)."
    if here.has("cgroup-per-process-rwsem"):
        risk += " Its per-process part cannot be switched off again before a reboot."
    return Finding("favordynmods", severity, title, seen, gain, fix, undo, risk)


def _favored(host: Host, profile: Profile, here: Setting) -> Finding:
    seen = (*kernel_evidence(host), Evidence(host.mounts_path, _mount_line(host)))
    thread = recovery_thread(here._replace(favordynmods=False))
    needed = create_vm(here._replace(favordynmods=False)).waits_for_rcu or profile is Profile.FAAS
    if needed or thread is None:
        return Finding("favordynmods", OK, "favordynmods is on: nothing waits for RCU grace periods", seen)
    title = "favordynmods is on, which KVM has no use for on this kernel: forks and exits pay for it"
    if here.has("cgroup-per-process-rwsem"):
        title += ", and its per-process part stays until a reboot"
    return Finding("favordynmods", INFO, title, seen)


def move_gain() -> Gain:
    """What a move between control groups gains."""
    low, high = gains.MOVE_MS[0] - gains.MOVE_FAVORED_MS[1], gains.MOVE_MS[1] - gains.MOVE_FAVORED_MS[0]
    return Gain(
        f"A process is started in its control group {low:.1f} to {high:.1f} ms earlier; KVM_CREATE_VM does not change.",
        "off - on",
        (("off", "7.58 to 11.64 ms", gains.DYNMODS), ("on", "0.37 to 0.49 ms", gains.DYNMODS)),
        f"published: {gains.DYNMODS}",
        Amount(low, (low + high) / 2, high, "ms per move between control groups"),
    )


def _options(options: frozenset[str]) -> str:
    """A remount replaces all of the hierarchy's options, so those it has are said again."""
    return ",".join(sorted(options - {"favordynmods", "rw", "relatime"}))


def _remount(here: Setting, path: str, options: str) -> Pair:
    kept = f",{options}" if options else ""
    now = ("mount", "-o", f"remount{kept},favordynmods", path)
    # Given what is mounted and where, mount takes no options from the mount table, where favordynmods would still be.
    off = ("mount", "-t", "cgroup2", "-o", f"remount{kept}", "cgroup2", path)
    at_boot = here.has("cgroup-favordynmods-boot")
    good = (BootParameter("cgroup_favordynmods=1"),) if at_boot else unit(_SERVICE, "favordynmods on cgroup2", now)
    bad = (BootParameter("cgroup_favordynmods=1", remove=True),) if at_boot else no_unit(_SERVICE)
    fix = Change("Mount the v2 hierarchy again with favordynmods, now and at each boot.", (Run(now), *good))
    if here.has("cgroup-per-process-rwsem"):
        text = "Mount it without the option and reboot: its per-process part stays on while this kernel runs."
        return Pair(fix, Change(text, (*bad, Run(off)), True))
    return Pair(fix, Change("Mount it again without the option, which turns it off.", (*bad, Run(off))))


def _mount_line(host: Host) -> str:
    found = [
        f"{mount.fstype} {mount.path} {','.join(sorted(mount.options))}"
        for mount in host.mounts
        if mount.fstype in ("cgroup", "cgroup2")
    ]
    # v2 says most, and v1's dozen hierarchies much the same.
    return sorted(found, key=lambda line: not line.startswith("cgroup2"))[0] if found else "no hierarchy"


@check(
    id="cgroup-version",
    rule="cgroup-attach-wait",
    about="how many hierarchies of control groups a recovery kthread has to attach to",
)
def cgroup_version(host: Host, profile: Profile) -> Found:
    """Each v1 hierarchy is walked and attached to by itself, by kthreads only."""
    if host.cgroup_version is None or not kvm_works(host):
        return None
    if host.cgroup_version == 2:
        return fine(host, "cgroup-version", "control groups are v2: one hierarchy", host.mounts_path)
    here = setting(host)
    number = sum(mount.fstype in ("cgroup", "cgroup2") for mount in host.mounts)
    kthread = here is not None and create_vm(here).waits_for_thread
    if here is not None and not kthread:
        return fine(host, "cgroup-version", "VMs' threads attach to no control group by themselves", host.mounts_path)
    title = (
        f"control groups are {'v1' if host.cgroup_version == 'v1' else 'a mixture of v1 and v2'}: {number} hierarchies"
    )
    if kthread:
        title += ", each attached to in every KVM_CREATE_VM"
    fix, undo = by_hand(
        "Boot with v2 only (systemd.unified_cgroup_hierarchy=1), once every VMM and container runtime here can.",
        "Take systemd.unified_cgroup_hierarchy=1 from the command line again.",
    )
    gain = unknown_gain("no figure by the number of hierarchies was published")
    seen = (Evidence(host.mounts_path, f"{number} mounts of cgroup and cgroup2"),)
    severity = by(profile, INFO, faas=NOTICE if kthread else INFO)
    return Finding("cgroup-version", severity, title, seen, gain, fix, undo, "Old runtimes know v1 only.")
