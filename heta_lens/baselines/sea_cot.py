"""SEA-CoT (Yeo et al. 2024), adapted: which words of the context the model takes up when it explains its answer."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heta_lens.baselines.baseline import Baseline, Found, refuse_contrast, refuse_hooks, refuse_overlong
from heta_lens.batches import Batches
from heta_lens.generation import Writer, sample
from heta_lens.options import COUNT, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work
from heta_lens.scales import log_softmax
from heta_lens.text import locate, words

STOP_WORDS = """
a about after all also an and any are as at be because been before but by can could did do does for from had has
have he her here him his how i if in into is it its just like me more most my no not now of on one only or other
our out over she should so some such than that the their them then there these they this those to up was we were
what when where which while who why will with would you your
"""
YES, NO = " Yes", " No"
Say: TypeAlias = Callable[[Sequence[Sequence[int]], int], Tensor]

EXPLANATION, CLAIM = "{explanation}", "{claim}"


class Prompts(NamedTuple):
    """The ids of what is put to the model beside the context."""

    think: list[int]
    conclude: list[int]
    entail: list[list[int] | str]  # ids, and the names of what goes between them
    yes: list[int]
    no: list[int]

    @property
    def asking(self) -> int:
        """How many ids are put beside the context and an explanation at most: a beginning and the target, too."""
        around = sum(len(part) for part in self.entail if not isinstance(part, str))
        return around + max(len(self.yes), len(self.no)) + 2 if self.entail else 0


@dataclass(frozen=True, eq=False, kw_only=True)
class SeaCot(Baseline):
    """``a_i = Σ_e w_e [the word of token i occurs in e]``, of explanations e the model writes: ≥ 0, no direction.

    Explanations after which the model answers with the target are kept (all, where none is;
    ``diagnostics["hit_rate"]`` is the share of them). Each is weighed by how sure the model itself is that it entails
    the context with the answer, and by how many of their words both share. Stop words do not count.

    - ``explanations``, ``length``: how many are written, and how many tokens long they may be
    - ``temperature``, ``top_p``: how freely; a temperature of 0 takes the likeliest token each time
    - ``weights``: ``softmax`` over the explanations, or ``argmax``, the best alone
    - ``think``, ``conclude``: what the model is told after the context, and after its explanation
    - ``entail``: how it is asked whether an ``{explanation}`` entails a ``{claim}``, to be answered Yes or No; or who
      else is to judge, a function of both texts that returns a probability
    - ``seed``: where the explanations come from
    - ``batch``: how many are written at once
    """

    explanations: Annotated[int, COUNT] = 5
    length: Annotated[int, COUNT] = 100
    temperature: Annotated[float | int, AtLeast(0)] = 0.7
    top_p: Annotated[float | int, AtLeast(0.01)] = 0.9
    weights: Literal["softmax", "argmax"] = "softmax"
    think: str = "\nLet's think step by step."
    conclude: str = "\nSo the answer is"
    entail: str | Callable[[str, str], float] = (
        f"Premise: {EXPLANATION}\nHypothesis: {CLAIM}\nDoes the premise entail the hypothesis? Answer:"
    )
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "sea_cot"
    cost: ClassVar = "(1 + explanations (length + 2)) F"
    signed: ClassVar = False
    adapted: ClassVar = (
        "the authors choose an explanation and score no token; entailment is judged by the explained model itself"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("think", "conclude", "entail"):
            if not (isinstance(getattr(self, name), str) or (name == "entail" and callable(self.entail))):
                raise TypeError(f"{name}={getattr(self, name)!r} must be text" + ", or a function" * (name == "entail"))
        if isinstance(self.entail, str) and not all(self.entail.count(name) == 1 for name in (EXPLANATION, CLAIM)):
            raise ValueError(f"entail={self.entail!r} must have {EXPLANATION} and {CLAIM} in it, each once")

    @property
    def random(self) -> bool:
        return self.temperature > 0

    @property
    def without_effect(self) -> Mapping[str, str]:
        if self.temperature:
            return {}
        return dict.fromkeys(("top_p", "seed"), "temperature=0 (which takes the likeliest token each time)")

    @property
    def label(self) -> str:
        return "sea_cot_adapted"

    def check(self, prediction: Prediction) -> None:
        refuse_contrast(self, prediction)
        refuse_hooks(self, prediction, "writes after the context")
        if prediction.lens.speller.tokenizer is None:
            raise ValueError("method='sea_cot' reads and writes text, and the model has no tokenizer")
        prompts = self._prompts(prediction)
        if isinstance(self.entail, str) and prompts.yes == prompts.no:
            raise ValueError(
                f"the model's tokenizer writes {YES!r} and {NO!r} alike, so it cannot be asked whether "
                "one thing entails another: give entail=, a function (explanation, claim) -> probability"
            )
        beside = max(len(prompts.think) + len(prompts.conclude), prompts.asking)
        way_out = f"make length={self.length} smaller, or shorten the prompt"
        refuse_overlong(self, prediction, len(prediction) + self.length + beside, way_out)

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 1 + self.explanations * (self.length - 1 + 3)}

    def explain(self, asked: Prediction, work: Work) -> Found:
        prompts, longest = self._prompts(asked), len(asked) + self.length
        say = partial(said, asked, asked.prompt.batches(self.batch, longest), partial(work.add, "forwards"))
        written = self._write(asked, prompts, partial(work.add, "forwards"))
        before = [*asked.ids.tolist(), *prompts.think]
        answers = say([[*before, *ids, *prompts.conclude] for ids in written], 1)[:, -1].argmax(-1)
        hits = [answer == asked.target for answer in answers.tolist()]
        kept = [ids for ids, hit in zip(written, hits, strict=True) if hit or not any(hits)]
        texts, claimed = [spelled(asked, ids) for ids in kept], spelled(asked, claim(asked))
        if isinstance(self.entail, str):
            entailed = entailment(asked, prompts, kept, say)
        else:
            entailed = torch.tensor([judged(self.entail, text, claimed) for text in texts], dtype=torch.float64)
        found = [content_words(text) for text in texts]
        shared = entailed.new_tensor([overlap(some, content_words(claimed)) for some in found])
        weights = weighed(entailed + shared, self.weights)
        scores = weights @ torch.stack([mentions(asked, some) for some in found])
        facts = {"entailed": entailed, "shared": shared, "weights": weights, "explanations": texts}
        return scores.to(asked.embeddings), {"hit_rate": sum(hits) / len(hits), **facts}

    def _write(self, asked: Prediction, prompts: Prompts, done: Done) -> list[list[int]]:
        longest = len(asked) + len(prompts.think) + self.length
        writer = Writer.after(asked, asked.prompt.batches(self.batch, longest), done, more=prompts.think)
        end = asked.lens.speller.eos
        how = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed, "end": end}
        return [ids.tolist() for ids in sample(writer, self.explanations, self.length, **how)]

    def _prompts(self, prediction: Prediction) -> Prompts:
        encode = prediction.lens.speller.encoder()
        parts = re.split(f"({EXPLANATION}|{CLAIM})", self.entail) if isinstance(self.entail, str) else []
        entail = [part if part in (EXPLANATION, CLAIM) else encode(part) for part in parts]
        return Prompts(encode(self.think), encode(self.conclude), entail, encode(YES), encode(NO))


@torch.no_grad()
def said(
    asked: Prediction, batches: Batches, done: Done, texts: Sequence[Sequence[int]], count: int
) -> Float[Tensor, "text step vocab"]:
    """What the model says after each of these texts, and after each of as many tokens before it as are to be read."""
    ids = pad_sequence([asked.ids.new_tensor([*text]) for text in texts], batch_first=True)  # read before what pads it
    ends = asked.ids.new_tensor([[len(text)] for text in texts])
    places = ends + torch.arange(-count, 0, device=ids.device)

    def read(rows: Int[Tensor, "row"]) -> Float[Tensor, "row step vocab"]:
        logits = asked.prompt.logits_of(ids[rows, : int(ends[rows].max())], read=places[rows])
        done(len(rows))
        return log_softmax(logits)

    return batches.map(read, torch.arange(len(texts), device=ids.device), ids.shape[1])


def entailment(
    asked: Prediction, prompts: Prompts, explanations: Sequence[list[int]], say: Say
) -> Float[Tensor, "explanation"]:
    """How much likelier the model says Yes than No, when asked whether each of them entails the answer."""
    questions = [question(asked, prompts, ids) for ids in explanations]
    yes, no = (
        answered(say([[*asking, *answer[:-1]] for asking in questions], len(answer)), answer)
        for answer in (prompts.yes, prompts.no)
    )
    return (yes - no).cpu().double().sigmoid()


def judged(entail: Callable[[str, str], float], explanation: str, claimed: str) -> float:
    """What a function of the user's says, refused if it is no probability."""
    found = entail(explanation, claimed)
    if isinstance(found, str | None) or not 0 <= float(found) <= 1:
        raise ValueError(f"entail gave {found!r} for {explanation!r}, which is no probability")
    return float(found)


