"""HETA: Hessian-Enhanced Token Attribution (ICLR 2026), on one page.

    Attr(x_i → x_T) = M_T[i] · (β · S_i + γ · I_i)                                                         (Eq. 4)

M, the gate         how much attention-weighted value flows from token i to the prediction             gate.py
S, the curvature    how strongly log P(x_T) bends with token i's embedding                   (Eq. 2)   curvature.py
I, the information  how far the predicted distribution moves when token i is masked          (Eq. 3)   information.py
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.curvature import (
    Curvature,
    Norm,
    Support,
    check_enumerable,
    curvature,
    rademacher,
    squared_gradient,
)
from heta_lens.diagnostics import agreement, warn
from heta_lens.divergence import DIVERGENCES, Direction
from heta_lens.faithfulness import SUBSETS, drops, envelope, faithfulness, subsets, whole_drops
from heta_lens.gate import Flow, gate, value_norms
from heta_lens.hessian import OVERSAMPLING, LowRank, check_twice_differentiable, gaussian, low_rank, tail_energy
from heta_lens.information import Information, LogProbs, information
from heta_lens.masking import Mask, check_mask, mask_vector
from heta_lens.options import check_at_least, check_choice, check_literals
from heta_lens.parts import Balance, Parts
from heta_lens.pieces import Piece, WindowMode, pieces
from heta_lens.prediction import Prediction
from heta_lens.progress import Work, working
from heta_lens.windows import averaged, edge_gap, leakage, window_gate, windows

Variant: TypeAlias = Literal[
    "full", "lr", "ls", "win", "lr+win", "ls+win", "gs", "gn",
    "transition_only", "hessian_only", "kl_only", "no_gate", "uniform_gate",
]  # fmt: skip


class Terms(NamedTuple):
    """What a variant makes of Eq. 4, and β and γ where they are not the caller's to choose."""

    curvature: Literal["hessian", "low_rank", "last_layers", "squared_gradient", "gauss_newton", "none"] = "hessian"
    windowed: bool = False
    gate: Literal["flow", "uniform", "none"] = "flow"
    weights: tuple[int, int] | None = None

    @property
    def cheaper(self) -> bool:
        """Whether it approximates the full method, instead of leaving a part of it out."""
        return self.windowed or self.curvature not in ("hessian", "none")

    @property
    def unused(self) -> set[str]:
        """Options that mean nothing to this variant."""
        nothing = {
            "rank": self.curvature != "low_rank",
            "layers": self.curvature != "last_layers",
            **dict.fromkeys(("window", "overlap", "window_mode", "window_gate"), not self.windowed),
            **dict.fromkeys(
                ("probes", "support", "norm", "interactions"), self.curvature in ("none", "squared_gradient")
            ),
            **dict.fromkeys(("flow", "value_norm"), self.gate != "flow"),
            "kl": self.weights is not None and self.weights[1] == 0,
        }
        return {name for name, unused in nothing.items() if unused}


