"""The CPUID a guest gets: what KVM offers here, less what is hidden, more what is shown."""

from __future__ import annotations

from collections.abc import Iterable

from worldswitch.errors import UsageError
from worldswitch.guest.image import Image
from worldswitch.live.device import Kvm
from worldswitch.live.errors import NoFeatureError
from worldswitch.x86.features import FEATURES, CpuidEntry, feature, has, hide, show


def guest_cpuid(
    kvm: Kvm, image: Image, *, hidden: Iterable[str] = (), shown: Iterable[str] = ()
) -> tuple[CpuidEntry, ...]:
    """The CPUID for a guest that runs *image*.

    Raises:
        UnknownNameError: No feature of that name.
        UsageError: A feature is both hidden and shown, or hidden and needed.
        NoFeatureError: The program needs features that are not offered; names them all, and what has them.
    """
    away, forced = tuple(hidden), tuple(shown)
    if both := sorted(set(away) & set(forced)):
        raise UsageError(f"{', '.join(both)} cannot be both hidden and shown")
    entries = show(hide(kvm.supported_cpuid(), away), forced)
    missing = [name for name in image.features if not has(entries, name)]
    if hidden_needs := [name for name in missing if name in away]:
        raise UsageError(f"program {image.name} needs {', '.join(hidden_needs)}, which is to be hidden; show it")
    if missing:
        raise NoFeatureError(lacking(image.name, missing), missing)
    return entries


def lacking(program: str, names: Iterable[str]) -> str:
    """The sentence about features that are not offered here."""
    missing = tuple(names)
    parts = [f"{name} ({since})" if (since := feature(name).since) else name for name in missing]
    verb = "is" if len(missing) == 1 else "are"
    return f"program {program} needs {', '.join(parts)}, which {verb} not offered to guests here by processor and KVM"


def offered(kvm: Kvm) -> dict[str, bool]:
    """Every feature by name -> whether this host offers it to guests."""
    entries = kvm.supported_cpuid()
    return {name: has(entries, name) for name in FEATURES}
