"""Attribution methods, alone in a module or with siblings; `registry` lists the methods by name.

`base` is the contract of a method, with the options that methods share. `cost` estimates the work of a method and keeps
it within a budget, `memory` estimates the memory of HETA on a model that is not loaded. `heta/` is the method of the
paper.
"""
