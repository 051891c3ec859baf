"""Programs as they were recorded elsewhere, with their own memory layout."""

from __future__ import annotations

from dataclasses import replace
from pkgutil import get_data
from typing import Any

from worldswitch.errors import UsageError
from worldswitch.guest.library.registry import shipped
from worldswitch.guest.operations import WriteCr
from worldswitch.x86.registers import CR0, CR4, parse_bit


@shipped("recorded-wp")
def recorded_wp(*, bit: str = "CR0.WP") -> dict[str, Any]:
    """The guest of the recordings in tests/data: 64-bit code at 0x1000 without descriptor tables, which flips one bit
    n times.

    Expect: as cr0-wp with single=true; with EPT or NPT a few page faults at the start, twice as many on 5.10.

    Source: tests/data/README.md.
    """
    from worldswitch.guest.toml import loads

    data = get_data(__package__, "recorded-wp.toml")
    assert data is not None
    recorded = loads(data.decode(), "recorded-wp.toml")
    wanted = parse_bit(bit)
    if wanted.register not in (CR0, CR4):
        raise UsageError(f"recorded-wp: {bit} is in no register that MOV to CR writes; give a bit of CR0 or CR4")
    vcpu = replace(recorded.vcpus[0], body=(WriteCr(wanted.register, toggle=(wanted.name,)),))
    kept = ("unit", "mode", "state", "layout", "spaces", "memory", "default_n")
    return {**{name: getattr(recorded, name) for name in kept}, "vcpus": (vcpu,)}
