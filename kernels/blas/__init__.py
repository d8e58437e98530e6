"""The BLAS forwarder of the `cpu_blas` lane."""
