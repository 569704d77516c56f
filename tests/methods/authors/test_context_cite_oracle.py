"""ContextCite next to its authors' package, wherever that is installed: ``make oracles`` does so.

On import it downloads a sentence splitter, which sources that are given do without: stand-ins keep it off the network.
"""

import copy
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso

from helpers import zoo
from helpers.asking import predict
from heta_lens._util.text import sentences
from heta_lens.methods.surrogates import ContextCite
from heta_lens.prediction.prediction import prompt_generator

with pytest.MonkeyPatch.context() as stand_ins:
    stand_ins.setitem(sys.modules, "nltk", SimpleNamespace(download=lambda _: None))
    stand_ins.setitem(sys.modules, "spacy.lang.en", SimpleNamespace(English=None))
    theirs, citing, partitioner, solver, utils = (
        pytest.importorskip(f"context_cite{part}")
        for part in ("", ".context_citer", ".context_partitioner", ".solver", ".utils")
    )

CONTEXT = "The cat sat on the mat. Is the dog in Rome? No, the tower is in Rome!"
QUERY, ANSWER = " The capital of", " Italy is Rome."


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code in float64, and their fit until it stands still: it stops at a gap of 1e-4 of the values' squares."""
    double = SimpleNamespace(**{**vars(np), "float32": np.float64})
    monkeypatch.setattr(solver, "np", double)
    monkeypatch.setattr(solver, "Lasso", partial(Lasso, tol=1e-12, max_iter=10**6))
    monkeypatch.setattr(utils, "np", double)
    zeros = partial(torch.zeros, dtype=torch.float64)
    monkeypatch.setattr(utils, "ch", SimpleNamespace(**{**vars(torch), "zeros": zeros}))


# ------------------------------------------------------------------------------------------------------ the whole way
class Given(partitioner.BaseContextPartitioner):
    """Sources as heta_lens splits them, with the white space before each, so that their tokens stay what they are."""

    def split_context(self) -> None: ...

    @property
    def num_sources(self) -> int:
        return len(sentences(self.context))

    def get_source(self, index: int) -> str:
        return self.context[slice(*sentences(self.context)[index])]

    def get_context(self, mask: Any = None) -> str:
        return "".join(s for k, s in enumerate(self.sources) if mask is None or mask[k])


def citer(family: str, samples: int, keep: float) -> Any:
    """Theirs, of an answer that is given."""
    tokenizer = copy.deepcopy(zoo.tokenizer())
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    made = theirs.ContextCiter(
        zoo.huggingface(family), tokenizer, CONTEXT, QUERY, num_ablations=samples, ablation_keep_prob=keep,
        prompt_template="{context}{query}", partitioner=Given(CONTEXT),
    )  # fmt: skip
    made._cache["output"] = tokenizer.bos_token + CONTEXT + QUERY + ANSWER
    return made


@pytest.mark.usefixtures("exactly")
@pytest.mark.filterwarnings("ignore:.*autocast.*:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])  # whose bridges give the very same logits
@pytest.mark.parametrize(("samples", "keep"), [(64, 0.5), (20, 0.7)])
def test_every_token_of_an_answer_is_cited_alike(
    family: str, samples: int, keep: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their one set of ablations serves a whole answer; here each token has its own, so theirs begin at its seed."""
    their = citer(family, samples, keep)
    prompt, answer = their._get_prompt_ids(), their._response_ids
    query = len(zoo.tokenizer().encode(QUERY, add_special_tokens=False))
    assert len(answer) > 2 and their.num_sources == 3
    for k, token in enumerate(answer):
        ids = torch.tensor([prompt + answer[:k]])
        method = ContextCite(query=((len(prompt) - query, ids.shape[1]),), samples=samples, keep=keep)
        some = method(predict(zoo.bridge(family), ids, token)).diagnostics
        begin = partial(utils.get_masks_and_logit_probs, base_seed=int(prompt_generator(0, ids[0]).integers(2**31)))
        monkeypatch.setattr(citing, "get_masks_and_logit_probs", begin)
        their = citer(family, samples, keep)
        weights, intercept = their._get_attributions_for_ids_range(k, k + 1)
        assert some["sources"] == [source.strip() for source in their.sources]
        close = max(1e-7, zoo.tolerance(f"bridge-{family}"))  # Hugging Face has some norms in float32
        assert some["source_scores"] == pytest.approx(weights, rel=close, abs=1e-9)
        assert some["intercept"] == pytest.approx(intercept, rel=close)
