# %% [markdown]
# # Ten methods on one prompt
#
# There are many ways to say which tokens mattered. Here ten of them explain the same prediction, on one figure, with
# what a few metrics say of each below it.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a story in which one sentence tells the answer and another is there to mislead.

# %%
from functools import partial

from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, ask
from heta_lens.models import load_model

model = load_model(MODEL)
(instance,) = suite("recall", limit=1, seed=3, facts=3, distractors="before", wordings="trained")
print(instance.text)
print("evidence:", instance.words("support"), "distraction:", instance.words("distractor"))

# %% [markdown]
# The evidence names the owner and the thing that the question asks for; the distraction tells of another owner's, or of
# another thing.
#
# One question to the model, and ten methods that answer it: `METHODS` has them all by name. An `Entry` may use the
# places of the instance's spans, as ContextCite does, which wants to know which part is the question. We expect this
# to take some seconds, most of them for HETA.

# %%
prediction = ask(model, instance)
entries = [
    Entry.read(written)
    for written in (
        "heta balance=sum",
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
{label: round(found.diagnostics["seconds"], 2) for label, found in attributions.items()}

# %% [markdown]
# All ten are there. On one figure: a row for each method, a column for each token, every row over its largest score;
# blue speaks for the answer, orange against it. We expect most methods to agree on the answer's own word in the
# evidence, and random scores to agree with nobody.

# %%
import torch

from heta_lens.plots.heat import heat

rows = torch.stack([found.scores.double().cpu() / found.scores.abs().max().cpu() for found in attributions.values()])
places = range(len(prediction))
heat("ten methods", list(attributions), prediction.written, rows, "each over its largest score", places)

# %% [markdown]
# About half of them do, and agree on little else: attention rests on the beginning of the text, ContextCite gives a
# whole sentence one score, and integrated gradients find something to say about nearly every token.
#
# Which is right? Metrics judge. We take one of each kind: how much further the answer falls when tokens go from the
# highest score than from the lowest (`abpc`, more is better), where the score lies (`dsa`, the share on words that tell
# the answer less that on the distraction, from -1 to 1; `first_is_support`, whether the highest score is evidence), and
# whether patching agrees (`patch_correlation`). Special tokens, like the one that begins the text, are not judged. We
# expect no method to win them all, and random scores to be nowhere near the best.

# %%
import pandas as pd

from heta_lens.evaluation import figures
from heta_lens.metrics import Case

judged = {}
for entry in entries:
    case = Case(instance, prediction, attributions[entry.label], entry.ready, partial(ask, model))
    judged[entry.label] = figures(case, ["abpc", "dsa", "first_is_support", "patch_correlation"])[0]
pd.DataFrame(judged).T.astype(float).round(3)

# %% [markdown]
# None does: leaving one token out leads, alone or with others, by the first three, attention rollout by the last. And
# random scores are not last: they put evidence first, by luck. One prompt proves nothing, and these are single numbers
# without intervals. `heta-lens evaluate recall` does the same for hundreds of prompts, with intervals, paired
# differences and all the metrics there are; what came of it is on the page of results in the documentation.
