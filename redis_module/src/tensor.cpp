#include "tensor.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <limits>

#include "memory.hpp"
#include "refused.hpp"

namespace {

constexpr DTypeFacts table[dtype_count] = {{"FLOAT", 4}, {"DOUBLE", 8}, {"INT8", 1},   {"INT16", 2}, {"INT32", 4},
                                           {"INT64", 8}, {"UINT8", 1},  {"UINT16", 2}, {"BOOL", 1},  {"STRING", 1}};
std::atomic<std::uint64_t> live_payloads{0};
std::atomic<std::uint64_t> live_bytes{0};

}  // namespace

const DTypeFacts& facts(DType dtype) {
    return table[static_cast<int>(dtype)];
}

std::optional<DType> dtype_named(std::string_view name) {
    std::string upper(name);
    std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    for (int i = 0; i < dtype_count; ++i)
        if (upper == table[i].name) return static_cast<DType>(i);
    return std::nullopt;
}

std::size_t Tensor::count() const {
    if (dtype != DType::text) return payload->bytes() / facts(dtype).size;
    return static_cast<std::size_t>(std::ranges::count(blob(), '\0'));
}

Payload::Payload(std::size_t bytes) : data_(memory::take(bytes)), bytes_(bytes) {
    live_payloads.fetch_add(1, std::memory_order_relaxed);
    live_bytes.fetch_add(bytes_, std::memory_order_relaxed);
}

Payload::~Payload() {
    memory::give(data_, bytes_);
    live_payloads.fetch_sub(1, std::memory_order_relaxed);
    live_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
    return out + "]";
}

std::size_t checked_bytes(const Tensor& header, std::string_view what) {
    const std::vector<std::int64_t>& shape = header.shape;
    if (shape.size() > largest_rank) refuse(what, ": more than ", largest_rank, " sizes");
    if (header.kind.size() > longest_kind)
        refuse(what, ": KIND has ", header.kind.size(), " bytes; expected at most ", longest_kind);
    if (header.samples && *header.samples > std::numeric_limits<std::int64_t>::max())
        refuse(what, ": SAMPLES is ", *header.samples, "; expected at most ", std::numeric_limits<std::int64_t>::max());
    if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; }))
        refuse(what, ": the shape ", shape_text(shape), " has a negative size");
    if (std::ranges::find(shape, 0) != shape.end()) return 0;
    std::size_t bytes = facts(header.dtype).size;
    for (const std::int64_t size : shape)
        if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes) || bytes > (std::size_t{1} << 62))
            refuse(what, ": the shape ", shape_text(shape), " overflows; expected sizes whose product fits in memory");
    return bytes;
}

namespace {

void check_strings(std::string_view blob, std::size_t expected, std::string_view what) {
    const auto found = static_cast<std::size_t>(std::ranges::count(blob, '\0'));
    const std::size_t rest = blob.size() - (blob.rfind('\0') + 1);  // npos + 1 is 0
    if (found != expected)
        refuse(what, ": BLOB holds ", found, " strings that end in a zero byte; expected ", expected);
    if (rest) refuse(what, ": BLOB ends in ", rest, " bytes without a zero byte; expected one behind each string");
}

}  // namespace

void check_elements(DType dtype, std::string_view blob, std::size_t least, std::string_view what) {
    if (dtype == DType::text) check_strings(blob, least, what);
    if (dtype != DType::boolean) return;
    const auto wrong = std::ranges::find_if(blob, [](char c) { return static_cast<unsigned char>(c) > 1; });
    if (wrong != blob.end())
        refuse(what, ": BLOB byte ", wrong - blob.begin(), " is ", static_cast<int>(static_cast<unsigned char>(*wrong)),
               "; expected 0 or 1 for BOOL");
}

LiveTensors live_tensors() {
    return {live_payloads.load(std::memory_order_relaxed), live_bytes.load(std::memory_order_relaxed)};
}
