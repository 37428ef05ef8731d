// How tensors are written to clients.
#pragma once
#include <string_view>

#include "abi.hpp"
#include "tensor.hpp"

struct RedisAIFormat {
    bool meta, blob, values;
};

void reply_bulk(abi::Ctx* ctx, std::string_view text);
void reply_double(abi::Ctx* ctx, double value);  // a bulk string that reads back exactly
void reply_description(abi::Ctx* ctx,
                       const Tensor& tensor);  // dtype, [sizes], kind ("" for none), samples (nil for none)
void reply_redisai(abi::Ctx* ctx, const Tensor& tensor, RedisAIFormat format);
