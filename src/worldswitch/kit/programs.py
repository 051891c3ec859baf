"""The programs a kit travels with, and images in files of their own."""

from __future__ import annotations

import json
import pkgutil
from typing import Any

from worldswitch.errors import MissingError, TraceFormatError, UnknownNameError, UsageError, printable
from worldswitch.guest.image import Image
from worldswitch.kit.words import HOST_PROGRAMS, is_file

_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


def index() -> dict[str, Any]:
    """What is in this file: ``version`` and ``programs``.

    A program's name, with its parameters where they are not the defaults, has its file, unit, summary, default_n,
    parameters and features.

    Raises:
        MissingError: This is no kit.
    """
    data = _packed("images.json")
    if data is None:
        raise MissingError("there are no programs here: this is not a file that wsw bundle made")
    found: dict[str, Any] = json.loads(data)
    return found


def image(spec: str) -> Image:
    """The image of a program in this kit, or in a file.

    Raises:
        UsageError: There is no such program here, or not with these parameters.
        MissingError: The file cannot be read.
        TraceFormatError: It is no image.
    """
    if is_file(spec):
        return image_in(spec)
    return Image.from_bytes(_packed(f"images/{find(index()['programs'], spec)['file']}") or b"")


def find(programs: dict[str, Any], spec: str) -> dict[str, Any]:
    """The entry of *programs* that *spec* means, in whatever order its parameters are.

    Raises:
        UnknownNameError: There is no program of that name.
        UsageError: It is not here with these parameters.
    """
    name, _, rest = spec.partition(":")
    if name not in programs:
        remedy = "The command programs lists those in this file; wsw bundle puts others in."
        known = [one for one in programs if ":" not in one]
        raise UnknownNameError("program", name, [*known, *HOST_PROGRAMS], remedy)
    wanted = dict(programs[name]["parameters"])
    for part in rest.split(",") if rest else ():
        key, _, text = part.partition("=")
        key = key.strip().replace("-", "_")
        if key not in wanted:
            raise UnknownNameError(f"parameter of {name}", key, wanted, f"It has {', '.join(wanted) or 'none'}.")
        wanted[key] = _value(wanted[key], text.strip())
    for other, entry in programs.items():
        if other.partition(":")[0] == name and entry["parameters"] == wanted:
            found: dict[str, Any] = entry
            return found
    variants = ", ".join(one for one in programs if one.partition(":")[0] == name)
    raise UsageError(
        f"{printable(spec)} is not in this file, which has {variants}; to put it in: wsw bundle -o wsw.pyz "
        f"{printable(spec)}"
    )


def defaults(name: str) -> dict[str, Any]:
    """The parameters of a program of this kit as it is unless told otherwise; none for one that is not here."""
    try:
        found: dict[str, Any] = index()["programs"].get(name, {}).get("parameters", {})
    except MissingError:
        return {}
    return found


def _value(default: Any, text: str) -> Any:
    """*text* as a value of the kind of *default*; as it is where it is none, which then equals no variant's."""
    if isinstance(default, bool):
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else text
    if isinstance(default, int):
        try:
            return int(text, 0)
        except ValueError:
            return text
    return text


def image_in(path: str) -> Image:
    """The image in a file. Raises MissingError, TraceFormatError."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib is slow to import)
            return Image.from_bytes(file.read())
    except OSError as error:
        raise MissingError(f"{printable(path)} cannot be read: {error.strerror}") from None
    except TraceFormatError as error:
        raise TraceFormatError(f"{printable(path)}: {error}") from None


def _packed(name: str) -> bytes | None:
    try:
        return pkgutil.get_data("worldswitch.kit", name)
    except OSError:
        return None
