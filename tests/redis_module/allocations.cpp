// Runs the kernels on several threads while the k-th allocation fails, for each k: every run ends with the right bits or with std::bad_alloc.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include "kernels/kernels.hpp"
#include "pool.hpp"

namespace {

std::atomic<long> until_failure{-1};

}  // namespace

void* operator new(std::size_t bytes) {
    if (until_failure.load() >= 0 && until_failure.fetch_sub(1) == 0) throw std::bad_alloc();
    if (void* data = std::malloc(bytes ? bytes : 1)) return data;
    throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
    std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
    std::free(data);
}

namespace {

constexpr std::size_t inputs_count = 5, count = 40'000;

// How many runs failed before one met no failure; exits when one ended otherwise.
int failures(const char* name, std::vector<float>& out, const std::function<void()>& kernel) {
    kernel();
    const std::vector<float> expected = out;
    for (int k = 0;; ++k) {
        std::ranges::fill(out, 0.0F);
        until_failure = k;
        bool failed = false;
        try {
            kernel();
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        const bool met = until_failure.exchange(-1) < 0;
        if (!failed && std::memcmp(out.data(), expected.data(), count * sizeof(float)) != 0) {
            std::printf("%s: other bits when allocation %d fails\n", name, k);
            std::exit(1);
        }
        if (!met) return k;
    }
}

}  // namespace

int main() {
    pool::start(1, 4);
    std::vector<std::vector<float>> rows(inputs_count, std::vector<float>(count));
    for (std::size_t k = 0; k < inputs_count; ++k)
        for (std::size_t i = 0; i < count; ++i) rows[k][i] = static_cast<float>((i * 7919 + k * 104'729) % 1009);
    std::vector<const float*> inputs;
    for (const auto& row : rows) inputs.push_back(row.data());
    std::vector<float> out(count);
    const kernels::ForBlocks each = pool::for_blocks;
    const int median = failures("median", out, [&] { kernels::median(inputs, out.data(), count, each); });
    const int krum = failures("krum", out, [&] {
        const auto choice = kernels::krum(inputs, 1, 1, count, each, pool::stopping);
        std::memcpy(out.data(), inputs[choice.chosen.front()], count * sizeof(float));
    });
    std::printf("median %d krum %d\n", median, krum);
    pool::stop();
}
