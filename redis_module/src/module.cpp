// The module's entry point: functions, arguments, the type, the threads and the commands.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "abi.hpp"
#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "version.hpp"

namespace {

struct Settings {
    int threads = 1;
    int intra_op_threads = 1;
    std::int64_t spare_mb = 256;
};

// RedisAI's arguments of the same meaning; 0 threads leave the choice to the module.
bool read_redisai_setting(const Arguments& arguments, std::size_t i, Settings& settings) {
    if (same_word(arguments[i], "THREADS_PER_QUEUE")) {
        settings.threads = static_cast<int>(arguments.integer(i + 1, "THREADS_PER_QUEUE", 1, 256));
    } else if (same_word(arguments[i], "INTRA_OP_PARALLELISM")) {
        settings.intra_op_threads =
            std::max(1, static_cast<int>(arguments.integer(i + 1, "INTRA_OP_PARALLELISM", 0, 256)));
    } else if (same_word(arguments[i], "INTER_OP_PARALLELISM")) {
        arguments.integer(i + 1, "INTER_OP_PARALLELISM", 0, 256);  // jobs are what runs beside each other here
    } else {
        return false;
    }
    return true;
}

Settings read_settings(const Arguments& arguments, std::size_t count) {
    Settings settings;
    for (std::size_t i = 0; i < count; i += 2) {
        if (same_word(arguments[i], "THREADS")) {
            settings.threads = static_cast<int>(arguments.integer(i + 1, "threads", 1, 256));
        } else if (same_word(arguments[i], "INTRA-OP-THREADS")) {
            settings.intra_op_threads = static_cast<int>(arguments.integer(i + 1, "intra-op-threads", 1, 256));
        } else if (same_word(arguments[i], "SPARE-MB")) {
            settings.spare_mb = arguments.integer(i + 1, "spare-mb", 0, 1 << 20);
        } else if (!read_redisai_setting(arguments, i, settings)) {
            refuse("module argument ", words::shown(arguments[i]),
                   " is unknown; expected threads, intra-op-threads, spare-mb or one of RedisAI's");
        }
    }
    return settings;
}

void on_cron(abi::Ctx*, abi::Event, std::uint64_t, void*) {
    memory::release_idle();
    release_held_jobs();
}

void on_shutdown(abi::Ctx*, abi::Event, std::uint64_t, void*) {
    pool::stop();
}

void describe(RedisModuleCommand* command, const CommandFacts& facts) {
    static const abi::CommandInfoVersion version{1, sizeof(abi::CommandHistory), sizeof(abi::KeySpec),
                                                 sizeof(abi::CommandArgument)};
    std::array<abi::KeySpec, 8> specs{};  // the last one stays zero and ends the list
    for (std::size_t i = 0; i < facts.keys.size(); ++i) {
        specs[i].flags = facts.keys[i].flags;
        specs[i].begin_search_type = abi::begin_index;
        specs[i].begin.index.position = static_cast<int>(facts.keys[i].index);
        specs[i].find_keys_type = abi::find_range;
        specs[i].find.range = {0, 1, 0};
    }
    abi::CommandInfo info{};
    info.version = &version;
    info.summary = facts.summary;
    info.complexity = facts.complexity;
    info.since = module_version_text;
    info.key_specs = facts.keys.empty() ? nullptr : specs.data();
    if (abi::SetCommandInfo(command, &info) != abi::ok)
        refuse(facts.name, ": the server refused the command's description");
}

// Redis 7.0 knows commands of modules by name only; 7.2 and Valkey 8.0 put them into the built-in ACL categories, 7.4
// also into one of their own.
void categorize(RedisModuleCommand* command, const CommandFacts& facts) {
    if (!abi::SetCommandACLCategories) return;
    const std::string_view flags = facts.flags;
    const auto has = [&](std::string_view flag) { return flags.find(flag) != std::string_view::npos; };
    std::string categories = has("fast") ? "fast" : "slow";
    if (has("write")) categories += " write";
    if (has("readonly")) categories += " read";
    if (has("blocking")) categories += " blocking";
    if (facts.tells_of_all) categories += " dangerous";
    if (abi::AddACLCategory) categories += " tensor";
    if (abi::SetCommandACLCategories(command, categories.c_str()) != abi::ok)
        refuse(facts.name, ": the server refused its ACL categories");
}

void create(abi::Ctx* ctx, const CommandFacts& facts) {
    const bool keyed = !facts.keys.empty();
    const int first = keyed ? static_cast<int>(facts.keys.front().index) : 0;
    const int last = keyed ? static_cast<int>(facts.keys.back().index) : 0;
    if (abi::CreateCommand(ctx, facts.name, facts.function, facts.flags, first, last, keyed) != abi::ok)
        refuse(facts.name, ": the server refused the command; is another tensor module loaded?");
    RedisModuleCommand* command = abi::GetCommand(ctx, facts.name);
    describe(command, facts);
    categorize(command, facts);
}

void load_module(abi::Ctx* ctx, const Settings& settings) {
    if (abi::AddACLCategory) abi::AddACLCategory(ctx, "tensor");
    abi::SetModuleOptions(ctx, abi::option_handle_io_errors);
    if (!register_tensor_type(ctx)) refuse("the server refused the type xo-tensor");
    for (const auto& group : {tensor_commands(), aggregate_commands(), update_commands()})
        for (const CommandFacts& facts : group) create(ctx, facts);
    memory::set_spare_limit(static_cast<std::size_t>(settings.spare_mb) << 20);
    abi::SubscribeToServerEvent(ctx, abi::cron_event, on_cron);
    abi::SubscribeToServerEvent(ctx, abi::shutdown_event, on_shutdown);
    pool::start(settings.threads, settings.intra_op_threads);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int RedisModule_OnLoad(RedisModuleCtx* ctx, RedisModuleString** argv,
                                                                 int argc) {
    constexpr int failed = 1;
    if (abi::load(ctx)) return failed;  // without functions there is no way to log: the server says that loading failed
    abi::SetModuleAttribs(ctx, module_name, module_version, abi::api_version);
    try {
        Settings settings;
        if (argc > 0) {
            const Arguments arguments(argv, argc);
            settings = read_settings(arguments, arguments.size());
        }
        load_module(ctx, settings);
    } catch (const std::exception& error) {
        abi::Log(ctx, "warning", "tensors: %s", error.what());
        return failed;
    }
    return abi::ok;
}

// Native types cannot be unloaded; threads neither.
extern "C" [[gnu::visibility("default")]] int RedisModule_OnUnload(RedisModuleCtx*) {
    return 1;
}
