#include "abi.hpp"

namespace abi {

#define ABI_DEFINE(name, result, parameters) result(*name) parameters = nullptr;
ABI_REQUIRED(ABI_DEFINE)
ABI_OPTIONAL(ABI_DEFINE)
#undef ABI_DEFINE

const char* load(Ctx* ctx) {
    // A context begins with the pointer to the server's lookup function.
    using GetApi = int (*)(const char*, void*);
    const GetApi get = *reinterpret_cast<GetApi*>(ctx);
#define ABI_GET(name, result, parameters) \
    if (get("RedisModule_" #name, static_cast<void*>(&name)) != ok) return "RedisModule_" #name;
    ABI_REQUIRED(ABI_GET)
#undef ABI_GET
#define ABI_TRY(name, result, parameters) \
    if (get("RedisModule_" #name, static_cast<void*>(&name)) != ok) name = nullptr;
    ABI_OPTIONAL(ABI_TRY)
#undef ABI_TRY
    return nullptr;
}

}  // namespace abi
