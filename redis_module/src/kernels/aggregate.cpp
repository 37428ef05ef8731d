// Mean, trimmed mean, median and Krum over float32 vectors.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "blocks.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace kernels {

namespace {

// body(first, n) over [first, first + count) in steps of `block`.
template <typename Body>
void in_blocks(std::size_t first, std::size_t count, std::size_t block, const Body& body) {
    for (std::size_t i = first; i < first + count; i += block) body(i, std::min(block, first + count - i));
}

void sum_block(Inputs inputs, float* out, std::size_t first, std::size_t n) {
    const Loops& loop = loops();
    std::memcpy(out + first, inputs[0] + first, n * sizeof(float));
    std::size_t k = 1;
    for (; k + 4 <= inputs.size(); k += 4)
        loop.add_four(out + first, inputs[k] + first, inputs[k + 1] + first, inputs[k + 2] + first,
                      inputs[k + 3] + first, n);
    for (; k < inputs.size(); ++k) loop.add(out + first, inputs[k] + first, n);
}

void weighted_sum_block(Inputs inputs, std::span<const float> weights, float* out, std::size_t first, std::size_t n) {
    const Loops& loop = loops();
    loop.scale(out + first, inputs[0] + first, weights[0], n);
    std::size_t k = 1;
    for (; k + 4 <= inputs.size(); k += 4)
        loop.add_four_scaled(out + first, inputs[k] + first, inputs[k + 1] + first, inputs[k + 2] + first,
                             inputs[k + 3] + first, weights.data() + k, n);
    for (; k < inputs.size(); ++k) loop.add_scaled(out + first, inputs[k] + first, weights[k], n);
}

using Comparators = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M): sorts any n with a fixed list of comparisons.
Comparators sorting_network(std::size_t n) {
    Comparators pairs;
    std::size_t top = 1;
    while (top < n) top *= 2;
    for (std::size_t p = top / 2; p > 0; p /= 2) {
        std::size_t q = top / 2, r = 0, d = p;
        for (;;) {
            for (std::size_t i = 0; i + d < n; ++i)
                if ((i & p) == r) pairs.emplace_back(i, i + d);
            if (q == p) break;
            d = q - p;
            q /= 2;
            r = p;
        }
    }
    return pairs;
}

// Sorts every coordinate over the inputs and hands the sorted rows to reduce(rows, out, n): rows[k] is the k-th
// smallest.
template <typename Reduce>
std::optional<std::size_t> sorted_reduce(Inputs inputs, float* out, std::size_t count, const ForBlocks& each,
                                         const Reduce& reduce) {
    const Loops& loop = loops();
    const Comparators network = sorting_network(inputs.size());
    std::atomic<std::size_t> poisoned{inputs.size()};
    each(count, sort_block * task_blocks, [&](std::size_t begin, std::size_t size) {
        const auto scratch = std::make_unique_for_overwrite<float[]>(inputs.size() * sort_block);
        std::vector<float*> rows(inputs.size());
        for (std::size_t k = 0; k < rows.size(); ++k) rows[k] = scratch.get() + k * sort_block;
        in_blocks(begin, size, sort_block, [&](std::size_t first, std::size_t n) {
            for (std::size_t k = 0; k < rows.size(); ++k) {
                std::memcpy(rows[k], inputs[k] + first, n * sizeof(float));
                if (loop.has_nan(rows[k], n)) {
                    std::size_t seen = poisoned.load();
                    while (k < seen && !poisoned.compare_exchange_weak(seen, k)) {
                    }
                }
            }
            for (const auto& [low, high] : network) loop.compare_exchange(rows[low], rows[high], n);
            reduce(rows, out + first, n);
        });
    });
    return poisoned < inputs.size() ? std::optional(poisoned.load()) : std::nullopt;
}

