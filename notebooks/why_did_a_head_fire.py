# %% [markdown]
# # Why did this head fire?
#
# Attention heads, neurons and probes are numbers that a model computes on its way. This notebook asks which tokens of
# the prompt such a number comes from, on a real model, and checks the answer by putting other words in.
#
# The sentences are of the kind "Rose and Nora went to the kitchen, Nora gave a coat to", which a model ends with the
# name that was said once. Heads that copy this name were found in GPT-2 (Wang et al., 2022). Has SmolLM2 one?

# %%
MODEL = "models/SmolLM2-135M-Instruct"  # from `make real-models`; or "HuggingFaceTB/SmolLM2-135M-Instruct"

import numpy as np
import torch
from scipy import stats

import heta_lens
from heta_lens.data.suites import suite

model = heta_lens.load_model(MODEL)
sentences = suite("ioi", split="dev", limit=12)
print(sentences[0].text, "→", sentences[0].answer)
print(sentences[0].counterfactual.text, "→", sentences[0].counterfactual.answer)

# %% [markdown]
# Every sentence has a counterfactual with another name in its place. For each head, we read how much its output raises
# the logit of the name, and how much less in the counterfactual, where that name does not occur. We expect heads that
# copy the name in the last third of the layers.

# %%
layers, heads = model.cfg.n_layers, model.cfg.n_heads


def first_token(text):
    return int(model.to_tokens(text, prepend_bos=False)[0, 0])


@torch.no_grad()
def writes(text, token):
    """How much each head's output at the last position raises the logit of a token, over the average logit."""
    _, cache = model.run_with_cache(model.to_tokens(text), names_filter=lambda name: name.endswith("attn.hook_z"))
    raises = model.unembed.W_U[:, token] - model.unembed.W_U.mean(1)
    z = torch.stack([cache[f"blocks.{layer}.attn.hook_z"][0, -1] for layer in range(layers)])
    W_O = torch.stack([block.attn.W_O for block in model.blocks])
    return torch.einsum("lhd,lhdm,m->lh", z, W_O, raises)


copied = torch.zeros(layers, heads)
for sentence in sentences:
    name = first_token(sentence.answer)
    copied += (writes(sentence.text, name) - writes(sentence.counterfactual.text, name)) / len(sentences)
for value, place in zip(*copied.flatten().topk(5), strict=True):
    print(f"layer {int(place) // heads}, head {int(place) % heads}: {float(value):.1f}")

# %% [markdown]
# A few late heads write most of it. We take the highest. What it writes for a name is a direction in its output
# `hook_z`, and this is the target: the number that we explain in place of a token.

# %%
place = int(copied.argmax())
LAYER, HEAD = place // heads, place % heads
HOOK = f"blocks.{LAYER}.attn.hook_z"


def writes_the_name(name):
    """The head's output along the direction that raises the logit of a name."""
    raises = model.unembed.W_U[:, first_token(name)] - model.unembed.W_U.mean(1)
    return heta_lens.activation(HOOK, head=HEAD, direction=(model.blocks[LAYER].attn.W_O[HEAD] @ raises).detach())


test = suite("ioi", split="test", limit=20)
tokens = model.to_tokens(test[0].text)
logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
why = heta_lens.attribute(cache, writes_the_name(test[0].answer), tokens=tokens, method="fast")
why

# %% [markdown]
# The name that was said once has nearly all of the score. `fast` takes about the time of two runs, and none of the
# layers above the head is run at all. In colour:

# %%
why.plot()

# %% [markdown]
# Is that so in every sentence? The test sentences have other wordings than those in which we found the head. We count
# in how many the highest score is on that name, with a 95 % interval.

# %%
found, predictions = [], []
for sentence in test:
    tokens = model.to_tokens(sentence.text)
    logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
    target = writes_the_name(sentence.answer)
    prediction = heta_lens.Prediction.from_cache(cache, target, tokens=tokens)
    predictions.append(prediction)
    (highest,) = heta_lens.attribute(cache, target, tokens=tokens, method="fast").top(1)
    found.append(highest.positions[0] in prediction.positions_of(sentence.text[slice(*sentence.gold[0])]))
interval = stats.binomtest(sum(found), len(found)).proportion_ci()
print(f"{sum(found)} of {len(found)}: {np.mean(found):.0%}, 95% interval {interval.low:.0%} to {interval.high:.0%}")

# %% [markdown]
# A score is a claim, and the counterfactuals test it: with another name in that place, the number should fall to nearly
# nothing. As a control, we replace each other word by words that the model itself finds likely there.

# %%
names, others = [], []
for sentence, prediction in zip(test, predictions, strict=True):
    target = writes_the_name(sentence.answer)
    other = model.to_tokens(sentence.counterfactual.text)
    logits, cache = model.run_with_cache(other, names_filter=heta_lens.names_filter)
    replaced = heta_lens.Prediction.from_cache(cache, target, tokens=other)
    names.append(1 - float(replaced.value / prediction.value))
    place = prediction.positions_of(sentence.text[slice(*sentence.gold[0])])
    rest = [[position] for position in range(2, len(prediction)) if position not in place]  # nothing predicts the first
    effects = heta_lens.causal.effects(prediction, how="resample", groups=rest, draws=1)
    others.append(float(effects.mean() / prediction.value))
for what, shares in {"the name": names, "another word": others}.items():
    low, high = stats.t.interval(0.95, len(shares) - 1, np.mean(shares), stats.sem(shares))
    print(f"replacing {what} takes away {np.mean(shares):.0%} of the number, 95% interval {low:.0%} to {high:.0%}")

# %% [markdown]
# The explanation holds: the head writes the name because the name stands there.
#
# **Takeaway.** Any number in the model can be explained, and a counterfactual tests the explanation. To ask this of
# your own head, neuron or probe, change the hook point and the direction: `index=` names a neuron, and `function=`
# takes a feature of a sparse autoencoder behind its nonlinearity.
