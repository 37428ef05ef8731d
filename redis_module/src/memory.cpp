#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "abi.hpp"
#include "refused.hpp"

namespace memory {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t smallest_spare_bytes = std::size_t{1} << 18;  // below, the allocator keeps its own
constexpr auto longest_idle = std::chrono::seconds(10);
constexpr float crowded = 0.9F;  // of maxmemory

struct Spare {
    std::byte* data;
    std::size_t bytes;
    Clock::time_point since;
};

struct Spares {
    std::mutex mutex;
    std::vector<Spare> list;  // oldest first
    std::size_t bytes = 0, limit = 0;
};

// Never destroyed: values may be freed while the process exits.
Spares& spares() {
    static Spares& instance = *new Spares;
    return instance;
}

// 2 MB pages make first touches 512 times rarer.
void prefer_huge_pages(std::byte* data, std::size_t bytes) {
    constexpr std::uintptr_t huge = std::uintptr_t{1} << 21;
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = (begin + huge - 1) & ~(huge - 1);
    const std::uintptr_t last = (begin + bytes) & ~(huge - 1);
    if (bytes >= 2 * huge && last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

std::byte* take_spare(std::size_t bytes) {
    Spares& all = spares();
    const std::scoped_lock lock(all.mutex);
    const auto found = std::ranges::find(all.list, bytes, &Spare::bytes);
    if (found == all.list.end()) return nullptr;
    std::byte* data = found->data;
    all.bytes -= bytes;
    all.list.erase(found);
    return data;
}

// Frees the spares that `goes` names, outside the lock.
template <typename Goes>
void release_if(const Goes& goes) noexcept {
    Spares& all = spares();
    std::vector<Spare> gone;
    {
        const std::scoped_lock lock(all.mutex);
        const auto kept = std::ranges::stable_partition(all.list, [&](const Spare& spare) { return !goes(spare); });
        gone.assign(kept.begin(), kept.end());
        all.list.erase(kept.begin(), kept.end());
        for (const Spare& spare : gone) all.bytes -= spare.bytes;
    }
    for (const Spare& spare : gone) abi::Free(spare.data);
}

}  // namespace

void set_spare_limit(std::size_t bytes) {
    spares().limit = bytes;
}

std::byte* take(std::size_t bytes) {
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    if (std::byte* spare = size >= smallest_spare_bytes ? take_spare(size) : nullptr) return spare;
    auto* data = static_cast<std::byte*>(abi::TryAlloc(size));
    if (!data) {
        release_spares();
        data = static_cast<std::byte*>(abi::TryAlloc(size));
    }
    if (!data) refuse_as("OOM", "the machine has no ", bytes, " bytes left for a tensor");
    prefer_huge_pages(data, size);
    return data;
}

void clear(std::byte* data, std::size_t bytes) noexcept {
    constexpr std::uintptr_t page = 1 << 16;  // of any processor
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = (begin + page - 1) & ~(page - 1), last = (begin + bytes) & ~(page - 1);
    // What the kernel takes back reads as zeros afterwards, for memory that no file stands behind, as an allocator's.
    if (bytes < smallest_spare_bytes || last <= first ||
        madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED)) {
        std::memset(data, 0, bytes);
        return;
    }
    std::memset(data, 0, first - begin);
    std::memset(reinterpret_cast<void*>(last), 0, begin + bytes - last);
}

void give(std::byte* data, std::size_t bytes) noexcept {
    Spares& all = spares();
    {
        const std::scoped_lock lock(all.mutex);
        if (bytes >= smallest_spare_bytes && all.bytes + bytes <= all.limit) {
            all.list.push_back({data, bytes, Clock::now()});
            all.bytes += bytes;
            return;
        }
    }
    abi::Free(data);
}

void release_spares() noexcept {
    release_if([](const Spare&) { return true; });
}

std::size_t spare_bytes() {
    Spares& all = spares();
    const std::scoped_lock lock(all.mutex);
    return all.bytes;
}

void release_idle() {
    if (spare_bytes() == 0) return;
    const bool all = abi::GetUsedMemoryRatio() > crowded;
    const Clock::time_point oldest = Clock::now() - longest_idle;
    release_if([&](const Spare& spare) { return all || spare.since < oldest; });
}

}  // namespace memory
