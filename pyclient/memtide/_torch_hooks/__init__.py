"""Hooks in torch, one feature of torch a module: modules, parameters, operations, collectives,
FSDP, gradient scaling, saving. `patch_table` lists what is replaced; `runtime` installs all
hooks and takes them out again.
"""
