"""Fixes and their undoing, of the kinds that many checks ask for: a module's parameter, a sysctl, a file of /sys."""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.host.checks.terms import boot_words_of, built_in, vendor_module
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    BootParameter,
    ByHand,
    Change,
    DropIn,
    ReloadModules,
    Remove,
    Run,
    Step,
    Write,
)


class Pair(NamedTuple):
    """A fix and its undoing."""

    fix: Change
    undo: Change


def parameter(host: Host, module: str, name: str, value: str, old: str, *, live: bool, to: str) -> Pair:
    """Setting a module's parameter now, if it can be written (*live*) or the module reloaded, and for good.

    Args:
        old: What it is, as it may be written.
        to: What that does, as in "to let the module decide".
    """
    now: list[Step] = [Write(host.parameter_path(module, name), value)] if live else []
    back: list[Step] = [Write(host.parameter_path(module, name), old)] if live else []
    # There it counts more than what modprobe.d says.
    given = boot_words_of(host, f"{module}.{name}")
    for text in given:
        now.append(BootParameter(text, remove=True))
    if built_in(host, module):
        now.append(BootParameter(f"{module}.{name}={value}"))
        back.append(BootParameter(f"{module}.{name}={value}", remove=True))
        reboot = not live
    else:
        file = f"/etc/modprobe.d/worldswitch-{module}-{name}.conf"
        now.append(DropIn(file, f"# {to}\noptions {module} {name}={value}\n"))
        back.append(Remove(file))
        reboot = not live and bool(given)
        if not live and not given:
            order = _unloading_order(host)
            now.append(ReloadModules(order))
            back.append(ReloadModules(order))
    back += [BootParameter(text) for text in given]
    text = f"Set {module}'s parameter {name} to {value}, {to}"
    note = "" if live else ("; after a reboot" if reboot else "; while no VM runs")
    return Pair(
        Change(f"{text}{note}.", tuple(now), reboot),
        Change(f"Set {name} to {old} again{note}.", tuple(back), reboot),
    )


def sysctl(name: str, value: str, old: str, *, to: str) -> Pair:
    """Setting a sysctl (``kernel.numa_balancing``) now and for good."""
    path = "/proc/sys/" + name.replace(".", "/")
    file = f"/etc/sysctl.d/90-worldswitch-{name.replace('.', '-')}.conf"
    return Pair(
        Change(f"Set {name} to {value}, {to}.", (Write(path, value), DropIn(file, f"# {to}\n{name} = {value}\n"))),
        Change(f"Set {name} to {old} again.", (Write(path, old), Remove(file))),
    )


def sysfs(path: str, value: str, old: str, *, name: str, to: str) -> Pair:
    """Writing a file of /sys now, and at each boot through systemd-tmpfiles. *name* is part of the drop-in's name."""
    file = f"/etc/tmpfiles.d/worldswitch-{name}.conf"
    return Pair(
        Change(f"Write {value} to {path}, {to}.", (Write(path, value), DropIn(file, f"w {path} - - - - {value}\n"))),
        Change(f"Write {old} to {path} again.", (Write(path, old), Remove(file))),
    )


def boot(parameter: str, *, remove: bool = False, why: str) -> Pair:
    """Adding a parameter to the kernel's command line, or taking it away."""
    verb, back = ("Take", "Add") if remove else ("Add", "Take")
    where = "from" if remove else "to"
    other = "to" if remove else "from"
    return Pair(
        Change(
            f"{verb} {parameter} {where} the kernel's command line, {why}; after a reboot.",
            (BootParameter(parameter, remove),),
            True,
        ),
        Change(
            f"{back} {parameter} {other} the kernel's command line again.",
            (BootParameter(parameter, not remove),),
            True,
        ),
    )


def by_hand(text: str, undo: str) -> Pair:
    """What no script should do."""
    return Pair(Change(text, (ByHand(text),)), Change(undo, (ByHand(undo),)))


def another_kernel(text: str) -> Pair:
    """Booting another kernel; the one that runs stays installed for the way back."""
    undo = "Boot the kernel that runs now."
    return Pair(Change(text, (ByHand(text),), True), Change(undo, (ByHand(undo),), True))


def unit(name: str, description: str, command: tuple[str, ...]) -> tuple[Step, ...]:
    """A systemd service of our own that runs *command* at each boot, and its enabling."""
    text = (
        f"[Unit]\nDescription={description}\nDefaultDependencies=no\nAfter=local-fs.target\nBefore=sysinit.target\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={' '.join(command)}\n\n"
        "[Install]\nWantedBy=sysinit.target\n"
    )
    file = f"/etc/systemd/system/{name}.service"
    return (DropIn(file, text), Run(("systemctl", "daemon-reload")), Run(("systemctl", "enable", f"{name}.service")))


def no_unit(name: str) -> tuple[Step, ...]:
    """The undoing of :func:`unit`."""
    return (
        Run(("systemctl", "disable", f"{name}.service")),
        Remove(f"/etc/systemd/system/{name}.service"),
        Run(("systemctl", "daemon-reload")),
    )


def _unloading_order(host: Host) -> tuple[str, ...]:
    vendor = vendor_module(host)
    return (vendor, "kvm") if vendor else ("kvm",)
