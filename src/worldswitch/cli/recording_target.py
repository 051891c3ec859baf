"""Where ``--trace`` puts a recording: the format its name asks for, and a name for each of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldswitch.cli.convert import STDOUT, Target, chosen
from worldswitch.errors import MissingError, UsageError, printable


def target(output: str) -> Target:
    """The file or folder, and its format.

    Raises:
        UsageError: The name tells none.
    """
    try:
        return chosen(output)
    except UsageError:
        raise UsageError(
            f"--trace {printable(output)!r} does not tell the format; name a folder, or a file that ends in .data, "
            ".dat, .txt or .json"
        ) from None


def check(output: str) -> None:
    """Refuse a name that tells no format, or where nothing can be written, before anything is started.

    Raises:
        UsageError: It is one of these, or standard output.
        MissingError: It lies in a folder that is not there.
    """
    if output == STDOUT:
        raise UsageError("a recording goes to a file or folder; give --trace its name")
    if target(output).format == "parquet":
        from worldswitch.record.parquet import check_place

        check_place(Path(output))
    elif not Path(output).absolute().parent.is_dir():
        raise MissingError(f"no folder for {printable(output)}; make it, or give --trace another name")


def named(output: str, words: Sequence[str]) -> str:
    """*output* with *words* in its name, which tell it from other recordings of the same command."""
    path = Path(output)
    safe = ["".join(c if c.isalnum() or c in "._" else "-" for c in word) for word in words]
    return str(path.with_name("-".join([path.stem, *safe]) + path.suffix))
