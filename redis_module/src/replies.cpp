#include "replies.hpp"

#include <charconv>
#include <cmath>
#include <cstring>

namespace {

void reply_shape(abi::Ctx* ctx, const Tensor& tensor) {
    abi::ReplyWithArray(ctx, static_cast<long>(tensor.shape.size()));
    for (const std::int64_t size : tensor.shape) abi::ReplyWithLongLong(ctx, size);
}

template <typename Number>
Number element(const Tensor& tensor, std::size_t i) {
    Number value;
    std::memcpy(&value, tensor.payload->data() + i * sizeof value, sizeof value);
    return value;
}

template <typename Number>
void reply_floating(abi::Ctx* ctx, Number value) {
    char buffer[64];
    if (std::isnan(value)) return reply_bulk(ctx, "nan");
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    reply_bulk(ctx, {buffer, static_cast<std::size_t>(end - buffer)});
}

void reply_element(abi::Ctx* ctx, const Tensor& tensor, std::size_t i) {
    switch (tensor.dtype) {
        case DType::float32: return reply_floating(ctx, element<float>(tensor, i));
        case DType::float64: return reply_floating(ctx, element<double>(tensor, i));
        case DType::int8: abi::ReplyWithLongLong(ctx, element<std::int8_t>(tensor, i)); break;
        case DType::int16: abi::ReplyWithLongLong(ctx, element<std::int16_t>(tensor, i)); break;
        case DType::int32: abi::ReplyWithLongLong(ctx, element<std::int32_t>(tensor, i)); break;
        case DType::int64: abi::ReplyWithLongLong(ctx, element<std::int64_t>(tensor, i)); break;
        case DType::uint16: abi::ReplyWithLongLong(ctx, element<std::uint16_t>(tensor, i)); break;
        case DType::uint8:
        case DType::boolean: abi::ReplyWithLongLong(ctx, element<std::uint8_t>(tensor, i)); break;
        case DType::text: break;  // see reply_strings
    }
}

void reply_strings(abi::Ctx* ctx, std::string_view blob) {
    for (std::size_t first = 0; first < blob.size();) {
        const std::size_t end = blob.find('\0', first);
        reply_bulk(ctx, blob.substr(first, end - first));
        first = end + 1;
    }
}

void reply_values(abi::Ctx* ctx, const Tensor& tensor) {
    abi::ReplyWithArray(ctx, static_cast<long>(tensor.count()));
    if (tensor.dtype == DType::text) return reply_strings(ctx, tensor.blob());
    for (std::size_t i = 0; i < tensor.count(); ++i) reply_element(ctx, tensor, i);
}

}  // namespace

void reply_bulk(abi::Ctx* ctx, std::string_view text) {
    abi::ReplyWithStringBuffer(ctx, text.data(), text.size());
}

void reply_field(abi::Ctx* ctx, std::string_view name, std::uint64_t value) {
    reply_bulk(ctx, name);
    abi::ReplyWithLongLong(ctx, static_cast<long long>(value));
}

void reply_field(abi::Ctx* ctx, std::string_view name, std::string_view value) {
    reply_bulk(ctx, name);
    reply_bulk(ctx, value);
}

void reply_double(abi::Ctx* ctx, double value) {
    reply_floating(ctx, value);
}

void reply_description(abi::Ctx* ctx, const Tensor& tensor) {
    reply_bulk(ctx, facts(tensor.dtype).name);
    reply_shape(ctx, tensor);
    reply_bulk(ctx, tensor.kind);
    if (tensor.samples) {
        abi::ReplyWithLongLong(ctx, static_cast<long long>(*tensor.samples));
    } else {
        abi::ReplyWithNull(ctx);
    }
}

void reply_redisai(abi::Ctx* ctx, const Tensor& tensor, RedisAIFormat format) {
    if (format.meta) {
        abi::ReplyWithArray(ctx, format.blob || format.values ? 6 : 4);
        reply_bulk(ctx, "dtype");
        reply_bulk(ctx, facts(tensor.dtype).name);
        reply_bulk(ctx, "shape");
        reply_shape(ctx, tensor);
        if (format.blob) reply_bulk(ctx, "blob");
        if (format.values) reply_bulk(ctx, "values");
    }
    if (format.blob) reply_bulk(ctx, tensor.blob());
    if (format.values) reply_values(ctx, tensor);
}