VARIANTS: dict[Variant, Terms] = {
    "full": Terms(),
    # Cheaper: a part of H, H of a part of the model, windows of the context, or another matrix in H's place.
    "lr": Terms("low_rank"),
    "ls": Terms("last_layers"),
    "win": Terms(windowed=True),
    "lr+win": Terms("low_rank", windowed=True),
    "ls+win": Terms("last_layers", windowed=True),
    "gs": Terms("squared_gradient"),
    "gn": Terms("gauss_newton"),
    # The paper's ablations. Its "Hessian only" and "KL only" keep the gate.
    "transition_only": Terms("none", weights=(0, 0)),
    "hessian_only": Terms(weights=(1, 0)),
    "kl_only": Terms("none", weights=(0, 1)),
    "no_gate": Terms(gate="none"),
    "uniform_gate": Terms(gate="uniform"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The authors' released code: windows run as prompts of their own, each with a gate of its own.
    "released": {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"},
}
IN_TITLE = ("variant", "balance", "support", "norm", "flow")  # what makes it another score, if not the default


@dataclass(frozen=True, eq=False)
class Heta:
    """HETA with these options: ``Heta(beta=1.0)(prediction)`` gives an `Attribution` with scores ≥ 0.

    The curvature costs ``probes`` Hessian–vector products a token (``support="row"``: in all), the information one
    masked forward a token, the gate arithmetic on the cache only. A part whose weight is 0 is not computed. An option
    that means nothing to a variant is refused.

    - ``variant``: ``full``; cheaper: ``lr`` (low rank), ``ls`` (last layers), ``win`` (windows), ``lr+win``,
      ``ls+win``, ``gs`` (squared gradient for S), ``gn`` (Gauss–Newton for H); ablated: ``transition_only`` (the gate
      alone), ``hessian_only`` and ``kl_only`` (one part, gated), ``no_gate``, ``uniform_gate``
    - ``beta``, ``gamma``: weights of curvature and information
    - ``balance``: divide each part by its ``sum`` or ``max`` over the context first, or by nothing (``none``)
    - ``probes``, ``seed``: random sign vectors a token, and where they come from
    - ``support``: probe each token alone (``block``), or all tokens at once (``row``)
    - ``norm``: ``hutchinson`` (Eq. 2), ``exact`` (its expectation, tiny models), ``entrywise`` (the appendix's norm)
    - ``rank``: eigenvectors that ``lr`` keeps; it costs 2 (rank + 8) + probes products in all (a window)
    - ``layers``: how many of the last layers ``ls`` differentiates; token i is then its stream's state where they begin
    - ``window``, ``overlap``: tokens in a window, and the share of them that the next one sees again
    - ``window_mode``: ``frozen`` (the window and the last 16 tokens react, all else keeps its keys and values),
      ``restrict`` (nothing is frozen: only the gate knows windows), ``chunk`` (the window is a prompt of its own)
    - ``window_gate``: one gate (``global``), or each window's own, averaged (``per_window``)
    - ``flow``, ``value_norm``: how value flow reaches the prediction; the order of the values' norm
    - ``mask``, ``kl``: what a masked token becomes; the divergence and its direction
    - ``interactions``: also how strongly each pair of tokens bends log P together, ``attribution.interactions``
    - ``audit``: also measure what costs runs of its own: how well scores add up to the effect of masking sets of
      tokens; for a cheaper variant, its distance from ``full``
    - ``batch``: copies of the context alive at once; a smaller one needs less memory and changes nothing else
    - ``progress``: show a progress bar; None shows it on a terminal or in a notebook
    """

    variant: Variant = "full"
    beta: float | int = 0.5
    gamma: float | int = 0.5
    balance: Balance = "none"
    probes: int = 10
    support: Support = "block"
    norm: Norm = "hutchinson"
    rank: int = 64
    layers: int | None = None
    window: int = 512
    overlap: float | int = 0.5
    window_mode: WindowMode = "frozen"
    window_gate: Literal["global", "per_window"] = "global"
    flow: Flow = "suffix"
    value_norm: Literal[1, 2] = 1
    mask: Mask = "zero"
    kl: Direction = "orig_masked"
    interactions: bool = False
    audit: bool = False
    seed: int = 0
    batch: int | Literal["auto"] = "auto"
    progress: bool | None = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Heta":
        """The ``paper``'s reading (the default), or that of the authors' ``released`` code."""
        check_choice("preset", name, PRESETS)
        return cls(**PRESETS[name] | changes)

    def __post_init__(self) -> None:
        check_literals(self)
        check_mask(self.mask)
        for name, least in (("beta", 0), ("gamma", 0), ("overlap", 0)):
            check_at_least(name, getattr(self, name), least)
        for name, least in (("probes", 1), ("rank", 1), ("window", 2), ("seed", 0)):
            check_at_least(name, getattr(self, name), least, whole=True)
        for name, absent in (("batch", "auto"), ("layers", None)):
            if getattr(self, name) != absent:
                check_at_least(name, getattr(self, name), 1, whole=True)
        for name in ("interactions", "audit"):
            check_choice(name, getattr(self, name), (True, False))
        if self.overlap >= 1:
            raise ValueError(f"overlap={self.overlap!r} must be below 1: the next window has to get somewhere")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that contradict each other, or that this variant would ignore."""
        variant = f"variant={self.variant!r}"
        for name, value in self._chosen.items():
            if name in self.terms.unused:
                raise ValueError(f"{name}={value!r} means nothing with {variant}: leave it out")
        if self.terms.curvature == "last_layers" and self.layers is None:
            raise ValueError(f"{variant} needs layers=, how many of the last layers to differentiate")
        if self.terms.weights is not None and (self.beta, self.gamma) != (0.5, 0.5):
            raise ValueError(f"{variant} fixes beta and gamma: leave them out, or use variant='full'")
        if self.beta == self.gamma == 0:
            raise ValueError("beta=0 and gamma=0 leave nothing to score; for the gate alone, variant='transition_only'")
        if self.interactions and self.beta == 0:
            raise ValueError("interactions=True comes from the curvature, which beta=0 leaves out")
        if self.interactions and self.terms.windowed:
            raise ValueError(f"interactions=True does not go with {variant}: tokens far apart share no window")
        if self.interactions and (self.support, self.norm) == ("row", "hutchinson"):
            raise ValueError("interactions=True does not go with support='row', whose probes cannot tell tokens apart")

    @property
    def terms(self) -> Terms:
        return VARIANTS[self.variant]

    @property
    def _chosen(self) -> dict[str, Any]:
        """Options that are not the default."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if not _same(value, default)}

    @property
    def _weights(self) -> tuple[float | int, float | int]:
        return self.terms.weights or (self.beta, self.gamma)

    # ------------------------------------------------------------------------------------------------- explaining
    def __call__(self, prediction: Prediction) -> Attribution:
        return self.each([prediction])[0]

    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain predictions of one prompt, shorter contexts first; they share masked forwards where they can."""
        for prediction in predictions:
            self.check(prediction)
        alone = self.terms.windowed or (isinstance(self.mask, str) and self.mask == "mean")
        groups = [[prediction] for prediction in predictions] if alone else [predictions]  # other windows, other masks
        with predictions[0].running(), working(self._work(groups), self.progress) as work:
            results = [result for group in groups for result in self._explain(group, work)]
        for name in sorted({name for result in results for name in result.diagnostics["weak_parts"]}):
            warn(
                f"{name} makes up less than 1 % of this score, which therefore says next to nothing about it; "
                "diagnostics['share'] has the figures, and balance='sum' gives every part the same total"
            )
        return results

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, what cannot be done for this prediction."""
        layers = prediction.lens.layers
        if self.layers is not None and self.layers > layers:
            raise ValueError(f"layers={self.layers} is more than the {layers} layers this model has")
        if self.terms.curvature == "gauss_newton" and isinstance(prediction.target, tuple):
            raise ValueError("variant='gn' cannot contrast: log p(a) - log p(b) is affine in the logits; use 'full'")
        if self.terms.windowed and self.window_mode == "chunk" and prediction.prompt.user_hooks:
            raise ValueError(
                "window_mode='chunk' runs parts of the prompt alone, where hooks on the model would find other "
                "positions: use 'frozen' or 'restrict'"
            )
        if self._weights[0] and self.norm == "exact":
            check_enumerable(len(self._spans(prediction)[0]), prediction.embeddings.shape[1], self.support)
        mask_vector(self.mask, prediction.embeddings, prediction.lens.embedding_table)

    def _explain(self, targets: Sequence[Prediction], work: Work) -> list[Attribution]:
        """Explain predictions that share masked forwards."""
        beta, gamma = self._weights
        places = [self._pieces(target) for target in targets]
        gates = [self._gate(*asked) for asked in zip(targets, places, strict=True)]
        if beta and self.terms.curvature != "squared_gradient":
            self._check_twice(places[0][-1])
        shared = work.step()
        effects = whole_drops(targets, self.mask, partial(shared.add, "forwards"))
        seen = self._information(targets, places[-1], shared) if gamma else [None] * len(targets)
        spent, results = shared.cost(), []
        for target, place, (flow, facts), effect, found in zip(targets, places, gates, effects, seen, strict=True):
            own = work.step()
            bent, missed = self._curvature(target, place, own) if beta else (None, {})
            parts = Parts(flow, bent and bent.samples, found and found.divergence, beta, gamma)
            score = parts.score(self.balance)
            for name, part in {**parts.means(), "the score": score}.items():
                target.check_finite(name, part)
            facts |= missed | parts.diagnostics(self.balance)
            facts["additivity_gap"] = abs(float(score.sum()) - effect)
            if found is not None:
                facts |= self._envelope(parts, found)
            if self.audit:
                facts |= self._audit(target, score, own)
            if isinstance(target.target, tuple) and gamma:
                facts["note"] = "information is about the whole next-token distribution, not about the contrast"
            facts |= {"probes": self.probes, "chosen": self._in_title, "forwards_shared_by": len(targets)}
            facts |= {kind: spent.get(kind, 0) + units for kind, units in own.cost().items()}
            pairs = None
            if bent is not None and bent.pairs is not None:
                pairs, facts["standard_errors"]["interactions"] = bent.pairs
            results.append(target.attribution("heta", score, parts.means(), self._options, facts, pairs))
        return results

    def _pieces(self, prediction: Prediction) -> list[Piece]:
        layer = None if self.layers is None else prediction.lens.layers - self.layers
        size = self.window if self.terms.windowed else None
        return pieces(prediction, size, self.overlap, self.window_mode, layer)

    # ----------------------------------------------------------------------------------------------- the three parts
    def _gate(self, prediction: Prediction, place: list[Piece]) -> tuple[Float[Tensor, "pos"], dict[str, Any]]:
        """M, and what there is to say about its flow and about what windows make of it."""
        if self.terms.gate != "flow":
            ones = torch.ones_like(prediction.embeddings[:, 0])
            return (ones / len(ones) if self.terms.gate == "uniform" else ones), {}
        whole, total = self._flow(prediction)
        if not self.terms.windowed:
            return whole, {"gate_total": total}
        spans, flow = windows(len(whole), self.window, self.overlap), whole
        if self.window_gate == "per_window" and self.window_mode == "chunk":
            flow = window_gate([self._flow(piece.prediction)[0] for piece in place], spans, len(whole))
        elif self.window_gate == "per_window":
            flow = window_gate([whole[slice(*span)] for span in spans], spans, len(whole))
        return flow, {"gate_total": total, "windows": len(spans), "window_leakage": leakage(whole, flow)}

    def _flow(self, prediction: Prediction) -> tuple[Float[Tensor, "pos"], float]:
        heads = zip(prediction.values, prediction.output_weights, strict=True)
        norms = [value_norms(values, output, self.value_norm) for values, output in heads]
        return gate(prediction.patterns, norms, self.flow)

    def _curvature(self, prediction: Prediction, place: list[Piece], work: Work) -> tuple[Curvature, dict[str, Any]]:
        """S, averaged over windows, and what a low rank leaves out of H."""
        bent, lows = zip(*[self._bent(piece, work) for piece in place], strict=True)
        samples = averaged([one.samples for one in bent], [piece.window for piece in place], len(prediction))
        return Curvature(samples, bent[0].pairs), tail_energy([low for low in lows if low is not None])

    def _bent(self, piece: Piece, work: Work) -> tuple[Curvature, LowRank | None]:
        """S of one piece; and for a low rank, the H it was read off."""
        if self.terms.curvature == "squared_gradient":
            return Curvature(squared_gradient(piece.gradient()), None), None
        states, prompt = piece.states, piece.prediction.prompt
        done, first = partial(work.add, "hvps"), piece.window.start
        columns_from = piece.columns_from(self.terms.curvature == "gauss_newton", prompt.batch(self.batch), done)

        def probes(i: int) -> Float[Tensor, "probe d"]:
            return rademacher(self.seed, first + i, self.probes, states.shape[1]).to(states)

        how = partial(curvature, embeddings=states, probes=probes, support=self.support, norm=self.norm)
        if self.terms.curvature != "low_rank":
            return how(columns_from, chunk=prompt.chunk, pairs=self.interactions), None
        every = torch.stack([probes(i) for i in range(len(states))], 1)
        low = low_rank(columns_from(0), self.rank, partial(gaussian, self.seed, first), every)
        own = self.support == "block" and not self.interactions  # a token's own block is all that is looked at
        cut = partial(low.columns_from, length=1 if own else None)
        return how(cut, chunk=1 if own else len(states), pairs=self.interactions), low

    def _check_twice(self, piece: Piece) -> None:
        """Try one probe, on the last token, where a run is shortest."""
        asked, place = piece.prediction, len(piece.prediction) - 1
        last = asked.states(piece.layer)[-1:]
        probe = rademacher(self.seed, place, 1, last.shape[1]).to(last)
        # Half precision cannot tell the steps apart; and hooks may stop or change gradients as they like.
        compare = asked.lens.token_weights.dtype.itemsize >= 4 and not asked.prompt.user_hooks
        check_twice_differentiable(asked.objective_from(place, layer=piece.layer), last, probe, compare)

    def _information(self, targets: Sequence[Prediction], place: list[Piece], work: Work) -> list[Information]:
        """I and each masked token's effect on g, for every target: of windows there is only one."""
        found = [self._masked(targets, piece, work) for piece in place]
        spans, longest = [piece.window for piece in place], len(targets[-1])
        divergences, effects = (averaged(parts, spans, longest) for parts in zip(*found, strict=True))
        rows = zip(targets, divergences, effects, strict=True)
        return [Information(divergence[: len(one)], effect[: len(one)]) for one, divergence, effect in rows]

    @torch.no_grad()
    def _masked(self, targets: Sequence[Prediction], piece: Piece, work: Work) -> Information:
        asked = piece.prediction
        targets = targets if len(targets) > 1 else [asked]
        prompt, lengths = asked.prompt, [len(target) - piece.start for target in targets]

        def log_probs_from(at: int) -> LogProbs:
            start = piece.start + at
            read = [len(target) - 1 for target in targets if len(target) > start]
            return prompt.log_probs_from(start, read=read, stop=piece.stop)

        return information(
            log_probs_from,
            asked.embeddings[piece.start : piece.stop],
            mask_vector(self.mask, asked.embeddings, asked.lens.embedding_table),
            torch.stack([target.log_probs for target in targets]),
            [target.objective for target in targets],
            DIVERGENCES[self.kl],
            lengths=lengths,
            chunk=min(prompt.batch(self.batch, len(targets)), prompt.chunk),
            done=partial(work.add, "forwards"),
        )

    # ------------------------------------------------------------------------------------------- what it is worth
    def _envelope(self, parts: Parts, seen: Information) -> dict[str, Any]:
        """Each masked token's drop of g, and the paper's bound on scores that stands on it."""
        gain, share = envelope(seen.divergence, seen.drop)
        return {"drop": seen.drop, "envelope": replace(parts, information=gain).score("none"), "envelope_share": share}

    def _audit(self, prediction: Prediction, score: Float[Tensor, "pos"], work: Work) -> dict[str, Any]:
        """How well scores add up; and, for a cheaper variant, how far they are from the full one's."""
        members = subsets(self.seed, len(prediction)).to(score.device)
        dropped = drops(prediction, self.mask, members, self.batch, partial(work.add, "audit"))
        facts: dict[str, Any] = {"faithfulness": faithfulness(dropped, members.to(score) @ score, self.seed)}
        if self.terms.cheaper:
            full = self._full(prediction).scores.to(score)
            facts["against_full"] = agreement(score, full)
            if self.terms.windowed:
                spans = windows(len(score), self.window, self.overlap)
                facts["against_full"]["near_edges"] = edge_gap(full, score, spans)
        return facts

    def _full(self, prediction: Prediction) -> Attribution:
        kept = {name: value for name, value in self._chosen.items() if name not in Terms().unused}
        full = Heta(**kept | {"variant": "full", "interactions": False, "audit": False})
        with warnings.catch_warnings():  # of weak parts, which it has in common with what is audited
            warnings.simplefilter("ignore", UserWarning)
            return full(prediction)

    @property
    def _in_title(self) -> dict[str, Any]:
        return {name: value for name, value in self._chosen.items() if name in IN_TITLE}

    @property
    def _options(self) -> dict[str, Any]:
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "progress"}
        return options | ({"mask": self.mask.detach().clone()} if isinstance(self.mask, Tensor) else {})

    def _work(self, groups: Sequence[Sequence[Prediction]]) -> dict[str, int]:
        """What lies ahead, for the progress bar."""
        work = Counter[str]()
        for group in groups:
            work["forwards"] += 1 + sum(map(len, self._spans(group[-1]))) * bool(self._weights[1])
            for prediction in group:
                work["hvps"] += sum(self._hvps(len(span), prediction) for span in self._spans(prediction))
                work["audit"] += (len(prediction) + SUBSETS) * self.audit
        return dict(work)

    def _spans(self, prediction: Prediction) -> list[range]:
        pieced = self.terms.windowed and self.window_mode != "restrict"
        n = len(prediction)
        return [range(*span) for span in windows(n, self.window if pieced else n, self.overlap)]

    def _hvps(self, tokens: int, prediction: Prediction) -> int:
        d = prediction.embeddings.shape[1]
        if not self._weights[0] or self.terms.curvature == "squared_gradient":
            return 0
        if self.terms.curvature == "low_rank":
            return 2 * min(self.rank + OVERSAMPLING, tokens * d) + self.probes
        if self.norm != "hutchinson":
            return d * tokens
        return self.probes * (1 if self.support == "row" else tokens)


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, Tensor) and value == default
