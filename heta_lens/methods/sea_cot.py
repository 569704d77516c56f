"""SEA-CoT (Yeo et al. 2024), adapted: words of the context that the model repeats to explain an answer."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.text import words
from heta_lens._util.work import Work
from heta_lens.methods.base import ONE_TOKEN, Scores, WithBatch, WithSeed, refuse_hooks, refuse_overlong
from heta_lens.prediction.generation import Writer, sample
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

STOP_WORDS = """
a about after all also an and any are as at be because been before but by can could did do does for from had has
have he her here him his how i if in into is it its just like me more most my no not now of on one only or other
our out over she should so some such than that the their them then there these they this those to up was we were
what when where which while who why will with would you your
"""
YES, NO = " Yes", " No"
THINK, CONCLUDE = "\nLet's think step by step.", "\nSo the answer is"  # appended to context and explanation
QUESTION = "Premise: ", "\nHypothesis: ", "\nDoes the premise entail the hypothesis? Answer:"  # around both texts


@dataclass(frozen=True, eq=False, kw_only=True)
class SeaCot(WithSeed, WithBatch):
    """SEA-CoT (Yeo et al. 2024), adapted: words of the context that the model repeats to explain an answer.

    ``a_i = Σ_e w_e [the word of token i occurs in e]``, of explanations e that the model writes: ≥ 0, no direction.

    Explanations after which the model answers with the target are kept (all, if there is none;
    ``diagnostics["hit_rate"]`` is their share). Each is weighted by how sure the model itself is that it entails the
    context with the answer, and by the share of words that both have in common, with a softmax over the explanations.
    Stop words do not count.

    - ``explanations``, ``length``: the number of explanations, and the most tokens of each
    - ``temperature``, ``top_p``: settings of the sampling; a temperature of 0 takes the likeliest token each time
    - ``entail``: a function (explanation, claim) that returns the probability that one entails the other; None asks
      the explained model a question, which it answers by Yes or No
    - ``seed``: the seed of the sampling
    """

    explanations: Annotated[int, COUNT] = 5
    length: Annotated[int, COUNT] = 100
    temperature: Annotated[float | int, AtLeast(0)] = 0.7
    top_p: Annotated[float | int, AtLeast(0.01)] = 0.9
    entail: Callable[[str, str], float] | None = None

    name: ClassVar = "sea_cot"
    paper: ClassVar[str] = (
        "Yeo, Satapathy, Goh & Cambria, How interpretable are reasoning explanations from prompting large "
        "language models?, Findings of NAACL 2024, arXiv:2402.11863"
    )
    family: ClassVar = "generation"
    cost: ClassVar = "(1 + explanations (length + 2)) F"
    scaled_by: ClassVar = ("explanations", "length")
    signed: ClassVar = False
    kinds: ClassVar = ONE_TOKEN
    adapted: ClassVar = (
        "the authors choose an explanation and score no token; here the explained model itself assesses entailment"
    )

    @property
    def without_effect(self) -> Mapping[str, str]:
        if self.temperature:
            return {}
        return dict.fromkeys(("top_p", "seed"), "temperature=0 (which takes the likeliest token each time)")

    @property
    def title(self) -> str:
        return "sea_cot_adapted"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_hooks(self, prediction, "writes after the context")
        if prediction.tokenizer.wrapped is None:
            raise ValueError("method='sea_cot' reads and writes text, and the model has no tokenizer")
        encode = prediction.tokenizer.encoder()
        beside = len(encode(THINK)) + len(encode(CONCLUDE))
        if self.entail is None:
            if encode(YES) == encode(NO):
                raise ValueError(
                    f"the model's tokenizer writes {YES!r} and {NO!r} alike, so it cannot be asked whether "
                    "one thing entails another: give entail=, a function (explanation, claim) -> probability"
                )
            asking = sum(len(encode(text)) for text in QUESTION)
            # and the answer, a beginning-of-text token and the target
            beside = max(beside, asking + max(len(encode(YES)), len(encode(NO))) + 2)
        way_out = f"make length={self.length} smaller, or shorten the prompt"
        refuse_overlong(self, prediction, len(prediction) + self.length + beside, way_out)

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=1 + self.explanations * (self.length - 1 + 3))

    def explain(self, prediction: Prediction) -> Scores:
        encode, say = prediction.tokenizer.encoder(), partial(self._log_probs, prediction)
        think, conclude = encode(THINK), encode(CONCLUDE)
        batches = prediction.batches(self.batch, len(prediction) + len(think) + self.length)
        writer = Writer.after(prediction, batches, more=think)
        how = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed, "ends": prediction.adapter.ends}
        written = [ids.tolist() for ids in sample(writer, self.explanations, self.length, **how)]
        answers = say([[*prediction.ids.tolist(), *think, *ids, *conclude] for ids in written], 1)[:, -1].argmax(-1)
        hits = [answer == prediction.target for answer in answers.tolist()]
        kept = [ids for ids, hit in zip(written, hits, strict=True) if hit or not any(hits)]
        # the context with the target
        claim = [*prediction.ids[int(prediction.begins) :].tolist(), cast(int, prediction.target)]
        texts, claimed = [readable(prediction, ids) for ids in kept], readable(prediction, claim)
        if self.entail is None:
            before, between, after = map(encode, QUESTION)
            begun = [*prediction.ids[: int(prediction.begins)].tolist(), *before]
            questions = [[*begun, *explanation, *between, *claim, *after] for explanation in kept]

            def said(answer: list[int]) -> Float[Tensor, "explanation"]:
                log_probs = say([[*question, *answer[:-1]] for question in questions], len(answer))
                return log_probs[:, range(len(answer)), answer].sum(-1)

            entailed = (said(encode(YES)) - said(encode(NO))).cpu().double().sigmoid()
        else:
            entailed = torch.tensor([float(self.entail(text, claimed)) for text in texts], dtype=torch.float64)
            for probability in entailed.tolist():
                AtLeast(0, most=1)("entail(explanation, claim)", probability)
        words_by_text = [content_words(text) for text in texts]
        shared = entailed.new_tensor([overlap(found, content_words(claimed)) for found in words_by_text])
        weights = (entailed + shared).softmax(0)
        scores = weights @ torch.stack([mentions(prediction, found) for found in words_by_text])
        facts = {"entailed": entailed, "shared": shared, "weights": weights, "explanations": texts}
        return Scores(scores.to(prediction.embeddings), {"hit_rate": sum(hits) / len(hits), **facts})

    def _log_probs(
        self, prediction: Prediction, texts: Sequence[Sequence[int]], count: int
    ) -> Float[Tensor, "text step vocab"]:
        """Return next-token log-probabilities at the last ``count`` positions of each text."""
        # padding follows the positions that are read, and has no effect on them
        ids = pad_sequence([prediction.ids.new_tensor([*text]) for text in texts], batch_first=True)
        ends = prediction.ids.new_tensor([[len(text)] for text in texts])
        places = ends + torch.arange(-count, 0, device=ids.device)

        @torch.no_grad()
        def read(rows: Int[Tensor, "row"]) -> Float[Tensor, "row step vocab"]:
            logits = prediction.logits_of(ids[rows, : int(ends[rows].max())], read=places[rows])
            return log_softmax(logits)

        batches = prediction.batches(self.batch, len(prediction) + self.length)
        return batches.map(read, torch.arange(len(texts), device=ids.device), ids.shape[1])


def readable(prediction: Prediction, ids: Sequence[int]) -> str:
    """Return the ids as text, without special and unknown tokens."""
    tokenizer = prediction.tokenizer
    shown = zip(ids, tokenizer.special(ids), strict=True)
    return tokenizer.decode([token for token, special in shown if not special and token != tokenizer.unknown])


def content_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without stop words."""
    return frozenset(re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())) - {*STOP_WORDS.split()}


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of words that two texts have in common."""
    return len(first & second) / len(first | second) if first | second else 0.0


def mentions(prediction: Prediction, mentioned: frozenset[str]) -> Float[Tensor, "pos"]:
    """Return 1 for every token of a mentioned word, else 0."""
    special, (text, spans) = prediction.tokenizer.special(prediction.ids.tolist()), prediction.located
    marks = torch.zeros(len(prediction), dtype=torch.float64)
    for tokens in words(text, spans, special):
        written = content_words(text[spans[tokens[0]].start : spans[tokens[-1]].stop])
        marks[tokens] = float(bool(written & mentioned) and not special[tokens[0]])
    return marks
