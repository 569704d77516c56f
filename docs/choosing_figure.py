"""Draw the figure of docs/choosing.md: from what one wants to know to a method.

python docs/choosing_figure.py
"""

from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from heta_lens.plots.scales import BLUE

FILE = Path(__file__).with_name("choosing.webp")
ROWS = [
    ("Where in a paragraph is the answer?", "leave_one_out", "a forward pass per token, in nats"),
    ("Which tokens speak for a word, or against it?", "leave_one_out", "a forward pass per token, in nats"),
    ("Which scores agree with resampling tokens?", "careful", "a forward pass per token"),
    ("Where is the evidence, quickly?", "fast", "one backward pass, not for signs"),
    ("What does HETA say, as published?", "heta", "hundreds of Hessian–vector products"),
    ("A prompt too long for these?", "flash_trace", "one forward pass, less accurate"),
]


def figure() -> Figure:
    drawn = Figure(figsize=(9, 0.5 * len(ROWS)))
    axes = drawn.add_axes((0, 0, 1, 1), xlim=(0, 9), ylim=(len(ROWS) - 0.4, -0.6))
    axes.set_axis_off()
    blue = [part / 255 for part in BLUE]
    for row, (question, method, cost) in enumerate(ROWS):
        axes.text(0.05, row, question, size=11.5, va="center")
        axes.annotate("", (4.75, row), (4.05, row), arrowprops={"arrowstyle": "-|>", "color": "0.45", "lw": 1.2})
        box = {"boxstyle": "round,pad=0.35", "facecolor": blue, "edgecolor": "none"}
        axes.text(4.9, row, method, size=11.5, va="center", color="white", family="monospace", weight="bold", bbox=box)
        axes.text(6.45, row, cost, size=9.5, va="center", color="0.35")
    return drawn


def main() -> None:
    drawn = BytesIO()
    with matplotlib.rc_context({"font.family": ["DejaVu Sans"]}):
        figure().savefig(drawn, dpi=150, metadata={"Software": None})
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(64).convert("RGB").save(FILE, lossless=True)


if __name__ == "__main__":
    main()
