"""The result of `components`: heads and MLPs that carry a change of tokens, and where the heads took it from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import isnan, nan
from os import PathLike
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util import storage
from heta_lens._util.html_view import View
from heta_lens._util.options import check_count
from heta_lens.diagnostics import rank_correlation
from heta_lens.model.hooks import pattern_name
from heta_lens.plots.circuit import Circuit, Node
from heta_lens.plots.circuitsvis_tokens import circuitsvis_heads
from heta_lens.prediction.cache import Activations

VERSION = 1  # of files
VERBS = {"restore": ("restore", "restores"), "knock_out": ("take away", "takes away")}
SHOWN = 4  # tokens and components that `repr` names
Direction: TypeAlias = Literal["restore", "knock_out"]


class Component(NamedTuple):
    """A head or an MLP (``head`` is None) at a position, with its estimate and its effect (NaN: it was not patched)."""

    layer: int
    head: int | None
    position: int
    token: str
    estimate: float
    effect: float

    @property
    def name(self) -> str:
        """Name in the field's notation: ``L0H1`` is head 1 of layer 0."""
        return f"L{self.layer} MLP" if self.head is None else f"L{self.layer}H{self.head}"

    def __str__(self) -> str:
        return f"{self.name} at {self.token!r} ({self.position})"

    def __repr__(self) -> str:
        return f"{self} " + (f"estimate {self.estimate:.3g}" if isnan(self.effect) else f"{self.effect:.3g}")