// Squared distances of all pairs (i < j, row by row), in parts that do not depend on the number of threads.
std::vector<double> pair_distances(Inputs inputs, std::size_t count, const ForBlocks& each, bool (*abandoned)(),
                                   std::atomic<std::size_t>& poisoned) {
    const Loops& loop = loops();
    const std::size_t n = inputs.size(), pairs = n * (n - 1) / 2;
    std::vector<double> parts(pairs * distance_parts, 0.0);
    const std::size_t part_size = (count + distance_parts - 1) / distance_parts;
    each(distance_parts, 1, [&](std::size_t part, std::size_t) {
        const std::size_t begin = std::min(count, part * part_size), size = std::min(part_size, count - begin);
        const auto wide = std::make_unique_for_overwrite<double[]>(n * distance_block);
        in_blocks(begin, size, distance_block, [&](std::size_t first, std::size_t length) {
            if (abandoned()) return;
            for (std::size_t k = 0; k < n; ++k) {
                if (loop.has_nan(inputs[k] + first, length)) {
                    std::size_t seen = poisoned.load();
                    while (k < seen && !poisoned.compare_exchange_weak(seen, k)) {
                    }
                }
                loop.widen(wide.get() + k * distance_block, inputs[k] + first, length);
            }
            double* sum = parts.data() + part * pairs;
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = i + 1; j < n; ++j)
                    *sum++ +=
                        loop.squared_distance(wide.get() + i * distance_block, wide.get() + j * distance_block, length);
        });
    });
    for (std::size_t part = 1; part < distance_parts; ++part)
        for (std::size_t k = 0; k < pairs; ++k) parts[k] += parts[part * pairs + k];
    parts.resize(pairs);
    return parts;
}

}  // namespace

void mean(Inputs inputs, std::span<const float> weights, float divisor, float* out, std::size_t count,
          const ForBlocks& each) {
    each(count, mean_task, [&](std::size_t begin, std::size_t size) {
        in_blocks(begin, size, mean_block, [&](std::size_t first, std::size_t n) {
            if (weights.empty()) {
                sum_block(inputs, out, first, n);
            } else {
                weighted_sum_block(inputs, weights, out, first, n);
            }
            loops().divide(out + first, divisor, n);
        });
    });
}

std::optional<std::size_t> trimmed_mean(Inputs inputs, std::size_t trim, float* out, std::size_t count,
                                        const ForBlocks& each) {
    return sorted_reduce(inputs, out, count, each, [&](const std::vector<float*>& rows, float* block, std::size_t n) {
        std::memcpy(block, rows[trim], n * sizeof(float));
        for (std::size_t k = trim + 1; k < rows.size() - trim; ++k) loops().add(block, rows[k], n);
        loops().divide(block, static_cast<float>(rows.size() - 2 * trim), n);
    });
}

std::optional<std::size_t> median(Inputs inputs, float* out, std::size_t count, const ForBlocks& each) {
    return sorted_reduce(inputs, out, count, each, [](const std::vector<float*>& rows, float* block, std::size_t n) {
        const std::size_t middle = rows.size() / 2;
        std::memcpy(block, rows[middle], n * sizeof(float));
        if (rows.size() % 2) return;
        std::memcpy(block, rows[middle - 1], n * sizeof(float));
        loops().add(block, rows[middle], n);
        loops().halve(block, n);
    });
}

std::size_t krum_bytes(std::size_t inputs) {
    const std::size_t pairs = inputs * (inputs - 1) / 2;
    return (pairs * distance_parts + inputs * inputs) * sizeof(double);
}

KrumChoice krum(Inputs inputs, std::size_t faulty, std::size_t select, std::size_t count, const ForBlocks& each,
                bool (*abandoned)()) {
    const std::size_t n = inputs.size();
    std::atomic<std::size_t> poisoned{n};
    const std::vector<double> distances = pair_distances(inputs, count, each, abandoned, poisoned);
    if (poisoned < n) return {poisoned.load(), {}};

    std::vector<std::vector<double>> rows(n);
    std::size_t pair = 0;
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = i + 1; j < n; ++j, ++pair) {
            // inf - inf: two inputs that overflowed are as far apart as can be
            const double distance =
                std::isnan(distances[pair]) ? std::numeric_limits<double>::infinity() : distances[pair];
            rows[i].push_back(distance);
            rows[j].push_back(distance);
        }
    std::vector<double> scores(n);
    for (std::size_t i = 0; i < n; ++i) {
        std::ranges::sort(rows[i]);
        scores[i] =
            std::accumulate(rows[i].begin(), rows[i].begin() + static_cast<std::ptrdiff_t>(n - faulty - 2), 0.0);
    }
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
    order.resize(select);
    std::ranges::sort(order);
    return {std::nullopt, std::move(order)};
}

}  // namespace kernels
