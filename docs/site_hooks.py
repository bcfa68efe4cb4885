"""What the site needs besides its pages: mkdocs calls these functions while it builds it, as ``mkdocs.yml`` says."""

from __future__ import annotations

import logging
import posixpath
import re
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import PAGE_OF, ROOT, pages
from tables import table

_LOG = logging.getLogger("mkdocs.hooks.site")
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_TABLE = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r":\w+:`~?([\w.]+)`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the tables of results, and let links to files of the repository lead to their page, or else to the repository."""
    parts = _FENCED.split(_TABLE.sub(lambda match: table(match[1]), markdown))
    for index in range(0, len(parts), 2):  # the others are blocks of code
        parts[index] = _LINK.sub(lambda match: _on_the_site(match, page, config, files), parts[index])
    return "".join(parts)


def _on_the_site(match: re.Match[str], page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    path = posixpath.normpath(posixpath.join("docs", folder, match[1]))
    if path in PAGE_OF:
        return posixpath.relpath(PAGE_OF[path], folder or ".") + (match[2] or "")
    if path.startswith("docs/"):
        return match[0]  # mkdocs itself checks links between pages
    if not (ROOT / path).exists():
        _LOG.warning(f"{page.file.src_uri} links to {match[1]}, which the repository does not have")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{config.repo_url.rstrip('/')}/{kind}/HEAD/{path}{match[2] or ''}"


class References(griffe.Extension):
    """Makes links of the roles in docstrings, such as ``:func:`run```."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a package once it is read."""
        self._link_in(pkg, frozenset(pkg.exports or ()))

    def _link_in(self, thing: griffe.Object, public: frozenset[Any]) -> None:
        if thing.docstring:
            thing.docstring.value = _REFERENCE.sub(
                lambda match: f"[`{match[1]}`][onnx_ci.{match[1]}]" if match[1].split(".")[0] in public else f"`{match[1]}`",
                thing.docstring.value,
            )
        for member in thing.members.values():
            if isinstance(member, griffe.Object):
                self._link_in(member, public)
