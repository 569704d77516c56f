# %% [markdown]
# # Quickstart: which tokens made the model say that?
#
# We run a model once with a cache, attribute its prediction to the context tokens, look at the result in three ways,
# and save it to a file. The model is the small one that ships with heta_lens, so nothing is downloaded. To run every
# cell on another model, put its name here in place of `"demo"`.

# %%
MODEL = "demo"  # or a name on the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a short story with a question at its end. The story is generated, so we know which sentence gives the
# answer.

# %%
import heta_lens
from heta_lens.data import recall

model = heta_lens.load_model(MODEL)
story = next(recall.stories("test", facts=4, rivals=1))
print(story.text)

# %% [markdown]
# Two people own a sweater, two other things are put elsewhere, and the last sentence before the question gives the
# answer.
#
# One run of the model with a cache is enough. `names_filter` keeps the cache small. We expect the jar as the most
# likely next token.

# %%
tokens = model.to_tokens(story.text)
logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
model.tokenizer.decode([int(logits[0, -1].argmax())])

# %% [markdown]
# The model answers correctly. Why the jar? We expect the sentence about Alba's sweater among the highest scores.

# %%
attribution = heta_lens.attribute(cache, tokens=tokens)
attribution

# %% [markdown]
# It is there, with the words of the question that refer to it. The score adds two parts, curvature and information, and
# the line below the scores says how much comes from each. Here it is nearly all information: the model is sure of its
# answer, so the second derivatives of its log-probability almost vanish. `balance="sum"` would weigh both parts alike.
#
# Next, the same scores as coloured tokens: darker blue is a higher score. We expect the colour in the last sentence of
# the story and in the question.

# %%
attribution.plot()

# %% [markdown]
# It is there. Scores can be summed over the tokens of a word (`by_word`) or over spans of the text (`by_spans`). We
# expect the evidence sentence to have more of the score than any other sentence of the story.

# %%
text = attribution.text
starts = [text.index(sentence) for sentence in story.text.split(". ")]
sentences = list(zip(starts, [*starts[1:], len(text)], strict=True))
for sentence in attribution.by_spans(sentences):
    print(f"{sentence.score / float(attribution.scores.sum()):6.1%}  {sentence.text.strip()}")

# %% [markdown]
# It does. The question comes next, since every answer depends on it.
#
# A table has all numbers: the score, its standard error (curvature is estimated with random probes), and its parts. We
# expect standard errors well below the highest scores.

# %%
table = attribution.to_frame()
table.sort_values("score", ascending=False)[["token", "score", "score_se", "gate", "curvature", "information"]].head(6)

# %% [markdown]
# They are far below: only curvature is random, and it is a tiny part of these scores. `diagnostics` has the cost of the
# score and other facts about it. We expect one masked run per token. The tokens are probed in 16 groups, with 10 probes
# each, so we also expect 160 Hessian–vector products (`hvps`), and one more, which finds tokens that should be alone in
# their group.

# %%
{name: attribution.diagnostics[name] for name in ("forwards", "hvps", "target_log_prob", "share", "sink_mass")}

# %% [markdown]
# There are 161 HVPs, as there would be for a longer context. The forward passes are the masked runs, one unmasked run
# for comparison, and one that builds a gradient graph. Curvature has almost no share (`share`), and neither
# has the first token, which is often an attention sink (`sink_mass`).
#
# A result is saved to one file, and is equal when loaded again. We expect `True`.

# %%
import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "jar.safetensors"
attribution.save(path)
loaded = heta_lens.Attribution.load(path)
loaded.scores.equal(attribution.scores) and loaded.tokens == attribution.tokens

# %% [markdown]
# It is.
#
# **Takeaway.** A run with a cache and one call are enough to see which tokens made the model say that. The page *Five
# minutes* has other questions: why this token rather than that one, why the token at position 12, many prompts at once.
# The notebook `activation_patching` tests scores like these by intervention.
