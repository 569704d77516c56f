"""Generation of continuations of a context: sampled, greedy, or by beam search.

If the model continues from kept keys and values, every token costs a run of a single position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.hooks import EMBED, Hook, KeysValues, lean_names_filter, put_positions
from heta_lens.model.tokenizer import check_length
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import log_softmax

Choose: TypeAlias = Callable[[Tensor, int], Tensor]  # from log-probabilities and the step, a token per row


class Draft(NamedTuple):
    """Continuations so far, the next log-probabilities, and kept keys and values (None: whole runs)."""

    ids: Int[Tensor, "row step"]
    log_probs: Float[Tensor, "row vocab"]
    kept: KeysValues | None


class Beams(NamedTuple):
    """The most likely continuations, best first, with total and next log-probabilities."""

    ids: Int[Tensor, "beam step"]
    log_probs: Float[Tensor, "beam"]
    following: Float[Tensor, "beam vocab"]


@dataclass(frozen=True, eq=False)
class Writer:
    """A model that writes several continuations of a context at once.

    - ``resumes``: runs continue from kept keys and values
    - ``states``: embeddings that replace the context's embeddings
    """

    adapter: ModelAdapter
    ids: Int[Tensor, "pos"]
    batches: Batches
    resumes: bool
    states: Float[Tensor, "pos d"] | None = None

    @classmethod
    def after(
        cls,
        prediction: Prediction,
        batches: Batches,
        *,
        more: Sequence[int] = (),
        states: Float[Tensor, "pos d"] | None = None,
    ) -> "Writer":
        """Create a writer after a prediction's context and ``more`` ids."""
        ids, prompt = torch.cat([prediction.ids, prediction.ids.new_tensor(more)]), prediction.prompt
        return cls(prediction.adapter, ids, batches, prompt.prefix().kept is not None, states)

    @torch.no_grad()
    def start(self) -> Draft:
        """Return the empty continuation."""
        past = self.adapter.reuse.resume([], 0, len(self.ids), 1) if self.resumes else {}
        logits = self.adapter.run(self.ids[None], self._hooks, past=past)[:, 0]
        return Draft(self.ids.new_empty(1, 0), log_softmax(logits), self.adapter.reuse.grown(past) if past else None)

    @torch.no_grad()
    def then(self, draft: Draft, parents: Int[Tensor, "row"], tokens: Int[Tensor, "row"]) -> Draft:
        """Append a token to each of the parents' rows of a draft."""
        ids = torch.cat([draft.ids[parents], rearrange(tokens, "row -> row 1")], 1)
        length, kept = len(self.ids) + ids.shape[1], draft.kept
        grown: list[KeysValues] = []

        def run_all(rows: Int[Tensor, "part"]) -> Float[Tensor, "part vocab"]:
            context = repeat(self.ids, "pos -> copy pos", copy=len(rows))
            return log_softmax(self.adapter.run(torch.cat([context, ids[rows]], 1), self._hooks)[:, 0])

        def run_last(rows: Int[Tensor, "part"]) -> Float[Tensor, "part vocab"]:
            own = parents[rows]
            before = [(keys[own.to(keys.device)], values[own.to(keys.device)]) for keys, values in kept or ()]
            past = self.adapter.reuse.resume(before, length - 1, length, len(rows))
            log_probs = log_softmax(self.adapter.run(ids[rows, -1:], past=past)[:, 0])
            grown.append(self.adapter.reuse.grown(past))
            return log_probs

        rows = torch.arange(len(ids), device=ids.device)
        if kept is None:
            return Draft(ids, self.batches.map(run_all, rows, length), None)
        log_probs = self.batches.map(run_last, rows, 1)
        layers = [zip(*pairs, strict=True) for pairs in zip(*grown, strict=True)]
        return Draft(ids, log_probs, [(torch.cat(keys), torch.cat(values)) for keys, values in layers])

    @property
    def _hooks(self) -> dict[str, Hook]:
        return {} if self.states is None else {EMBED: put_positions(self.states, 0, len(self.states))}


