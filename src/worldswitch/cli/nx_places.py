"""Kernels on hosts, as the options of ``wsw nx`` name them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from worldswitch.errors import UnknownNameError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.kvm.facts import Kernel
    from worldswitch.kvm.nx import NxHost, Parameters

F = TypeVar("F", bound=Callable[..., Any])
SHORT = {
    "ratio": "nx_huge_pages_recovery_ratio",
    "recovery_ratio": "nx_huge_pages_recovery_ratio",
    "period_ms": "nx_huge_pages_recovery_period_ms",
    "recovery_period_ms": "nx_huge_pages_recovery_period_ms",
}
"""Shorter names of parameters."""


class Place(NamedTuple):
    """A kernel on a host, as the options say."""

    kernel: Kernel
    host: NxHost
    loaded: Mapping[str, bytes]


def place_options(command: F) -> F:
    """Which kernels, on which host."""
    for option in reversed(
        (
            click.option("--kernel", metavar="K,...", help="Kernels, such as 5.10 or 6.12,7.2."),
            click.option("--cpu", type=click.Choice(["intel", "amd"]), default="intel", show_default=True),
            click.option(
                "--itlb-multihit",
                "multihit",
                type=click.Choice(["yes", "no"]),
                help="Whether the processor has the bug.  [default: intel yes, amd no]",
            ),
            click.option("--mitigations-off", is_flag=True, help="Booted with mitigations=off."),
            click.option("--realtime", is_flag=True, help="The kernel is PREEMPT_RT."),
            click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="As kvm.ko is loaded; repeatable."),
        )
    ):
        command = option(command)
    return command


def places(
    kernel: str | None, cpu: str, multihit: str | None, mitigations_off: bool, realtime: bool, sets: Sequence[str]
) -> list[Place]:
    """Every kernel asked for, all known lines where none was.

    Raises:
        UnknownNameError: No such kernel or parameter.
        UsageError: A setting that is none.
    """
    from worldswitch.kvm.distributions import kernel_named
    from worldswitch.kvm.facts import lines
    from worldswitch.kvm.nx import NxHost

    affected = multihit == "yes" if multihit else cpu == "intel"
    host = NxHost(affected, mitigations=not mitigations_off, vmx=cpu == "intel", realtime=realtime)
    loaded = dict(_assignment(word, "--set") for word in sets)
    names = list(lines()) if kernel is None else [word.strip() for word in kernel.split(",")]
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise UsageError(f"--kernel names {printable(twice[0])!r} twice")
    return [Place(kernel_named(name)[0], host, loaded) for name in names]


def loaded(place: Place) -> Parameters:
    """The parameters of a kvm.ko that was loaded there.

    Raises:
        UsageError: It is not loaded with these parameters.
    """
    from worldswitch.kvm import nx

    done = nx.load(place.kernel.has, place.host, place.loaded)
    if done.error:
        given = " ".join(f"{name}={printable(text.decode('latin-1'))}" for name, text in place.loaded.items())
        raise UsageError(f"Linux {place.kernel} does not load kvm.ko with {given} ({done.error})")
    return done.state


def _assignment(word: str, option: str) -> tuple[str, bytes]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"{option} {printable(word)!r} is not NAME=VALUE, such as nx_huge_pages=never")
    return parameter(name.removeprefix("kvm.")), os.fsencode(value)


def parameter(name: str) -> str:
    from worldswitch.kvm.nx import NEEDS

    full = SHORT.get(name, name)
    if full not in NEEDS:
        raise UnknownNameError("parameter", name, [*NEEDS, *SHORT], f"One of {', '.join(NEEDS)}")
    return full


def _head(place: Place) -> list[str]:
    return [
        "from worldswitch.kvm import nx",
        "from worldswitch.kvm.facts import kernel",
        "",
        f"has = kernel({str(place.kernel)!r}).has",
        f"host = nx.{place.host!r}",
        f"state = nx.load(has, host, {dict(place.loaded)!r}).state",
    ]


def python(place: Place, lines: Sequence[str]) -> str:
    """The Python that gives ``has``, ``host`` and ``state`` of a place, and does *lines* with them."""
    return "\n".join([*_head(place), *lines])
