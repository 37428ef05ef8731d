"""Tensors as buffers and buffers as tensors, without a copy and without numpy.

The data plane moves bytes; the arithmetic is torch's. These two functions are the whole border between them.
"""

import ctypes

import torch
from torch import Tensor

from crossover.errors import Corrupt


def view(tensor: Tensor) -> memoryview:
    """Return a writable memoryview of bytes (format 'B') over the memory of a contiguous CPU tensor, without a copy.

    It keeps the tensor's memory alive. Raises ValueError if the tensor is not contiguous or not in CPU memory.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(f"tensor: on {tensor.device}, {layout}; a view of its bytes needs contiguous CPU memory")
    length = tensor.numel() * tensor.element_size()
    if length == 0:
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * length).from_address(tensor.data_ptr())
    array._keeps_alive = tensor  # type: ignore[attr-defined]  # from_address borrows: the memory stays the tensor's
    return memoryview(array).cast("B")


def tensor(buffer: bytes | bytearray | memoryview, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a flat tensor over `buffer`'s memory, without a copy; it keeps the buffer alive.

    If the buffer is read-only (bytes), the tensor must not be written to. Raises Corrupt if the length is not a whole number of elements.
    """
    source = memoryview(buffer).cast("B")
    if source.nbytes % dtype.itemsize:
        raise Corrupt(f"buffer: {source.nbytes} bytes are not whole elements of {dtype} ({dtype.itemsize} bytes each)")
    if source.nbytes == 0:
        return torch.empty(0, dtype=dtype)
    if source.readonly:
        # torch.frombuffer warns, once per process, of a read-only buffer; an array at the same address does not look read-only.
        array = (ctypes.c_ubyte * source.nbytes).from_address(_address(source))
        array._keeps_alive = source  # type: ignore[attr-defined]
        return torch.frombuffer(array, dtype=dtype)
    return torch.frombuffer(source, dtype=dtype)


def octets(buffer: bytes | bytearray | memoryview) -> Tensor:
    """Return a flat uint8 tensor over the bytes of `buffer`, without a copy; encoded updates have this form."""
    return tensor(buffer, torch.uint8)


def _address(source: memoryview) -> int:
    """Return the memory address of `source`. ctypes itself gives the address of writable buffers only."""
    # CPython's Py_buffer (docs.python.org/3/c-api/buffer.html) begins with the address and is 10 or 11 words long.
    raw = (ctypes.c_void_p * 16)()
    interface = ctypes.pythonapi
    interface.PyObject_GetBuffer(ctypes.py_object(source), ctypes.byref(raw), ctypes.c_int(0))
    try:
        return raw[0] or 0
    finally:
        interface.PyBuffer_Release(ctypes.byref(raw))  # `source`, kept by the caller, still holds the memory
