"""What MkDocs calls while it builds: adds the pages made from the code, and mends what Markdown and the theme lack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docs_pages import pages
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([^<]+)</code>")


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
