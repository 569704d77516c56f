# %% [markdown]
# # What does a long prompt cost, and what can be saved?
#
# Most of HETA's cost is Hessian–vector products (HVPs). By default, the tokens are probed in 16 groups that share them.
# With 10 probes this makes 160 HVPs, and one more to find tokens that should be alone in their group, however long the
# context is. But each HVP takes longer in a longer context, and there is one masked run per token. This notebook shows
# the cost, cheaper options, and the errors that they report about themselves.

# %%
MODEL = "demo"  # or a name on the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a story of more than a hundred tokens, most of which are irrelevant to the answer.

# %%
import heta_lens
from heta_lens.data import recall

model = heta_lens.load_model(MODEL)
story = next(recall.stories("test", seed=4, facts=6, filler=14))
tokens = model.to_tokens(story.text)
logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
contrast = tuple(logits[0, -1].topk(2).indices.tolist())
print(tokens.shape[1], "tokens:", *[model.tokenizer.decode([token]) for token in contrast])

# %% [markdown]
# It has. The options below change only the curvature. The model is sure of its answer, so curvature is nearly nothing
# of that token's score (see `quickstart`), and all options would agree. So we ask why the model says the first of these
# tokens rather than the second, where curvature counts. `estimate` times a few runs and extrapolates. We expect most of
# the cost to be HVPs.

# %%
heta_lens.estimate(cache, contrast, tokens=tokens)

# %% [markdown]
# It is, and `estimate` lists cheaper options. We try some of them, and some variants: fewer groups, all tokens probed
# at once (`support="row"`), a low-rank Hessian (`lr`), only the last two layers (`ls`), and windows (`win`). The groups
# and probes are random, so we also try another seed. We expect each option to take less time than the default, to agree
# with it on the highest-scoring tokens, and to move little of the score to other tokens.

# %%
options = {
    "default": {},
    "another seed": {"seed": 1},
    "eight groups": {"groups": 8},
    "row": {"support": "row"},
    "low rank": {"variant": "lr", "rank": 16},
    "last layers": {"variant": "ls", "layers": 2},
    "windows": {"variant": "win", "window": 64},
}
attributions = {
    name: heta_lens.attribute(cache, contrast, tokens=tokens, **changed) for name, changed in options.items()
}


def shares(attribution):
    """The scores as shares of their sum."""
    return attribution.scores / attribution.scores.sum()


for name, attribution in attributions.items():
    cost = attribution.diagnostics
    moved = float((shares(attribution) - shares(attributions["default"])).abs().sum()) / 2
    highest = [score.text for score in attribution.top(4)]
    print(f"{name:12} {cost['seconds']:5.1f} s {cost['hvps']:4d} HVPs {moved:4.0%} moved", highest)

# %% [markdown]
# All cheaper options but the windows take less time. Each window has groups of its own, so windows take more HVPs,
# though cheaper ones: at this length they save no time. The full stop after the evidence is always among the two
# highest tokens, and most options agree on the next. Eight groups and windows move little more of the score than
# another seed does, `support="row"` and the low rank move more, and the last layers most: their score has almost no
# curvature. Next, a heat map with a row for each option. We expect the same few dark columns in every row.

# %%
import torch

from heta_lens.plots.html_page import heat

rows = torch.stack([attribution.scores / attribution.scores.max() for attribution in attributions.values()])
sentences = [story.text[slice(*sentence.characters)] for sentence in story.evidence]
prediction = heta_lens.Prediction.from_cache(cache, tokens=tokens)
evidence = [position for sentence in sentences for position in prediction.positions_of(sentence)]
nearby = list(range(max(0, evidence[0] - 8), min(tokens.shape[1], evidence[-1] + 9)))
heat(
    "around the evidence",
    list(attributions),
    [prediction.written[position] for position in nearby],
    rows[:, nearby],
    "each divided by its largest score",
    nearby,
)

# %% [markdown]
# The rows share these columns, except for the last layers, where only the full stop is dark. What does each option
# report about its own error? What is random has standard errors. A low rank reports which share of the Hessian it
# leaves out (`tail_energy_share`). Windows use the gate of the whole prompt by default. With `window_gate="per_window"`
# each window has its own gate, and `window_leakage` reports how much of the gate is missed. We expect small numbers
# where an option can be trusted.

# %%
per_window = heta_lens.attribute(
    cache, contrast, tokens=tokens, window_gate="per_window", probes=2, **options["windows"]
)
for name in ("default", "eight groups"):
    error = attributions[name].standard_errors["scores"].sum() / attributions[name].scores.sum()
    print(f"{name}: standard errors are {float(error):.0%} of the scores, in sum")
(
    attributions["low rank"].diagnostics["tail_energy_share"],
    per_window.diagnostics["window_leakage"]["total"],
)

# %% [markdown]
# None is small. Eight groups have larger standard errors than the default, the low rank leaves out much of the Hessian,
# and windows with their own gates miss a part of the gate. So agreement on the highest scores proves nothing about the
# other tokens.
#
# The full method and a metric measure more: the agreement of the ranks, and how well the scores add up to the effect of
# masking sets of tokens. Both need extra runs, so we use a shorter story. We expect a rank correlation near 1.

# %%
from scipy.stats import spearmanr

short_story = next(recall.stories("test", seed=4, facts=3))
short_tokens = model.to_tokens(short_story.text)
short_logits, short_cache = model.run_with_cache(short_tokens, names_filter=heta_lens.names_filter)
contrast = tuple(short_logits[0, -1].topk(2).indices.tolist())
prediction = heta_lens.Prediction.from_cache(short_cache, contrast, tokens=short_tokens)
full, windowed = heta_lens.Heta()(prediction), heta_lens.Heta(variant="win", window=24)(prediction)
print("rank correlation", spearmanr(full.scores, windowed.scores).statistic)
heta_lens.metrics.faithfulness_error(heta_lens.metrics.Drops.of(prediction), windowed.scores)

# %% [markdown]
# The ranking is nearly that of the full method. But the scores are poor as sums of effects: with or without the best
# scale (`calibrated`, `raw`), their error in nats is a large part of that of scores that are all 0 (`nothing`).
#
# **Takeaway.** For the highest scores of a long prompt, an approximation is enough. Ask `estimate` before a long run,
# and read the errors that a cheap one reports.
