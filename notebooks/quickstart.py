# %% [markdown]
# # Quickstart: which tokens made the model say that?
#
# We run a model once with a cache, ask which tokens made it say what it says, look at the answer in three ways, and
# keep it in a file. The model is the small one that ships with heta_lens, so nothing is downloaded; every cell runs on
# a real model too, if its name is put here in place of `"demo"`.

# %%
MODEL = "demo"  # or a name of the Hugging Face hub, like "gpt2"

# %% [markdown]
# We expect a short story with a question at its end. Who made it up knows which sentence tells the answer.

# %%
import heta_lens
from heta_lens.data import recall
from heta_lens.models import load_model

model = load_model(MODEL)
story = next(recall.stories("test", facts=4, rivals=1))
print(story.text)

# %% [markdown]
# Two people own a sweater, two other things are put elsewhere, and the last sentence is the one that matters.
#
# One run of the model with a cache is all that is needed. `names_filter` keeps the cache small. We expect the jar as
# the most likely next token.

# %%
tokens = model.to_tokens(story.text)
logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
model.tokenizer.decode([int(logits[0, -1].argmax())])

# %% [markdown]
# The model has read the story. Now: why the jar? We expect the sentence about Alba's sweater among the highest scores.

# %%
attribution = heta_lens.attribute(cache, tokens=tokens, balance="sum")
attribution

# %% [markdown]
# It is there, with the words of the question that ask for it. `balance="sum"` gives the two parts of the score,
# curvature and information, the same total before the gate weighs them; without it the paper's formula is used as it
# stands, and a warning says when one part drowns the other.
#
# The same as coloured tokens: blue is much. We expect the colour in the last sentence and in the question.

# %%
attribution.plot()

# %% [markdown]
# There it is. Tokens of a word can be put together, and stretches of the text can be asked for. We expect the sentence
# with the evidence to hold more of the score than any other sentence of the story.

# %%
text = attribution.text
starts = [text.index(sentence) for sentence in story.text.split(". ")]
sentences = list(zip(starts, [*starts[1:], len(text)], strict=True))
for sentence in attribution.by_spans(sentences):
    print(f"{sentence.score / float(attribution.scores.sum()):6.1%}  {sentence.text.strip()}")

# %% [markdown]
# So it does; the question, which every answer hangs on, comes next.
#
# All numbers are in a table: the score, how sure it is (curvature is estimated by random probes), and its parts. We
# expect standard errors well below the highest scores.

# %%
table = attribution.to_frame()
table.sort_values("score", ascending=False)[["token", "score", "score_se", "gate", "curvature", "information"]].head(6)

# %% [markdown]
# They are a few percent. What the score cost, and what there is to know about it, is in `diagnostics`. We expect one
# masked run for each token, and ten products with the Hessian for each.

# %%
{name: attribution.diagnostics[name] for name in ("forwards", "hvps", "target_log_prob", "share", "sink_mass")}

# %% [markdown]
# That is what it took, and one run more to compare with. After the gate the two parts still count nearly alike
# (`share`), and the first token, on which attention often rests, holds next to none of the score.
#
# A result is kept in one file, and comes back equal. We expect `True`.

# %%
import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "jar.safetensors"
attribution.save(path)
again = heta_lens.Attribution.load(path)
again.scores.equal(attribution.scores) and again.tokens == attribution.tokens

# %% [markdown]
# It does. Other questions (why this token rather than that one, why the token at place 12, many prompts at once) are in
# the README; whether scores like these are *true* is what `activation_patching` asks.
