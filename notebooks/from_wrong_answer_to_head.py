# %% [markdown]
# # From a wrong answer to a head
#
# SmolLM2 reads where four people are, is asked about one of them, and often names another person's place. This notebook
# goes from such an answer to the token that drives it, from the token to a head, and repairs the answer by ablating the
# head. Then it counts what the ablation does to other prompts.

# %%
MODEL = "models/SmolLM2-135M-Instruct"  # from `make real-models`; or "HuggingFaceTB/SmolLM2-135M-Instruct"

import torch
from scipy import stats

import heta_lens
from heta_lens import causal
from heta_lens.data.suites import suite

model = heta_lens.load_model(MODEL)


@torch.no_grad()
def log_probs(text, hooks=()):
    """The log-probabilities of the next token."""
    return model.run_with_hooks(model.to_tokens(text), fwd_hooks=list(hooks))[0, -1].log_softmax(-1)


def first_token(text):
    return int(model.to_tokens(text, prepend_bos=False)[0, 0])


# %% [markdown]
# ## The search for a wrong answer
#
# We search 60 prompts for wrong answers of a kind: the right answer is the second most likely token. The prompts with
# the closest decision come first.

# %%
close = []
for prompt in suite("in_context_qa", split="dev", limit=60):
    log_p = log_probs(prompt.text)
    wrong, second = log_p.topk(2).indices.tolist()
    if second == first_token(prompt.answer):
        close.append((float(log_p[wrong] - log_p[second]), prompt, wrong, second))
close.sort(key=lambda row: row[0])
print(len(close), "prompts; nats between wrong and right:", [round(row[0], 2) for row in close])

# %% [markdown]
# For each of these prompts:
#
# 1. `attribute` scores the tokens for the contrast *wrong rather than right*; we take the token with the highest score.
# 2. `components` finds the heads through which this token speaks for the wrong answer. Its `route` leads from the token
#    to the prediction; we take the first head, which reads the token.
# 3. We set the output of this head to 0 at every position, and look at the answer again.


# %%
def without(layer, head):
    """The hook that sets a head's output to 0."""

    def ablate(z, hook):  # noqa: ARG001
        z = z.clone()
        z[:, :, head] = 0
        return z

    return [(f"blocks.{layer}.attn.hook_z", ablate)]


repaired = []
for gap, prompt, wrong, right in close:
    tokens = model.to_tokens(prompt.text)
    _, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
    why = heta_lens.attribute(cache, (wrong, right), tokens=tokens, method="leave_one_out")
    token = why.top(1)[0].positions[0]
    how = causal.components(cache, [token], (wrong, right), tokens=tokens, direction="knock_out", verify=16)
    head = how.route[0]
    after = log_probs(prompt.text, without(head.layer, head.head))
    words = [model.tokenizer.decode([each]).strip() for each in (wrong, right, int(after.argmax()))]
    moved = float(after[wrong] - after[right])
    print(f"{words[0]}, not {words[1]}: token {token} → {head.name}; {gap:.2f} → {moved:.2f} nats: {words[2]}")
    if int(after.argmax()) == right:
        repaired.append((gap, prompt, tokens, cache, (wrong, right), why, how, head))

# %% [markdown]
# The ablation repairs 2 of 11 answers. The effects of `components` are those of one token: a head may bring the right
# place as well, and then its ablation takes away both.
#
# ## One answer
#
# We take the repaired answer with the largest gap. The token that drives it is the wrong place itself:

# %%
gap, prompt, tokens, cache, target, why, how, head = max(repaired, key=lambda row: row[0])
print(prompt.text, "→", prompt.answer)
why

# %% [markdown]
# The head reads this token from the last position. No other component has a larger effect:

# %%
print(how)
how.taken_from(head).sum(axis=1, numeric_only=True).nlargest(3)

# %% [markdown]
# As a control, we ablate every head of the model at the last token, one by one. An ablation repairs the answer only if
# it takes away more than the gap.

# %%
last = tokens.shape[1] - 1
each = causal.ablate_heads(cache, target, positions=[last], tokens=tokens)
print(f"{int((each.values > gap).sum())} of {each.values.numel()} heads take away more than {gap:.2f}")
each

# %% [markdown]
# The head that was found is the only one of all heads.
#
# ## What the ablation does to other prompts
#
# We ablate the head on 50 prompts of the test split, whose wordings were not in the search.

# %%
before, after = [], []
for prompt in suite("in_context_qa", split="test", limit=50):
    right = first_token(prompt.answer)
    for results, hooks in ((before, []), (after, without(head.layer, head.head))):
        log_p = log_probs(prompt.text, hooks)
        results.append((int(log_p.argmax()) == right, float(log_p[right])))
for name, results in {"with all heads": before, f"without {head.name}": after}.items():
    correct, log_p = zip(*results, strict=True)
    low, high = stats.binomtest(sum(correct), 50).proportion_ci()
    print(
        f"{name}: {sum(correct)} of 50 right (95% interval {low:.0%} to {high:.0%}), mean log p {sum(log_p) / 50:.2f}"
    )
fixed = sum(new[0] and not old[0] for old, new in zip(before, after, strict=True))
broken = sum(old[0] and not new[0] for old, new in zip(before, after, strict=True))
p = stats.binomtest(fixed, fixed + broken).pvalue if fixed + broken else 1
print(f"{fixed} repaired, {broken} broken; p = {p:.2f} (exact sign test)")

# %% [markdown]
# The model is right 13 times instead of 10, and loses no right answer. But three repairs may be chance, and the mean
# log-probability of the right place falls. The head explains this answer; its ablation does not solve the task.
#
# **Takeaway.** `attribute` names the token, `components` the head that reads it, and an ablation tests the head. To ask
# this about your own wrong answer, give the wrong and the right word as the target. Count on other prompts what an
# ablation does before you keep it.
