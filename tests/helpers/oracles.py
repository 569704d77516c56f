"""Slow float64 transcriptions of HETA's definitions, of its approximations and diagnostics, to test fast code against.

Curvature (dense Hessians, Eq. 2, exact expectations, Gauss–Newton, low ranks, pairs), gate (every path is listed, no
matrix is multiplied), information (Eq. 3, one forward a token), score (Eq. 4), runs of frozen windows and of the last
layers, windows, diagnostics, groups that share products; and toys: small models with answers worked out by hand.

Axes: N context tokens, d embedding width, V vocabulary, m probes, L layers, H query heads, G key/value heads,
K width of a head, s columns of a test matrix, R subsets of tokens, W tokens of a window. The prediction is read at the
last context position, N - 1. Patterns have queries as rows.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, permutations, product
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float64, Int64
from torch import Tensor

Hessian = Float64[Tensor, "N d N d"]
PerToken = Float64[Tensor, " N"]
Pattern = Float64[Tensor, "H N N"]  # one layer: head, query, key
Number = int | float
Matrix = list[list[float]]  # plain numbers: a pattern of one head, a block
Flow = str  # suffix | rollout | direct | prefix_head
Direction = str  # orig_masked | masked_orig | js


# --- curvature ---------------------------------------------------------------------------------------------------
def dense_hessian(
    g: Callable[[Tensor], Tensor], embeddings: Float64[Tensor, "N d"], *, functional: bool = False
) -> Hessian:
    """H_T = second derivative of g = log P(x_T | x_<T) in the context embeddings (unnumbered, above Eq. 2).

    `functional` differentiates twice in reverse mode, for models that cannot run under torch.func.
    """
    if functional:
        return torch.autograd.functional.hessian(g, embeddings)
    with warnings.catch_warnings():
        # The first use of forward mode makes torch import decompositions through its own deprecated script compiler.
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
        return torch.func.hessian(g)(embeddings)


def block_l1(hessian: Hessian, signs: Float64[Tensor, "m N d"]) -> Float64[Tensor, "m N"]:
    """Eq. 2 before its mean over k: || Pi_i H Pi_i r_k ||_1 for the given r_k."""
    return torch.stack([_stack(_one_block_l1(hessian, probe, i) for i in range(len(hessian))) for probe in signs])


def _one_block_l1(hessian: Hessian, probe: Float64[Tensor, "N d"], i: int) -> Float64[Tensor, ""]:
    selected = torch.zeros_like(probe)
    selected[i] = probe[i]  # Pi_i r_k
    return _apply(hessian, selected)[i].abs().sum()


def row_l1(hessian: Hessian, signs: Float64[Tensor, "m N d"]) -> Float64[Tensor, "m N"]:
    """|| Pi_i H r_k ||_1: like Eq. 2, but r_k lives on all tokens, so cross-token blocks count too."""
    return torch.stack([_apply(hessian, probe).abs().sum(dim=-1) for probe in signs])


def _apply(hessian: Hessian, vector: Float64[Tensor, "N d"]) -> Float64[Tensor, "N d"]:
    return einsum(hessian, vector, "i a j b, j b -> i a")


def expected_block_l1(hessian: Hessian, *, chunk: int = 4096) -> PerToken:
    """E || Pi_i H Pi_i r ||_1, what Eq. 2 converges to: the mean over all 2^d sign vectors of a block."""
    return _stack(_expected_l1(hessian[i, :, i, :], chunk) for i in range(len(hessian)))


def expected_row_l1(hessian: Hessian, *, chunk: int = 4096) -> PerToken:
    """E || Pi_i H r ||_1: the mean over all 2^(N d) sign vectors, so for a handful of coordinates only."""
    rows = rearrange(hessian, "i a j b -> i a (j b)")
    return _stack(_expected_l1(row, chunk) for row in rows)


def _expected_l1(matrix: Float64[Tensor, "rows n"], chunk: int) -> Float64[Tensor, ""]:
    length = matrix.shape[1]
    sums = [einsum(matrix, signs, "rows n, m n -> m rows").abs().sum() for signs in sign_vectors(length, chunk)]
    return _stack(sums).sum() / 2**length


def sign_vectors(length: int, chunk: int = 4096) -> Iterator[Tensor]:
    """All 2^length vectors of +1 and -1, at most `chunk` rows at a time; the bits of the row number are the signs."""
    for start in range(0, 2**length, chunk):
        numbers = torch.arange(start, min(start + chunk, 2**length))
        bits = (numbers[:, None] >> torch.arange(length)) & 1
        yield 2.0 * bits.double() - 1.0


def entrywise_block(hessian: Hessian) -> PerToken:
    """|| Pi_i H Pi_i^T ||_{1,1}: sum of absolute entries of the token's own block. Not the limit of Eq. 2."""
    return _stack(hessian[i, :, i, :].abs().sum() for i in range(len(hessian)))


