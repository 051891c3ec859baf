"""Conditions a program may be run under where a machine has a choice: kernels, processors, ways to page, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from worldswitch.errors import UnknownNameError, UsageError, printable

CPUS = ("amd", "intel")
MMUS = ("default", "tdp", "legacy", "shadow")
_CPUID = "cpuid."
F = TypeVar("F", bound=Callable[..., Any])


class Place(NamedTuple):
    """One kernel on one processor, paging in one way (of :data:`MMUS`)."""

    kernel: str
    cpu: str
    mmu: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was asked for; what is empty was not.

    Attributes:
        kernels: As named: ``6.1``, ``6.1.190``, a release.
        cpus: Of :data:`CPUS`.
        mmus: Of :data:`MMUS`.
        parameters: Module parameters and other settings by name, as written: ``nx_huge_pages``, ``kvm_intel.ept``.
        builds: Names of builds of KVM.
        kernel_image, modules: A kernel of one's own.
        smp: CPUs of the machine that has KVM; 0 is its default.
        jobs: Places at once; 0 is the machine's default.
        trace: File for a recording.
        costs: File of costs, to turn counts into times, or the name of a set that ships.
    """

    kernels: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    mmus: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    builds: tuple[str, ...] = ()
    kernel_image: Path | None = None
    modules: Path | None = None
    smp: int = 0
    jobs: int = 0
    trace: str | None = None
    costs: Path | None = None

    def places(self, kernels: Sequence[str] = (), cpus: Sequence[str] = ("amd",)) -> Iterator[Place]:
        """Every kernel with every processor and way to page, the kernels outermost; *kernels* and *cpus* where none
        were asked for."""
        for kernel, cpu, mmu in product(self.kernels or kernels, self.cpus or cpus, self.mmus or MMUS[:1]):
            yield Place(kernel, cpu, mmu)

    def document(self) -> dict[str, Any]:
        """What was asked for, as JSON types."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value
        }


_HEEDED: dict[str, tuple[str, ...]] = {
    "kernel": ("lab", "model"), "cpu": ("lab", "model"), "mmu": ("lab", "model"), "set": ("lab", "model"),
    "build": ("lab",), "kernel_image": ("lab",), "modules": ("lab",), "smp": ("lab",), "jobs": ("lab", "model"),
    "costs": ("model",),
}  # fmt: skip
"""Option -> the machines that have such a choice; ``set`` is of parameters, as every machine can hide features."""

_OPTIONS = (
    click.option("--kernel", metavar="K,...", help="lab, model: kernels, such as 6.12 or 6.1.190."),
    click.option("--cpu", metavar="CPU,...", help="lab, model: amd, intel, or both.  [default: amd]"),
    click.option("--mmu", metavar="MMU,...", help=f"lab, model: {', '.join(MMUS)}.  [default: the kernel's choice]"),
    click.option("--build", metavar="NAME,...", help="lab: KVM as wsw lab build made it; stock is the kernel's own."),
    click.option("--kernel-image", metavar="FILE", type=click.Path(path_type=Path), help="lab: a bzImage."),
    click.option("--modules", metavar="DIR", type=click.Path(path_type=Path), help="lab: its modules."),
    click.option("--costs", metavar="FILE|SET", type=click.Path(path_type=Path), help="model: costs, to tell times."),
    click.option("--smp", type=click.IntRange(1, 64), help="lab: CPUs of each machine.  [default: 1]"),
    click.option("-j", "--jobs", type=click.IntRange(1, 256), help="lab: machines at once.  [default: 2]"),
)


def options(command: F) -> F:
    """A command with the options of conditions; what they got goes to :func:`take`."""
    for decorator in reversed(_OPTIONS):
        command = decorator(command)
    return command


def take(given: MutableMapping[str, Any], sets: Sequence[str], on: str, trace: str | None = None) -> Conditions:
    """The conditions among the values of a command's options, which are taken out of *given*.

    Args:
        given: Values by parameter name.
        sets: The words after ``--set``; those about CPUID features are not for here.
        on: The words after ``--on``.
        trace: The word after ``--trace``.

    Raises:
        UsageError: An option is for a machine that is not among those to run on, or its value makes no sense.
        UnknownNameError: No such processor or way to page.
    """
    taken = {name: given.pop(name) for name in _HEEDED if name in given}
    parameters = _parameters(word for word in sets if not word.startswith(_CPUID))
    _refuse_unheeded({**taken, "set": parameters or None}, on)
    if (taken["kernel_image"] is None) != (taken["modules"] is None):
        raise UsageError("--kernel-image and --modules go together: a bzImage and the folder of its modules")
    if taken["kernel_image"] and taken["kernel"]:
        raise UsageError("--kernel-image is a kernel of its own; leave out --kernel")
    return Conditions(
        words("kernel", taken["kernel"]),
        words("cpu", taken["cpu"], CPUS),
        words("mmu", taken["mmu"], MMUS),
        parameters,
        words("build", taken["build"]),
        taken["kernel_image"],
        taken["modules"],
        taken["smp"] or 0,
        taken["jobs"] or 0,
        trace,
        taken["costs"],
    )


def features(sets: Sequence[str]) -> list[str]:
    """The words after ``--set`` that are about CPUID features."""
    return [word for word in sets if word.startswith(_CPUID)]


def _refuse_unheeded(taken: Mapping[str, Any], on: str) -> None:
    chosen = [word.strip() for word in on.split(",")]
    for name, value in taken.items():
        if value is None or any(one in _HEEDED[name] for one in chosen):
            continue
        able = " or ".join(_HEEDED[name])
        if name == "set":
            raise UsageError(
                f"--set {printable(next(iter(value)))} is for --on {able}; elsewhere only cpuid.FEATURE=0 or =1 can be "
                "set, as parameters of this host's modules are not changed while it runs"
            )
        raise UsageError(f"--{name.replace('_', '-')} is for --on {able}, not for {printable(on)}")


def _parameters(sets: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_pair, sets):
        if found.setdefault(name, value) != value:
            raise UsageError(
                f"--set gives {printable(name)} both {printable(found[name])} and {printable(value)}; say one of them"
            )
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise UsageError(f"--set {printable(text)!r} is not NAME=VALUE, such as nx_huge_pages=never or cpuid.pcid=0")
    return name, value


def words(name: str, text: str | None, known: Sequence[str] = ()) -> tuple[str, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word:
            raise UsageError(f"--{name} {printable(text)!r} names nothing between commas")
        if known and word not in known:
            raise UnknownNameError(name, word, known)
        if words.count(word) > 1:
            raise UsageError(f"--{name} names {printable(word)} twice")
    return tuple(words)
