// AI.SCRIPTSTORE, AI.SCRIPTSET, AI.SCRIPTGET, AI.SCRIPTDEL, AI.SCRIPTEXECUTE, AI.SCRIPTRUN, AI.INFO, AI._SCRIPTSCAN.
#include <algorithm>
#include <chrono>

#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "script/engine.hpp"
#include "script_type.hpp"
#include "version.hpp"

using words::shown;

namespace {

using Clock = std::chrono::steady_clock;

Script* script_in(const OpenedKey& key, std::string_view command, std::string_view name) {
    if (key.empty()) return nullptr;
    if (abi::KeyType(key.get()) != abi::key_module || abi::ModuleTypeGetType(key.get()) != script_type)
        refuse_as("WRONGTYPE", wrong_type, command, ": key ", shown(name), " holds something else; expected a script");
    return static_cast<Script*>(abi::ModuleTypeGetValue(key.get()));
}

Script& require_script(const OpenedKey& key, std::string_view command, std::string_view name) {
    Script* script = script_in(key, command, name);
    if (!script) refuse("script key is empty: ", command, ": key ", shown(name), " does not exist; expected a script");
    return *script;
}

std::string require_cpu(const Arguments& arguments, std::size_t i) {
    if (!names_cpu(arguments.at(i, "device"))) arguments.refuse_argument(i, "device", "CPU");
    return std::string(arguments[i]);
}

void put_script(abi::Ctx* ctx, const std::string& key_name, const std::string& command, Script script) {
    const OwnedString name(key_name);
    const OpenedKey key(ctx, name.get(), abi::read_mode | abi::write_mode);
    script_in(key, command, key_name);
    std::vector<OwnedString> owned;
    for (const std::string& word : script_words(script)) owned.emplace_back(word);
    std::vector<abi::String*> argv{name.get()};
    for (const OwnedString& word : owned) argv.push_back(word.get());
    abi::Replicate(ctx, command.c_str(), "v", argv.data(), argv.size());
    abi::ModuleTypeSetValue(key.get(), script_type, new Script(std::move(script)));
    abi::NotifyKeyspaceEvent(ctx, abi::notify_module, "script.set", name.get());
}

std::shared_ptr<CompiledScript> compiled(const std::string& command, ScriptCode& code, const std::string& source) {
    const std::scoped_lock lock(code.mutex);
    if (!code.compiled) code.compiled = engine::compile(command, source);
    return code.compiled;
}

// Compiles on a worker and stores what compiled. What a master or the AOF sends was compiled there: it is stored as it
// is.
void store_script(const Call& call, Script script) {
    const std::string command = call.arguments.command(), key(call.arguments[1]);
    if (abi::GetContextFlags(call.ctx) & (abi::flag_replicated | abi::flag_loading)) {
        put_script(call.ctx, key, command, std::move(script));
        abi::ReplyWithSimpleString(call.ctx, "OK");
        return;
    }
    require_blocking(call.ctx, command);
    const auto made = std::make_shared<Script>(std::move(script));
    auto job = std::make_unique<Job>();
    job->command = command;
    job->compute = [made](Job& self) {
        engine::check_entry_points(self.command, *compiled(self.command, *made->code, made->source),
                                   made->entry_points);
    };
    job->reply = [made, key, command](abi::Ctx* ctx) {
        put_script(ctx, key, command, *made);
        abi::ReplyWithSimpleString(ctx, "OK");
    };
    run_job(call.ctx, std::move(job));
}

Script read_source(const Arguments& arguments, const Options& options) {
    Script script;
    script.device = require_cpu(arguments, 2);
    if (options.has("TAG")) script.tag = arguments[options.place("TAG")];
    script.source = arguments[options.required("SOURCE")];
    return script;
}

void script_store(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(7, "AI.SCRIPTSTORE key CPU [TAG tag] ENTRY_POINTS n function.. SOURCE source");
    const Options options(arguments, 3, {{"TAG", 1}, {"ENTRY_POINTS", counted}, {"SOURCE", 1}});
    options.required("ENTRY_POINTS");
    Script script = read_source(arguments, options);
    for (const std::size_t i : options.places("ENTRY_POINTS")) script.entry_points.emplace_back(arguments[i]);
    if (script.entry_points.empty()) refuse(arguments.command(), ": ENTRY_POINTS is 0; expected at least one function");
    store_script(call, std::move(script));
}

void script_set(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(5, "AI.SCRIPTSET key CPU [TAG tag] SOURCE source");
    const Options options(arguments, 3, {{"TAG", 1}, {"SOURCE", 1}});
    store_script(call, read_source(arguments, options));
}

void script_get(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(2, "AI.SCRIPTGET key [META] [SOURCE]");
    const Options options(arguments, 2, {{"META", 0}, {"SOURCE", 0}});
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    const Script& script = require_script(key, arguments.command(), arguments[1]);
    if (options.has("SOURCE") && !options.has("META")) return reply_bulk(call.ctx, script.source);
    const bool source = options.has("SOURCE") || !options.has("META");
    abi::ReplyWithArray(call.ctx, source ? 8 : 6);
    reply_bulk(call.ctx, "device");
    reply_bulk(call.ctx, script.device);
    reply_bulk(call.ctx, "tag");
    reply_bulk(call.ctx, script.tag);
    reply_bulk(call.ctx, "Entry Points");
    abi::ReplyWithArray(call.ctx, static_cast<long>(script.entry_points.size()));
    for (const std::string& name : script.entry_points) reply_bulk(call.ctx, name);
    if (!source) return;
    reply_bulk(call.ctx, "source");
    reply_bulk(call.ctx, script.source);
}

void script_del(const Call& call) {
    call.arguments.exactly(2, "AI.SCRIPTDEL key");
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode | abi::write_mode);
    require_script(key, call.arguments.command(), call.arguments[1]);
    abi::DeleteKey(key.get());
    abi::Replicate(call.ctx, "DEL", "s", call.argv[1]);
    abi::ReplyWithSimpleString(call.ctx, "OK");
}

