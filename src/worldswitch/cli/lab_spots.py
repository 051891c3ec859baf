"""The machines of the lab that a command's conditions ask for, and what runs in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worldswitch.cli.conditions import Conditions, Place
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable

if TYPE_CHECKING:
    from worldswitch.lab.artifacts import BuildFiles, KernelFiles
    from worldswitch.lab.initramfs import Kit
    from worldswitch.lab.machine import Machine

STOCK = "stock"
"""The kernel's own KVM among the names of builds."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One machine of the lab.

    Attributes:
        place: Kernel as it was named, processor, way to page.
        build: The name of a build of KVM, :data:`STOCK` where it is compared with builds; empty where none was named.
        conditions: What all machines have in common.
    """

    place: Place
    build: str = ""
    conditions: Conditions = field(default_factory=Conditions, repr=False)

    @property
    def words(self) -> tuple[str, ...]:
        """What tells it from the others."""
        mmu = "" if self.place.mmu == "default" else self.place.mmu
        own = self.conditions.kernel_image
        kernel = own.name if own else self.place.kernel
        return tuple(word for word in (kernel, self.place.cpu, mmu, self.build) if word)

    @property
    def name(self) -> str:
        """The same as one text."""
        return " ".join(self.words)

    def machine(self, tools: tuple[str, ...], kit: Kit) -> Machine:
        """The machine.

        Raises:
            MissingError: Something of it is not here.
            UsageError: Its parts do not go together.
        """
        from worldswitch.lab import settings
        from worldswitch.lab.machine import Machine

        build = _build(self.build)
        given = self.conditions.parameters
        chosen = {**settings.paging(self.place.mmu, self.place.cpu, given), **given}
        smp = self.conditions.smp or 1
        return Machine(self._kernel(build), self.place.cpu, chosen, build, smp, tools=tools, kit=kit)

    def _kernel(self, build: BuildFiles | None) -> KernelFiles:
        from worldswitch.lab import artifacts

        asked = self.conditions
        if asked.kernel_image and asked.modules:
            return artifacts.own_kernel(asked.kernel_image, asked.modules)
        if self.build == STOCK:
            build = next(iter(_fitting(self.place.kernel, asked.builds)), None)
        return artifacts.kernel_for(self.place.kernel, build)


def spots(conditions: Conditions) -> Iterator[Spot]:
    """Every machine asked for: kernels, processors, ways to page, builds. Builds without a kernel name their own.

    Raises:
        UsageError: No kernel is named.
        MissingError: A build without a kernel is not here.
    """
    if not conditions.kernels and conditions.builds and not conditions.kernel_image:
        for release, builds in _by_release(conditions.builds).items():
            for place in conditions.places((release,)):
                yield from (Spot(place, build, conditions) for build in builds)
        return
    default = (str(conditions.kernel_image),) if conditions.kernel_image else ()
    if not (conditions.kernels or default):
        from worldswitch.lab import cache

        there = ", ".join(str(entry.about["version"]) for entry in cache.entries("kernels")) or "none; wsw lab fetch"
        raise UsageError(f"--on lab needs a kernel: --kernel K,... or --kernel-image (fetched: {there})")
    for place in conditions.places(default):
        yield from (Spot(place, build, conditions) for build in conditions.builds or ("",))


def _by_release(names: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if name != STOCK and (build := _build(name)):
            found.setdefault(build.release, []).append(name)
    if not found:
        raise UsageError("--build stock is a kernel's own KVM; name the kernel with --kernel, or a build beside it")
    if STOCK in names:
        for builds in found.values():
            builds.insert(0 if names[0] == STOCK else len(builds), STOCK)
    return found


def _build(name: str) -> BuildFiles | None:
    from worldswitch.lab import artifacts

    return artifacts.build(name) if name and name != STOCK else None


def _fitting(kernel: str, names: tuple[str, ...]) -> Iterator[BuildFiles]:
    """Of the builds of those names, the ones for *kernel*, beside which its own KVM is to run on the same version."""
    from worldswitch.lab import artifacts

    for name in names:
        build = _build(name)
        if build and artifacts.names(kernel, build.release, str(build.stamp.get("version", ""))):
            yield build


def in_spot(error: WorldswitchError, spot: Spot) -> WorldswitchError:
    """*error* as one of the machine at *spot*."""
    kind = MissingError if isinstance(error, MissingError) else UsageError
    return kind(f"{printable(spot.name)}: {error}")
