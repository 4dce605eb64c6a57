"""Costs: how long a step of a model takes on a device that need not be here.

work        what a step computes and moves, as numbers; what a model must read and multiply for it
models      shapes of well-known models by name; the KV slots of the PagedAttention paper's servers
devices     what well-known devices can do, by name
transfers   what moving blocks between the tiers and copying them takes
calibrated  coefficients that others measured and published
roofline    any model on any device, from its shape and the device's numbers
fitted      coefficients that `paged-core calibrate` measured, from the file it wrote
choice      a cost model by name, file or import path
"""
