# %% [markdown]
# # Explain a generation
#
# A model rarely says one token. Here every token of an answer is explained, each from all tokens before it, and the
# answer as a whole.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We let the model go on after a story, and expect an answer to its question.

# %%
import torch

import heta_lens
from heta_lens.data import recall
from heta_lens.models import load_model

model = load_model(MODEL)
story = next(recall.stories("test", seed=1, facts=3, hops=2))
tokens = model.to_tokens(story.text)
prompt_length = tokens.shape[1]
for _ in range(2):
    with torch.no_grad():
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
print(model.tokenizer.decode(tokens[0]))

# %% [markdown]
# The question takes two steps: where the thing is kept, and where that is. The answer, and the mark that ends it, are
# the last two tokens.
#
# One cache of the whole text is enough. `attribute_span` explains every token from `prompt_length` on. We expect two
# targets.

# %%
_, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
answer = heta_lens.attribute_span(cache, prompt_length, tokens=tokens, balance="sum")
answer.targets

# %% [markdown]
# Both are there. All of the answer together: the scores of the prompt's tokens, summed over the targets. We expect both
# sentences of the evidence among the highest.

# %%
answer

# %% [markdown]
# Words of both are. Which token made which: a row for each target, a column for each source, the first target among the
# sources of the second. We expect most of what made the place to be evidence.

# %%
from heta_lens.plots.heat import heat

places = range(len(answer.tokens))
heat("what each token comes from", answer.targets, answer.tokens, answer.matrix, "HETA, balance='sum'", places)

# %% [markdown]
# Some of the deepest columns are. In numbers, we expect more than half.

# %%
asked = heta_lens.Prediction.from_cache(cache, position=prompt_length, tokens=tokens)
told = [story.text[slice(*sentence.characters)] for sentence in story.evidence]
evidence = [at for sentence in told for at in asked.positions_of(sentence)]
round(float(answer.matrix[0][evidence].sum() / answer.matrix[0].nansum()), 2), "of the place's score is on the evidence"

# %% [markdown]
# Just above half is; the highest single score is a verb of another sentence, which tells of another thing. What the
# full stop hangs on, by itself: we expect the word before it.

# %%
answer.steps[1].top(3)

# %% [markdown]
# What ends a sentence follows from its last word.
#
# Each step is an attribution of its own, with all that belongs to it. We expect the first to be as
# `attribute(cache, position=prompt_length)` gives it.

# %%
alone = heta_lens.attribute(cache, position=prompt_length, tokens=tokens, balance="sum")
float((answer.steps[0].scores - alone.scores).abs().max())

# %% [markdown]
# It is, to the last digits. Pointing at a target shows where it came from; we expect the same as in the map above.

# %%
answer.plot()

# %% [markdown]
# It is the same, a target at a time. The totals add scores of different targets, as the paper does, although nothing
# gives them a common unit: look at the steps before believing a sum.
