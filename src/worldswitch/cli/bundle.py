"""``wsw bundle``: the field kit, one file that runs where there is nothing but python3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.cli.work import assembled
from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.kit.words import programs
from worldswitch.units import format_size

if TYPE_CHECKING:
    from worldswitch.guest.image import Image

_VARIANTS = (
    "context-switch:pcid=1,noflush=1",
    "context-switch:spaces=5",
    "context-switch:touch=1,pcid=1,noflush=1",
    "exec-huge:pages=64",
    "page-touch:size=2M,pages=8",
    "page-touch:size=2M,pages=8,huge=1",
    "ssdd:pairs=10",
    "ssdd:pcid=1,cet=1",
    "ssdd:pcid=1,cet=1,pairs=10",
)
"""What the kit can run besides each program as it is, and with each of its yes-or-no parameters the other way."""


@click.command()
@click.argument("more", nargs=-1, metavar="[PROGRAM[:KEY=VALUE,...]|FILE.toml...]")
@click.option("-o", "--output", required=True, metavar="OUT", help="File to write: a kit, or one image (.img).")
@options.as_json
@options.as_python
def bundle(more: tuple[str, ...], output: str, as_json: bool, as_python: bool) -> int:
    """Write a file that runs guest programs with python3 (3.9 or newer) alone: python3 -I -S wsw.pyz run cr0-wp.

    All programs that ship are in it, and those named besides. The same version writes the same bytes. With an OUT that
    ends in .img the one program named is written as an image, for: python3 wsw.pyz run FILE.img.
    """
    if as_python:
        click.echo(_python(more, output))
        return 0
    if output.endswith(".img"):
        data, held = _one_image(more), 1
    else:
        images = list(all_images(more))
        data, held = kit(images), len(images)
    _write(output, data)
    if as_json:
        options.print_json({"output": output, "size_bytes": len(data), "programs": held})
    else:
        click.echo(f"{printable(output)}: {format_size(len(data))}, {held} program{'s' * (held != 1)}", err=True)
    return 0


def kit(images: Iterable[Image]) -> bytes:
    """The kit's file with these programs in it."""
    from worldswitch import __version__
    from worldswitch.kit import archive

    programs_ = {image.name: image for image in images}
    index = {
        name: {
            "file": f"{number}.img", "unit": image.unit, "summary": image.summary, "default_n": image.default_n,
            "parameters": image.parameters, "features": image.features,
        }
        for number, (name, image) in enumerate(sorted(programs_.items()))
    }  # fmt: skip
    root = Path(__file__).resolve().parents[1]
    return archive.pack(
        {**archive.modules(root), **archive.documents(root)},
        {name: image.to_bytes() for name, image in programs_.items()},
        {"version": __version__, "programs": index},
    )


def all_images(more: Iterable[str] = ()) -> Iterator[Image]:
    """Every program that ships, with some of its variants, and *more*."""
    from worldswitch.guest import library

    for name in library.names():
        yield assembled(name)
        for parameter in library.parameters(name):
            if isinstance(parameter.default, bool):
                yield assembled(f"{name}:{parameter.name}={int(not parameter.default)}")
    for spec in (*_VARIANTS, *programs(more)):
        yield assembled(spec)


def _one_image(words: Iterable[str]) -> bytes:
    specs = list(programs(words))
    if len(specs) != 1:
        raise UsageError(f"an image holds one program, and {len(specs)} are named; -o OUT.pyz holds any number")
    return assembled(specs[0]).to_bytes()


def _write(output: str, data: bytes) -> None:
    from worldswitch.record.whole import write_whole

    path = Path(output)
    if path.is_dir() or not path.name:
        raise UsageError(f"{printable(output)!r} is a folder; give -o the name of a file")
    try:
        write_whole(path, data)
        if path.is_file():  # a pipe or a device stays as it is
            path.chmod(0o644 if output.endswith(".img") else 0o755)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MissingError(f"cannot write {printable(output)}: {why}; give -o another name") from None


def _python(more: Iterable[str], output: str) -> str:
    specs = list(programs(more))
    lines: list[Any] = ["from pathlib import Path", ""]
    if output.endswith(".img"):
        lines += ["from worldswitch.cli.work import assembled", "", f"data = assembled({specs[0]!r}).to_bytes()"]
    else:
        lines += ["from worldswitch.cli.bundle import all_images, kit", "", f"data = kit(all_images({specs!r}))"]
    return "\n".join([*lines, f"Path({output!r}).write_bytes(data)"])
