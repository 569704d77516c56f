# %% [markdown]
# # Where does each word of the answer come from?
#
# An answer usually has several tokens. This notebook explains every token of an answer, each from all tokens before it,
# and the answer as a whole.

# %%
MODEL = "demo"  # or a name on the Hugging Face hub, like "gpt2"

# %% [markdown]
# We let the model continue a story, and expect an answer to its question.

# %%
import torch

import heta_lens
from heta_lens.data import recall

model = heta_lens.load_model(MODEL)
story = next(recall.stories("test", seed=1, facts=3, hops=2))
tokens = model.to_tokens(story.text)
prompt_length = tokens.shape[1]
for _ in range(2):
    with torch.no_grad():
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
print(model.tokenizer.decode(tokens[0]))

# %% [markdown]
# The question takes two hops: in which place the thing is, and in which room that place is. The last two tokens are the
# answer and the full stop after it.
#
# One cache of the whole text is enough. `attribute_span` explains every token from `prompt_length` on. We expect two
# targets.

# %%
_, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
answer = heta_lens.attribute_span(cache, prompt_length, tokens=tokens)
answer.targets

# %% [markdown]
# Both are there. Next, the answer as a whole: the scores of the prompt's tokens, summed over the targets. We expect
# words of both evidence sentences among the highest.

# %%
answer

# %% [markdown]
# They are, but two other words come first: one of the question, and a verb in a sentence about another thing. The
# matrix has a row for each target and a column for each source; the first target is a source of the second. We expect
# most of the room's score on the evidence.

# %%
from heta_lens.plots.html_page import heat

positions = range(len(answer.tokens))
heat("sources of each target", answer.targets, answer.tokens, answer.matrix, "HETA", positions)

# %% [markdown]
# Most of the dark columns are evidence, but not the darkest two of the first row. As a share of the score, we expect
# most of it.

# %%
prediction = heta_lens.Prediction.from_cache(cache, position=prompt_length, tokens=tokens)
sentences = [story.text[slice(*sentence.characters)] for sentence in story.evidence]
evidence = [position for sentence in sentences for position in prediction.positions_of(sentence)]
round(float(answer.matrix[0][evidence].sum() / answer.matrix[0].nansum()), 2), "of the room's score is on the evidence"

# %% [markdown]
# It is not most of it: those two words have nearly all of the rest. Next, the full stop alone: we expect the highest
# score on the word before it.

# %%
answer.steps[1].top(3)

# %% [markdown]
# The full stop depends on the word before it, and on almost nothing else.
#
# Each step is a complete `Attribution`. We expect the first one to equal `attribute(cache, position=prompt_length)`.

# %%
alone = heta_lens.attribute(cache, position=prompt_length, tokens=tokens)
float((answer.steps[0].scores - alone.scores).abs().max())

# %% [markdown]
# It does, up to the last digits. In the plot, pointing at a target shows its sources. We expect the same picture as in
# the heat map above.

# %%
answer.plot()

# %% [markdown]
# It is the same, one target at a time.
#
# **Takeaway.** One call explains a whole answer, a row for each token. The totals add scores of different targets, as
# the paper does, but these have no common unit: look at the steps before you trust a sum.
