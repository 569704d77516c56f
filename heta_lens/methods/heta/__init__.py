"""HETA as in the paper: gate (M), curvature (S) and information (I), combined by Eq. 4.

`heta` is the pipeline, `heta_options` its options, `variants` what each changes, `heta_cost_estimate` what they take.
The parts: `gate` (`gate_of_variant`); `curvature`, which `estimators` get from products of `hessian`,
`blockwise_hessian` or `low_rank` with `random_probes` (`grouped_probes`, where tokens share HVPs, by
`token_groups`) until `stopping` has enough, on a model that passes the `second_derivative_check`; `pairs` of tokens,
from the same products; `information`. `score` is Eq. 4. `windows` and `segments` are for long contexts;
`heta_diagnostics`, `audit`, `additivity` and `fit_weights` compare scores with effects.
"""
