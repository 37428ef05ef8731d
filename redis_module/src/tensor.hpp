// Tensors: immutable values that jobs and keys share by reference.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

enum class DType : std::uint8_t { float32, float64, int8, int16, int32, int64, uint8, uint16, boolean, text };
inline constexpr int dtype_count = 10;
inline constexpr int number_dtype_count = 9;     // all but text, whose elements are strings that end in a zero byte
inline constexpr std::size_t longest_kind = 32;  // bytes
inline constexpr std::size_t largest_rank = 64;

struct DTypeFacts {
    const char* name;  // as RedisAI's commands spell it
    std::size_t size;  // bytes of an element; of text the least
};
const DTypeFacts& facts(DType dtype);
std::optional<DType> dtype_named(std::string_view name);  // any case

// The elements' memory, from the server's allocator so that maxmemory counts it. Frozen once a tensor holds it.
class Payload {
public:
    explicit Payload(std::size_t bytes);  // throws Refused OOM
    ~Payload();
    Payload(const Payload&) = delete;
    Payload& operator=(const Payload&) = delete;

    std::byte* data() { return data_; }
    const std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::byte* data_;
    std::size_t bytes_;
};

struct Tensor {
    DType dtype = DType::float32;
    std::vector<std::int64_t> shape;
    std::string kind;                      // empty: none
    std::optional<std::uint64_t> samples;  // how many samples a gradient stands for
    std::shared_ptr<Payload> payload;

    std::size_t count() const;  // elements
    std::size_t bytes() const { return payload->bytes(); }
    const float* floats() const { return reinterpret_cast<const float*>(payload->data()); }
    std::string_view blob() const { return {reinterpret_cast<const char*>(payload->data()), payload->bytes()}; }
    Tensor header() const { return {dtype, shape, kind, samples, nullptr}; }
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"

// What every tensor keeps to, whether it came from a client, a file or another server: rank, sizes, kind, samples.
// Throws Refused naming `what`; returns the bytes that its elements need, of text at least.
std::size_t checked_bytes(const Tensor& header, std::string_view what);
// Likewise of its elements; `least` is what checked_bytes said.
void check_elements(DType dtype, std::string_view blob, std::size_t least, std::string_view what);

struct LiveTensors {
    std::uint64_t payloads;
    std::uint64_t bytes;
};
LiveTensors live_tensors();