def entrywise_row(hessian: Hessian) -> PerToken:
    """S_i = || Pi_i H ||_{1,1}, the appendix's sensitivity: the token's whole block row."""
    return _stack(hessian[i].abs().sum() for i in range(len(hessian)))


def _stack(scalars: Iterable[Tensor]) -> Float64[Tensor, " n"]:
    return torch.stack(list(scalars))


# --- gate --------------------------------------------------------------------------------------------------------
def value_norms(values: Float64[Tensor, "N G K"], W_O: Float64[Tensor, "H K d"], p: Number) -> Float64[Tensor, "H N"]:
    """|| v_i^(h) W_O^(h) ||_p of one layer; query head h reads key/value head h // (H // G)."""
    (n, groups, _), heads = values.shape, len(W_O)
    norms = torch.empty(heads, n, dtype=torch.float64)
    for h, i in product(range(heads), range(n)):
        written = einsum(values[i, h // (heads // groups)], W_O[h], "k, k d -> d")
        norms[h, i] = written.abs().pow(p).sum().pow(1 / p)
    return norms


def phi_by_paths(patterns: list[Pattern], flow: Flow) -> Float64[Tensor, "L H N"]:
    """Phi^(l,h)(i -> T): the weight of all listed paths from position i to the last position.

    A path takes one edge a layer; its weight is the product of its edges. An edge of a mixed layer is
    half attention, half residual. Attention rows that sum to less than 1 (sinks) stay as they are.

        suffix        enter through head (l,h), then mixed layers l+1..L (head mean)
        rollout       mixed layers 1..L (head mean), whatever (l,h) is
        direct        head (l,h) alone
        prefix_head   mixed layers 1..l, with head h alone in each of them
    """
    heads, n, _ = patterns[0].shape
    phi = torch.empty(len(patterns), heads, n, dtype=torch.float64)
    for layer, h, i in product(range(len(patterns)), range(heads), range(n)):
        phi[layer, h, i] = path_sum(_edges(patterns, layer, h, flow), start=i, end=n - 1)
    return phi


def _edges(patterns: list[Pattern], layer: int, h: int, flow: Flow) -> list[Matrix]:
    """The layers that a path of Phi^(l,h) crosses, the lowest first."""
    head = patterns[layer][h].tolist()
    if flow == "suffix":
        return [head, *map(_mixed, patterns[layer + 1 :])]
    if flow == "rollout":
        return [*map(_mixed, patterns)]
    if flow == "direct":
        return [head]
    if flow == "prefix_head":
        return [_mixed(pattern[h : h + 1]) for pattern in patterns[: layer + 1]]
    raise ValueError(f"unknown flow {flow!r}")


def _mixed(pattern: Pattern) -> Matrix:
    """Half the mean of the given heads, half the residual stream."""
    heads, n, _ = pattern.shape
    weights = pattern.tolist()

    def edge(query: int, key: int) -> float:
        attention = math.fsum(weights[h][query][key] for h in range(heads)) / heads
        return 0.5 * attention + 0.5 * (query == key)

    return [[edge(query, key) for key in range(n)] for query in range(n)]


def path_sum(edges: list[Matrix], start: int, end: int) -> float:
    """Sum over all position sequences start, ?, ..., ?, end of the product of edges[k][after][before]."""
    if not edges:
        return float(start == end)
    positions = range(len(edges[0]))
    paths = ((start, *between, end) for between in product(positions, repeat=len(edges) - 1))
    return math.fsum(_weight(edges, path) for path in paths)


def _weight(edges: list[Matrix], path: tuple[int, ...]) -> float:
    return math.prod(edge[after][before] for edge, (before, after) in zip(edges, pairwise(path), strict=True))


def gate_by_paths(
    patterns: list[Pattern],
    values: list[Float64[Tensor, "N G K"]],
    output_weights: list[Float64[Tensor, "H K d"]],
    p: Number,
    flow: Flow,
) -> PerToken:
    """M_T[i] = (1/Z) sum_{l,h} Phi^(l,h)(i -> T) || v_i W_O ||_p; uniform when no token has any weight."""
    phi = phi_by_paths(patterns, flow)
    norms = torch.stack([value_norms(v, w, p) for v, w in zip(values, output_weights, strict=True)])
    per_layer = (phi * norms).sum(dim=1)
    raw = per_layer.sum(dim=0)
    return raw / raw.sum() if raw.sum() > 0 else torch.full_like(raw, 1 / len(raw))


# --- information -------------------------------------------------------------------------------------------------
def information(
    log_probs: Callable[[Tensor], Tensor],
    embeddings: Float64[Tensor, "N d"],
    mask_vector: Float64[Tensor, " d"],
    direction: Direction,
) -> PerToken:
    """Eq. 3: divergence in nats between the prediction and the one with e_i replaced, one forward a token."""
    original = log_probs(embeddings)
    return _stack(
        divergence(original, log_probs(_masked(embeddings, i, mask_vector)), direction) for i in range(len(embeddings))
    )


def _masked(embeddings: Float64[Tensor, "N d"], i: int, mask_vector: Float64[Tensor, " d"]) -> Float64[Tensor, "N d"]:
    masked = embeddings.clone()
    masked[i] = mask_vector
    return masked


def divergence(
    original: Float64[Tensor, " V"], masked: Float64[Tensor, " V"], direction: Direction
) -> Float64[Tensor, ""]:
    """KL(P || Q), KL(Q || P) or Jensen-Shannon (the mean of both against (P + Q) / 2), from log-probabilities."""
    if direction == "orig_masked":
        return kl(original, masked)
    if direction == "masked_orig":
        return kl(masked, original)
    if direction == "js":
        middle = torch.logaddexp(original, masked) - math.log(2)
        return 0.5 * kl(original, middle) + 0.5 * kl(masked, middle)
    raise ValueError(f"unknown direction {direction!r}")


def kl(p_log: Float64[Tensor, " V"], q_log: Float64[Tensor, " V"]) -> Float64[Tensor, ""]:
    """KL(P || Q) = sum_v P (log P - log Q), with 0 log 0 = 0."""
    possible = p_log > -math.inf
    return (p_log.exp() * (p_log - q_log))[possible].sum()


# --- score -------------------------------------------------------------------------------------------------------
def eq4(gate: PerToken, curvature: PerToken, information: PerToken, beta: Number, gamma: Number) -> PerToken:
    """Eq. 4: Attr(x_i -> x_T) = M_T[i] (beta S_i + gamma I_i)."""
    return gate * (beta * curvature + gamma * information)


def balanced(
    gate: PerToken,
    curvature: PerToken,
    information: PerToken,
    beta: Number,
    gamma: Number,
    by: Literal["sum", "max"],
) -> PerToken:
    """Eq. 4 with S and I, whose units differ, each divided by its own sum or maximum over the tokens first.

    The gate is not one of the mixed parts: it multiplies both, and already sums to 1.
    """
    return eq4(gate, _divided(curvature, by), _divided(information, by), beta, gamma)


def _divided(part: PerToken, by: Literal["sum", "max"]) -> PerToken:
    size = {"sum": part.sum(), "max": part.max()}[by]
    return part / size if size > 0 else part  # a part that is zero everywhere stays zero


def geometric(gate: PerToken, curvature: PerToken, information: PerToken, beta: Number, gamma: Number) -> PerToken:
    """M_i exp((beta log S_i + gamma log |I_i|) / (beta + gamma)), with the sign of I_i; 0 where S_i or I_i is 0."""

    def of(m: float, s: float, i: float) -> float:
        if s == 0 or i == 0:
            return 0.0
        return math.copysign(m * math.exp((beta * math.log(s) + gamma * math.log(abs(i))) / (beta + gamma)), i)

    rows = zip(gate.tolist(), curvature.tolist(), information.tolist(), strict=True)
    return torch.tensor([of(*row) for row in rows], dtype=torch.float64)


# --- toys --------------------------------------------------------------------------------------------------------
def quadratic(matrix: Hessian) -> Callable[[Tensor], Tensor]:
    """g(E) = E^T Q E / 2, whose Hessian is the symmetric part of Q, everywhere."""
    return lambda embeddings: 0.5 * einsum(embeddings, matrix, embeddings, "i a, i a j b, j b ->")


# (block, E || block r ||_1, || block ||_{1,1}). For two columns E|a r1 + b r2| = max(|a|, |b|), so
#   [[2, 0], [0, 3]]: 2 + 3 = 5 and 2 + 3 = 5          [[1, 1], [1, 1]]: 1 + 1 = 2 and 4 * 1 = 4
#   [[1, 2], [2, 1]]: 2 + 2 = 4 and 1 + 2 + 2 + 1 = 6  [[1, -3], [-3, 0]]: 3 + 3 = 6 and 1 + 3 + 3 = 7
BLOCKS: list[tuple[Matrix, float, float]] = [
    ([[2.0, 0.0], [0.0, 3.0]], 5.0, 5.0),
    ([[1.0, 1.0], [1.0, 1.0]], 2.0, 4.0),
    ([[1.0, 2.0], [2.0, 1.0]], 4.0, 6.0),
    ([[1.0, -3.0], [-3.0, 0.0]], 6.0, 7.0),
]


def block_hessian(block: Matrix, tokens: int = 1) -> Hessian:
    """A Hessian with the same block for every token and nothing between tokens."""
    identity, block_ = torch.eye(tokens, dtype=torch.float64), torch.tensor(block, dtype=torch.float64)
    return einsum(identity, block_, "i j, a b -> i a j b")


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
    matrix = _as_matrix(hessian)
    Q = torch.linalg.qr(matrix @ rearrange(omega, "i a s -> (i a) s")).Q
    B = Q.T @ matrix @ Q
    eigenvalues, U = _largest(0.5 * (B + B.T), rank)
    return _from_eigenpairs(eigenvalues, Q @ U, hessian), eigenvalues


def tail_energy(hessian: Hessian, rank: int) -> Scalar:
    """tau_k = sqrt(sum_{j > k} sigma_j^2): the Frobenius norm of what no matrix of this rank can hold."""
    eigenvalues, _ = _largest(_as_matrix(hessian), hessian.shape[0] * hessian.shape[1])
    return eigenvalues[rank:].square().sum().sqrt()


def residual_energy(hessian: Hessian, approximation: Hessian) -> Scalar:
    """|| H - H_k ||_F, never below tau_k (Eckart and Young)."""
    return (hessian - approximation).square().sum().sqrt()


def _as_matrix(hessian: Hessian) -> Rows:
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


def agreement_with_effects(
    scores: PerToken, effects: PerToken, k: int, least: float, *, signed: bool
) -> tuple[float, float]:
    """Spearman's correlation with the effects, and the share of the k highest scores without an effect.

    An effect is a fall of log P. Scores without signs claim its size only.
    """
    claimed = effects if signed else effects.abs()
    ranks = [(x < x[:, None]).sum(1) + ((x == x[:, None]).sum(1) + 1) / 2 for x in (scores, claimed)]
    first = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))[:k]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1]), sum(bool(claimed[i] < least) for i in first) / len(first)


