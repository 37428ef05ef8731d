// Elements per block: what a loop comes back to stays in the first or second level cache.
#pragma once
#include <cstddef>

namespace kernels {

inline constexpr std::size_t mean_block = 32768;     // the sum's; inputs pass by, and long stretches are fetched ahead
inline constexpr std::size_t mean_task = 65536;      // that a thread takes at once
inline constexpr std::size_t sort_block = 256;       // times the number of inputs
inline constexpr std::size_t distance_block = 1024;  // times the number of inputs, in float64
inline constexpr std::size_t distance_parts = 16;    // partial sums of a distance, added in order
inline constexpr std::size_t sgd_block = 2048;
inline constexpr std::size_t scan_block = 65536;
inline constexpr std::size_t task_blocks = 16;  // likewise, of the other loops

}  // namespace kernels
