// The tensors' memory: the server's allocator, and freed buffers kept warm for a while.
// Touching fresh memory for the first time costs more than the arithmetic on it; a training loop frees and needs the
// same sizes again and again. Spare buffers stay counted in the server's used memory, and go back after some seconds,
// or at once when maxmemory comes near.
#pragma once
#include <cstddef>

namespace memory {

void set_spare_limit(std::size_t bytes);  // 0: keep none
std::byte* take(std::size_t bytes);       // throws Refused OOM
void clear(std::byte* data, std::size_t bytes) noexcept;  // zeros, that of large pieces the kernel gives when wanted
void give(std::byte* data, std::size_t bytes) noexcept;
void release_spares() noexcept;
std::size_t spare_bytes();
// On the main thread, about ten times a second.
void release_idle();

}  // namespace memory