std::string user_of(abi::Ctx* ctx) {
    abi::String* name = abi::GetCurrentUserName(ctx);
    if (!name) return {};
    std::size_t length = 0;
    const char* text = abi::StringPtrLen(name, &length);
    std::string user(text, length);
    abi::FreeString(ctx, name);
    return user;
}

enum class Convention { lists, tensors, either };  // (tensors, keys, args); tensors one by one; as it is declared

struct Invocation {
    Convention convention = Convention::lists;
    std::string function;
    std::vector<std::string> keys, args, outputs;
    std::vector<Tensor> inputs;
    std::optional<std::size_t> list_from;  // AI.SCRIPTRUN's $
    abi::TimeMs timeout_ms = 0;
};

std::vector<Tensor> invoke(const std::string& command, CompiledScript& script, const Invocation& work,
                           const engine::Run& run) {
    const bool lists = work.convention == Convention::lists ||
                       (work.convention == Convention::either && engine::is_entry_point(command, script, work.function));
    if (lists) return engine::execute(command, script, work.function, work.inputs, work.keys, work.args, run);
    if (!work.keys.empty() || !work.args.empty())
        refuse(command, ": the function ", shown(work.function), " takes tensors alone, without KEYS and ARGS");
    return engine::call(command, script, work.function, work.inputs, work.list_from, run);
}

// Everything between a checked invocation and its reply.
void run_script(const Call& call, const Script& script, Invocation invocation) {
    auto job = std::make_unique<Job>();
    job->command = call.arguments.command();
    job->timeout_ms = invocation.timeout_ms;
    for (const std::string& key : invocation.outputs) job->results.push_back({key, {}, {}});

    engine::Run run{.deadline = std::nullopt, .database = abi::GetSelectedDb(call.ctx), .user = user_of(call.ctx)};
    if (invocation.timeout_ms) run.deadline = Clock::now() + std::chrono::milliseconds(invocation.timeout_ms);
    const auto began = std::make_shared<Clock::time_point>(Clock::now());
    job->compute = [=, code = script.code, source = script.source, work = std::move(invocation)](Job& self) {
        *began = Clock::now();
        const std::shared_ptr<CompiledScript> found = compiled(self.command, *code, source);
        std::vector<Tensor> outputs = invoke(self.command, *found, work, run);
        if (outputs.size() != self.results.size())
            refuse(self.command, ": the script returned ", outputs.size(), " tensors; OUTPUTS names ",
                   self.results.size(), " keys");
        for (std::size_t k = 0; k < outputs.size(); ++k) self.results[k].tensor = std::move(outputs[k]);
    };
    job->finished = [statistics = script.statistics, began](const std::string& refusal) {
        statistics->calls += 1;
        statistics->errors += !refusal.empty();
        statistics->duration_us += static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - *began).count());
    };
    run_job(call.ctx, std::move(job));
}

std::vector<Tensor> read_inputs(const Call& call, const std::vector<std::size_t>& places) {
    std::vector<Tensor> inputs;
    for (const std::size_t i : places) {
        inputs.push_back(require_tensor(call.ctx, call.arguments[i], call.arguments.command() + ": input"));
        if (inputs.back().dtype == DType::text)
            refuse(call.arguments.command(), ": input key ", shown(call.arguments[i]), " is STRING; expected numbers");
    }
    return inputs;
}

