// The part of the Redis modules ABI that this module uses, declared from the public API reference
// (redis.io, "Modules API reference", 7.0). Functions are fetched by name at load, so no Redis header is needed.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
struct RedisModuleCtx;
struct RedisModuleString;
struct RedisModuleKey;
struct RedisModuleType;
struct RedisModuleIO;
struct RedisModuleDigest;
struct RedisModuleBlockedClient;
struct RedisModuleCallReply;
struct RedisModuleCommand;
struct RedisModuleServerInfoData;
}

namespace abi {

using Ctx = RedisModuleCtx;
using String = RedisModuleString;
using Key = RedisModuleKey;
using Blocked = RedisModuleBlockedClient;
using CommandFunction = int (*)(Ctx*, String**, int);
using TimeMs = long long;

inline constexpr int ok = 0;
inline constexpr int api_version = 1;

// OpenKey modes
inline constexpr int read_mode = 1 << 0;
inline constexpr int write_mode = 1 << 1;

// KeyType
inline constexpr int key_empty = 0;
inline constexpr int key_module = 6;
inline constexpr const char* key_type_names[] = {
    "nothing", "a string", "a list", "a hash", "a set", "a sorted set", "another module's value", "a stream"};

// GetContextFlags
inline constexpr int flag_lua = 1 << 0;
inline constexpr int flag_multi = 1 << 1;
inline constexpr int flag_read_only = 1 << 4;
inline constexpr int flag_aof = 1 << 6;
inline constexpr int flag_replicated = 1 << 12;
inline constexpr int flag_loading = 1 << 13;
inline constexpr int flag_deny_blocking = 1 << 21;

// Key specification flags
inline constexpr std::uint64_t key_read_only = 1 << 0;
inline constexpr std::uint64_t key_read_write = 1 << 1;
inline constexpr std::uint64_t key_overwrite = 1 << 2;
inline constexpr std::uint64_t key_remove = 1 << 3;
inline constexpr std::uint64_t key_access = 1 << 4;
inline constexpr std::uint64_t key_update = 1 << 5;
inline constexpr std::uint64_t key_delete = 1 << 7;

inline constexpr int reply_error = 1;  // of CallReplyType
inline constexpr int option_handle_io_errors = 1 << 0;
inline constexpr int notify_module = 1 << 13;

struct Event {
    std::uint64_t id;
    std::uint64_t data_version;
};
inline constexpr Event shutdown_event{5, 1};
inline constexpr Event cron_event{8, 1};

// Methods of a native type, version 4 (Redis 7.0)
struct TypeMethods {
    std::uint64_t version;
    void* (*rdb_load)(RedisModuleIO*, int encoding_version);
    void (*rdb_save)(RedisModuleIO*, void* value);
    void (*aof_rewrite)(RedisModuleIO*, String* key, void* value);
    std::size_t (*memory_usage)(const void* value);
    void (*digest)(RedisModuleDigest*, void* value);
    void (*free)(void* value);
    int (*aux_load)(RedisModuleIO*, int, int);
    void (*aux_save)(RedisModuleIO*, int);
    int aux_save_triggers;
    std::size_t (*free_effort)(String* key, const void* value);
    void (*unlink)(String*, const void*);
    void* (*copy)(String* from, String* to, const void* value);
    int (*defrag)(void*, String*, void**);
    std::size_t (*memory_usage2)(void*, const void*, std::size_t);
    std::size_t (*free_effort2)(void*, const void*);
    void (*unlink2)(void*, const void*);
    void* (*copy2)(void*, const void*);
};

// Command information for COMMAND INFO, COMMAND DOCS and the ACL key checks
struct KeySpec {
    const char* notes;
    std::uint64_t flags;
    int begin_search_type;  // see begin_index
    union {
        struct {
            int position;
        } index;
        struct {
            const char* keyword;
            int start_from;
        } keyword;
    } begin;
    int find_keys_type;  // see find_range
    union {
        struct {
            int last_key, key_step, limit;
        } range;
        struct {
            int number_index, first_key, key_step;
        } number;
    } find;
};
inline constexpr int begin_index = 2;
inline constexpr int find_range = 2;

struct CommandHistory {
    const char* since;
    const char* changes;
};
struct CommandArgument {
    const char* name;
    int type;
    int key_spec_index;
    const char* token;
    const char* summary;
    const char* since;
    int flags;
    const char* deprecated_since;
    CommandArgument* arguments;
    const char* display_text;
};
struct CommandInfoVersion {
    int version;
    std::size_t size_of_history, size_of_key_spec, size_of_argument;
};
struct CommandInfo {
    const CommandInfoVersion* version;
    const char* summary;
    const char* complexity;
    const char* since;
    CommandHistory* history;
    const char* tips;
    int arity;
    KeySpec* key_specs;
    CommandArgument* arguments;
};

// name in Redis, result, parameters. The first list must be present; the second may be missing in a server.
#define ABI_REQUIRED(X)                                                                                           \
    X(Free, void, (void*))                                                                                        \
    X(CreateCommand, int, (Ctx*, const char*, CommandFunction, const char* flags, int first, int last, int step)) \
    X(SetModuleAttribs, void, (Ctx*, const char*, int version, int api))                                          \
    X(SetModuleOptions, void, (Ctx*, int))                                                                        \
    X(CreateDataType, RedisModuleType*, (Ctx*, const char*, int, TypeMethods*))                                   \
    X(Log, void, (Ctx*, const char* level, const char* format, ...))                                              \
    X(LogIOError, void, (RedisModuleIO*, const char* level, const char* format, ...))                             \
    X(ReplyWithLongLong, int, (Ctx*, long long))                                                                  \
    X(ReplyWithError, int, (Ctx*, const char*))                                                                   \
    X(ReplyWithSimpleString, int, (Ctx*, const char*))                                                            \
    X(ReplyWithArray, int, (Ctx*, long))                                                                          \
    X(ReplyWithStringBuffer, int, (Ctx*, const char*, std::size_t))                                               \
    X(ReplyWithNull, int, (Ctx*))                                                                                 \
    X(StringPtrLen, const char*, (const String*, std::size_t*))                                                   \
    X(CreateString, String*, (Ctx*, const char*, std::size_t))                                                    \
    X(RetainString, void, (Ctx*, String*))                                                                        \
    X(FreeString, void, (Ctx*, String*))                                                                          \
    X(OpenKey, Key*, (Ctx*, String*, int mode))                                                                   \
    X(CloseKey, void, (Key*))                                                                                     \
    X(KeyType, int, (Key*))                                                                                       \
    X(ModuleTypeGetType, RedisModuleType*, (Key*))                                                                \
    X(ModuleTypeGetValue, void*, (Key*))                                                                          \
    X(ModuleTypeSetValue, int, (Key*, RedisModuleType*, void*))                                                   \
    X(SetAbsExpire, int, (Key*, TimeMs))                                                                          \
    X(SaveUnsigned, void, (RedisModuleIO*, std::uint64_t))                                                        \
    X(LoadUnsigned, std::uint64_t, (RedisModuleIO*))                                                              \
    X(SaveStringBuffer, void, (RedisModuleIO*, const char*, std::size_t))                                         \
    X(LoadStringBuffer, char*, (RedisModuleIO*, std::size_t*))                                                    \
    X(IsIOError, int, (RedisModuleIO*))                                                                           \
    X(EmitAOF, void, (RedisModuleIO*, const char*, const char* format, ...))                                      \
    X(DigestAddStringBuffer, void, (RedisModuleDigest*, const char*, std::size_t))                                \
    X(DigestAddLongLong, void, (RedisModuleDigest*, long long))                                                   \
    X(DigestEndSequence, void, (RedisModuleDigest*))                                                              \
    X(Call, RedisModuleCallReply*, (Ctx*, const char*, const char* format, ...))                                  \
    X(CallReplyType, int, (RedisModuleCallReply*))                                                                \
    X(CallReplyStringPtr, const char*, (RedisModuleCallReply*, std::size_t*))                                     \
    X(FreeCallReply, void, (RedisModuleCallReply*))                                                               \
    X(Replicate, int, (Ctx*, const char*, const char* format, ...))                                               \
    X(GetContextFlags, int, (Ctx*))                                                                               \
    X(BlockClient, Blocked*,                                                                                      \
      (Ctx*, CommandFunction reply, CommandFunction timeout, void (*free)(Ctx*, void*), TimeMs))                  \
    X(GetThreadSafeContext, Ctx*, (Blocked*))                                                                     \
    X(FreeThreadSafeContext, void, (Ctx*))                                                                        \
    X(UnblockClient, int, (Blocked*, void*))                                                                      \
    X(AbortBlock, int, (Blocked*))                                                                                \
    X(SetDisconnectCallback, void, (Blocked*, void (*)(Ctx*, Blocked*)))                                          \
    X(EventLoopAddOneShot, int, (void (*)(void*), void*))                                                         \
    X(AvoidReplicaTraffic, int, ())                                                                               \
    X(GetBlockedClientPrivateData, void*, (Ctx*))                                                                 \
    X(SubscribeToServerEvent, int, (Ctx*, Event, void (*)(Ctx*, Event, std::uint64_t, void*)))                    \
    X(IsKeysPositionRequest, int, (Ctx*))                                                                         \
    X(GetServerInfo, RedisModuleServerInfoData*, (Ctx*, const char* section))                                     \
    X(FreeServerInfo, void, (Ctx*, RedisModuleServerInfoData*))                                                   \
    X(ServerInfoGetFieldUnsigned, unsigned long long, (RedisModuleServerInfoData*, const char*, int* error))      \
    X(ServerInfoGetFieldC, const char*, (RedisModuleServerInfoData*, const char*))                                \
    X(GetUsedMemoryRatio, float, ())                                                                              \
    X(NotifyKeyspaceEvent, int, (Ctx*, int type, const char* event, String* key))                                 \
    X(Milliseconds, long long, ())                                                                                \
    X(TryAlloc, void*, (std::size_t))                                                                             \
    X(KeyAtPosWithFlags, void, (Ctx*, int position, int flags))                                                   \
    X(GetCommand, RedisModuleCommand*, (Ctx*, const char*))                                                       \
    X(SetCommandInfo, int, (RedisModuleCommand*, const CommandInfo*))

#define ABI_OPTIONAL(X)                                                                           \
    X(AddACLCategory, int, (Ctx*, const char*))                         /* Redis 7.4, Valkey 8 */ \
    X(SetCommandACLCategories, int, (RedisModuleCommand*, const char*)) /* Redis 7.2 */

#define ABI_DECLARE(name, result, parameters) extern result(*name) parameters;
ABI_REQUIRED(ABI_DECLARE)
ABI_OPTIONAL(ABI_DECLARE)
#undef ABI_DECLARE

// Fills the pointers above; returns the first missing function's name, or nullptr.
const char* load(Ctx* ctx);

}  // namespace abi
