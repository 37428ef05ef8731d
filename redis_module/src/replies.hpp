// How tensors are written to clients.
#pragma once
#include <cstdint>
#include <string_view>

#include "abi.hpp"
#include "tensor.hpp"

struct RedisAIFormat {
    bool meta, blob, values;
};

void reply_bulk(abi::Ctx* ctx, std::string_view text);
// A name and a value of a reply that alternates them.
void reply_field(abi::Ctx* ctx, std::string_view name, std::uint64_t value);
void reply_field(abi::Ctx* ctx, std::string_view name, std::string_view value);
void reply_double(abi::Ctx* ctx, double value);  // a bulk string that reads back exactly
void reply_description(abi::Ctx* ctx,
                       const Tensor& tensor);  // dtype, [sizes], kind ("" for none), samples (nil for none)
void reply_redisai(abi::Ctx* ctx, const Tensor& tensor, RedisAIFormat format);
