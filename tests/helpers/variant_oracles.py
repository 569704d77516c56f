"""Slow float64 transcriptions of HETA's approximations and of the diagnostics of its theory.

    curvature    gauss_newton and squared_gradient in place of the Hessian, range_finder against best_rank,
                 frobenius_pairs and entrywise_pairs of the blocks between tokens
    runs         stream and log_probs_of_stream (the last layers alone), frozen_window (a window alone)
    windows      where they lie, and what a token gets from those that cover it
    diagnostics  faithfulness, calibration, additivity, envelope, leakage

Axes as in `oracles`, and: s columns of a test matrix, R subsets of tokens, W tokens of a window.
`g` is a scalar log-probability and `log_probs` all of them, both as functions of the embeddings.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float64, Int64
from torch import Tensor

from helpers.oracles import Hessian, Number, PerToken, eq4

Rows = Float64[Tensor, "Nd Nd"]  # a Hessian with token and coordinate in one axis
Pairs = Float64[Tensor, "N N"]
Embeddings = Float64[Tensor, "N d"]
Scalar = Float64[Tensor, ""]
PerSubset = Float64[Tensor, " R"]

Window = tuple[int, int]  # first token, one past the last
Hook = tuple[str, Callable[..., Tensor]]


# --- curvature ---------------------------------------------------------------------------------------------------


def gauss_newton(log_probs: Callable[[Tensor], Tensor], embeddings: Embeddings) -> Hessian:
    """G = -J^T F J with F = diag(p) - p p^T and J = d logits / d embeddings.

    It is the Hessian of log p_T without the second derivatives of the logits z:
    log p_T = z_T - log sum_v exp z_v, so H = sum_v (1[v = T] - p_v) H(z_v) - J^T F J.

    Log-probabilities stand for the logits, because they are z - c 1 with a scalar c that depends on the embeddings:
    their Jacobian is J - 1 (dc)^T, and F 1 = p - p (sum_v p_v) = 0, so F takes the second term away.
    (Of log-probabilities p^T J is zero as well, so that p p^T only matters with other logits.)
    """
    jacobian = torch.autograd.functional.jacobian(log_probs, embeddings)  # [V N d]
    p = log_probs(embeddings).detach().exp()
    fisher = p.diag() - torch.outer(p, p)
    return -einsum(jacobian, fisher, jacobian, "v i a, v w, w j b -> i a j b")


def squared_gradient(g: Callable[[Tensor], Tensor], embeddings: Embeddings) -> PerToken:
    """S_i = sum_c (d g / d e_ic)^2."""
    return torch.autograd.functional.jacobian(g, embeddings).square().sum(dim=-1)


def range_finder(
    hessian: Hessian, omega: Float64[Tensor, "N d s"], rank: int
) -> tuple[Hessian, Float64[Tensor, " rank"]]:
    """H_k = (Q U) diag(lam) (Q U)^T: Q spans Y = H Omega, and (lam, U) are eigenpairs of B = Q^T H Q.

    The k of largest |lam| are kept, largest first. Needs k <= s; where Y has fewer dimensions than columns, Q is
    filled up with directions of which B knows the truth as well.
    """
    matrix = _matrix(hessian)
    Q = torch.linalg.qr(matrix @ rearrange(omega, "i a s -> (i a) s")).Q
    B = Q.T @ matrix @ Q
    eigenvalues, U = _largest(0.5 * (B + B.T), rank)
    return _from_eigenpairs(eigenvalues, Q @ U, hessian), eigenvalues


def best_rank(hessian: Hessian, rank: int) -> tuple[Hessian, Float64[Tensor, " rank"]]:
    """The nearest matrix of this rank, and its eigenvalues: those of the Hessian of largest |lam|, largest first."""
    eigenvalues, vectors = _largest(_matrix(hessian), rank)
    return _from_eigenpairs(eigenvalues, vectors, hessian), eigenvalues


def tail_energy(hessian: Hessian, rank: int) -> Scalar:
    """tau_k = sqrt(sum_{j > k} sigma_j^2): the Frobenius norm of what no matrix of this rank can hold."""
    eigenvalues, _ = _largest(_matrix(hessian), hessian.shape[0] * hessian.shape[1])
    return eigenvalues[rank:].square().sum().sqrt()


def residual_energy(hessian: Hessian, approximation: Hessian) -> Scalar:
    """|| H - H_k ||_F, never below tau_k (Eckart and Young)."""
    return (hessian - approximation).square().sum().sqrt()


def _matrix(hessian: Hessian) -> Rows:
    return rearrange(hessian, "i a j b -> (i a) (j b)")


def _largest(matrix: Float64[Tensor, "n n"], rank: int) -> tuple[Float64[Tensor, " rank"], Float64[Tensor, "n rank"]]:
    """Eigenpairs of largest modulus, for the Hessian is indefinite."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    first = eigenvalues.abs().argsort(descending=True)[:rank]
    return eigenvalues[first], vectors[:, first]


