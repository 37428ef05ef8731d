// Elements per block: a block of every operand of a loop stays in the first or second level cache.
#pragma once
#include <cstddef>

namespace kernels {

inline constexpr std::size_t mean_block = 4096;
inline constexpr std::size_t sort_block = 256;       // times the number of inputs
inline constexpr std::size_t distance_block = 1024;  // times the number of inputs, in float64
inline constexpr std::size_t distance_parts = 16;    // partial sums of a distance, added in order
inline constexpr std::size_t sgd_block = 2048;
inline constexpr std::size_t scan_block = 65536;
inline constexpr std::size_t task_blocks = 16;  // blocks that a thread takes at once

}  // namespace kernels
