"""Tensor parallelism: one model on several devices, each with a part of every layer."""