std::vector<std::string> words_at(const Arguments& arguments, const std::vector<std::size_t>& places) {
    std::vector<std::string> words;
    for (const std::size_t i : places) words.emplace_back(arguments[i]);
    return words;
}

Options execute_options(const Arguments& arguments) {
    return {arguments,
            3,
            {{"KEYS", counted}, {"INPUTS", counted}, {"ARGS", counted}, {"OUTPUTS", counted}, {"TIMEOUT", 1}}};
}

void script_execute(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(3,
                       "AI.SCRIPTEXECUTE key function [KEYS n key..] [INPUTS n key..] [ARGS n argument..] [OUTPUTS n "
                       "key..] [TIMEOUT ms]");
    const Options options = execute_options(arguments);
    if (!options.has("KEYS") && !options.has("INPUTS"))
        refuse(arguments.command(), ": KEYS or INPUTS must be given (KEYS 0 for a script that needs neither)");
    require_blocking(call.ctx, arguments.command());
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    const Script& script = require_script(key, arguments.command(), arguments[1]);
    Invocation invocation;
    invocation.function = arguments[2];
    invocation.convention = script.entry_points.empty() ? Convention::either : Convention::lists;
    if (!script.entry_points.empty() && std::ranges::find(script.entry_points, invocation.function) == script.entry_points.end())
        arguments.refuse_argument(2, "function", "one of the script's ENTRY_POINTS");
    invocation.keys = words_at(arguments, options.places("KEYS"));
    invocation.args = words_at(arguments, options.places("ARGS"));
    invocation.outputs = words_at(arguments, options.places("OUTPUTS"));
    invocation.inputs = read_inputs(call, options.places("INPUTS"));
    if (options.has("TIMEOUT"))
        invocation.timeout_ms = arguments.integer(options.place("TIMEOUT"), "TIMEOUT", 1, std::int64_t{1} << 40);
    run_script(call, script, std::move(invocation));
}

KeyPositions execute_keys(const Arguments& arguments) {
    KeyPositions positions{{1, reads}};
    const Options options = execute_options(arguments);
    for (const std::size_t i : options.places("KEYS")) positions.push_back({i, reads_and_writes});
    for (const std::size_t i : options.places("INPUTS")) positions.push_back({i, reads});
    for (const std::size_t i : options.places("OUTPUTS")) positions.push_back({i, writes});
    return positions;
}

// AI.SCRIPTRUN key function INPUTS key.. [$ key..] OUTPUTS key..: no counts.
struct RunPlaces {
    std::vector<std::size_t> inputs, outputs;
    std::optional<std::size_t> list_from;
};

RunPlaces run_places(const Arguments& arguments) {
    RunPlaces places;
    std::vector<std::size_t>* into = nullptr;
    for (std::size_t i = 3; i < arguments.size(); ++i) {
        if (into != &places.outputs && same_word(arguments[i], "OUTPUTS")) {
            into = &places.outputs;
        } else if (!into && same_word(arguments[i], "INPUTS")) {
            into = &places.inputs;
        } else if (into == &places.inputs && arguments[i] == "$") {
            if (places.list_from) refuse(arguments.command(), ": argument ", i, " is a second $; expected at most one");
            places.list_from = places.inputs.size();
        } else if (into) {
            into->push_back(i);
        } else {
            arguments.refuse_argument(i, "section", "INPUTS or OUTPUTS");
        }
    }
    return places;
}

void script_run(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(3, "AI.SCRIPTRUN key function [INPUTS key.. [$ key..]] [OUTPUTS key..]");
    const RunPlaces places = run_places(arguments);
    require_blocking(call.ctx, arguments.command());
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    const Script& script = require_script(key, arguments.command(), arguments[1]);
    if (!script.entry_points.empty())
        refuse(arguments.command(), ": key ", shown(arguments[1]),
               " was stored with AI.SCRIPTSTORE; expected AI.SCRIPTEXECUTE");
    Invocation invocation;
    invocation.convention = Convention::tensors;
    invocation.function = arguments[2];
    invocation.outputs = words_at(arguments, places.outputs);
    invocation.inputs = read_inputs(call, places.inputs);
    invocation.list_from = places.list_from;
    run_script(call, script, std::move(invocation));
}

KeyPositions run_keys(const Arguments& arguments) {
    KeyPositions positions{{1, reads}};
    const RunPlaces places = run_places(arguments);
    for (const std::size_t i : places.inputs) positions.push_back({i, reads});
    for (const std::size_t i : places.outputs) positions.push_back({i, writes});
    return positions;
}

