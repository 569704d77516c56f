"""HETA as in the paper: gate (M), curvature (S) and information (I), combined by Eq. 4.

`heta` is the pipeline, `heta_options` its options, `variants` what each variant changes, `heta_cost` what it takes.
The parts: `gate` (`windowed_gate`); `curvature`, got by `estimators` with products of `hessian` or `low_rank` and
`random_probes` until `stopping` has enough, if `second_derivatives` exist; `information`. `score` is Eq. 4. `windows`
and `segments` are for long contexts; `heta_diagnostics`, `audit`, `additivity` and `fit_weights` compare scores with
effects.
"""
