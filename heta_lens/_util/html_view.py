"""HTML from templates; and views, which a notebook shows and which can be saved as standalone pages."""

from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from heta_lens._util.file_writing import write_atomically
from heta_lens._util.printable_text import legible

PAGES = (".html", ".htm")

_TEMPLATES = Environment(
    loader=PackageLoader("heta_lens", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["legible"] = legible


def html_from(template: str, **values: Any) -> str:
    """HTML from a template of this package, given by its path there; texts among the values are escaped."""
    return _TEMPLATES.get_template(template).render(values)


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at: shown by a notebook, or saved as a page that needs nothing else."""

    title: str
    fragment: str

    def _repr_html_(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        return f"View({self.title!r}): shown in a notebook; elsewhere, view.save('page.html')"

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a standalone page, as ``.html`` or ``.htm``."""
        stream = Path(path).exists() and not Path(path).is_file()  # such as /dev/stdout
        if Path(path).suffix.lower() not in PAGES and not stream:
            raise ValueError(f"{path} is not named as a page, which is all that is written: give a name in .html")
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{escape(self.title)}</title>\n{self.fragment}\n'
        return write_atomically(path, page)
