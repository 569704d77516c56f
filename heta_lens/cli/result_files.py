"""Files that a result is written to: a page, a figure, and the attribution itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.flag_groups import with_flags

PAGES = (".html", ".htm")
DRAWN = (".png", ".svg", ".pdf")  # with matplotlib
FIGURES = (*PAGES, *DRAWN, ".tex")  # as far as plots.page can be saved
"""The suffixes of what ``--figure`` writes."""
NUMBERS = (".json", ".jsonl", ".csv", ".txt")
"""Those of what ``--json`` prints, or other programs make of it."""

HTML = "Also write a standalone HTML page; of several methods, one that compares them."
FIGURE = f"Also write a figure, of the kind that its suffix says: {', '.join(FIGURES)}; of several methods, one of all."
SAVE = "Keep the attribution (safetensors), for heta-lens show and compare; of several, as FILE-heta.safetensors."
VIEW_FLAGS: dict[str, Any] = {
    "html": Annotated[Path | None, typer.Option("--html", metavar="FILE", help=HTML)],
    "figure": Annotated[Path | None, typer.Option("--figure", metavar="FILE", help=FIGURE)],
}
FLAGS: dict[str, Any] = {**VIEW_FLAGS, "save": Annotated[Path | None, typer.Option(metavar="FILE", help=SAVE)]}
"""What files are chosen by."""

with_view_flags = with_flags(VIEW_FLAGS, "files")
with_file_flags = with_flags(FLAGS, "files")
"""Give a command these flags; it gets those that were used as ``files``, for `Files`."""


@dataclass(frozen=True)
class Files:
    """Where results are written to, if anywhere."""

    html: Path | None = None
    figure: Path | None = None
    save: Path | None = None

    @property
    def names(self) -> list[str]:
        """The flags of those that are written."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name) is not None]

    @property
    def paths(self) -> list[Path]:
        return [path for field in fields(self) if (path := getattr(self, field.name)) is not None]

    def check(self, kinds: Sequence[str] = FIGURES) -> None:
        """Refuse a page that is named as something else, and a figure of a kind that the view cannot be saved as."""
        check_page(self.html)
        if self.save is not None:
            from heta_lens._util.file_writing import check_no_view

            check_no_view(self.save, "--json" if self.save.suffix.lower() in NUMBERS else "--figure")
        if self.figure is None or (self.figure.exists() and not self.figure.is_file()):
            return  # a folder is refused as one, and a stream gets a page
        suffix = self.figure.suffix.lower()
        if suffix not in kinds:
            ends = ", ".join(kinds)
            raise ValueError(f"--figure {self.figure} cannot be written: give it a name that ends in one of {ends}")
        if suffix in DRAWN:
            from heta_lens._util.extras import check_extra

            check_extra("matplotlib", f"--figure {self.figure}")

    def check_apart(self, labels: Mapping[str, Any], others: Mapping[str, Path | None]) -> None:
        """Refuse files of several results that are one file, or one of ``others``, by the names of these."""
        from heta_lens._util.file_writing import check_distinct

        paths = {**others}
        for label in labels:
            own, of = self.of(label, labels), f" of {label}" if len(labels) > 1 else ""
            paths |= {f"{name}{of}": path for name, path in zip(own.names, own.paths, strict=True)}
        check_distinct(paths)

    def of(self, label: str, labels: Mapping[str, Any]) -> "Files":
        """Those of one of several results: its label is put before each suffix."""
        if len(labels) == 1:
            return self
        return Files(*(path and _labelled(path, label) for path in (self.html, self.figure, self.save)))

    @property
    def views(self) -> "Files":
        """The page and the figure, which may be of several results together."""
        return replace(self, save=None)

    @property
    def without_views(self) -> "Files":
        return replace(self, html=None, figure=None)


def numbered(inputs: Sequence[Path]) -> dict[str, Path | None]:
    """The files that a command reads, by what its help calls them."""
    return {f"FILE {number}": path for number, path in enumerate(inputs, 1)}


def check_page(path: Path | None) -> None:
    """Refuse a page that is not named as one."""
    if path is not None and path.suffix.lower() not in PAGES and not (path.exists() and not path.is_file()):
        raise ValueError(f"--html {path} is a page: give it a name that ends in one of {', '.join(PAGES)}")


def _labelled(path: Path, label: str) -> Path:
    """``a.html`` as ``a-lime_samples=200.html``."""
    return path.with_name(f"{path.stem}-{_in_names(label)}{path.suffix}")


def _in_names(label: str) -> str:
    """As much of a label as file names take."""
    return re.sub(r"[^A-Za-z0-9.=]+", "_", label)
