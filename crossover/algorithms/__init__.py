"""Arithmetic of distributed training as pure functions of torch tensors: no numpy, no input or output, no state."""
