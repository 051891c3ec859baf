"""The field kit the lab's guest gets, the same that ``wsw bundle`` writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldswitch.lab.initramfs import Kit

_NAME = "wsw.pyz"


def lab_kit() -> Kit:
    """The kit of this version, from the lab's cache, made unless it is there for these files of the package."""
    from worldswitch.lab.initramfs import Kit, cached

    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())

    def fill(folder: Path) -> Mapping[str, Any]:
        (folder / _NAME).write_bytes(_content())
        return {}

    content = (cached("kits", digest.hexdigest()[:16], fill) / _NAME).read_bytes()
    return Kit(hashlib.sha256(content).hexdigest(), lambda: content)


def _content() -> bytes:
    from worldswitch.cli.bundle import all_images, kit

    return kit(all_images())
