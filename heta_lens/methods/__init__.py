"""Attribution methods, one a file, by family; `method_registry` lists them by name.

`base` is what they have in common, `cost` estimates what one will take, `layer_reading` is for those that name a layer.
`heta/` is the paper. The others: `gradient/`, `attention/`, `hidden_states/`, `perturbation/` (remove, replace or
restore tokens), `generation/` (let the model write on) and `control/` (what any method has to beat).
"""
