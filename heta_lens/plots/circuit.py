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
    "A line leads from the token that a head took most from. The thick line is the route. "
    "Grey components are not among those that were patched together."
)
WAY, AGAINST = ("#" + bytes(shade).hex() for shade in (BLUE, ORANGE))
THEMED = {  # colours of the figure, and what they are called in a page
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    "#ffffff": "var(--paper)",
    WAY: "var(--way)",
    AGAINST: "var(--against)",
}
LEAST_WIDTH, MOST_WIDTH, COLUMN, LAYER, LEAST_HEIGHT, MARGIN = 3.9, 7.0, 0.34, 0.11, 1.4, 1.4  # inches
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
        exports = exports_of(lambda: self.figure(f"{title}\n{claim}"))
        svg = exports_of(self.figure)[".svg"]().decode()
        for colour, name in THEMED.items():
            svg = svg.replace(colour, name)
        drawing = Markup(svg[svg.index("<svg") :])
        values = {"title": title, "claim": claim, "described": described, "drawing": drawing, "key": KEY}
        return View(title, html_from("plots/circuit.html", **values), {**exports, **more})

    def figure(self, title: str = "") -> Figure:
        most = max(abs(node.effect) for node in self.nodes)
        drawn = {at: node for at, node in enumerate(self.nodes) if abs(node.effect) >= SMALLEST * most}
        drawn |= {at: self.nodes[at] for at in self.route}
        places = {*self.changed, len(self.tokens) - 1}
        places |= {place for node in drawn.values() for place in (node.position, node.read) if place is not None}
        across = _columns(sorted(places))
        width = min(MOST_WIDTH, max(LEAST_WIDTH, COLUMN * across[max(places)] + MARGIN))
        lines = [line for part in title.split("\n") for line in wrap(drawable(part), round(width * 17))]
        names = {place: drawable(cut(self.tokens[place].strip() or repr(self.tokens[place]), 14)) for place in across}
        labels = [f"{name}  {place}" for place, name in names.items()]
        with figure_style([*lines, *labels, drawable(self.answer)]):
            size = (width, max(LEAST_HEIGHT, LAYER * self.layers) + MARGIN + 0.14 * len(lines))
            figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
            axes = figure.subplots()
            figure.patch.set_visible(bool(title))  # a page has its own background
            if lines:
                axes.set_title("\n".join(lines), loc="left", fontsize=8, pad=24)
            self._draw_frame(axes, across, labels)
            self._draw_lines(axes, across, drawn, most)
            self._draw_nodes(axes, across, drawn, most)
        return figure

    def _draw_frame(self, axes: Axes, across: Mapping[int, float], labels: Sequence[str]) -> None:
        end, last = self.layers, across[len(self.tokens) - 1]
        for place, column in across.items():
            axes.plot([column] * 2, [-1, end], color=INK, alpha=0.15, linewidth=0.8, zorder=0)
            if place in self.changed:
                axes.plot(column, -1, marker="^", color=WAY, markersize=6, clip_on=False)
        axes.plot(last, end, marker="^", color=INK, markersize=6, clip_on=False)
        axes.text(last, end + 0.9, drawable(self.answer), ha="center" if len(self.answer) < 12 else "right", fontsize=9)
        axes.set_xticks([*across.values()], labels, rotation=50, ha="right", rotation_mode="anchor")
        for tick, place in zip(axes.get_xticklabels(), across, strict=True):
            tick.set_color(WAY if place in self.changed else INK)
        axes.set_yticks(range(0, end, max(1, end // 6)))
        axes.set_ylabel("layer")
        axes.set_xlim(-0.7, last + 1.8)
        axes.set_ylim(-1.2, end)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.patch.set_alpha(0)

    def _draw_lines(self, axes: Axes, across: Mapping[int, float], drawn: Mapping[int, Node], most: float) -> None:
        for node in drawn.values():
            if node.read is not None and node.read != node.position:
                ends = [across[node.read], across[node.position]], [node.layer - 0.8, node.layer]
                look = {"color": INK if node.effect > 0 else AGAINST, "alpha": 0.7 if node.together else 0.3}
                axes.plot(*ends, linewidth=0.4 + 1.6 * abs(node.effect) / most, zorder=1, **look)
        way = [self.nodes[at] for at in self.route]
        if way and (begin := way[0].read) is not None:
            points = [(across[begin], -1.0)]
            for node in way:
                points += [(points[-1][0], node.layer - 0.8), (across[node.position], float(node.layer))]
            points.append((points[-1][0], float(self.layers)))
            axes.plot(
                *zip(*points, strict=True), color=WAY, linewidth=2.6, alpha=0.85, zorder=2, solid_joinstyle="round"
            )

    def _draw_nodes(self, axes: Axes, across: Mapping[int, float], drawn: Mapping[int, Node], most: float) -> None:
        rows = dict[tuple[int, int], list[tuple[int, Node]]]()
        for at, node in drawn.items():
            rows.setdefault((node.layer, node.position), []).append((at, node))
        for (layer, position), here in rows.items():
            here.sort(key=lambda each: (not each[1].together, -abs(each[1].effect)))
            for number, (_, node) in enumerate(here):
                grey = not node.together
                colour = AGAINST if node.effect < 0 else QUIET if grey else INK
                axes.scatter(
                    across[position] + 0.3 * number, layer, s=max(9.0, LARGEST * abs(node.effect) / most),
                    marker="s" if node.read is None else "o", color=colour, alpha=0.55 if grey else 1,
                    edgecolors="#ffffff", linewidths=0.7, zorder=3,
                )  # fmt: skip
            named = [node.name for at, node in here if node.together or at in self.route]
            if named:
                right = across[position] + 0.3 * (len(here) - 1) + 0.05 + sqrt(LARGEST) / 72 / COLUMN / 2
                halo = extra("matplotlib.patheffects", NEEDED_BY).withStroke(linewidth=2, foreground="#ffffff")
                text = f"L{layer} " + " ".join(named)
                axes.text(right, layer, text, va="center", fontsize=6.5, path_effects=[halo], zorder=4, clip_on=False)


def _columns(places: Sequence[int]) -> dict[int, float]:
    """Return the columns of positions, with a gap where tokens are left out."""
    columns = {places[0]: 0.0}
    for before, place in pairwise(places):
        columns[place] = columns[before] + (1 if place == before + 1 else GAP)
    return columns
