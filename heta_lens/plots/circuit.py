"""The picture of components: tokens along, layers up, and lines from the heads to the tokens that they read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup

from heta_lens._util.html_view import View, html_from
from heta_lens._util.python import extra
from heta_lens._util.text import cut
from heta_lens.plots.figures import INK, NEEDED_BY, QUIET, Axes, Figure, drawable, exports_of, figure_style
from heta_lens.plots.scales import BLUE, ORANGE

KEY = (
    "Circles are heads, squares are MLPs; their area is the effect of patching them alone (orange: against). "
    "A line leads to a head from the token that it took most from. A thick line, if there is one, is the route. "
    "Grey components are not among those that were patched together; names go from left to right."
)
ROUTE, AGAINST = ("#" + bytes(shade).hex() for shade in (BLUE, ORANGE))
THEMED = {  # colours of the figure, and what they are called in a page
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    "#ffffff": "var(--paper)",
    ROUTE: "var(--route)",
    AGAINST: "var(--against)",
}
LEAST_WIDTH, MOST_WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 3.9, 7.0, 1.4, 4.0  # inches
COLUMN, LAYER, MARGIN = 0.34, 0.17, 1.4  # inches
NEXT = 0.3  # columns between components of one layer and position
MANY = 12  # changed tokens that are all shown
LARGEST = 130.0  # square points, of the largest effect
SMALLEST = 0.05  # of the largest effect: smaller components are not drawn
GAP = 1.6  # columns between tokens that do not follow one another


class Node(NamedTuple):
    """A patched component; its effect is above 0 in the expected direction, ``read`` is where a head took most from."""

    layer: int
    position: int
    name: str
    effect: float
    read: int | None
    together: bool


@dataclass(frozen=True)
class Circuit:
    """Patched components of a prompt, the positions of the changed tokens, and the ``route``, nodes by their index."""

    tokens: Sequence[str]
    changed: Sequence[int]
    layers: int
    answer: str
    nodes: Sequence[Node]
    route: Sequence[int]

    def view(self, title: str, claim: str, described: str, more: Mapping[str, Callable[[], str | bytes]]) -> View:
        """Return the picture under its claim; ``described`` says in words what the picture shows."""
        values = {"title": title, "claim": claim, "described": described, "drawing": Markup(self.drawing), "key": KEY}
        exports = exports_of(lambda: self.figure(f"{title}\n{claim}\n{described}"))
        return View(title, html_from("plots/circuit.html", **values), {**exports, **more})

    @property
    def drawing(self) -> str:
        """The picture as SVG for a page, in colours that the page names."""
        svg = exports_of(self.figure)[".svg"]().decode()
        for colour, name in THEMED.items():
            svg = svg.replace(colour, name)
        return svg[svg.index("<svg") :]

    def figure(self, title: str = "") -> Figure:
        most = max(abs(node.effect) for node in self.nodes) or 1.0
        seen = [node.together or abs(node.effect) >= SMALLEST * most for node in self.nodes]
        drawn = {at: node for at, node in enumerate(self.nodes) if seen[at] or at in self.route}
        read = {place for node in drawn.values() for place in (node.position, node.read) if place is not None}
        changed = self.changed if len(self.changed) <= MANY else (min(self.changed), max(self.changed))
        rows = dict[tuple[int, int], list[int]]()
        for at, node in drawn.items():
            rows.setdefault((node.layer, node.position), []).append(at)
        across = _columns(sorted({*changed, len(self.tokens) - 1, *read}), rows)
        low = max(0, min((node.layer for node in drawn.values()), default=0) - 2)
        width = min(MOST_WIDTH, max(LEAST_WIDTH, COLUMN * across[max(across)] + MARGIN))
        whole = [drawable(part).replace("' ", "'\N{NO-BREAK SPACE}") for part in title.split("\n")]  # tokens stay whole
        lines = [line for part in whole for line in wrap(part, round(width * 17))]
        names = {place: drawable(cut(self.tokens[place].strip() or repr(self.tokens[place]), 14)) for place in across}
        labels = [f"{name}  {place}" for place, name in names.items()]
        with figure_style([*lines, *labels, drawable(self.answer)]):
            height = min(MOST_HEIGHT, max(LEAST_HEIGHT, LAYER * (self.layers - low)))
            size = (width, height + MARGIN + (0.14 * len(lines) + 0.5) * bool(title))
            figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
            axes = figure.subplots()
            figure.patch.set_visible(bool(title))  # a page has its own background
            if lines:
                axes.set_title("\n".join(lines), loc="left", fontsize=8, pad=24)
                key = "\n".join(wrap(KEY, round(width * 21)))
                figure.supxlabel(key, x=0.01, ha="left", fontsize=6.5, color=QUIET)
            self._draw_frame(axes, across, labels, low, max(map(len, rows.values()), default=0))
            marks = dict[int, float]()
            for (_, position), row in rows.items():
                row.sort(key=lambda at: (not self.nodes[at].together, -abs(self.nodes[at].effect)))
                marks |= {at: across[position] + NEXT * number for number, at in enumerate(row)}
            self._draw_lines(axes, across, marks, most, low)
            for row in rows.values():
                self._draw_row(axes, marks, row, most)
        return figure

    def _draw_frame(
        self, axes: Axes, across: Mapping[int, float], labels: Sequence[str], low: int, widest: int
    ) -> None:
        end, last = self.layers, across[len(self.tokens) - 1]
        for place, column in across.items():
            axes.plot([column] * 2, [low - 1, end], color=INK, alpha=0.15, linewidth=0.8, zorder=0)
            if place in self.changed:
                axes.plot(column, low - 1, marker="^", color=ROUTE, markersize=6, clip_on=False)
        axes.plot(last, end, marker="^", color=INK, markersize=6, clip_on=False)
        answer = drawable(cut(self.answer, 40))
        above = {"xytext": (0, 7), "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(answer, (last, end), **above, ha="center" if len(answer) < 12 else "right", fontsize=9)
        axes.set_xticks([*across.values()], labels, rotation=50, ha="right", rotation_mode="anchor")
        for tick, place in zip(axes.get_xticklabels(), across, strict=True):
            tick.set_color(ROUTE if place in self.changed else INK)
        axes.set_yticks(range(low, end, max(1, (end - low) // 6)))
        axes.set_ylabel("layer")
        axes.set_xlim(-0.7, last + NEXT * widest + 1.5)
        axes.set_ylim(low - 1.2, end)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.patch.set_alpha(0)

    def _draw_lines(
        self, axes: Axes, across: Mapping[int, float], marks: Mapping[int, float], most: float, low: int
    ) -> None:
        for at, mark in marks.items():
            node = self.nodes[at]
            if node.read is not None and node.read != node.position:
                ends = [across[node.read], mark], [node.layer - 0.8, node.layer]
                look = {"color": INK if node.effect > 0 else AGAINST, "alpha": 0.7 if node.together else 0.3}
                axes.plot(*ends, linewidth=0.4 + 1.6 * abs(node.effect) / most, zorder=1, **look)
        way = [self.nodes[at] for at in self.route]
        if way and (begin := way[0].read) is not None:
            points = [(across[begin], low - 1.0)]
            for at, node in zip(self.route, way, strict=True):
                column = across[node.position]
                points += [
                    (points[-1][0], node.layer - 0.8),
                    (marks[at], float(node.layer)),
                    (column, node.layer + 0.6),
                ]
            points.append((points[-1][0], float(self.layers)))
            axes.plot(
                *zip(*points, strict=True), color=ROUTE, linewidth=2.6, alpha=0.85, zorder=2, solid_joinstyle="round"
            )

    def _draw_row(self, axes: Axes, marks: Mapping[int, float], row: Sequence[int], most: float) -> None:
        """Draw the components of a layer and a position side by side, and name those that the claim is about."""
        layer = self.nodes[row[0]].layer
        for at in row:
            node = self.nodes[at]
            colour = AGAINST if node.effect < 0 else INK if node.together else QUIET
            axes.scatter(
                marks[at], layer, s=max(9.0, LARGEST * abs(node.effect) / most), color=colour,
                marker="s" if node.read is None else "o", alpha=1 if node.together else 0.55,
                edgecolors="#ffffff", linewidths=0.7, zorder=3, clip_on=False,
            )  # fmt: skip
        if named := [self.nodes[at].name for at in row if self.nodes[at].together or at in self.route]:
            halo = extra("matplotlib.patheffects", NEEDED_BY).withStroke(linewidth=2, foreground="#ffffff")
            right = marks[row[-1]] + 0.05 + sqrt(LARGEST) / 72 / COLUMN / 2
            look = {"va": "center", "fontsize": 7.5, "path_effects": [halo], "zorder": 4, "clip_on": False}
            axes.text(right, layer, f"L{layer} {' '.join(named)}", **look)


def _columns(places: Sequence[int], rows: Mapping[tuple[int, int], Sequence[int]]) -> dict[int, float]:
    """Return the columns of positions, with room for the components there, and a gap where tokens are left out."""
    columns = {places[0]: 0.0}
    for before, place in pairwise(places):
        room = NEXT * max((len(row) for (_, position), row in rows.items() if position == before), default=0) + 0.4
        columns[place] = columns[before] + max(room, 1 if place == before + 1 else GAP)
    return columns
