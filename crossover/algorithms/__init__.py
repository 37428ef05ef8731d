"""Arithmetic of distributed training as pure functions of torch tensors: no numpy, no input or output, no state.

The tensor database does the same arithmetic in C++ (`redis_module/src/kernels/`), bit for bit.
"""
