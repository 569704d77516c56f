"""HTML templates, and views: pages for notebooks, browsers and files."""

import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from heta_lens._util.files import write_atomically
from heta_lens._util.text import legible, visible

PAGES = (".html", ".htm")

_TEMPLATES = Environment(
    loader=PackageLoader("heta_lens", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"legible": legible, "visible": visible}


def html_from(template: str, **values: Any) -> str:
    """Return the HTML of a template, given by its path in this package; texts among the values are escaped."""
    return _TEMPLATES.get_template(template).render(values)


@dataclass(frozen=True, repr=False)
class View:
    """A page that a notebook shows, a browser opens, and a file keeps; the file needs no other file.

    ``exports`` maps a suffix (``".png"``) to the function that makes the contents of such a file.
    """

    title: str
    fragment: str
    exports: Mapping[str, Callable[[], str | bytes]] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        return f"View({self.title!r}): shown in a notebook; elsewhere, view.open() or view.save('page.html')"

    @property
    def page(self) -> str:
        """The view as a standalone HTML page."""
        head = [
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(self.title)}</title>",
            "<style>body { background: canvas; color: canvastext }</style>",
        ]
        return "\n".join(["<!doctype html>", '<html lang="en">', *head, self.fragment, ""])

    def open(self) -> Path:
        """Show the page in a browser, and return the path of the temporary file, which stays."""
        path = Path(mkdtemp(prefix="heta_lens_")) / "view.html"
        path.write_text(self.page, encoding="utf-8")
        webbrowser.open(path.as_uri())
        return path

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a file of the kind that the suffix names: a page for ``.html``, or a kind of ``exports``."""
        stream = Path(path).exists() and not Path(path).is_file()  # for example /dev/stdout
        suffix = Path(path).suffix.lower()
        if suffix in PAGES or stream:
            return write_atomically(path, self.page)
        if suffix not in self.exports:
            kinds = ", ".join([".html", *self.exports])
            raise ValueError(f"a view cannot be saved as {str(path)!r}: give it a name that ends in one of {kinds}")
        return write_atomically(path, self.exports[suffix]())