def _from_eigenpairs(
    eigenvalues: Float64[Tensor, " rank"], vectors: Float64[Tensor, "Nd rank"], like: Hessian
) -> Hessian:
    return (vectors @ eigenvalues.diag() @ vectors.T).reshape(like.shape)


def frobenius_pairs(hessian: Hessian) -> Pairs:
    """|| H_ij ||_F of the block between tokens i and j."""
    return hessian.square().sum(dim=(1, 3)).sqrt()


def entrywise_pairs(hessian: Hessian) -> Pairs:
    """|| H_ij ||_{1,1}; its diagonal and its rows sum to the entrywise norms of `oracles`."""
    return hessian.abs().sum(dim=(1, 3))


# --- runs --------------------------------------------------------------------------------------------------------


def stream(model: Any, ids: Int64[Tensor, "1 N"], layer: int) -> Embeddings:
    """The residual stream that enters block `layer`; row i is a state at position i, not token i."""
    name = _entry(layer)
    return model.run_with_cache(ids, names_filter=[name])[1][name][0]


def log_probs_of_stream(model: Any, ids: Int64[Tensor, "1 N"], layer: int) -> Callable[[Embeddings], Tensor]:
    """The prediction as computed from that stream by the blocks from `layer` on."""
    return lambda states: _prediction(model, ids, [(_entry(layer), _write(states, start=0))])


def frozen_window(
    model: Any, ids: Int64[Tensor, "1 N"], start: int, stop: int, tail: int, layer: int | None = None
) -> Callable[[Float64[Tensor, "W d"]], Tensor]:
    """The prediction as a function of the embeddings of window [start, stop), with only it and the tail recomputed.

    Tokens start..stop-1 and tail..N-1 are computed anew. All others, before the window and between it and the tail,
    show in every layer the keys and values of the clean run; whatever else is computed for them, nobody reads.
    With `layer`, the argument replaces the window's rows of the stream that enters this block.

    Hooks on hook_k and hook_v take effect for every model of the zoo in both versions of TransformerLens (the tests
    compare with freezing the streams instead): grouped or fused, they lie before rotation and after biases, and where
    keys are normalised later, this is done position by position.
    """
    names = [f"blocks.{block}.attn.hook_{part}" for block, part in product(range(model.cfg.n_layers), "kv")]
    clean = model.run_with_cache(ids, names_filter=names)[1]
    live = torch.tensor([start <= i < stop or i >= tail for i in range(ids.shape[1])])
    freeze = [(name, _keep(clean[name], ~live)) for name in names]
    return lambda window: _prediction(model, ids, [(_entry(layer), _write(window, start)), *freeze])


def _entry(layer: int | None) -> str:
    return "hook_embed" if layer is None else f"blocks.{layer}.hook_resid_pre"


def _prediction(model: Any, ids: Int64[Tensor, "1 N"], hooks: list[Hook]) -> Float64[Tensor, " V"]:
    return model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1].log_softmax(dim=-1)


def _write(rows: Float64[Tensor, "W d"], start: int) -> Callable[..., Tensor]:
    """A hook that puts these rows at start, start + 1, ..."""

    def hook(live: Float64[Tensor, "1 N d"], hook: Any) -> Float64[Tensor, "1 N d"]:  # noqa: ARG001
        return torch.cat([live[:, :start], rows[None], live[:, start + len(rows) :]], dim=1)

    return hook


def _keep(clean: Float64[Tensor, "1 N G K"], frozen: Tensor) -> Callable[..., Tensor]:
    """A hook that shows the clean keys or values at the frozen positions."""

    def hook(live: Float64[Tensor, "1 N G K"], hook: Any) -> Float64[Tensor, "1 N G K"]:  # noqa: ARG001
        return torch.where(frozen[:, None, None], clean, live)

    return hook


# --- windows -----------------------------------------------------------------------------------------------------


def windows(n: int, size: int, overlap: Number) -> list[Window]:
    """Windows over tokens 0..n-1, a stride of size * (1 - overlap) apart; the last is moved back to end at n."""
    if size >= n:
        return [(0, n)]
    stride, found, start = max(1, round(size * (1 - overlap))), [], 0
    while start + size < n:
        found.append((start, start + size))
        start += stride
    return [*found, (n - size, n)]


def window_mean(values: list[Float64[Tensor, " _"]], windows: list[Window], n: int) -> Float64[Tensor, " n"]:
    """A token's mean over the windows that cover it; values[w] belongs to the tokens of windows[w]."""
    return torch.stack([torch.stack(_of_token(values, windows, i)).mean() for i in range(n)])


