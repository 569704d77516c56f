"""Attribution methods, one a file, by family; `method_registry` lists them by name.

`base` is what they have in common, `shared_options` the options of several, `layer_reading` what those that name a
layer read. A `function_method` is a user's own function, whose `returned_scores` are checked. `cost_estimate` says what
a method will take, `budget` makes it take no more than that, `memory_by_dry_run` how much memory HETA takes on a model
that is not there; `presets` name a method with its options for a situation. `heta/` is the paper. The others:
`gradient/`, `attention/`, `hidden_states/`, `perturbation/` (remove, replace or restore tokens), `generation/` (let the
model write on), `control/` (what any method has to beat).
"""
