// Scripts as a native type: source text. Both builds can load and save them, only the torch build compiles them.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi.hpp"

struct ScriptStatistics {  // the main thread's alone
    std::uint64_t calls = 0, errors = 0, duration_us = 0;
};

struct CompiledScript;

// Shared by a key's value and the jobs that run it: whoever comes first compiles. A file is loaded without compiling.
struct ScriptCode {
    std::mutex mutex;
    std::shared_ptr<CompiledScript> compiled;
};

struct Script {
    std::string source, tag, device = "CPU";
    std::vector<std::string> entry_points;  // empty: stored with AI.SCRIPTSET, whose functions take tensors one by one
    std::shared_ptr<ScriptStatistics> statistics = std::make_shared<ScriptStatistics>();
    std::shared_ptr<ScriptCode> code = std::make_shared<ScriptCode>();
};

// CPU or CPU:n, in any case, kept as it was written.
bool names_cpu(std::string_view device);

extern RedisModuleType* script_type;
bool register_script_type(abi::Ctx* ctx);
// The words of the command that stores this script, behind the key.
std::vector<std::string> script_words(const Script& script);
