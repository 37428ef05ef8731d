#include "keyspace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "memory.hpp"
#include "refused.hpp"

using words::shown;

Tensor* OpenedKey::tensor(std::string_view what, std::string_view name) const {
    if (empty()) return nullptr;
    const int type = abi::KeyType(key_);
    if (type != abi::key_module || abi::ModuleTypeGetType(key_) != tensor_type) {
        const char* held = type >= 0 && type <= 7 ? abi::key_type_names[type] : "a value of another type";
        refuse_as("WRONGTYPE", wrong_type, what, " key ", shown(name), " holds ", held, "; expected a tensor");
    }
    return static_cast<Tensor*>(abi::ModuleTypeGetValue(key_));
}

std::optional<Tensor> find_tensor(abi::Ctx* ctx, std::string_view name, std::string_view what) {
    const OwnedString key_name(name);
    const OpenedKey key(ctx, key_name.get(), abi::read_mode);
    const Tensor* tensor = key.tensor(what, name);
    return tensor ? std::optional<Tensor>(*tensor) : std::nullopt;
}

Tensor require_tensor(abi::Ctx* ctx, std::string_view name, std::string_view what) {
    std::optional<Tensor> tensor = find_tensor(ctx, name, what);
    if (!tensor && what.starts_with("AI."))  // RedisAI's first words, which its clients match
        refuse("tensor key is empty or in a different shard: ", what, " key ", shown(name), " does not exist");
    if (!tensor) refuse_as("NOKEY", what, " key ", shown(name), " does not exist; expected a tensor");
    return *std::move(tensor);
}

bool tensor_exists(abi::Ctx* ctx, std::string_view name, std::string_view what) {
    return find_tensor(ctx, name, what).has_value();
}

void put_tensor(abi::Ctx* ctx, const OpenedKey& key, abi::String* name, Tensor tensor, Expiry expiry) {
    // Replacing a value drops its time to live, as SET does.
    abi::ModuleTypeSetValue(key.get(), tensor_type, new Tensor(std::move(tensor)));
    if (expiry.at) abi::SetAbsExpire(key.get(), *expiry.at);
    abi::NotifyKeyspaceEvent(ctx, abi::notify_module, "tensor.set", name);
}

bool propagates(abi::Ctx* ctx) {
    if (abi::GetContextFlags(ctx) & abi::flag_aof) return true;
    RedisModuleServerInfoData* info = abi::GetServerInfo(ctx, "replication");
    int error = 0;
    const bool replicas = abi::ServerInfoGetFieldUnsigned(info, "connected_slaves", &error) > 0 ||
                          abi::ServerInfoGetFieldUnsigned(info, "repl_backlog_active", &error) > 0;
    abi::FreeServerInfo(ctx, info);
    return replicas;
}

namespace {

// What follows the key in AI.TENSORSET, but for the data.
std::vector<OwnedString> described(const Tensor& tensor) {
    std::vector<OwnedString> owned;
    owned.emplace_back(facts(tensor.dtype).name);
    for (const std::int64_t size : tensor.shape) owned.emplace_back(std::to_string(size));
    if (!tensor.kind.empty()) {
        owned.emplace_back("KIND");
        owned.emplace_back(tensor.kind);
    }
    if (tensor.samples) {
        owned.emplace_back("SAMPLES");
        owned.emplace_back(std::to_string(*tensor.samples));
    }
    return owned;
}

void propagate(abi::Ctx* ctx, abi::String* name, const std::vector<OwnedString>& words, abi::String* blob,
               Expiry expiry) {
    std::vector<abi::String*> argv{name};
    for (const OwnedString& word : words) argv.push_back(word.get());
    if (blob) argv.push_back(blob);
    abi::Replicate(ctx, "AI.TENSORSET", "v", argv.data(), argv.size());
    if (expiry.at) abi::Replicate(ctx, "PEXPIREAT", "sl", name, *expiry.at);
}

}  // namespace

void propagate_tensor(abi::Ctx* ctx, abi::String* name, const Tensor& tensor, Expiry expiry, abi::String* blob) {
    std::vector<OwnedString> words = described(tensor);
    words.emplace_back("BLOB");
    if (!blob) words.emplace_back(tensor.blob());
    propagate(ctx, name, words, blob, expiry);
}

void propagate_zeros(abi::Ctx* ctx, abi::String* name, const Tensor& tensor, Expiry expiry) {
    propagate(ctx, name, described(tensor), nullptr, expiry);
}

void count_change(abi::Ctx* ctx, abi::String* name) {
    abi::Replicate(ctx, "TOUCH", "s", name);  // counts as one; harmless where somebody hears it after all
}

void require_writable(abi::Ctx* ctx, std::string_view command, abi::String* name) {
    errno = 0;
    // A write that never changes anything: 1970 is no later than any expiry (GT). S: the checks of a script's writes.
    RedisModuleCallReply* reply = abi::Call(ctx, "PEXPIREAT", "ESslc", name, 1LL, "GT");
    const bool elsewhere = errno == EPERM;
    std::string refusal;
    if (reply && abi::CallReplyType(reply) == abi::reply_error) {
        std::size_t length = 0;
        const char* text = abi::CallReplyStringPtr(reply, &length);
        refusal.assign(text, length);
    }
    if (reply) abi::FreeCallReply(reply);
    if (elsewhere)
        refuse_as("TRYAGAIN", command, ": its output's slot was moved meanwhile; nothing was stored, send it again");
    if (refusal.empty()) return;
    const std::size_t space = std::min(refusal.find(' '), refusal.size());
    refuse_as(std::string_view(refusal).substr(0, space), command, ": nothing was stored:", refusal.substr(space));
}

void require_memory(abi::Ctx* ctx, std::string_view command, std::size_t bytes) {
    if (abi::GetUsedMemoryRatio() <= 0) return;  // no maxmemory
    RedisModuleServerInfoData* info = abi::GetServerInfo(ctx, "memory");
    int error = 0;
    const unsigned long long used = abi::ServerInfoGetFieldUnsigned(info, "used_memory", &error);
    const unsigned long long limit = abi::ServerInfoGetFieldUnsigned(info, "maxmemory", &error);
    const char* policy = abi::ServerInfoGetFieldC(info, "maxmemory_policy");
    const bool evicts = policy && std::strcmp(policy, "noeviction") != 0;
    abi::FreeServerInfo(ctx, info);
    if (limit && used + bytes > limit && memory::spare_bytes()) {
        memory::release_spares();
        return require_memory(ctx, command, bytes);
    }
    if (limit && !evicts && used + bytes > limit)
        refuse_as("OOM", command, ": needs ", bytes, " bytes, but ", used, " of maxmemory ", limit,
                  " are used; delete keys or raise maxmemory");
}
