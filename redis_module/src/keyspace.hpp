// Tensors in the key space: finding, storing and propagating them, always on the main thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "abi.hpp"
#include "tensor.hpp"

extern RedisModuleType* tensor_type;
bool register_tensor_type(abi::Ctx* ctx);

// An owned module string.
class OwnedString {
public:
    OwnedString() = default;
    explicit OwnedString(std::string_view text) : string_(abi::CreateString(nullptr, text.data(), text.size())) {}
    ~OwnedString() {
        if (string_) abi::FreeString(nullptr, string_);
    }
    OwnedString(OwnedString&& other) noexcept : string_(std::exchange(other.string_, nullptr)) {}
    OwnedString& operator=(OwnedString&& other) noexcept {
        std::swap(string_, other.string_);
        return *this;
    }
    abi::String* get() const { return string_; }
    // A share of a string that the server made: an argument that outlives its command. On the main thread.
    static OwnedString shared(abi::String* string) {
        OwnedString made;
        abi::RetainString(nullptr, string);
        made.string_ = string;
        return made;
    }
    explicit operator bool() const { return string_ != nullptr; }

private:
    abi::String* string_ = nullptr;
};

// An opened key; closing a key opened for writing tells its watchers.
class OpenedKey {
public:
    OpenedKey(abi::Ctx* ctx, abi::String* name, int mode) : key_(abi::OpenKey(ctx, name, mode)) {}
    ~OpenedKey() {
        if (key_) abi::CloseKey(key_);
    }
    OpenedKey(const OpenedKey&) = delete;
    OpenedKey& operator=(const OpenedKey&) = delete;

    abi::Key* get() const { return key_; }
    bool empty() const { return !key_ || abi::KeyType(key_) == abi::key_empty; }
    // The tensor it holds, or nullptr when it is empty; throws WRONGTYPE for anything else.
    Tensor* tensor(std::string_view what, std::string_view name) const;

private:
    abi::Key* key_;
};

struct Expiry {
    std::optional<abi::TimeMs> at;  // Unix time, ms
};

// `what` names the argument in a refusal, such as "TENSOR.MEAN: input".
std::optional<Tensor> find_tensor(abi::Ctx* ctx, std::string_view name, std::string_view what);
Tensor require_tensor(abi::Ctx* ctx, std::string_view name, std::string_view what);  // throws NOKEY
bool tensor_exists(abi::Ctx* ctx, std::string_view name, std::string_view what);

void put_tensor(abi::Ctx* ctx, const OpenedKey& key, abi::String* name, Tensor tensor, Expiry expiry);

// Whether the AOF, a replica or the replication backlog wants to hear of a change now.
bool propagates(abi::Ctx* ctx);
// Sends a stored tensor on as AI.TENSORSET (and PEXPIREAT), so that replicas never compute. `blob` may be made
// beforehand, or nullptr.
void propagate_tensor(abi::Ctx* ctx, abi::String* name, const Tensor& tensor, Expiry expiry, abi::String* blob);
// Likewise a tensor of zeros, whose bytes need not travel.
void propagate_zeros(abi::Ctx* ctx, abi::String* name, const Tensor& tensor, Expiry expiry);
// Where nobody hears: a change all the same, so that a save falls due; nothing is copied.
void count_change(abi::Ctx* ctx, abi::String* name);

// Refuses as a plain SET of the key would be refused now: its slot has moved, a save failed, too few replicas.
void require_writable(abi::Ctx* ctx, std::string_view command, abi::String* name);

// Refuses when `bytes` more would pass maxmemory and nothing may be evicted.
void require_memory(abi::Ctx* ctx, std::string_view command, std::size_t bytes);
