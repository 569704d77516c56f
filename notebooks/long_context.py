# %% [markdown]
# # Long contexts
#
# The full method costs one Hessian–vector product (HVP) per token and probe. This notebook shows its cost, cheaper
# options, and the errors that each cheaper option reports about itself.

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
_, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
tokens.shape[1]

# %% [markdown]
# It has. What would the full method cost? `estimate` times a few runs and extrapolates. We expect most of the cost to
# be HVPs.

# %%
heta_lens.estimate(cache, tokens=tokens)

# %% [markdown]
# It is, and `estimate` lists cheaper options. We try four: probing all tokens at once (`support="row"`), a low-rank
# Hessian (`lr`), windows (`win`), and windows with only the last two layers (`ls+win`). The last three use two probes
# instead of ten. We expect them to take a fraction of that time, and to agree on the highest-scoring tokens.

# %%
options = {
    "row": {"support": "row", "probes": 10},
    "low rank": {"variant": "lr", "rank": 16, "probes": 2},
    "windows": {"variant": "win", "window": 64, "probes": 2},
    "last layers, windows": {"variant": "ls+win", "layers": 2, "window": 64, "probes": 2},
}
attributions = {
    name: heta_lens.attribute(cache, tokens=tokens, balance="sum", **changed) for name, changed in options.items()
}
for name, attribution in attributions.items():
    cost = attribution.diagnostics
    print(f"{name:22} {cost['seconds']:6.1f} s {cost['hvps']:6d} HVPs", [score.text for score in attribution.top(4)])

# %% [markdown]
# They agree on the most important tokens; only `ls+win` orders them differently. Next, a heat map with a row for each
# option. We expect the same few dark columns in every row.

# %%
import torch

from heta_lens.plots.heat_map import heat

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
# The rows share these columns. What does each option report about its own error? A low rank reports which share of the
# Hessian it leaves out (`tail_energy_share`). Windows use the gate of the whole prompt by default. With
# `window_gate="per_window"` each window has its own gate, and `window_leakage` reports how much of the gate is missed.
# We expect small numbers where an option can be trusted.

# %%
per_window = heta_lens.attribute(cache, tokens=tokens, balance="sum", window_gate="per_window", **options["windows"])
(
    attributions["low rank"].diagnostics["tail_energy_share"],
    per_window.diagnostics["window_leakage"]["total"],
)

# %% [markdown]
# The low rank leaves out more than a quarter of the Hessian, and windows miss a tenth of the gate. That all options
# agree on the highest-scoring tokens therefore proves nothing about the other tokens.
#
# `audit=True` measures more: the distance from the full method, and how well the scores add up to the effect of masking
# sets of tokens. It needs extra runs, so we use a shorter story. We expect a rank correlation near 1.

# %%
short_story = next(recall.stories("test", seed=4, facts=3))
short_tokens = model.to_tokens(short_story.text)
_, short_cache = model.run_with_cache(short_tokens, names_filter=heta_lens.names_filter)
audited = heta_lens.attribute(short_cache, tokens=short_tokens, balance="sum", variant="win", window=24, audit=True)
{name: audited.diagnostics[name] for name in ("against_full", "faithfulness")}

# %% [markdown]
# The ranking is that of the full method (`against_full`). But the scores are poor as sums of effects (`faithfulness`):
# even with the best scale, their error in nats is half of that of scores that are all 0. The benchmarks measure the
# error of each option on many prompts.
