"""Kernels for Apple GPUs as `mx.fast.metal_kernel` sources: a `.metal` body each, and a module that calls it."""
