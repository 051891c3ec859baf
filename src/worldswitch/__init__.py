"""What world switches cost a KVM guest, why they happen, and what would remove them.

The public names; each is imported when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldswitch.errors import WorldswitchError
    from worldswitch.kvm.facts import kernel
    from worldswitch.kvm.policy import Policy
    from worldswitch.record.trace import Batch, EventSource, Meta, Trace
    from worldswitch.trace import open_source, open_trace
    from worldswitch.trace.account import Account, Filter, account
    from worldswitch.trace.whatif import WhatIf, whatif

__all__ = [
    "Account",
    "Batch",
    "EventSource",
    "Filter",
    "Meta",
    "Policy",
    "Trace",
    "WhatIf",
    "WorldswitchError",
    "account",
    "kernel",
    "open_source",
    "open_trace",
    "whatif",
]

__version__ = "0.1.0"

_HOMES = {
    "errors": ("WorldswitchError",),
    "kvm.facts": ("kernel",),
    "kvm.policy": ("Policy",),
    "record.trace": ("Batch", "EventSource", "Meta", "Trace"),
    "trace": ("open_source", "open_trace"),
    "trace.account": ("Account", "Filter", "account"),
    "trace.whatif": ("WhatIf", "whatif"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"worldswitch.{home}"), name)
    raise AttributeError(f"module 'worldswitch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
