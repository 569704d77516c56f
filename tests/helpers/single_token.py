"""One token's curvature and information, computed naively."""

from typing import Any

import torch
from torch import Tensor

from helpers import oracles
from helpers.asking import plain_embeddings
from heta_lens.methods.heta.probes import rademacher

PROBES = 3


def reference(model: Any, ids: Tensor, target: int, i: int, read: int) -> tuple[float, float]:
    """S and I of token i, with nothing but full runs of the prompt as it is: a dense Hessian, and one masked run."""
    embeddings = plain_embeddings(model, ids)

    def log_probs(whole: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: whole[None].to(live))]  # noqa: ARG005
        return model.run_with_hooks(ids, fwd_hooks=replace)[0, read].log_softmax(-1)

    def objective(own: Tensor) -> Tensor:
        return log_probs(torch.cat([embeddings[:i], own, embeddings[i + 1 :]]))[target]

    block = oracles.dense_hessian(objective, embeddings[i : i + 1].clone(), functional=True)
    probes = rademacher(0, i, PROBES, embeddings.shape[1])[:, None]
    masked = embeddings.clone()
    masked[i] = 0
    with torch.no_grad():
        information = oracles.kl(log_probs(embeddings), log_probs(masked))
    return float(oracles.block_l1(block, probes).mean()), float(information)