@dataclass(frozen=True, eq=False, repr=False)
class Components:
    """The heads and MLPs through which a change of tokens moves the target's number from ``clean`` to ``changed``.

    - ``estimates``: the screening of every component; a column per head, and the last for the MLP, if there are MLPs
    - ``found``: layer, position and column of the patched components, the largest ``effects`` first; ``opposite`` are
      their effects in the other direction, NaN if not asked for
    - ``together``: the share of the change after patching the first 1, 2, … of them together, until it is enough
    - ``sources``: the estimates of patched heads by source position, in two parts: what the change of the values did
      there, and what the change of the pattern did, with values relative to their mean under the pattern in the changed
      run (MLPs have zeros)
    - ``route_share``: the share of the change after patching the heads of the ``route`` together
    """

    kind: ClassVar[str] = "heta_lens.components"

    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    change: str
    answer: str
    quantity: str
    clean: float
    changed: float
    direction: Direction
    estimates: Float[Tensor, "layer pos column"]
    heads_per_layer: int
    found: Int[Tensor, "found 3"]
    effects: Float[Tensor, "found"]
    opposite: Float[Tensor, "found"]
    together: tuple[float, ...]
    sources: Float[Tensor, "found pos 2"]
    route_share: float
    options: Mapping[str, Any]
    forwards: int

    def top(self, k: int = 10) -> list[Component]:
        """Return the k patched components with the largest effects; if the target's number rises, the most negative."""
        check_count("k", k)
        rows = zip(self.found.tolist(), self.effects.tolist(), strict=True)
        return [self._component(place, effect) for place, effect in rows][:k]

    def at_changed(self, k: int = 10) -> list[Component]:
        """Return the k components at the changed tokens with the largest estimates, which were not patched.

        In early layers they hold the change itself, so they are not ranked against the others.
        """
        check_count("k", k)
        here = self.sign * self.estimates[:, list(self.positions)]
        order = torch.unravel_index(here.flatten().argsort(descending=True, stable=True)[:k], here.shape)
        rows = torch.stack(order, 1).tolist()
        return [self._component((layer, self.positions[place], column)) for layer, place, column in rows]

    def heads(self) -> list[tuple[int, int]]:
        """Return the (layer, head) of the components that reach the wanted share together, each head once."""
        nodes = self.top(len(self.together)) if self.together else []
        return [*dict.fromkeys((node.layer, node.head) for node in nodes if node.head is not None)]

    def taken_from(self, component: Component) -> pd.DataFrame:
        """Return a row per source position: what a patched head took from there, by its values and by its pattern."""
        place = [component.layer, component.position, component.head]
        if place not in (found := self.found.tolist()):
            raise ValueError(f"{component} is not one of the patched heads: give a head of top()")
        values, pattern = self.sources[found.index(place)].T.tolist()
        return pd.DataFrame({"token": self.tokens, "values": values, "pattern": pattern}).rename_axis("position")

    def to_frame(self) -> pd.DataFrame:
        """Return a row per component; those that were not patched have no effect."""
        every = pd.MultiIndex.from_product([*map(range, self.estimates.shape)], names=["layer", "position", "head"])
        frame = every.to_frame(index=False)
        frame["head"] = frame["head"].astype("Int64").mask(frame["head"] == self.heads_per_layer)
        frame["token"] = [self.tokens[place] for place in frame["position"]]
        frame["at_changed"] = frame["position"].isin(self.positions)
        frame["estimate"] = self.estimates.flatten().tolist()
        for name, values in {"effect": self.effects, "opposite": self.opposite}.items():
            column = torch.full_like(self.estimates, nan)
            column[tuple(self.found.T)] = values.to(column)
            frame[name] = column.flatten().tolist()
        return frame

    def plot(self) -> View:
        """Draw the patched components: tokens along, layers up, and the route of the change to the last token."""
        csv = {".csv": lambda: self.to_frame().to_csv(index=False)}
        return self.circuit.view(
            f"How {self.changed_tokens} reaches {self.answer}", self.claim, self.route_in_words, csv
        )

    @property
    def circuit(self) -> Circuit:
        together, read, sign = len(self.together), self.read_most, self.sign
        nodes = [
            Node(
                each.layer,
                each.position,
                "MLP" if each.head is None else f"H{each.head}",
                sign * each.effect,
                None if each.head is None else read[row],
                row < together,
            )
            for row, each in enumerate(self.top(len(self.found)))
        ]
        return Circuit(self.tokens, self.positions, len(self.estimates), self.answer, nodes, self.rows_of_route)

    def attention(self, cache: Any) -> View:
        """Show the patterns of the `heads` in the cache of the clean run, by circuitsvis."""
        if not (heads := self.heads()):
            raise ValueError("no head is among the components that were patched together: raise verify= or share=")
        patterns = Activations.of(cache).tensors
        if missing := {pattern_name(layer) for layer, _ in heads} - {*patterns}:
            raise ValueError(f"the cache has no {min(missing)}: run the model with run_with_cache(tokens) once more")
        n, cached = len(self.tokens), patterns[pattern_name(heads[0][0])].shape[-1]
        if cached < n:
            raise ValueError(f"the cache has {cached} positions, and these components are of a prompt of {n} tokens")
        shown = torch.stack([patterns[pattern_name(layer)][head, :n, :n] for layer, head in heads])
        names = [f"L{layer}H{head}" for layer, head in heads]
        return circuitsvis_heads(f"Heads from {self.changed_tokens} to {self.answer}", self.tokens, names, shown)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as tensors, everything else in the JSON header."""
        storage.save(path, self.kind, VERSION, {each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Components":
        """Return the result in a file of `save`; raise for foreign and damaged files."""
        return storage.load(path, cls.kind, VERSION, lambda stored: storage.check_record(cls, stored) or cls(**stored))

    @property
    def sign(self) -> int:
        """1 if the change lowers the target's number, else -1."""
        return 1 if self.clean > self.changed else -1

    @property
    def correlation(self) -> float:
        """Rank correlation of estimates and effects over the patched components."""
        return rank_correlation(self.estimates[tuple(self.found.T)], self.effects)

    @property
    def read_most(self) -> list[int]:
        """The position, from the first changed token to its own, that each patched component took most from."""
        first, places = min(self.positions), torch.arange(len(self.tokens), device=self.found.device)
        outside = (places < first) | (places > self.found[:, 1:2])
        return (self.sign * self.sources.sum(-1)).masked_fill(outside, -torch.inf).argmax(-1).tolist()

    @property
    def route(self) -> list[Component]:
        """The patched heads on the way from the changed tokens to the last one.

        From a head at the last token, each head leads to the position that it took most from, and there to a head of an
        earlier layer, until a changed token is reached; of several ways, the best head first. Empty if none leads on.
        """
        best = self.top(len(self.found))
        return [best[row] for row in self.rows_of_route]

    @property
    def rows_of_route(self) -> list[int]:
        """Rows of the `route` in ``found``."""
        heads = [(*place, row) for row, place in enumerate(self.found.tolist()) if self.sign * self.effects[row] > 0]

        @cache  # else every way to a dead end is walked again
        def way(at: int, below: int) -> list[int] | None:
            if at in self.positions:
                return []
            for layer, place, column, row in heads:
                leads = place == at and layer < below and column < self.heads_per_layer
                if leads and (earlier := way(self.read_most[row], layer)) is not None:
                    return [*earlier, row]
            return None

        return way(len(self.tokens) - 1, len(self.estimates)) or []

    @property
    def changed_tokens(self) -> str:
        named = [f"{self.tokens[place]!r} ({place})" for place in self.positions[:SHOWN]]
        return ", ".join(named + [f"{len(self.positions) - SHOWN} more"] * (len(self.positions) > SHOWN))

    @property
    def claim(self) -> str:
        """What the change does, and the share of it that the patched components account for together."""
        moves = "falls" if self.sign > 0 else "rises"
        moved = f"{self.quantity} of {self.answer} {moves} from {self.clean:.3g} to {self.changed:.3g}"
        few = f"{len(self.together)} of {len(self.found)} patched components together {VERBS[self.direction][0]} "
        share = f"{few}{self.together[-1]:.0%} of that" if self.together else "no patched component accounts for that"
        return f"With {self.changed_tokens} replaced by {self.change}, {moved}; {share}."

    @property
    def route_in_words(self) -> str:
        """The route in words, and the share of the change that its heads account for together."""
        heads, last = self.route, len(self.tokens) - 1
        if not heads:
            return "No route: no patched head at the last token leads back to the change by what each took most from."
        begin, it = self.read_most[self.rows_of_route[0]], "it" if len(heads) == 1 else "together they"
        names = [f"{each.name} at the last token" if each.position == last else str(each) for each in heads]
        arrows = " → ".join([f"{self.tokens[begin]!r} ({begin})", *names])
        return f"Route: {arrows}; {it} {VERBS[self.direction][len(heads) == 1]} {self.route_share:.0%}."

    def __repr__(self) -> str:
        first = self.top(max(1, len(self.together)))[:SHOWN]
        known = "" if isnan(self.correlation) else f"; rank correlation with the estimates {self.correlation:.2f}"
        largest = f"Largest effects: {', '.join(map(repr, first))}{known}"
        other = ", ".join(f"{effect:.3g}" for effect in self.opposite[: len(first)].tolist() if not isnan(effect))
        opposite = [f"In the other direction, in the same order: {other}"] if other else []
        return "\n".join([self.claim, self.route_in_words, largest, *opposite])

    def _component(self, place: Sequence[int], effect: float = nan) -> Component:
        layer, position, column = place
        head, estimate = None if column == self.heads_per_layer else column, self.estimates[layer, position, column]
        return Component(layer, head, position, self.tokens[position], float(estimate), effect)
