# %% [markdown]
# # Long contexts
#
# The full method costs a product with the Hessian for every token and probe. Here is what it would cost, what is
# cheaper, and how much each cheaper way loses, as it says itself.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a story of more than a hundred tokens, most of which tell nothing.

# %%
import heta_lens
from heta_lens.data import recall
from heta_lens.models import load_model

model = load_model(MODEL)
story = next(recall.stories("test", seed=4, facts=6, filler=14))
tokens = model.to_tokens(story.text)
_, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
tokens.shape[1]

# %% [markdown]
# So it is. What would the full method cost? `estimate` times a little and says the rest. We expect most of it to be
# products.

# %%
heta_lens.estimate(cache, tokens=tokens)

# %% [markdown]
# It is, and `estimate` says what would be cheaper. We try four ways: products for all tokens at once (`support="row"`),
# a low-rank Hessian (`lr`), windows (`win`), and windows with the last two layers only (`ls+win`), these with two
# probes in place of ten. We expect them to take a fraction of that time, and to agree on the first tokens.

# %%
ways = {
    "row": {"support": "row", "probes": 10},
    "low rank": {"variant": "lr", "rank": 16, "probes": 2},
    "windows": {"variant": "win", "window": 64, "probes": 2},
    "last layers, windows": {"variant": "ls+win", "layers": 2, "window": 64, "probes": 2},
}
found = {name: heta_lens.attribute(cache, tokens=tokens, balance="sum", **options) for name, options in ways.items()}
for name, attribution in found.items():
    cost = attribution.diagnostics
    print(f"{name:22} {cost['seconds']:6.1f} s {cost['hvps']:6d} products", [one.text for one in attribution.top(4)])

# %% [markdown]
# They agree on what matters most, and only the last two layers' order is another. As a map, a row for each way, we
# expect the same few columns.

# %%
import torch

from heta_lens.plots.heat import heat

rows = torch.stack([attribution.scores / attribution.scores.max() for attribution in found.values()])
told = [story.text[slice(*sentence.characters)] for sentence in story.evidence]
asked = heta_lens.Prediction.from_cache(cache, tokens=tokens)
evidence = [at for sentence in told for at in asked.positions_of(sentence)]
near = list(range(max(0, evidence[0] - 8), min(tokens.shape[1], evidence[-1] + 9)))
heat(
    "around the evidence",
    list(found),
    [found["row"].tokens[at] for at in near],
    rows[:, near],
    "over each largest score",
    near,
)

# %% [markdown]
# Those are the columns. How sure is each way of itself? A low rank says which share of the Hessian it leaves out
# (`tail_energy_share`). Windows take the gate of the whole prompt, unless they are told to make one of their own
# (`window_gate="per_window"`), and then say how much of it they miss (`window_leakage`). We expect small numbers where
# a way is to be trusted.

# %%
alone = heta_lens.attribute(cache, tokens=tokens, balance="sum", window_gate="per_window", **ways["windows"])
found["low rank"].diagnostics["tail_energy_share"], alone.diagnostics["window_leakage"]["total"]

# %% [markdown]
# The low rank leaves out more than a quarter of the Hessian, and windows miss a tenth of the gate. So that all ways
# agreed on the first tokens is no proof for the others.
#
# `audit=True` measures more: the distance from the full method, and how well the scores add up to the effect of masking
# sets of tokens. It costs runs of its own, so we take a shorter story, and expect a rank correlation near 1.

# %%
short = next(recall.stories("test", seed=4, facts=3))
few = model.to_tokens(short.text)
_, small = model.run_with_cache(few, names_filter=heta_lens.names_filter)
audited = heta_lens.attribute(small, tokens=few, balance="sum", variant="win", window=24, audit=True)
{name: audited.diagnostics[name] for name in ("against_full", "faithfulness")}

# %% [markdown]
# That is the certificate. The order is that of the full method; but as sums of effects the scores are bad, whatever
# scale they are given: half as far off, in nats, as to say nothing. What each way loses on many prompts is measured in
# the benchmarks.
