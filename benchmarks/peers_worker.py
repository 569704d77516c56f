"""The other side of `peers`: loads a model, and does a peer's work whenever it is asked to.

It is run by the interpreter of an environment with inseq, lxt and context-cite.
"""
# pyright: reportMissingImports=false

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from heta_lens._util.work import Allocations

Given = dict[str, Any]
Explain = Callable[[int], Tensor]
"""From the batch size to the scores."""


class Ran(NamedTuple):
    """The scores of a run, its CPU seconds, and the rows that passed through the model."""

    scores: Tensor
    seconds: float
    rows: int


class Side(NamedTuple):
    """A side of a comparison, a peer or heta_lens: run and peak memory by batch size."""

    run: Callable[[int], Ran]
    peak: Callable[[int], float]

    @classmethod
    def of(cls, explain: Explain, rows: Callable[[], int]) -> "Side":
        """Return a side in this process; ``rows`` have passed through the model so far."""

        def run(batch: int) -> Ran:
            before, begun = rows(), time.process_time()
            scores = explain(batch)
            return Ran(scores, time.process_time() - begun, rows() - before)

        return cls(run, lambda batch: peak(partial(explain, batch)))


def peak(run: Callable[[], Any]) -> float:
    """Return the most MiB that tensors held at once during a run, without memory inside kernels.

    One token or one batch of the longest run shows the peak. The process's size says less on a CPU: freed memory
    stays with the process.
    """
    with Allocations() as held:
        run()
    return held.most / 2**20


class Loaded:
    """A model of Hugging Face, its tokenizer, and the number of rows that have passed through."""

    def __init__(self, given: Given) -> None:
        # Older versions of transformers read the base of rotary embeddings under its former name.
        config = AutoConfig.from_pretrained(given["model"])
        for name, value in (getattr(config, "rope_parameters", None) or {}).items():
            if name == "rope_theta":
                config.rope_theta = value
        how = {"config": config, "attn_implementation": given["attention"]}
        self.model: Any = AutoModelForCausalLM.from_pretrained(given["model"], **how).eval()
        fast = (Path(given["model"]) / "tokenizer.json").is_file()  # which older versions read under this name alone
        self.tokenizer: Any = (PreTrainedTokenizerFast if fast else AutoTokenizer).from_pretrained(given["model"])
        self.rows = 0
        self.model.register_forward_pre_hook(self.count, with_kwargs=True)
        assert self.tokenizer(given["text"]).input_ids == given["ids"], "the prompt's text is not the prompt"
        whole = self.tokenizer(given["text"] + given["answer"]).input_ids
        assert whole == [*given["ids"], given["target"]], "the answer is not the target"

    def count(self, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = [options.get("inputs_embeds"), options.get("input_ids"), *args]
        self.rows += len(next(one for one in given if one is not None))


def inseq(method: str, batched: str, given: Given, loaded: Loaded, **options: Any) -> Explain:
    import inseq

    def log_prob(args: Any, **_: Any) -> Tensor:
        return args.forward_output.logits[:, -1].log_softmax(-1)[:, given["target"]]

    inseq.register_step_function(fn=log_prob, identifier="log_prob", overwrite=True)
    explainer: Any = inseq.load_model(loaded.model, method, tokenizer=loaded.tokenizer)
    answered = given["text"] + given["answer"]

    def explain(batch: int) -> Tensor:
        found = explainer.attribute(
            given["text"], answered, show_progress=False, attributed_fn="log_prob", **{batched: batch}, **options
        )
        scores = found.sequence_attributions[0].target_attributions[: len(given["ids"]), 0]
        return scores.sum(-1) if scores.ndim > 1 else scores

    return explain


def attn_lrp(given: Given, loaded: Loaded) -> Explain:
    embeddings = loaded.model.get_input_embeddings()(torch.tensor([given["ids"]])).detach()

    def explain(_: int) -> Tensor:
        e = embeddings.clone().requires_grad_()
        loaded.model(inputs_embeds=e, use_cache=False).logits[0, -1, given["target"]].backward()
        return (e * e.grad).sum(-1)[0].detach()

    return explain


def patch_llama() -> None:
    images = {"vision_transformer": None, "cp_LRP": None}  # without these it would need torchvision
    sys.modules["lxt.efficient.models.vit_torch"] = cast(ModuleType, SimpleNamespace(**images))
    import lxt.efficient
    import lxt.efficient.models as models
    from transformers.models.llama import modeling_llama

    lxt.efficient.monkey_patch(modeling_llama, models.llama.attnLRP)


def context_cite(given: Given, loaded: Loaded) -> Explain:
    sys.modules["nltk"] = cast(ModuleType, SimpleNamespace(download=lambda _: None))  # sources are given
    sys.modules["spacy.lang.en"] = cast(ModuleType, SimpleNamespace(English=None))
    from context_cite import ContextCiter
    from context_cite.context_partitioner import BaseContextPartitioner

    class Sources(BaseContextPartitioner):
        def split_context(self) -> None: ...

        @property
        def num_sources(self) -> int:
            return len(given["sources"])

        def get_source(self, index: int) -> str:
            return given["sources"][index]

        def get_context(self, mask: Any = None) -> str:
            return "".join(s for k, s in enumerate(given["sources"]) if mask is None or mask[k])

    loaded.tokenizer.padding_side = "left"
    loaded.tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    context, begin = "".join(given["sources"]), loaded.tokenizer.bos_token

    def explain(batch: int) -> Tensor:
        citer: Any = ContextCiter(
            loaded.model, loaded.tokenizer, context, given["query"], batch_size=batch,
            prompt_template="{context}{query}", partitioner=Sources(context),
        )  # fmt: skip
        citer._cache["output"] = begin + context + given["query"] + given["answer"]
        weights, _ = citer._get_attributions_for_ids_range(0, 1)
        return torch.as_tensor(weights)

    return explain


def prepared(name: str, given: Given) -> Side:
    if name == "attn_lrp":
        patch_llama()
    loaded = Loaded(given)
    make: dict[str, Callable[[Given, Loaded], Explain]] = {
        "integrated_gradients": partial(inseq, "integrated_gradients", "internal_batch_size", n_steps=given["steps"]),
        "occlusion": partial(inseq, "occlusion", "perturbations_per_eval"),
        "attn_lrp": attn_lrp,
        "context_cite": context_cite,
    }
    return Side.of(make[name](given, loaded), lambda: loaded.rows)


def main(name: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not belong among the answers
    peer = prepared(name, json.loads((Path(folder) / "given.json").read_text()))
    for line in sys.stdin:
        what, batch = json.loads(line)
        if what == "peak":
            answer: Any = peer.peak(batch)
        else:
            ran = peer.run(batch)
            answer = [ran.scores.tolist(), ran.seconds, ran.rows]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
