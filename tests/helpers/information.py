import torch
from torch import Tensor


def random_log_probs(rows: int, vocab: int, *, spread: float = 1.0, seed: int = 0) -> Tensor:
    logits = torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (spread * logits).log_softmax(-1)
