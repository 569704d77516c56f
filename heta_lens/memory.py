"""How much memory runs take, about: activations that are alive at once, on GPT-2- and Llama-shaped models."""

from typing import NamedTuple

import psutil
import torch


class Sizes(NamedTuple):
    """Of a model."""

    layers: int
    d_model: int
    d_mlp: int
    heads: int
    vocabulary: int
    itemsize: int

    def widest(self, queries: int, keys: int) -> int:
        """Bytes of the largest tensor in a layer."""
        return self.itemsize * queries * max(self.heads * keys, self.d_mlp)

    def forward(self, queries: int, keys: int, read: int = 1) -> int:
        """Bytes of a forward of some positions, without its graph: one layer, and every layer's keys and values."""
        layer = queries * (6 * self.d_model + 4 * self.d_mlp + 4 * self.heads * keys)
        return self.itemsize * (layer + 2 * self.layers * keys * self.d_model + 4 * read * self.vocabulary)

    def graph(self, queries: int, keys: int) -> int:
        """Bytes of the graph of g's gradient."""
        layer = queries * (20 * self.d_model + 10 * self.d_mlp + 6 * self.heads * keys)
        return self.itemsize * self.layers * layer

    def product(self, queries: int, keys: int) -> int:
        """Bytes of a product with H while it is taken, beside the graph: it visits the layers up, and down again."""
        layer = queries * (8 * self.d_model + 3 * self.d_mlp + 4 * self.heads * keys)
        return self.itemsize * self.layers * layer


def available(device: torch.device) -> int:
    """Bytes that are free."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # for tensors to come
        return torch.cuda.mem_get_info(device)[0] + held
    return psutil.virtual_memory().available
