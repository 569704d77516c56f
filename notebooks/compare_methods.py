# %% [markdown]
# # Do other methods agree?
#
# Many attribution methods say which tokens mattered. Do they say the same? Here ten of them explain one prediction of a
# toy model, in one figure, and a few metrics evaluate each. What comes first here need not come first on a real model.

# %%
MODEL = "demo"  # or a name on the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a story in which one sentence gives the answer and another one distracts from it.

# %%
from functools import partial

import heta_lens
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, ask

model = heta_lens.load_model(MODEL)
(instance,) = suite("recall", limit=1, seed=3, facts=3, distractors="before", wordings="trained")
print(instance.text)
print("evidence:", instance.words("support"), "distractor:", instance.words("distractor"))

# %% [markdown]
# The evidence names the owner and the thing that the question is about. The distractor is about another owner or
# another thing.
#
# Ten methods now explain one prediction; `METHODS` has all methods by name. An `Entry` may refer to the spans of an
# instance: ContextCite, for example, is given the question's positions as `query=@question`. We expect this to take
# some seconds, most of them for HETA.

# %%
prediction = ask(model, instance)
entries = [
    Entry.read(specification)
    for specification in (
        "heta",
        "integrated_gradients",
        "input_x_gradient",
        "attn_lrp",
        "attention_rollout",
        "value_zeroing",
        "leave_one_out",
        "lime",
        "context_cite query=@question",
        "random",
    )
]
attributions = {entry.label: entry.ready(instance, prediction)(prediction) for entry in entries}
{label: round(attribution.diagnostics["seconds"], 2) for label, attribution in attributions.items()}

# %% [markdown]
# All ten are there. The figure has a row for each method and a column for each token; every row is divided by its
# largest score. Blue supports the answer, orange opposes it. We expect most methods to agree on the answer's own word
# in the evidence, and random scores to agree with no method.

# %%
import torch

from heta_lens.plots.html_page import heat

all_scores = [attribution.scores.double().cpu() for attribution in attributions.values()]
rows = torch.stack([scores / scores.abs().max() for scores in all_scores])
positions = range(len(prediction))
heat("ten methods", list(attributions), prediction.written, rows, "each divided by its largest score", positions)

# %% [markdown]
# Only three give it the highest score: AttnLRP, leave-one-out and LIME. HETA gives it the second highest, far behind
# the last token of the prompt. The methods agree on little else. Attention falls on the beginning of the text,
# ContextCite gives a whole sentence one score, and integrated gradients give nearly every token a visible score.
#
# Which method is right? Metrics evaluate that. We take a few of different kinds:
#
# - `abpc`: how much further the answer falls when tokens are removed from the highest score than from the lowest (more
#   is better).
# - `dsa`: the share of the score on words that give the answer, minus the share on the distractor, from -1 to 1.
# - `first_is_evidence`: whether the highest score is on the evidence.
# - `patch_correlation`: whether patching agrees.
#
# Special tokens, like the one that begins the text, are not evaluated. We expect no method to win on all metrics, and
# random scores to be far from the best.

# %%
import pandas as pd

from heta_lens.evaluation import figures
from heta_lens.metrics import MetricCase

values = {}
for entry in entries:
    case = MetricCase(instance, prediction, attributions[entry.label], entry.ready, partial(ask, model))
    values[entry.label] = figures(case, ["abpc", "dsa", "first_is_evidence", "patch_correlation"])[0]
pd.DataFrame(values).T.astype(float).round(3)

# %% [markdown]
# None does. Leave-one-out is best, alone or tied, on the first three metrics, and HETA on the last. HETA is second on
# the first two, but its highest score is not on the evidence. Random scores are last, alone or
# tied, on the first and third metrics only. The command `heta-lens evaluate recall` does the same for hundreds of
# prompts, with intervals and paired differences.
#
# **Takeaway.** Methods disagree, and one prompt cannot say which is right. Choose a method by its results on many
# prompts of your kind; the documentation's results page has those on real models.
