"""About how much memory runs take: activations that are alive at once, on GPT-2- and Llama-shaped models."""

from typing import Any, NamedTuple

import psutil
import torch


class Sizes(NamedTuple):
    """The sizes of a model that its memory use depends on."""

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
        """Bytes of a forward run, without its graph: one layer's activations, all layers' keys and values."""
        patterns = 4 if self.itemsize >= 4 else 6  # half precision has softmaxes in float32
        layer = queries * (6 * self.d_model + 4 * self.d_mlp + patterns * self.heads * keys)
        times = 2 if queries < keys else 1  # a window's keys and values are joined with those kept
        return self.itemsize * (layer + 2 * times * self.layers * keys * self.d_model + 4 * read * self.vocabulary)

    def graph(self, queries: int, keys: int, *, checkpoint: bool = False) -> int:
        """Bytes of the graph of g's gradient; with ``checkpoint``, of one layer's, and what enters and leaves each."""
        layer = self.itemsize * queries * (20 * self.d_model + 10 * self.d_mlp + 6 * self.heads * keys)
        return layer + 2 * self._streams(queries) if checkpoint else self.layers * layer

    def product(self, queries: int, keys: int, *, checkpoint: bool = False) -> int:
        """Bytes of a Hessian-vector product beside its graph: it passes through the layers up, and down again."""
        layer = self.itemsize * queries * (8 * self.d_model + 3 * self.d_mlp + 4 * self.heads * keys)
        within = self.itemsize * queries * (14 * self.d_model + 7 * self.d_mlp + 16 * self.heads * keys)  # of a block
        return within + self._streams(queries) if checkpoint else self.layers * layer

    def _streams(self, queries: int) -> int:
        """Bytes of what enters every layer, in float32."""
        return 4 * self.layers * queries * self.d_model


def sizes_of(config: Any, layers: int, vocabulary: int, itemsize: int) -> Sizes:
    d = int(config.d_model)
    d_mlp = int(getattr(config, "d_mlp", None) or 4 * d)
    return Sizes(layers, d, d_mlp, int(config.n_heads), vocabulary, itemsize)


def available(device: torch.device) -> int:
    """Bytes that are free."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # for new tensors
        return torch.cuda.mem_get_info(device)[0] + reserved
    return psutil.virtual_memory().available