def write(writer: Writer, rows: int, tokens: int, choose: Choose, ends: Sequence[int]) -> list[Int[Tensor, "step"]]:
    """Write continuations of ``tokens`` tokens, or shorter ones up to a token of ``ends``, which is left out."""
    draft, parents = writer.start(), writer.ids.new_zeros(rows)
    ids = ended = writer.ids.new_empty(rows, 0)
    for step in range(tokens):
        if step:
            draft, parents = writer.then(draft, parents, ids[:, -1]), torch.arange(rows, device=ids.device)
        chosen = choose(draft.log_probs[parents], step).to(ids)
        ids = torch.cat([ids, rearrange(chosen, "row -> row 1")], 1)
        ended = torch.isin(ids, ids.new_tensor(ends)).cumsum(1) > 0
        if ended[:, -1].all():
            break
    lengths = (~ended).sum(1).tolist()
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]


def greedy(
    writer: Writer, tokens: int, ends: Sequence[int] = (), on_token: Callable[[int], None] | None = None
) -> Int[Tensor, "step"]:
    """Write the most likely token at each step, and call ``on_token`` with each token at once."""

    def most_likely(log_probs: Float[Tensor, "row vocab"], step: int) -> Int[Tensor, "row"]:  # noqa: ARG001
        token = log_probs.argmax(-1)
        if on_token is not None and int(token) not in ends:
            on_token(int(token))
        return token

    return write(writer, 1, tokens, most_likely, ends)[0]


def continuation(
    adapter: ModelAdapter, ids: Int[Tensor, "1 pos"], count: int, on_token: Callable[[int], None] | None = None
) -> list[int]:
    """Return the ids that the model writes after a prompt, the most likely each time, up to an end of text or turn.

    ``on_token`` is called with each token at once.
    """
    length = ids.shape[1] + count
    check_length(adapter.model, length, f"the prompt and {count} more tokens are")
    prediction = Prediction.from_cache(adapter.cache(ids, lean_names_filter), tokens=ids)
    with prediction.running():
        writer = Writer.after(prediction, prediction.batches("auto", length))
        written = greedy(writer, count, adapter.ends, on_token).tolist()
    if not written:
        raise ValueError("the model ends the text at once, and writes nothing to explain")
    return written


def sample(
    writer: Writer,
    rows: int,
    tokens: int,
    *,
    temperature: float | int,
    top_p: float | int,
    seed: int,
    ends: Sequence[int] = (),
) -> list[Int[Tensor, "step"]]:
    """Draw random continuations; a continuation depends on the seed, the context and the row number only."""
    drawn = np.stack([prompt_generator(seed, writer.ids, row).random(tokens) for row in range(rows)])
    draws = torch.from_numpy(drawn)
    return write(
        writer, rows, tokens, lambda log_probs, step: drawn_token(log_probs, draws[:, step], temperature, top_p), ends
    )


def drawn_token(
    log_probs: Float[Tensor, "row vocab"], draws: Float[Tensor, "row"], temperature: float | int, top_p: float | int
) -> Int[Tensor, "row"]:
    """Return the token of each row's nucleus, most likely first, at which the cumulative probability passes ``draws``.

    The draws are in [0, 1). The nucleus is the smallest set of tokens with at least ``top_p`` of the probability. A
    temperature of 0 takes the most likely token.
    """
    if not temperature:
        return log_probs.argmax(-1)
    probs, order = (log_probs.cpu().double() / temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    nucleus = probs.cumsum(-1) - probs < top_p
    reached = torch.where(nucleus, probs, 0).cumsum(-1)
    past = (reached <= rearrange(draws, "row -> row 1") * reached[:, -1:]).sum(-1, keepdim=True)
    place = past.minimum(nucleus.sum(-1, keepdim=True) - 1)  # a draw close to 1 rounds to the end
    return order.gather(-1, place)[:, 0]


def beam_search(writer: Writer, beams: int, tokens: int) -> Beams:
    """Search the most likely continuations of exactly ``tokens`` tokens, with ``beams`` beams."""
    draft = writer.start()
    log_probs = draft.log_probs.new_zeros(1)
    for _ in range(tokens):
        every = rearrange(rearrange(log_probs, "row -> row 1") + draft.log_probs, "row vocab -> (row vocab)")
        best, vocabulary = every.topk(min(beams, len(every))), draft.log_probs.shape[1]
        draft = writer.then(draft, best.indices // vocabulary, best.indices % vocabulary)
        log_probs = best.values
    return Beams(draft.ids, log_probs, draft.log_probs)
