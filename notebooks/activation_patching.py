# %% [markdown]
# # Activation patching: is it true?
#
# An attribution says which tokens mattered. Patching tests it: put what a clean run computed into a spoilt one, and see
# what comes back. Here both are done side by side, on a pair of stories that differ in one word.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect two stories of as many tokens, whose answers begin with different ones.

# %%
import heta_lens
from heta_lens import causal
from heta_lens.data import recall
from heta_lens.models import load_model

model = load_model(MODEL)


def asked(story):
    """The ids of a story, and of the first token of its answer."""
    tokens = model.to_tokens(story.text)
    return tokens, int(model.to_tokens(story.text + story.answer)[0, tokens.shape[1]])


for story in recall.stories("test", facts=4, rivals=1):
    (clean_tokens, right), (spoilt_tokens, wrong) = asked(story), asked(story.twin)
    if clean_tokens.shape == spoilt_tokens.shape and right != wrong:
        break
answers = right, wrong
print(story.text.split(". ")[-2], "→", story.answer)
print(story.twin.text.split(". ")[-2], "→", story.twin.answer)

# %% [markdown]
# The pair is clean. In one story the sweater is in the jar, in the other in the casket.
#
# ## The usual idiom
#
# The clean run is cached, its residual stream is put into the spoilt run one layer and position at a time, and the
# difference of the two answers' logits is read. We expect the difference to come back where the word that differs
# stands, in the lower layers, and at the last position in the higher ones.

# %%
_, clean = model.run_with_cache(clean_tokens, names_filter=heta_lens.names_filter)
_, spoilt = model.run_with_cache(spoilt_tokens, names_filter=heta_lens.names_filter)
grid = causal.patch(clean, spoilt, answers, scale="logit", tokens=clean_tokens, spoilt_tokens=spoilt_tokens)
grid.plot()

# %% [markdown]
# It does: from the word (columns are named by the spoilt tokens) to the end of its sentence, and from there to the last
# position. The numbers are those of `transformer_lens.patching.get_act_patch_resid_pre`, in its layout, only batched.
# We expect the largest difference between the two to be a rounding error.

# %%
from transformer_lens import patching

_, whole = model.run_with_cache(clean_tokens)
theirs = patching.get_act_patch_resid_pre(
    model, spoilt_tokens, whole, lambda logits: logits[0, -1, answers[0]] - logits[0, -1, answers[1]]
)
float((theirs.cpu() - grid.values).abs().max())

# %% [markdown]
# So it is.
#
# ## What the attribution says
#
# We ask why the first answer rather than the second, and expect the word that differs near the top.

# %%
attribution = heta_lens.attribute(clean, answers, tokens=clean_tokens, balance="sum")
attribution

# %% [markdown]
# The word is there, and the full stop after it, to which the grid says it was moved.
#
# `validate` patches every token, by zeros, and asks whether the effects agree with the scores. We expect the highest
# scores to have large effects, and a low rank correlation: most tokens do nothing, in an order that is noise.

# %%
checked = causal.validate(clean, attribution, tokens=clean_tokens)
checked

# %% [markdown]
# The correlation is low, and five tokens patched together lose more than twenty nats. Token by token, we expect each of
# the highest to lose some.

# %%
checked.to_frame().nlargest(4, "score").round(4)

# %% [markdown]
# The full stop and the last token lose twenty nats and more. The word itself, second by its score, loses a fifth of one
# when the last position alone reads another value there, since what it told was moved to the full stop long before. As
# a picture, each row over its largest, we expect the full stop to be deep in both.

# %%
checked.plot()

# %% [markdown]
# It is, and the last token above all in the lower one. Which intervention is right is open. Masked for everybody, we
# expect the word to matter.

# %%
causal.validate(clean, attribution, tokens=clean_tokens, how="input")

# %% [markdown]
# It does, and the two orders agree better: an attribution is true or not with respect to an intervention.
#
# ## Patch what the attribution names first
#
# Each row of a grid costs a run for every position. If the attribution is any good, its highest scores say where to
# begin. At layer 0 only the word that differs can bring anything back, and we expect it among the first two or three.

# %%
search = causal.patch_in_order(
    clean, spoilt, attribution, answers, scale="logit", tokens=clean_tokens, spoilt_tokens=spoilt_tokens
)
print(
    [attribution.tokens[at] for at in search.positions],
    search.restored,
    f"{search.forwards} runs, not {search.exhaustive}",
)

# %% [markdown]
# The full stop is the same in both stories, so in the input it brings nothing back; the word is second, and brings all
# of it. (The third run was made ahead, together with the second.)
#
# ## Swap values, and ask again
#
# Any method can be asked what it says of a patched model. We put the values that the evidence has in the clean run into
# the spoilt one, a layer at a time, and look at the answers. We expect the swap to turn the answer in one of the lower
# layers, while attention still moves the word.

# %%
sentence = story.text[slice(*story.evidence[0].characters)]
evidence = heta_lens.Prediction.from_cache(clean, tokens=clean_tokens).positions_of(sentence)


def difference(cache):
    asked = heta_lens.Prediction.from_cache(cache, answers, tokens=spoilt_tokens)
    return round(float(asked.log_probs[answers[0]] - asked.log_probs[answers[1]]), 1)


turned = {}
for layer in range(model.cfg.n_layers):
    with causal.swap_values(clean, spoilt, layer, evidence, tokens=spoilt_tokens) as swapped:
        turned[layer] = difference(swapped)
difference(spoilt), turned

# %% [markdown]
# In two of them it turns the answer as if the story had been the other one; in the others it does little. There we
# explain the spoilt prompt, whose text says something else, and expect the evidence to be found by its place.

# %%
best = max(turned, key=turned.get)
with causal.swap_values(clean, spoilt, best, evidence, tokens=spoilt_tokens) as swapped:
    under = heta_lens.attribute(swapped, answers[0], tokens=spoilt_tokens, balance="sum")
before = heta_lens.attribute(spoilt, answers[0], tokens=spoilt_tokens, balance="sum")
{
    name: sum(score.positions[0] in evidence for score in told.top(5))
    for name, told in {"under the swap": under, "without it": before}.items()
}

# %% [markdown]
# Fewer of the first five tokens are evidence under the swap than without it, where the text says the other answer in
# the same place: of a pass rate, know what it is without the patch. The swap ended with its block: the model computes
# what it did before.
#
# ## From tokens to heads
#
# The gate of HETA is a sum over heads. Taken apart, it says through which heads a token's values flow. We expect a few
# heads to carry most of what the answer's word hands on.

# %%
word = int((clean_tokens != spoilt_tokens)[0].nonzero()[0])
heads = causal.gate_heads(clean, tokens=clean_tokens)
heads.plot(word)

# %% [markdown]
# Two heads of the first two layers carry more than half of it. But attention that leads to a token is not yet use of
# it. So we take each head out and look at the prediction, and expect few heads to be missed.

# %%
causal.ablate_heads(clean, answers, tokens=clean_tokens)

# %% [markdown]
# Three are, and only one of them is among the two: the flow proposes, the ablation decides.