def question(asked: Prediction, prompts: Prompts, explanation: list[int]) -> list[int]:
    put = {EXPLANATION: explanation, CLAIM: claim(asked)}
    parts = [put[part] if isinstance(part, str) else part for part in prompts.entail]
    return [*asked.ids[: int(asked.begins)].tolist(), *chain.from_iterable(parts)]


def answered(log_probs: Float[Tensor, "text step vocab"], answer: Sequence[int]) -> Float[Tensor, "text"]:
    """How likely the model gives this answer, word for word."""
    return log_probs[:, range(len(answer)), answer].sum(-1)


def claim(asked: Prediction) -> list[int]:
    """The context with the target."""
    return [*asked.ids[int(asked.begins) :].tolist(), cast(int, asked.target)]


def spelled(asked: Prediction, ids: Sequence[int]) -> str:
    """As text, in which special tokens say nothing."""
    speller = asked.lens.speller
    return speller.decode([token for token, hidden in zip(ids, speller.special(ids), strict=True) if not hidden])


def content_words(text: str) -> frozenset[str]:
    """The words of a text, in lower case, but for those that only hold it together."""
    return frozenset(re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())) - {*STOP_WORDS.split()}


def overlap(first: Collection[str], second: Collection[str]) -> float:
    """The share of words that both have."""
    every = {*first, *second}
    return len({*first} & {*second}) / len(every) if every else 0.0


def weighed(merits: Float[Tensor, "explanation"], how: Literal["softmax", "argmax"]) -> Float[Tensor, "explanation"]:
    if how == "softmax":
        return merits.softmax(0)
    return torch.zeros_like(merits).index_fill(0, merits.argmax(), 1)


def mentions(asked: Prediction, found: Collection[str]) -> Float[Tensor, "pos"]:
    """1 for every token of a word that is among those found, else 0."""
    ids, speller = asked.ids.tolist(), asked.lens.speller
    text, spans = locate(speller.decode, ids)
    special = speller.special(ids)
    marks = torch.zeros(len(ids), dtype=torch.float64)
    for tokens in words(text, spans, special):
        written = content_words(text[spans[tokens[0]].start : spans[tokens[-1]].stop])
        marks[tokens] = float(bool(written & {*found}) and not special[tokens[0]])
    return marks