void reply_field(abi::Ctx* ctx, std::string_view name, std::uint64_t value) {
    reply_bulk(ctx, name);
    abi::ReplyWithLongLong(ctx, static_cast<long long>(value));
}

void reply_field(abi::Ctx* ctx, std::string_view name, std::string_view value) {
    reply_bulk(ctx, name);
    reply_bulk(ctx, value);
}

void info(const Call& call) {
    const Arguments& arguments = call.arguments;
    if (arguments.size() == 1) {
        const PoolState state = pool::state();
        abi::ReplyWithArray(call.ctx, 6);
        reply_field(call.ctx, "version", std::string_view(module_version_text));
        reply_field(call.ctx, "threads", static_cast<std::uint64_t>(state.threads));
        reply_field(call.ctx, "intra_op_threads", static_cast<std::uint64_t>(state.intra_op_threads));
        return;
    }
    const Options options(arguments, 2, {{"RESETSTAT", 0}});
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    const Script& script = require_script(key, arguments.command(), arguments[1]);
    ScriptStatistics& statistics = *script.statistics;
    if (options.has("RESETSTAT")) {
        statistics = {};
        abi::ReplyWithSimpleString(call.ctx, "OK");
        return;
    }
    abi::ReplyWithArray(call.ctx, 18);
    reply_field(call.ctx, "key", arguments[1]);
    reply_field(call.ctx, "type", std::string_view("SCRIPT"));
    reply_field(call.ctx, "backend", std::string_view("TORCH"));
    reply_field(call.ctx, "device", std::string_view(script.device));
    reply_field(call.ctx, "tag", std::string_view(script.tag));
    reply_field(call.ctx, "duration", statistics.duration_us);
    reply_field(call.ctx, "samples", std::int64_t{-1});
    reply_field(call.ctx, "calls", statistics.calls);
    reply_field(call.ctx, "errors", statistics.errors);
}

void scan(const Call& call) {
    call.arguments.exactly(1, "AI._SCRIPTSCAN");
    using Found = std::vector<std::pair<std::string, std::string>>;
    Found found;
    RedisModuleScanCursor* cursor = abi::ScanCursorCreate();
    const auto visit = [](abi::Ctx* ctx, abi::String* name, abi::Key* opened, void* data) {
        // The server hands over the key only when it has it at hand.
        abi::Key* key = opened ? opened : abi::OpenKey(ctx, name, abi::read_mode);
        if (key && abi::KeyType(key) == abi::key_module && abi::ModuleTypeGetType(key) == script_type) {
            std::size_t length = 0;
            const char* text = abi::StringPtrLen(name, &length);
            static_cast<Found*>(data)->emplace_back(std::string(text, length),
                                                    static_cast<Script*>(abi::ModuleTypeGetValue(key))->tag);
        }
        if (key && !opened) abi::CloseKey(key);
    };
    while (abi::Scan(call.ctx, cursor, visit, &found)) {
    }
    abi::ScanCursorDestroy(cursor);
    std::ranges::sort(found);  // the hash table's order changes with each restart
    abi::ReplyWithArray(call.ctx, static_cast<long>(found.size()));
    for (const auto& [name, tag] : found) {
        abi::ReplyWithArray(call.ctx, 2);
        reply_bulk(call.ctx, name);
        reply_bulk(call.ctx, tag);
    }
}

}  // namespace

std::vector<CommandFacts> script_commands() {
    constexpr const char* stores = "write deny-oom blocking";
    constexpr const char* runs = "write deny-oom getkeys-api blocking";
    return {
        {"ai.scriptstore",
         command<script_store>,
         stores,
         "Compiles and stores a TorchScript.",
         "O(source)",
         {{1, writes}}},
        {"ai.scriptset",
         command<script_set>,
         stores,
         "Compiles and stores a TorchScript whose functions take tensors.",
         "O(source)",
         {{1, writes}}},
        {"ai.scriptget", command<script_get>, "readonly", "Returns a script.", "O(source)", {{1, reads}}},
        {"ai.scriptdel", command<script_del>, "write", "Deletes a script.", "O(1)", {{1, removes}}},
        {"ai.scriptexecute",
         command<script_execute, execute_keys>,
         runs,
         "Runs an entry point of a script.",
         "as the script",
         {}},
        {"ai.scriptrun",
         command<script_run, run_keys>,
         runs,
         "Runs a function of a script of AI.SCRIPTSET.",
         "as the script",
         {}},
        {"ai.info", command<info>, "readonly fast", "Returns or resets a script's statistics.", "O(1)", {{1, reads}}},
        {"ai._scriptscan", command<scan>, "readonly", "Lists scripts and tags.", "O(keys)", {}},
    };
}
