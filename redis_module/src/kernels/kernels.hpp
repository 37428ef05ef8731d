// Arithmetic on float32 vectors: no Redis, no threads of its own. Every result is the same on every instruction set and
// for every number of threads, because blocks are fixed and each element's operations are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace kernels {

using Inputs = std::span<const float* const>;
// Runs body(first, count) over [0, total) in blocks of `block`; may throw to abandon the work.
using ForBlocks = std::function<void(std::size_t total, std::size_t block,
                                     const std::function<void(std::size_t, std::size_t)>& body)>;

const char* instruction_set();  // "avx2", "baseline" or "neon"

// Equal weights (`weights` empty): the inputs' sum in the given order, one division by `divisor`.
// Else the sum of weights[i] * inputs[i], product and sum rounded separately, one division by `divisor`.
void mean(Inputs inputs, std::span<const float> weights, float divisor, float* out, std::size_t count,
          const ForBlocks& each);

// Per coordinate: sorts, drops `trim` at each end, sums ascending, divides by float32(n - 2 trim).
// Returns the first input that holds a NaN, with `out` undefined.
std::optional<std::size_t> trimmed_mean(Inputs inputs, std::size_t trim, float* out, std::size_t count,
                                        const ForBlocks& each);
// Per coordinate: the middle one; for an even n float32(a + b) * 0.5f of the middle two. NaN as above.
std::optional<std::size_t> median(Inputs inputs, float* out, std::size_t count, const ForBlocks& each);

struct KrumChoice {
    std::optional<std::size_t> poisoned;  // the first input with a NaN
    std::vector<std::size_t> chosen;      // ascending
};
// Scores: sum of the n - faulty - 2 smallest squared distances in float64; the `select` lowest, ties to the lower
// index. One of its blocks takes long when inputs are many, so it asks `abandoned` within them; its result is then
// meaningless.
// Beyond these bytes it needs one block of every input per thread.
std::size_t krum_bytes(std::size_t inputs);
KrumChoice krum(Inputs inputs, std::size_t faulty, std::size_t select, std::size_t count, const ForBlocks& each,
                bool (*abandoned)());

struct SgdRule {
    float minus_rate, momentum, one_minus_dampening, weight_decay;
    bool nesterov;
};
// torch.optim.SGD's operations, its multiply-adds fused. velocity nullptr: first step; velocity_out nullptr: no
// momentum.
void sgd(const SgdRule& rule, const float* model, const float* gradient, const float* velocity, float* model_out,
         float* velocity_out, std::size_t count, const ForBlocks& each);

struct AdamRule {
    float one_minus_beta1, beta2, one_minus_beta2, correction2_sqrt, epsilon, minus_step, weight_decay, decay_factor;
};
// torch.optim.Adam's; weight_decay is added to the gradient, decay_factor (AdamW) multiplies the parameters. m, v
// nullptr: zero.
void adam(const AdamRule& rule, const float* model, const float* gradient, const float* m, const float* v,
          float* model_out, float* m_out, float* v_out, std::size_t count, const ForBlocks& each);

// BatchNorm's running statistics: float32(s * statistic + (1 - s) * buffer), computed in float64; s = 1 copies.
void blend_buffers(double s, const float* buffer, const float* statistic, float* out, std::size_t count);

// out = base + alpha * x, fused
void axpy(float alpha, const float* base, const float* x, float* out, std::size_t count, const ForBlocks& each);
double norm(const float* x, std::size_t count, const ForBlocks& each);  // L2, in float64
bool finite(const float* x, std::size_t count, const ForBlocks& each);

}  // namespace kernels
