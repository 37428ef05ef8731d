// The native type: how a tensor is saved, rewritten, copied, digested and freed.
#include <algorithm>
#include <cstring>
#include <memory>

#include "keyspace.hpp"
#include "refused.hpp"

RedisModuleType* tensor_type = nullptr;

namespace {

constexpr int encoding = 1;
// One string per piece: the server compresses strings with 32-bit lengths.
constexpr std::size_t piece_bytes = std::size_t{1} << 28;

const Tensor& as_tensor(const void* value) {
    return *static_cast<const Tensor*>(value);
}

std::string load_text(RedisModuleIO* io) {
    std::size_t length = 0;
    char* data = abi::LoadStringBuffer(io, &length);
    if (!data) return {};
    std::string text(data, length);
    abi::Free(data);
    return text;
}

void save(RedisModuleIO* io, void* value) {
    const Tensor& tensor = as_tensor(value);
    abi::SaveUnsigned(io, static_cast<std::uint64_t>(tensor.dtype));
    abi::SaveUnsigned(io, tensor.shape.size());
    for (const std::int64_t size : tensor.shape) abi::SaveUnsigned(io, static_cast<std::uint64_t>(size));
    abi::SaveStringBuffer(io, tensor.kind.data(), tensor.kind.size());
    abi::SaveUnsigned(io, tensor.samples.has_value());
    abi::SaveUnsigned(io, tensor.samples.value_or(0));
    const std::string_view blob = tensor.blob();
    if (tensor.dtype == DType::text) abi::SaveUnsigned(io, blob.size());
    for (std::size_t first = 0; first < blob.size(); first += piece_bytes) {
        const std::string_view piece = blob.substr(first, piece_bytes);
        abi::SaveStringBuffer(io, piece.data(), piece.size());
    }
}

Tensor load_header(RedisModuleIO* io) {
    Tensor tensor;
    const std::uint64_t dtype = abi::LoadUnsigned(io);
    if (dtype >= dtype_count) refuse("a tensor's dtype is ", dtype);
    tensor.dtype = static_cast<DType>(dtype);
    const std::uint64_t rank = abi::LoadUnsigned(io);
    if (rank > largest_rank) refuse("a tensor's rank is ", rank);  // before that many sizes are read
    for (std::uint64_t i = 0; i < rank; ++i) tensor.shape.push_back(static_cast<std::int64_t>(abi::LoadUnsigned(io)));
    tensor.kind = load_text(io);
    const bool counted = abi::LoadUnsigned(io) != 0;
    const std::uint64_t samples = abi::LoadUnsigned(io);
    if (counted) tensor.samples = samples;
    return tensor;
}

void* load(RedisModuleIO* io, int version) {
    if (version != encoding) {
        abi::LogIOError(io, "warning", "a tensor of encoding %d cannot be read; this module writes %d", version,
                        encoding);
        return nullptr;
    }
    try {
        auto tensor = std::make_unique<Tensor>(load_header(io));
        if (abi::IsIOError(io)) return nullptr;
        const std::size_t least = checked_bytes(*tensor, "its header");
        const std::size_t bytes = tensor->dtype == DType::text ? abi::LoadUnsigned(io) : least;
        if (abi::IsIOError(io)) return nullptr;
        tensor->payload = std::make_shared<Payload>(bytes);
        for (std::size_t first = 0; first < tensor->bytes(); first += piece_bytes) {
            std::size_t length = 0;
            char* piece = abi::LoadStringBuffer(io, &length);
            if (!piece) return nullptr;
            const bool fits = length == std::min(piece_bytes, tensor->bytes() - first);
            if (fits) std::memcpy(tensor->payload->data() + first, piece, length);
            abi::Free(piece);
            if (!fits) refuse("a tensor's data is cut short");
        }
        check_elements(tensor->dtype, tensor->blob(), least, "its data");
        return tensor.release();
    } catch (const std::exception& error) {
        abi::LogIOError(io, "warning", "a tensor cannot be read: %s", error.what());
        return nullptr;
    }
}

void rewrite(RedisModuleIO* io, abi::String* key, void* value) {
    const Tensor& tensor = as_tensor(value);
    std::vector<OwnedString> words;
    for (const std::int64_t size : tensor.shape) words.emplace_back(std::to_string(size));
    if (!tensor.kind.empty()) {
        words.emplace_back("KIND");
        words.emplace_back(tensor.kind);
    }
    if (tensor.samples) {
        words.emplace_back("SAMPLES");
        words.emplace_back(std::to_string(*tensor.samples));
    }
    std::vector<abi::String*> argv;
    for (const OwnedString& word : words) argv.push_back(word.get());
    const std::string_view blob = tensor.blob();
    abi::EmitAOF(io, "AI.TENSORSET", "scvcb", key, facts(tensor.dtype).name, argv.data(), argv.size(), "BLOB",
                 blob.data(), blob.size());
}

std::size_t memory_usage(const void* value) {
    return sizeof(Tensor) + as_tensor(value).bytes();
}

void digest(RedisModuleDigest* sum, void* value) {
    const Tensor& tensor = as_tensor(value);
    const std::string_view blob = tensor.blob();
    abi::DigestAddLongLong(sum, static_cast<long long>(tensor.dtype));
    for (const std::int64_t size : tensor.shape) abi::DigestAddLongLong(sum, size);
    abi::DigestAddStringBuffer(sum, tensor.kind.data(), tensor.kind.size());
    abi::DigestAddLongLong(sum, static_cast<long long>(tensor.samples.value_or(0)));
    abi::DigestAddStringBuffer(sum, blob.data(), blob.size());
    abi::DigestEndSequence(sum);
}

void release(void* value) {
    delete static_cast<Tensor*>(value);
}

// UNLINK and FLUSHALL ASYNC free a value in the background when its effort passes 64.
std::size_t free_effort(abi::String*, const void* value) {
    return 1 + as_tensor(value).bytes() / 4096;
}

// COPY shares the immutable payload.
void* copy(abi::String*, abi::String*, const void* value) {
    return new Tensor(as_tensor(value));
}

}  // namespace

bool register_tensor_type(abi::Ctx* ctx) {
    abi::TypeMethods methods{};
    methods.version = 4;
    methods.rdb_load = load;
    methods.rdb_save = save;
    methods.aof_rewrite = rewrite;
    methods.memory_usage = memory_usage;
    methods.digest = digest;
    methods.free = release;
    methods.free_effort = free_effort;
    methods.copy = copy;
    tensor_type = abi::CreateDataType(ctx, "xo-tensor", encoding, &methods);
    return tensor_type != nullptr;
}
