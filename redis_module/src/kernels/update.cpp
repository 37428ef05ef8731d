// Optimizer steps and elementwise work on float32 vectors.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "blocks.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace kernels {

void sgd(const SgdRule& rule, const float* model, const float* gradient, const float* velocity, float* model_out,
         float* velocity_out, std::size_t count, const ForBlocks& each) {
    each(count, sgd_block * task_blocks, [&](std::size_t begin, std::size_t size) {
        for (std::size_t i = begin; i < begin + size; i += sgd_block)
            loops().sgd(rule, model + i, gradient + i, velocity ? velocity + i : nullptr, model_out + i,
                        velocity_out ? velocity_out + i : nullptr, std::min(sgd_block, begin + size - i));
    });
}

void adam(const AdamRule& rule, const float* model, const float* gradient, const float* m, const float* v,
          float* model_out, float* m_out, float* v_out, std::size_t count, const ForBlocks& each) {
    each(count, scan_block, [&](std::size_t i, std::size_t n) {
        loops().adam(rule, model + i, gradient + i, m ? m + i : nullptr, v ? v + i : nullptr, model_out + i, m_out + i,
                     v_out + i, n);
    });
}

void blend_buffers(double s, const float* buffer, const float* statistic, float* out, std::size_t count) {
    if (s == 1) {
        std::memcpy(out, statistic, count * sizeof(float));
        return;
    }
    for (std::size_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(s * static_cast<double>(statistic[i]) + (1 - s) * static_cast<double>(buffer[i]));
}

void axpy(float alpha, const float* base, const float* x, float* out, std::size_t count, const ForBlocks& each) {
    each(count, scan_block, [&](std::size_t i, std::size_t n) { loops().axpy(alpha, base + i, x + i, out + i, n); });
}

double norm(const float* x, std::size_t count, const ForBlocks& each) {
    const std::size_t blocks = (count + scan_block - 1) / scan_block;
    std::vector<double> sums(blocks);
    each(count, scan_block,
         [&](std::size_t i, std::size_t n) { sums[i / scan_block] = loops().sum_of_squares(x + i, n); });
    double sum = 0;
    for (const double part : sums) sum += part;
    return std::sqrt(sum);
}

bool finite(const float* x, std::size_t count, const ForBlocks& each) {
    std::atomic<bool> found{false};
    each(count, scan_block, [&](std::size_t i, std::size_t n) {
        if (!found && loops().has_nonfinite(x + i, n)) found = true;
    });
    return !found;
}

}  // namespace kernels
