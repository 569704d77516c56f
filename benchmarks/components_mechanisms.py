"""Known mechanisms and the components that are found: sentences with an indirect object, and repeated words."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.head_detector import detect_head

import heta_lens
from benchmarks.models import SMOLLM2
from heta_lens.causal import components, patch
from heta_lens.causal.component_results import Direction
from heta_lens.data.suites import suite
from heta_lens.diagnostics import rank_correlation

DEMO, SMALL, GEMMA = "demo", SMOLLM2.name, "gemma-3-270m"
SENTENCES, SEQUENCES, WORDS = 5, 8, 10
Ids: TypeAlias = Int[Tensor, "1 pos"]


@cache
def loaded(name: str) -> Any:
    return heta_lens.load_demo_model() if name == DEMO else heta_lens.load_model(SMOLLM2.with_name(name))


def cached(model: Any, ids: Ids) -> Any:
    return model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]


def shared(effects: Tensor, estimates: Tensor, among: int = 10) -> float:
    """Return the share of the ten largest effects that are among the largest estimates."""
    return float(torch.isin(effects.topk(10).indices, estimates.topk(among).indices).double().mean())


def sentences(name: str) -> Iterator[tuple[str, Ids, Ids, tuple[int, int]]]:
    """Yield sentences with an indirect object, the same with the names swapped at the end, and names as the target.

    The model answers both sentences.
    """
    model = loaded(name)
    for one in suite("ioi", split="dev", limit=100):
        names = [str(one.answer).strip(), *re.findall(r"\b([A-Z][a-z]+)\b(?=.*\b\1\b)", one.text)]
        ids, other = map(model.to_tokens, (one.text, names[0].join(one.text.rsplit(names[1], 1))))
        first, second = (int(model.to_tokens(f" {each}", prepend_bos=False)[0, 0]) for each in names)
        with torch.no_grad():
            answers = [int(model(each)[0, -1].argmax()) for each in (ids, other)]
        if ids.shape == other.shape and answers == [first, second]:
            yield one.text, ids, other, (first, second)


def heads_found(name: str, direction: Direction, count: int = SENTENCES) -> list[list[Any]]:
    """Compare screening, summed over positions, with the grid of heads: rank correlation, and the shared first ten."""
    found: list[list[Any]] = []
    for text, ids, other, target in islice(sentences(name), count):
        clean, changed = cached(loaded(name), ids), cached(loaded(name), other)
        result = components(clean, None, target, tokens=ids, change=other, direction=direction, verify=1, share=0)
        estimates = result.estimates[..., : result.heads_per_layer].sum(1).flatten()
        if direction == "restore":
            grid = patch(clean, changed, target, what="head_out", tokens=ids, corrupted_tokens=other).values
            effects = grid.flatten() - result.changed
        else:
            grid = patch(changed, clean, target, what="head_out", tokens=other, corrupted_tokens=ids).values
            effects = result.clean - grid.flatten()
        found.append([text, rank_correlation(estimates, effects.to(estimates)), shared(effects, estimates)])
    return found


def random_words(seed: int) -> list[int]:
    """Draw tokens that are words, which the tokenizer reads in any order."""
    decode = loaded(SMALL).tokenizer.decode
    words = [token for token in range(5_000, 30_000) if re.fullmatch(" [a-z]{4,}", decode([token]))]
    return [words[at] for at in torch.randperm(len(words), generator=torch.Generator().manual_seed(seed))[: WORDS + 1]]


def induced(seed: int) -> dict[tuple[int, int], float]:
    """Change the token that is to be repeated, and return the shares that heads at the last token restore."""
    model, (*words, another) = loaded(SMALL), random_words(seed)
    start, known = model.to_tokens(""), WORDS // 2  # the prompt ends with so many repeated words
    ids = torch.cat([start, torch.tensor([words + words[:known]])], 1)
    place, target = start.shape[1] + known, (words[known], another)
    result = components(cached(model, ids), [place], target, tokens=ids, change=[another], share=0)
    heads = [each for each in result.top(32) if each.head is not None and each.position == ids.shape[1] - 1]
    return {(each.layer, each.head or 0): each.effect / (result.clean - result.changed) for each in heads}


@torch.no_grad()
def induction_scores() -> Tensor:
    """Return TransformerLens' score of every head, on other words."""
    texts = [loaded(SMALL).tokenizer.decode(random_words(100 + seed)[:WORDS] * 2) for seed in range(SEQUENCES)]
    return detect_head(loaded(SMALL), texts, "induction_head")


def induction() -> list[list[str]]:
    """Return the ten heads that restore most on average, with the score of each and its rank."""
    each, scores = [induced(seed) for seed in range(SEQUENCES)], induction_scores()
    means = {head: sum(one.get(head, 0.0) for one in each) / len(each) for one in each for head in one}
    ranks = scores.flatten().argsort(descending=True).argsort().reshape(scores.shape) + 1
    best = sorted(means.items(), key=lambda one: -one[1])[:10]
    return [[f"L{at[0]}H{at[1]}", f"{mean:.1%}", f"{scores[at]:.2f}", str(int(ranks[at]))] for at, mean in best]
