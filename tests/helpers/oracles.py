"""Slow float64 transcriptions of HETA's definitions, to test fast code against.

    curvature    dense_hessian, then block_l1 (Eq. 2), row_l1, their exact expectations, entrywise norms
    gate         phi_by_paths and gate_by_paths: every path is listed, no matrix is multiplied
    information  Eq. 3, one forward a token
    score        Eq. 4
    toys         small models whose answers were worked out by hand, in the docstrings

Axes: N context tokens, d embedding width, V vocabulary, m probes, L layers, H query heads, G key/value heads,
K width of a head. The prediction is read at the last context position, N - 1. Patterns have queries as rows.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float64
from torch import Tensor

Hessian = Float64[Tensor, "N d N d"]
PerToken = Float64[Tensor, " N"]
Pattern = Float64[Tensor, "H N N"]  # one layer: head, query, key
Number = int | float
Matrix = list[list[float]]  # plain numbers: a pattern of one head, a block

Flow = str  # suffix | suffix_input | rollout | direct | prefix_head
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
        suffix_input  the same Phi; gate_by_paths continues it below layer l
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
    if flow in ("suffix", "suffix_input"):
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
    """M_T[i] = (1/Z) sum_{l,h} Phi^(l,h)(i -> T) || v_i W_O ||_p; uniform when no token has any weight.

    With `suffix_input`, position i of layer l first hands its weight down to the input tokens.
    """
    phi = phi_by_paths(patterns, flow)
    norms = torch.stack([value_norms(v, w, p) for v, w in zip(values, output_weights, strict=True)])
    per_layer = (phi * norms).sum(dim=1)
    if flow == "suffix_input":
        per_layer = torch.stack([_to_input(w, patterns[:layer]) for layer, w in enumerate(per_layer)])
    raw = per_layer.sum(dim=0)
    return raw / raw.sum() if raw.sum() > 0 else torch.full_like(raw, 1 / len(raw))


def _to_input(weights: PerToken, below: list[Pattern]) -> PerToken:
    """Each position's weight times its paths from token k through the mixed layers below, summed over positions."""
    edges, tokens = [_mixed(pattern) for pattern in below], range(len(weights))
    reached = [math.fsum(w * path_sum(edges, start=k, end=i) for i, w in enumerate(weights.tolist())) for k in tokens]
    return torch.tensor(reached, dtype=torch.float64)


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


def pinsker_gap(p_log: Float64[Tensor, " V"], q_log: Float64[Tensor, " V"]) -> Float64[Tensor, ""]:
    """KL(P || Q) - || P - Q ||_1^2 / 2, never negative. The norm is the L1 sum, not its half."""
    return kl(p_log, q_log) - 0.5 * (p_log.exp() - q_log.exp()).abs().sum() ** 2


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


def two_layer_attention(sink: bool = False) -> list[Float64[Tensor, "1 3 3"]]:
    """Two layers of one head over three tokens, small enough for a pencil.

        A1 = [ 1    0    0  ]    A2 = [ 1    0    0  ]    with `sink`, the last row of A2 is halved,
             [1/2  1/2   0  ]         [1/4  3/4   0  ]    [1/8  1/4  1/8]: the other half of the
             [1/4  1/4  1/2 ]         [1/4  1/2  1/4 ]    attention went to no token

    suffix:  Phi^2 = last row of A2 = [1/4, 1/2, 1/4].
             The mixed last row of layer 2 is half of that plus 1/2 for staying: [1/8, 1/4, 5/8].
             Phi^1 = 1/8 [1, 0, 0] + 1/4 [1/2, 1/2, 0] + 5/8 [1/4, 1/4, 1/2]
                   = [4 + 4 + 5, 4 + 5, 10] / 32 = [13, 9, 10] / 32.
    sink:    Phi^2 = [1/8, 1/4, 1/8]; the mixed row is [1/16, 1/8, 9/16], not renormalised.
             Phi^1 = 1/16 [1, 0, 0] + 1/8 [1/2, 1/2, 0] + 9/16 [1/4, 1/4, 1/2]
                   = [4 + 4 + 9, 4 + 9, 18] / 64 = [17, 13, 18] / 64, sum 3/4 = 1/2 * 1/2 + 1/2.
    direct:  Phi^1 = [1/4, 1/4, 1/2], Phi^2 = [1/4, 1/2, 1/4].
    rollout: the mixed A1 is [[1, 0, 0], [1/4, 3/4, 0], [1/8, 1/8, 3/4]], and for both layers
             Phi = 1/8 [1, 0, 0] + 1/4 [1/4, 3/4, 0] + 5/8 [1/8, 1/8, 3/4]
                 = [8 + 4 + 5, 12 + 5, 30] / 64 = [17, 17, 30] / 64.
    prefix_head: Phi^1 = last row of the mixed A1 = [1/8, 1/8, 3/4]; Phi^2 = rollout, as there is one head.
    """
    last = [1 / 8, 1 / 4, 1 / 8] if sink else [1 / 4, 1 / 2, 1 / 4]
    first = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2]]
    second = [[1, 0, 0], [1 / 4, 3 / 4, 0], last]
    return [torch.tensor([layer], dtype=torch.float64) for layer in (first, second)]


