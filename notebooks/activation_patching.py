# %% [markdown]
# # Does the model really use these tokens?
#
# An attribution claims that some tokens mattered. Activation patching tests the claim: insert activations of a clean
# run into a corrupted run, and see how much of the prediction is restored. This notebook does both on a pair of stories
# that differ in one word.

# %%
MODEL = "demo"  # or a name on the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect two stories with the same number of tokens, whose answers begin with different tokens.

# %%
import heta_lens
from heta_lens import causal
from heta_lens.data import recall

model = heta_lens.load_model(MODEL)


def prompt_and_answer(story):
    """The ids of a story, and the id of the first token of its answer."""
    tokens = model.to_tokens(story.text)
    return tokens, int(model.to_tokens(story.text + story.answer)[0, tokens.shape[1]])


for story in recall.stories("test", facts=4, rivals=1):
    clean_tokens, clean_answer = prompt_and_answer(story)
    corrupted_tokens, corrupted_answer = prompt_and_answer(story.counterfactual)
    if clean_tokens.shape == corrupted_tokens.shape and clean_answer != corrupted_answer:
        break
answers = clean_answer, corrupted_answer
print(story.text.split(". ")[-2], "→", story.answer)
print(story.counterfactual.text.split(". ")[-2], "→", story.counterfactual.answer)

# %% [markdown]
# The stories differ as intended: in one the sweater is in the jar, in the counterfactual it is in the casket.
#
# ## Standard activation patching
#
# We cache the clean run and patch its residual stream into the corrupted run, one layer and position at a time. The
# metric is the logit difference between the two answers. We expect patching to restore it at the word that differs in
# the lower layers, and at the last position in the higher layers.

# %%
_, clean = model.run_with_cache(clean_tokens, names_filter=heta_lens.names_filter)
_, corrupted = model.run_with_cache(corrupted_tokens, names_filter=heta_lens.names_filter)
grid = causal.patch(clean, corrupted, answers, scale="logit", tokens=clean_tokens, corrupted_tokens=corrupted_tokens)
grid.plot()

# %% [markdown]
# It does: the restored position moves from the word to the end of its sentence, and from there to the last position.
# (Columns are named by the corrupted tokens.) The values are those of
# `transformer_lens.patching.get_act_patch_resid_pre`, in the same layout, but computed in batches. We expect the
# largest difference between the two to be a rounding error.

# %%
from transformer_lens import patching

_, full_cache = model.run_with_cache(clean_tokens)
reference = patching.get_act_patch_resid_pre(
    model, corrupted_tokens, full_cache, lambda logits: logits[0, -1, answers[0]] - logits[0, -1, answers[1]]
)
float((reference.cpu() - grid.values).abs().max())

# %% [markdown]
# The two agree.
#
# ## The attribution
#
# We explain why the model gives the first answer rather than the second, and expect the word that differs near the top.

# %%
attribution = heta_lens.attribute(clean, answers, tokens=clean_tokens)
attribution

# %% [markdown]
# The word has the highest score, and the full stop after it the second highest. According to the grid, the model moves
# the word's information to that full stop. Two words of the question come next. Nearly all of this score is curvature:
# unlike the log-probability of a token that the model is sure of (see `quickstart`), the difference of two
# log-probabilities does not flatten out.
#
# `validate` patches every token with its values from a run in which the token is zeroed, and compares the effects with
# the scores. We expect large effects for the highest scores, but a low rank correlation: most tokens have no effect, so
# their order is noise.

# %%
validation = causal.validate(clean, attribution, tokens=clean_tokens)
validation

# %% [markdown]
# There is no correlation, but patching the five highest tokens together costs many nats. Next, each token alone: we
# expect an effect for each of the highest scores.

# %%
validation.to_frame().nlargest(4, "score").round(4)

# %% [markdown]
# Only the full stop has a large effect. The word itself has the highest score but costs little. This intervention
# changes only what the last position reads, and the word's information was moved to the full stop in earlier layers.
# The two words of the question have high scores, but patching them costs little or nothing. Next, a plot in which each
# row is divided by its largest value. We expect the full stop to be dark in both rows.

# %%
validation.plot()

# %% [markdown]
# It is. The last token is dark only in the lower row (effects): its score misses a large effect. Which
# intervention is right is an open question. With `how="input"` a token is masked for all later positions, and we expect
# the word to have an effect.

# %%
by_input = causal.validate(clean, attribution, tokens=clean_tokens, how="input")
print(by_input)
by_input.to_frame().nlargest(4, "score").round(4)

# %% [markdown]
# It has the largest one, and patching agrees with the scores. Whether an attribution is valid depends on the
# intervention.
#
# ## Swap values and explain again
#
# Any method can explain a patched model. We patch the value vectors of the evidence from the clean run into the
# corrupted run, one layer at a time, and look at the answers. We expect the swap to flip the answer in one of the lower
# layers, where attention still moves the word.

# %%
sentence = story.text[slice(*story.evidence[0].characters)]
evidence = heta_lens.Prediction.from_cache(clean, tokens=clean_tokens).positions_of(sentence)


def difference(cache):
    """Of the log-probabilities of the two answers: above 0 favours the clean one."""
    prediction = heta_lens.Prediction.from_cache(cache, answers, tokens=corrupted_tokens)
    return round(float(prediction.log_probs[answers[0]] - prediction.log_probs[answers[1]]), 1)


by_layer = {}
for layer in range(model.cfg.n_layers):
    with causal.swap_values(clean, corrupted, layer, evidence, tokens=corrupted_tokens) as swapped:
        by_layer[layer] = difference(swapped)
difference(corrupted), by_layer

# %% [markdown]
# In two layers the swap flips the answer as if the story had been the clean one; in the other layers it does little. We
# take the layer with the largest effect and explain the clean answer on the corrupted prompt, whose text gives the
# other answer. We expect high scores at the positions of the evidence.

# %%
best = max(by_layer, key=by_layer.get)
with causal.swap_values(clean, corrupted, best, evidence, tokens=corrupted_tokens) as swapped:
    with_swap = heta_lens.attribute(swapped, answers[0], tokens=corrupted_tokens)
without_swap = heta_lens.attribute(corrupted, answers[0], tokens=corrupted_tokens)
{
    name: sum(score.positions[0] in evidence for score in result.top(5))
    for name, result in {"with the swap": with_swap, "without the swap": without_swap}.items()
}

# %% [markdown]
# Three of the five highest tokens are evidence with the swap, but also without it, where the text gives the other
# answer at the same positions. So compare a pass rate with its value without the patch. The swap ended with its block:
# the model computes what it did before.
#
# ## From tokens to heads
#
# `causal.components` searches the heads and MLPs that carry a change of tokens to the answer. The change is the word
# that differs between the two stories. We expect a few heads to carry most of it.

# %%
found = causal.components(clean, None, answers, change=corrupted_tokens[0], tokens=clean_tokens)
print(found)
found.plot()

# %% [markdown]
# A head of the first layer copies the word to the full stop, and that copy alone restores the answer; a head of layer 2
# takes it to the last token. A head may serve other tokens too, so we also ablate each head, at all positions. We
# expect the first of these heads to matter most.

# %%
causal.ablate_heads(clean, answers, tokens=clean_tokens)

# %% [markdown]
# It does. Two more heads matter to the answer, but do not carry the word that differs: ablation takes away everything
# that a head does, and patching what one change does.
#
# **Takeaway.** Check a high score with an intervention before you believe it, and compare the result with that of an
# intervention that should do nothing.
