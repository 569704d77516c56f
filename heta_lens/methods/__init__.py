"""Attribution methods, alone in a module or with siblings; `registry` lists the methods by name.

`base` is what a method has to have, with the options that methods share; `results` makes attributions of its scores,
and `contract` says what they claim. `cost`
estimates the work and the memory of a method, also on a model that is not loaded, and keeps a method within a budget.
`heta/` is the method of the paper.
"""
