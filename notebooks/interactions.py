# %% [markdown]
# # Which tokens act together?
#
# Scores are one number a token. But a question and the sentence that answers it do not act alone: the curvature of the
# prediction in two tokens at once says which pairs do.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a short story, whose question names an owner and a thing.

# %%
import heta_lens
from heta_lens.data import recall
from heta_lens.models import load_model

model = load_model(MODEL)
story = next(recall.stories("test", seed=2, facts=2, rivals=1))
tokens = model.to_tokens(story.text)
_, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
print(story.text, "→", story.answer)

# %% [markdown]
# Both sentences tell of the same thing; only the owner tells them apart.
#
# `interactions=True` keeps the whole table of second derivatives between tokens, from the same products with the
# Hessian that the curvature is made of. We expect it to be symmetric.

# %%
attribution = heta_lens.attribute(cache, tokens=tokens, balance="sum", interactions=True, probes=40)
pairs = attribution.interactions
print(tuple(pairs.shape), float((pairs - pairs.T).abs().max() / pairs.max()))

# %% [markdown]
# It is, because every pair is estimated from both of its tokens. As a map we expect the pairs to gather where the
# story meets the question.

# %%
from heta_lens.plots.heat import heat

heat("pairs of tokens", attribution.tokens, attribution.tokens, pairs, "second derivatives, in size", range(len(pairs)))

# %% [markdown]
# They do, and within the sentence that tells the answer. The strongest pairs of different tokens, by name; we expect
# the owner and the thing in the question to be paired with words of the sentence that tells of them.

# %%
upper = pairs.triu(1)
order = upper.flatten().argsort(descending=True)[:8].tolist()
places = [divmod(at, len(pairs)) for at in order]
for first, second in places:
    one, other = (f"{attribution.tokens[at]!r} at {at}" for at in (first, second))
    print(f"{float(pairs[first, second]):10.3g}  {one}, {other}")

# %% [markdown]
# Half of them are; the others are within that sentence or within the question, and one with the beginning of the text.
# The strongest joins the owner and the place, all that had to be bound. Is it true? Mask both tokens of a pair, and
# each alone: if they act together, the effect of both is not the sum of the two. We expect that of the strongest pair,
# and nothing of the weakest.

# %%
from heta_lens.causal import effects

prediction = heta_lens.Prediction.from_cache(cache, tokens=tokens)


def together(first, second):
    both, one, other = effects(prediction, how="input", groups=[[first, second], [first], [second]]).tolist()
    return {"both": round(both, 3), "apart": round(one + other, 3)}


inside = [(i, j) for i in range(1, len(pairs)) for j in range(i + 1, len(pairs))]
weakest = min(inside, key=lambda pair: float(pairs[pair]))
together(*places[0]), together(*weakest)

# %% [markdown]
# The strongest pair does overlap: without both, less is lost than without each in turn; the weakest does nothing.
# Second derivatives are taken at a point, and masking goes far from it: the two need not agree in size.
