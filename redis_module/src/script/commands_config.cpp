// AI.CONFIG, AI.INFO, AI._SCRIPTSCAN, AI._MODELSCAN.
#include <algorithm>
#include <limits>
#include <utility>

#include "commands.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "script/configuration.hpp"
#include "script/request.hpp"
#include "version.hpp"

using words::shown;

namespace {

void config_get(const Call& call) {
    call.arguments.exactly(3, "AI.CONFIG GET BACKENDSPATH | MODEL_CHUNK_SIZE");
    const Configuration& known = configuration();
    if (same_word(call.arguments[2], "MODEL_CHUNK_SIZE")) {
        abi::ReplyWithLongLong(call.ctx, static_cast<long long>(known.model_chunk_bytes));
    } else if (!same_word(call.arguments[2], "BACKENDSPATH")) {
        call.arguments.refuse_argument(2, "name", "BACKENDSPATH or MODEL_CHUNK_SIZE");
    } else if (known.backends_path.empty()) {
        abi::ReplyWithNull(call.ctx);
    } else {
        reply_bulk(call.ctx, known.backends_path);
    }
}

void config(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(3, "AI.CONFIG GET name | BACKENDSPATH path | MODEL_CHUNK_SIZE bytes | LOADBACKEND TORCH path");
    if (same_word(arguments[1], "GET")) return config_get(call);
    if (same_word(arguments[1], "LOADBACKEND")) {
        arguments.exactly(4, "AI.CONFIG LOADBACKEND TORCH path");
        if (!same_word(arguments[2], "TORCH")) arguments.refuse_argument(2, "backend", "TORCH, which is linked in");
    } else if (same_word(arguments[1], "BACKENDSPATH")) {
        arguments.exactly(3, "AI.CONFIG BACKENDSPATH path");
        configuration().backends_path = arguments[2];
    } else if (same_word(arguments[1], "MODEL_CHUNK_SIZE")) {
        arguments.exactly(3, "AI.CONFIG MODEL_CHUNK_SIZE bytes");
        configuration().model_chunk_bytes = static_cast<std::size_t>(
            arguments.integer(2, "MODEL_CHUNK_SIZE", 1, std::numeric_limits<std::int64_t>::max()));
    } else {
        arguments.refuse_argument(1, "name", "GET, BACKENDSPATH, MODEL_CHUNK_SIZE or LOADBACKEND");
    }
    abi::ReplyWithSimpleString(call.ctx, "OK");
}

void reply_module(abi::Ctx* ctx) {
    const PoolState state = pool::state();
    abi::ReplyWithArray(ctx, 10);
    reply_field(ctx, "Version", std::string_view(module_version_text));
    reply_field(ctx, "Low level API Version", std::string_view("1"));
    reply_field(ctx, "RDB Encoding version", std::string_view("2"));
    reply_field(ctx, "threads", static_cast<std::uint64_t>(state.threads));
    reply_field(ctx, "intra_op_threads", static_cast<std::uint64_t>(state.intra_op_threads));
}

struct Known {
    const char* type;
    std::string_view name, device, tag;
    std::uint64_t duration_us, calls, errors;
    long long samples;
};

void reply_known(abi::Ctx* ctx, const Known& known) {
    abi::ReplyWithArray(ctx, 18);
    reply_field(ctx, "key", known.name);
    reply_field(ctx, "type", std::string_view(known.type));
    reply_field(ctx, "backend", std::string_view("TORCH"));
    reply_field(ctx, "device", known.device);
    reply_field(ctx, "tag", known.tag);
    reply_field(ctx, "duration", known.duration_us);
    reply_bulk(ctx, "samples");
    abi::ReplyWithLongLong(ctx, known.samples);
    reply_field(ctx, "calls", known.calls);
    reply_field(ctx, "errors", known.errors);
}

void info(const Call& call) {
    const Arguments& arguments = call.arguments;
    if (arguments.size() == 1) return reply_module(call.ctx);
    const bool resets = Options(arguments, 2, {{"RESETSTAT", 0}}).has("RESETSTAT");
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    if (key.empty())
        refuse("cannot find run info for key: ", arguments.command(), ": ", shown(arguments[1]), " is empty");
    const bool model = abi::KeyType(key.get()) == abi::key_module && abi::ModuleTypeGetType(key.get()) == model_type;
    const auto answer = [&](const auto& value, auto& statistics, const char* type, long long samples) {
        if (!resets)
            return reply_known(call.ctx, {type, arguments[1], value.device, value.tag, statistics.duration_us,
                                          statistics.calls, statistics.errors, samples});
        statistics = {};
        abi::ReplyWithSimpleString(call.ctx, "OK");
    };
    if (model) {
        const Model& value = require_model(key, arguments.command(), arguments[1]);
        answer(value, *value.statistics, "MODEL", static_cast<long long>(value.statistics->samples));
    } else {
        const Script& value = require_script(key, arguments.command(), arguments[1]);
        answer(value, *value.statistics, "SCRIPT", -1);
    }
}

struct Listing {
    RedisModuleType* type;
    std::vector<std::pair<std::string, std::string>> found;
};

void visit(abi::Ctx* ctx, abi::String* name, abi::Key* opened, void* data) {
    Listing& listing = *static_cast<Listing*>(data);
    // The server hands over the key only when it has it at hand.
    abi::Key* key = opened ? opened : abi::OpenKey(ctx, name, abi::read_mode);
    if (key && abi::KeyType(key) == abi::key_module && abi::ModuleTypeGetType(key) == listing.type) {
        std::size_t length = 0;
        const char* text = abi::StringPtrLen(name, &length);
        const void* value = abi::ModuleTypeGetValue(key);
        const bool model = listing.type == model_type;
        const std::string& tag = model ? static_cast<const Model*>(value)->tag : static_cast<const Script*>(value)->tag;
        listing.found.emplace_back(std::string(text, length), tag);
    }
    if (key && !opened) abi::CloseKey(key);
}

void scan(const Call& call) {
    call.arguments.exactly(1, call.arguments.command());
    Listing listing{call.arguments.command() == "AI._MODELSCAN" ? model_type : script_type, {}};
    RedisModuleScanCursor* cursor = abi::ScanCursorCreate();
    while (abi::Scan(call.ctx, cursor, visit, &listing)) {
    }
    abi::ScanCursorDestroy(cursor);
    std::ranges::sort(listing.found);  // the hash table's order changes with each restart
    abi::ReplyWithArray(call.ctx, static_cast<long>(listing.found.size()));
    for (const auto& [name, tag] : listing.found) {
        abi::ReplyWithArray(call.ctx, 2);
        reply_bulk(call.ctx, name);
        reply_bulk(call.ctx, tag);
    }
}

}  // namespace

Configuration& configuration() {
    static Configuration& instance = *new Configuration;
    return instance;
}

std::vector<CommandFacts> config_commands() {
    return {
        {"ai.config", command<config>, "admin", "Sets or returns what RedisAI's clients configure.", "O(1)", {}},
        {"ai.info",
         command<info>,
         "readonly fast",
         "Returns or resets statistics of a script or model.",
         "O(1)",
         {{1, reads}}},
        {"ai._scriptscan", command<scan>, "readonly", "Lists scripts and tags.", "O(keys)", {}},
        {"ai._modelscan", command<scan>, "readonly", "Lists models and tags.", "O(keys)", {}},
    };
}