TWO_LAYER_PHI: dict[str, Matrix] = {  # [layer][position]
    "suffix": [[13 / 32, 9 / 32, 10 / 32], [1 / 4, 1 / 2, 1 / 4]],
    "suffix_input": [[13 / 32, 9 / 32, 10 / 32], [1 / 4, 1 / 2, 1 / 4]],
    "rollout": [[17 / 64, 17 / 64, 30 / 64], [17 / 64, 17 / 64, 30 / 64]],
    "direct": [[1 / 4, 1 / 4, 1 / 2], [1 / 4, 1 / 2, 1 / 4]],
    "prefix_head": [[1 / 8, 1 / 8, 3 / 4], [17 / 64, 17 / 64, 30 / 64]],
}
TWO_LAYER_SINK_SUFFIX: Matrix = [[17 / 64, 13 / 64, 18 / 64], [1 / 8, 1 / 4, 1 / 8]]


def two_layer_values() -> tuple[list[Float64[Tensor, "3 1 1"]], list[Float64[Tensor, "1 1 2"]]]:
    """Values and output weights for two_layer_attention with || v W_O ||_1 = [1, 2, 4], then [2, 1, 4].

    W_O = [1/4, -3/4] has L1 norm 1, so norms are |values|: [1, -2, 4] and [-2, 1, 4].

    suffix:       [13 * 1, 9 * 2, 10 * 4] / 32 + [1/4 * 2, 1/2 * 1, 1/4 * 4]
                  = [13, 18, 40] / 32 + [16, 16, 32] / 32 = [29, 34, 72] / 32, so M = [29, 34, 72] / 135.
    suffix_input: layer 1 as above; layer 2 hands [1/2, 1/2, 1] down through the mixed A1:
                  [1/2 + 1/8 + 1/8, 3/8 + 1/8, 3/4] = [24, 16, 24] / 32
                  [13, 18, 40] / 32 + [24, 16, 24] / 32 = [37, 34, 64] / 32, so M = [37, 34, 64] / 135.
    """
    values = [[1.0, -2.0, 4.0], [-2.0, 1.0, 4.0]]
    weights = torch.tensor([[[1 / 4, -3 / 4]]], dtype=torch.float64)
    return [torch.tensor(v, dtype=torch.float64).reshape(3, 1, 1) for v in values], [weights, weights]


TWO_LAYER_GATE: dict[str, list[float]] = {
    "suffix": [29 / 135, 34 / 135, 72 / 135],
    "suffix_input": [37 / 135, 34 / 135, 64 / 135],
}


def coin_log_probs(embeddings: Float64[Tensor, "N 1"]) -> Float64[Tensor, "2"]:
    """Log-probabilities of softmax(e_1 ln 3, 0): [3/4, 1/4] at e_1 = 1, [1/2, 1/2] at e_1 = 0; nothing else counts."""
    logit = embeddings[0, 0] * math.log(3)
    return torch.log_softmax(torch.stack([logit, torch.zeros_like(logit)]), dim=0)


# P = [3/4, 1/4] and, masked, Q = [1/2, 1/2]; their middle is [5/8, 3/8].
COIN_INFORMATION: dict[str, float] = {
    "orig_masked": 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2),
    "masked_orig": 1 / 2 * math.log(2 / 3) + 1 / 2 * math.log(2),
    "js": (3 / 4 * math.log(6 / 5) + 1 / 4 * math.log(2 / 3)) / 2
    + (1 / 2 * math.log(4 / 5) + 1 / 2 * math.log(4 / 3)) / 2,
}
