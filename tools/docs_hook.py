"""What MkDocs calls while it builds the documentation: adds the pages made from the code, and mends what Markdown lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docs_pages import pages
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([^<]+)</code>")
_TABLE = re.compile(r"<table>")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are made, not written."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Docstrings name other names the way Sphinx does; here they are code."""
    return _ROLE.sub(lambda found: f"<code>{found[1].removeprefix('worldswitch.')}</code>", html)