def leakage(gate: PerToken, windowed: PerToken) -> tuple[float, float]:
    """max_i |M[i] - M~[i]| and half the sum, the total variation; both gates sum to 1."""
    distance = (gate - windowed).abs()
    return float(distance.max()), 0.5 * float(distance.sum())


def products_of_groups(
    hessian: Hessian, signs: Float64[Tensor, "N d"], groups: Int64[Tensor, "N"]
) -> Float64[Tensor, "N d"]:
    """``Σ_j H_ij r_j`` over the tokens j of i's group, of which i is one."""
    rows = []
    for i in range(len(groups)):
        members = [j for j in range(len(groups)) if groups[j] == groups[i] >= 0]
        rows.append(sum((hessian[i, :, j] @ signs[j] for j in members), torch.zeros_like(signs[0])))
    return torch.stack(rows)


def shown_by_others(
    hessian: Hessian, signs: Float64[Tensor, "N d"], groups: Int64[Tensor, "N"], alone: int
) -> Float64[Tensor, "N"]:
    """``Σ_G ‖Σ_{j∈G} H_ij r_j‖²`` over the shared groups G that i is not in."""
    shown = torch.zeros(len(groups), dtype=torch.float64)
    for i in range(len(groups)):
        for group in range(alone, int(groups.max()) + 1):
            if groups[i] != group:
                members = [j for j in range(len(groups)) if groups[j] == group]
                shown[i] += torch.stack([hessian[i, :, j] @ signs[j] for j in members]).sum(0).square().sum()
    return shown


def pair_energies(hessian: Hessian) -> Float64[Tensor, "N N"]:
    """``‖H_ij‖_F²``: what token j adds to the energy at token i, on average over its signs."""
    return hessian.square().sum((1, 3))


def every_deal(tokens: int, groups: int) -> list[Int64[Tensor, "N"]]:
    """All ways in which so many tokens are dealt to groups of nearly one size."""
    return [torch.tensor(order) % groups for order in permutations(range(tokens))]
