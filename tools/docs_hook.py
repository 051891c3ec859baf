"""What MkDocs calls while it builds: adds the pages made from the code, and mends what Markdown and the theme lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_pages import pages
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([^<]+)</code>")


REST = "Commands, explained"
"""The section of ``nav`` that pages go to that it does not name."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give pages that ``nav`` does not name a place: a new page is seen at once."""
    named = set(_paths(config.nav))
    unnamed = [path.name for path in sorted(Path(config.docs_dir).glob("*.md")) if path.name not in named]
    section = next(one[REST] for one in config.nav or () if isinstance(one, dict) and REST in one)
    section.extend(unnamed)
    return config


def _paths(nav: Any) -> Iterator[str]:
    """Every path in a ``nav`` or a part of one."""
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav or ():
            yield from _paths(one)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are made, not written."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name other names the way Sphinx does; here they are code."""
    return _ROLE.sub(lambda found: f"<code>{found[1].removeprefix('worldswitch.')}</code>", html)


def on_post_page(output: str, **_: Any) -> str:
    """The theme's search is a dialog without a name, which a screen reader needs."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)
