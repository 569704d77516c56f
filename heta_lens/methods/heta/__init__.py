"""HETA as in the paper: gate (M), curvature (S) and information (I), combined by Eq. 4.

`heta` is the pipeline and `options` its options; `gate` is M. `curvature` estimates S from products with a matrix of
`hessian`, in the directions of `probes`. `score` is Eq. 4, with its standard errors. `windows` are for long
contexts, `cost` counts runs ahead, `diagnostics` and `fit_weights` compare scores with the effects of masking.
"""
