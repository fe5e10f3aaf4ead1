"""MkDocs hooks: pages of the repository's root join those of ``docs/``, and links follow them.

A link to a file that is no page (an example's source) becomes its path in code, since the site does not have it.
"""

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parent.parent
# Pages outside of docs/, by their name on the site.
_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "examples.md": "examples/README.md",
}
_NAMES = {source: name for name, source in _PAGES.items()}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:  # noqa: ANN401 - as MkDocs calls it
    """Add the pages of the root."""
    for name, source in _PAGES.items():
        if (_ROOT / source).exists():
            files.append(File.generated(config, name, content=(_ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - as MkDocs calls it
    """Let links lead to where their pages are on the site."""
    source = _PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = source.rpartition("/")[0]

    def followed(match: re.Match[str]) -> str:
        path = normpath(f"{folder}/{match['target']}" if folder else match["target"])
        name = _NAMES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not name and (_ROOT / path).exists():
            return f"{match['text']} (`{path}`)"
        return f"[{match['text']}]({name or match['target']}{match['anchor'] or ''})"

    return _LINK.sub(followed, _IMAGE.sub(r"![\1](\2)", markdown))
