"""Draw the figure of docs/method.md: a story's tokens, and what each part of HETA makes of them.

python -m docs.method_figure
"""

from io import BytesIO
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

import heta_lens
from docs.pictures import keep
from heta_lens._util.text import visible
from heta_lens.data import recall
from heta_lens.methods.heta.gate import transport, value_norms
from heta_lens.plots.scales import BLUE, ORANGE

FILE = Path(__file__).with_name("method.webp")
NAMES = {
    "gate": "gate M\nattention × values\n(from the cache)",
    "curvature": "curvature S\n∂²g / ∂x² · r\n(Hessian products)",
    "information": "information I\nKL without the token\n(a masked run each)",
}


def figure() -> Figure:
    """Rows over the same tokens: the gate's flow by layer, the three parts, and the score."""
    model = heta_lens.load_demo_model()
    story = next(recall.stories("test", seed=3, facts=2))
    tokens = model.to_tokens(story.text)
    _, cache = model.run_with_cache(tokens)
    attribution = heta_lens.attribute(cache, story.answer, tokens=tokens, balance="sum")
    prediction = heta_lens.Prediction.from_cache(cache, tokens=tokens)
    norms = torch.stack(value_norms(prediction.values, prediction.output_weights))
    flow = (transport(prediction.patterns, "suffix") * norms).sum(1)
    evidence = {position for stretch in story.evidence for position in stretch.tokens}
    rows = {NAMES[name]: part for name, part in attribution.parts.items()}
    rows["score\nM · (½ S + ½ I)\n(S and I balanced)"] = attribution.scores
    layers, count = flow.shape
    heights = [0.22 * layers, *[1] * len(rows)]
    drawn = Figure(figsize=(7, 6), layout="constrained")
    first, *others = drawn.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    first.imshow(flow.numpy(), aspect="auto", cmap="Blues")
    first.set_ylabel(f"flow by layer,\n0 to {layers - 1}", rotation=0, ha="right", va="center")
    first.set_yticks([])
    for axes, (name, values) in zip(others, rows.items(), strict=True):
        colours = [ORANGE if position in evidence else BLUE for position in range(count)]
        axes.bar(
            range(count),
            (values / values.max()).tolist(),
            color=[[part / 255 for part in colour] for colour in colours],
        )
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.set_yticks([])
        axes.spines[["top", "left", "right"]].set_visible(False)
    others[-1].set_xticks(range(count), [visible(token.strip()) for token in attribution.tokens], rotation=90)
    words = story.text[slice(*story.evidence[0].characters)]
    drawn.suptitle(f"Why “{story.answer.strip()}”? Orange is the evidence: “{words}”", x=0.01, ha="left", fontsize=11)
    return drawn


def main() -> None:
    drawn = BytesIO()
    with matplotlib.rc_context({"font.size": 9}):
        figure().savefig(drawn, dpi=150, metadata={"Software": None})
    keep(drawn.getvalue(), FILE)


if __name__ == "__main__":
    main()
