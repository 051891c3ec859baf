"""What ``wsw run`` is asked to run, assembled: shipped programs, TOML files, images, host programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.kit.programs import image_in
from worldswitch.kit.running import Work
from worldswitch.kit.words import HOST_PROGRAMS, is_file, programs

if TYPE_CHECKING:
    from worldswitch.guest.image import Image


def prepare(words: Iterable[str]) -> list[Work]:
    """All of *words*, read, checked and assembled before the first of them runs.

    Raises:
        UsageError: A program nobody knows, or one no guest could run.
        MissingError: A file that cannot be read.
    """
    return [Work(spec, None if spec in HOST_PROGRAMS else assembled(spec)) for spec in programs(words)]


def assembled(spec: str) -> Image:
    """The image of a program that ships, of a TOML file, or in a file of its own; with all parameters it was made by.

    Raises:
        UsageError: A program nobody knows, or one no guest could run.
        MissingError: A file that cannot be read.
    """
    if spec.endswith(".img"):
        return image_in(spec)
    from worldswitch.guest import library
    from worldswitch.guest.assemble import assemble

    if is_file(spec):
        return assemble(library.program(spec))
    name = spec.partition(":")[0]
    if name in HOST_PROGRAMS:
        raise UsageError(f"{name} takes no parameters after a colon; it has options: --vms, --burst and others")
    try:
        library.find(name)
    except UnknownNameError:
        known = [*library.names(), *HOST_PROGRAMS]
        raise UnknownNameError("program", name, known, "wsw programs lists those that ship.") from None
    parameters = {one.name: one.default for one in library.parameters(name)}
    parameters.update(library.parse(spec)[1])
    return dataclasses.replace(assemble(library.program(spec)), parameters=parameters)
