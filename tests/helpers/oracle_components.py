"""`causal.components` by its definition: whole float64 runs with plain hooks, nothing of heta_lens.

A node is the z of a head at a position, or the output of an MLP at a position (the last column). Axes: L layers,
N positions, H heads, K width of a head, d width of the stream, C columns (heads, then the MLP, where there are MLPs).

    restore     Σ (clean − changed) · dg/dnode in the changed run      g(changed run with the clean node) − g(changed)
    knock_out   Σ (clean − changed) · dg/dnode in the clean run        g(clean) − g(clean run with the changed node)

With more steps the gradient is the mean over runs with embeddings base + s/S (other − base), s = 0..S−1.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Embeddings = Float64[Tensor, "N d"]
Direction = Literal["restore", "knock_out"]
Node = tuple[int, int, int]  # layer, position, column
Number = Callable[[Float64[Tensor, " V"]], Tensor]  # g, of the logits at the last position
Parts = tuple[Float64[Tensor, " N"], Float64[Tensor, "N K"]]  # of a head: a row of its pattern, and its values
Hooks = list[tuple[str, Callable[..., Any]]]


@dataclass(frozen=True, eq=False)
class Run:
    """What a run shows: g, nodes by hook name, and the pattern and the values of every head."""

    number: float
    nodes: dict[str, Tensor]
    patterns: Float64[Tensor, "L H N N"]
    values: Float64[Tensor, "L H N K"]


@dataclass(frozen=True, eq=False)
class Oracle:
    """A question: in which embeddings two runs of a model differ, and what is read from them."""

    model: Any
    ids: Int64[Tensor, "1 N"]
    other: Embeddings
    number: Number
    direction: Direction = "restore"
    steps: int = 1

    # --- runs ----------------------------------------------------------------------------------------------------
    @cached_property
    def embeddings(self) -> Embeddings:
        return embeddings_of(self.model, self.ids)

    @cached_property
    def clean(self) -> Run:
        return self._run(self.embeddings)

    @cached_property
    def changed(self) -> Run:
        return self._run(self.other)

    def _run(self, embeddings: Embeddings) -> Run:
        seen: dict[str, Tensor] = {}

        def note(live: Tensor, hook: Any, name: str) -> None:  # noqa: ARG001
            seen[name] = live[0].detach().double().clone()

        weights, read = ([f"blocks.{layer}.attn.hook_{what}" for layer in self.layers] for what in ("pattern", "v"))
        with torch.no_grad():
            number = float(self._g(embeddings, [(name, _named(note, name)) for name in self.names + weights + read]))
        patterns = torch.stack([seen[name] for name in weights])
        values = torch.stack([self._by_query(seen[name]) for name in read])
        return Run(number, {name: seen[name] for name in self.names}, patterns, values)

    def _by_query(self, values: Tensor) -> Float64[Tensor, "H N K"]:
        """The values that each head reads: neighbours share those of their group."""
        heads = self.model.cfg.n_heads
        split = values.reshape(len(values), -1, self.model.cfg.d_head)
        return torch.stack([split[:, head // (heads // split.shape[1])] for head in range(heads)])

    def _g(self, embeddings: Embeddings, hooks: Hooks) -> Tensor:
        replace = ("hook_embed", lambda live, hook: embeddings[None].to(live))  # noqa: ARG005
        return self.number(self.model.run_with_hooks(self.ids, fwd_hooks=[replace, *hooks])[0, -1].double())

    # --- nodes ---------------------------------------------------------------------------------------------------
    @property
    def layers(self) -> range:
        return range(self.model.cfg.n_layers)

    @cached_property
    def names(self) -> list[str]:
        """The hook points of all nodes."""
        outputs = [f"blocks.{layer}.hook_mlp_out" for layer in self.layers]
        without = getattr(self.model.cfg, "attn_only", False)
        return [f"blocks.{layer}.attn.hook_z" for layer in self.layers] + ([] if without else outputs)

    @property
    def shape(self) -> tuple[int, int, int]:
        mlps = len(self.names) // len(self.layers) - 1
        return len(self.layers), self.ids.shape[1], self.model.cfg.n_heads + mlps

    def _rows(self, shown: dict[str, Tensor], node: Node) -> tuple[str, Tensor]:
        """Where a node is read and written, and the entries at its position that are the node (a view)."""
        layer, position, column = node
        if column == self.model.cfg.n_heads:
            return (name := f"blocks.{layer}.hook_mlp_out"), shown[name][position]
        name = f"blocks.{layer}.attn.hook_z"
        return name, shown[name][position].reshape(self.model.cfg.n_heads, -1)[column]

    # --- estimates -----------------------------------------------------------------------------------------------
    @property
    def _ways(self) -> tuple[Embeddings, Embeddings]:
        """The embeddings of the run that is patched, and those of the other one."""
        return (self.embeddings, self.other) if self.direction == "knock_out" else (self.other, self.embeddings)

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """dg/dnode: the slope in what is added to every node."""
        base, other = self._ways
        total = {name: torch.zeros_like(node) for name, node in self.clean.nodes.items()}
        for step in range(self.steps):
            added = {name: torch.zeros_like(node).requires_grad_() for name, node in self.clean.nodes.items()}

            def add(live: Tensor, hook: Any, name: str, added: dict[str, Tensor] = added) -> Tensor:  # noqa: ARG001
                return live + added[name][None].to(live)

            hooks: Hooks = [(name, _named(add, name)) for name in self.names]
            g = self._g(base + step / self.steps * (other - base), hooks)
            slopes = torch.autograd.grad(g, [added[name] for name in self.names])
            for name, slope in zip(self.names, slopes, strict=True):
                total[name] += slope / self.steps
        return total

    @cached_property
    def estimates(self) -> Float64[Tensor, "L N C"]:
        found = torch.zeros(self.shape, dtype=torch.float64)
        for node in self.all_nodes():
            _, slope = self._rows(self.gradients, node)
            found[node] = (self._rows(self.clean.nodes, node)[1] - self._rows(self.changed.nodes, node)[1]) @ slope
        return found

    def all_nodes(self) -> Iterator[Node]:
        layers, length, columns = self.shape
        yield from product(range(layers), range(length), range(columns))

    # --- effects -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def effect(self, *nodes: Node, direction: Direction | None = None) -> float:
        """What patching these nodes together does."""
        if (direction or self.direction) == "knock_out":
            return self.clean.number - self._patched(self.embeddings, self.changed, nodes)
        return self._patched(self.other, self.clean, nodes) - self.changed.number

    def _patched(self, embeddings: Embeddings, source: Run, nodes: Iterable[Node]) -> float:
        hooks: Hooks = []
        for node in nodes:

            def put(live: Tensor, hook: Any, node: Node = node) -> Tensor:  # noqa: ARG001
                live = live.clone()
                name, rows = self._rows(source.nodes, node)
                self._rows({name: live[0]}, node)[1].copy_(rows)
                return live

            hooks.append((self._rows(source.nodes, node)[0], put))
        return float(self._g(embeddings, hooks))

    # --- sources -------------------------------------------------------------------------------------------------
    def sources(self, layer: int, position: int, head: int, *, relative: bool = True) -> Float64[Tensor, "N 2"]:
        """A head's estimate by source position: what the change of the values did there, and that of the pattern.

            values[s]    A'[s] q·(v[s] − v'[s])
            pattern[s]   (A[s] − A'[s]) q·(v[s] − m)      m = Σ A'[s] v'[s] / Σ A'[s]

        A and v are the pattern's row and the values of the clean run, A' and v' those of the changed run, q = dg/dz.
        As rows sum to 1, m takes nothing from the sum over s. Without it (not ``relative``), m = 0.
        """
        q, (pattern, values), (other_pattern, others) = self._parts(layer, position, head)
        gained = pattern - other_pattern
        m = other_pattern @ others / other_pattern.sum() if relative else torch.zeros_like(q)
        return torch.stack([other_pattern * ((values - others) @ q), gained * ((values - m) @ q)], dim=-1)

    def sink(self, layer: int, position: int, head: int) -> float:
        """What is missing from the sum of `sources`, if rows lose weight to a sink: its own share, with a value of 0.

        Nothing (but rounding) in other models.
        """
        q, (pattern, _), (other_pattern, others) = self._parts(layer, position, head)
        gained = (1 - pattern.sum()) - (1 - other_pattern.sum())
        return float(gained * (0 - other_pattern @ others / other_pattern.sum()) @ q)

    def _parts(self, layer: int, position: int, head: int) -> tuple[Tensor, Parts, Parts]:
        """dg/dz, and the pattern's row and the values of the clean and of the changed run."""
        clean, changed = (
            (run.patterns[layer, head, position], run.values[layer, head]) for run in (self.clean, self.changed)
        )
        return self._rows(self.gradients, (layer, position, head))[1], clean, changed


def embeddings_of(model: Any, ids: Int64[Tensor, "1 N"]) -> Embeddings:
    """The embeddings of a prompt, before positions are added."""
    seen: list[Tensor] = []
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=[("hook_embed", lambda live, hook: seen.append(live[0].clone()))])  # noqa: ARG005
    return seen[0]


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda live, hook: function(live, hook, name)
