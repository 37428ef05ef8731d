// AI.SCRIPTSTORE, AI.SCRIPTSET, AI.SCRIPTGET, AI.SCRIPTDEL.
#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "script/engine.hpp"
#include "script/request.hpp"
#include "script_type.hpp"

using words::shown;

namespace {

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
        engine::check_entry_points(self.command, *compiled(self.command, *made), made->entry_points);
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

}  // namespace

std::vector<CommandFacts> script_commands() {
    constexpr const char* stores = "write deny-oom blocking";
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
    };
}