def most_central(values: list[Float64[Tensor, " _"]], windows: list[Window], n: int) -> Float64[Tensor, " n"]:
    """Each token's value in the window whose middle is nearest to it, the later of two as near."""
    middles = [(start + stop - 1) / 2 for start, stop in windows]
    nearest = [min(range(len(windows)), key=lambda k: (abs(middles[k] - i), -k)) for i in range(n)]
    return torch.stack([values[k][i - windows[k][0]] for i, k in enumerate(nearest)])


def _of_token(values: list[Tensor], windows: list[Window], i: int) -> list[Tensor]:
    return [v[i - start] for v, (start, stop) in zip(values, windows, strict=True) if start <= i < stop]


def window_gate(mass: PerToken, windows: list[Window]) -> PerToken:
    """The mass normalised in each window (uniform if it has none), averaged over windows, and normalised again."""
    average = window_mean([_normalised(mass[start:stop]) for start, stop in windows], windows, len(mass))
    return average / average.sum()


def _normalised(mass: Float64[Tensor, " W"]) -> Float64[Tensor, " W"]:
    return mass / mass.sum() if mass.sum() > 0 else torch.full_like(mass, 1 / len(mass))


# --- diagnostics -------------------------------------------------------------------------------------------------


def drop(
    g: Callable[[Tensor], Tensor], embeddings: Embeddings, mask_vector: Float64[Tensor, " d"], subset: Iterable[int]
) -> Scalar:
    """g(X) - g(X without R): what masking these tokens together takes from the log-probability."""
    masked = embeddings.clone()
    for i in subset:
        masked[i] = mask_vector
    return g(embeddings) - g(masked)


def faithfulness_errors(drops: PerSubset, sums: PerSubset) -> PerSubset:
    """L(Attr; R) = | g(X) - g(X without R) - sum_{i in R} Attr_i |, for each subset R."""
    return (drops - sums).abs()


def best_scale(drops: PerSubset, sums: PerSubset) -> Scalar:
    """argmin_{c >= 0} sum_R (drop - c sum)^2; zero when every sum is zero."""
    if not sums.any():
        return torch.zeros_like(sums.sum())
    return ((drops * sums).sum() / sums.square().sum()).clamp(min=0)


def nnls_by_enumeration(features: Float64[Tensor, "R 2"], drops: PerSubset) -> tuple[float, float]:
    """(beta, gamma) >= 0 of least squared error of beta * features[:, 0] + gamma * features[:, 1].

    At the minimum each weight is zero or free, so it is the best feasible one of the four such solutions. Where the
    features are multiples of each other, many are equally good and this is one of them.
    """
    candidates = [_least_squares(features, drops, free) for free in product((True, False), repeat=2)]
    feasible = [weights for weights in candidates if (weights >= 0).all()]  # no weights at all always are
    beta, gamma = min(feasible, key=lambda weights: float((features @ weights - drops).square().sum())).tolist()
    return beta, gamma


def _least_squares(features: Float64[Tensor, "R 2"], drops: PerSubset, free: tuple[bool, ...]) -> Float64[Tensor, "2"]:
    kept = features * torch.tensor(free, dtype=torch.float64)
    return torch.linalg.pinv(kept) @ drops  # the smallest solution: zero for a column of zeros


def additivity_gap(
    scores: PerToken, g: Callable[[Tensor], Tensor], embeddings: Embeddings, mask_vector: Float64[Tensor, " d"]
) -> Scalar:
    """| sum_i Attr_i - (g(X) - g(everything masked)) |."""
    return (scores.sum() - drop(g, embeddings, mask_vector, range(len(embeddings)))).abs()


def envelope(gate: PerToken, curvature: PerToken, drops: PerToken, beta: Number, gamma: Number) -> PerToken:
    """Env_i = M_i (beta S_i + gamma max(0, Delta_i)), with Delta_i the drop of token i alone."""
    return eq4(gate, curvature, drops.clamp(min=0), beta, gamma)


def envelope_share(information: PerToken, drops: PerToken) -> float:
    """The fraction of tokens with KL_i <= max(0, Delta_i), the condition for Attr <= Env.

    Never met where masking raises the log-probability, unless nothing changes.
    """
    met = [kl <= max(0.0, delta) for kl, delta in zip(information.tolist(), drops.tolist(), strict=True)]
    return sum(met) / len(met)


def leakage(gate: PerToken, windowed: PerToken) -> tuple[float, float]:
    """max_i |M[i] - M~[i]| and half the sum, the total variation; both gates sum to 1."""
    distance = (gate - windowed).abs()
    return float(distance.max()), 0.5 * float(distance.sum())
