"""The VMs that run on this host, by the files their processes hold open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.live.permissions import ROOT, read


@dataclass(frozen=True)
class Vm:
    """A process that holds a VM."""

    pid: int
    name: str
    vcpus: int


def running(root: Path = ROOT) -> list[Vm]:
    """Every process this user may look into that holds a KVM VM open, by pid."""
    pids = sorted(int(path.name) for path in (root / "proc").iterdir() if path.name.isdecimal())
    return [vm for pid in pids if (vm := of_process(pid, root)) is not None]


def of_process(pid: int, root: Path = ROOT) -> Vm | None:
    """The VM of a process; None if it holds none or may not be looked into."""
    targets = []
    try:
        for link in (root / f"proc/{pid}/fd").iterdir():
            try:
                targets.append(str(link.readlink()))
            except OSError:
                continue
    except OSError:
        return None
    if not any(target.startswith("anon_inode:kvm-vm") for target in targets):
        return None
    vcpus = {target for target in targets if target.startswith("anon_inode:kvm-vcpu")}
    return Vm(pid, printable(read(root / f"proc/{pid}/comm") or "?"), len(vcpus))


def threads(pid: int, root: Path = ROOT) -> list[int]:
    """The thread ids of a process (of the process of a thread, too).

    Raises:
        MissingError: There is no such process.
    """
    try:
        return sorted(int(path.name) for path in (root / f"proc/{pid}/task").iterdir())
    except OSError:
        raise MissingError(f"there is no process {pid}; ps -e lists those there are") from None


def demand_vm(pid: int, root: Path = ROOT) -> None:
    """Refuse a process that holds no VM.

    Raises:
        MissingError: It does not exist or holds no VM; the message lists the processes that do.
    """
    threads(pid, root)
    if of_process(pid, root) is None and _may_look(pid, root):
        found = running(root)
        listed = ", ".join(f"{vm.pid} ({vm.name}, {vm.vcpus} vCPUs)" for vm in found[:8])
        tail = f"processes with a VM are {listed}" if found else "no process this user can look into holds one"
        raise MissingError(f"process {pid} holds no VM; {tail}. --pid takes any process")


def _may_look(pid: int, root: Path) -> bool:
    try:
        next((root / f"proc/{pid}/fd").iterdir(), None)
    except OSError:
        return False
    return True
