// AI.MODELSTORE, AI.MODELSET, AI.MODELGET, AI.MODELDEL.
#include <algorithm>
#include <cstring>
#include <limits>

#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "script/configuration.hpp"
#include "script/model.hpp"
#include "script/request.hpp"

using words::shown;

namespace {

constexpr const char* store_syntax =
    "key TORCH CPU [TAG tag] [BATCHSIZE n [MINBATCHSIZE m [MINBATCHTIMEOUT ms]]] BLOB piece..";

void put_model(abi::Ctx* ctx, const std::string& key_name, const std::string& command, const Model& model) {
    const OwnedString name(key_name);
    const OpenedKey key(ctx, name.get(), abi::read_mode | abi::write_mode);
    model_in(key, command, key_name);
    auto value = std::make_unique<Model>(model);
    const std::vector<OwnedString> words = model_words(model);
    std::vector<abi::String*> argv{name.get()};
    for (const OwnedString& word : words) argv.push_back(word.get());
    abi::Replicate(ctx, "AI.MODELSTORE", "v", argv.data(), argv.size());
    abi::ModuleTypeSetValue(key.get(), model_type, value.release());
    abi::NotifyKeyspaceEvent(ctx, abi::notify_module, "model.set", name.get());
}

std::uint64_t* number_named(Model& model, std::string_view name) {
    if (same_word(name, "BATCHSIZE")) return &model.batch_size;
    if (same_word(name, "MINBATCHSIZE")) return &model.min_batch_size;
    if (same_word(name, "MINBATCHTIMEOUT")) return &model.min_batch_timeout_ms;
    return nullptr;
}

// The pieces of an archive that is longer than a client may send in one.
std::shared_ptr<Bytes> joined(const Arguments& arguments, std::size_t first) {
    std::size_t size = 0;
    for (std::size_t i = first; i < arguments.size(); ++i) size += arguments[i].size();
    const auto blob = std::make_shared<Bytes>(size);
    for (std::size_t i = first, at = 0; i < arguments.size(); at += arguments[i++].size())
        std::memcpy(blob->data() + at, arguments[i].data(), arguments[i].size());
    return blob;
}

Model read_model(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(6, arguments.command() + ' ' + store_syntax);
    if (!same_word(arguments[2], "TORCH"))
        arguments.refuse_argument(2, "backend", "TORCH: this build runs TorchScript");
    Model model;
    model.device = arguments[3];
    std::size_t i = 4;
    for (; i < arguments.size() && !same_word(arguments[i], "BLOB"); i += 2) {
        if (same_word(arguments[i], "TAG")) {
            model.tag = arguments.at(i + 1, "TAG");
        } else if (std::uint64_t* number = number_named(model, arguments[i])) {
            *number = arguments.natural(i + 1, arguments[i]);
        } else if (same_word(arguments[i], "INPUTS") || same_word(arguments[i], "OUTPUTS")) {
            arguments.refuse_argument(i, "option", "none of TensorFlow's: a TorchScript model names its inputs itself");
        } else {
            arguments.refuse_argument(i, "option", "TAG, BATCHSIZE, MINBATCHSIZE, MINBATCHTIMEOUT or BLOB");
        }
    }
    arguments.at(i + 1, "BLOB");
    std::size_t size = 0;
    for (std::size_t k = i + 1; k < arguments.size(); ++k) size += arguments[k].size();
    require_memory(call.ctx, arguments.command(), size);
    model.blob = joined(arguments, i + 1);
    check_model(model, arguments.command());
    return model;
}

// Loads on a worker and stores what loaded. What a master or the AOF sends was loaded there: it is stored as it is.
void model_store(const Call& call) {
    const std::string& command = call.arguments.command();
    const auto model = std::make_shared<Model>(read_model(call));
    const std::string key(call.arguments[1]);
    if (abi::GetContextFlags(call.ctx) & (abi::flag_replicated | abi::flag_loading)) {
        put_model(call.ctx, key, command, *model);
        abi::ReplyWithSimpleString(call.ctx, "OK");
        return;
    }
    require_blocking(call.ctx, command);
    auto job = std::make_unique<Job>();
    job->command = command;
    job->compute = [model](Job& self) { models::loaded(self.command, *model); };
    job->reply = [model, key, command](abi::Ctx* ctx) {
        put_model(ctx, key, command, *model);
        abi::ReplyWithSimpleString(ctx, "OK");
    };
    run_job(call.ctx, std::move(job));
}

void reply_blob(abi::Ctx* ctx, const Model& model) {
    const std::string_view text = model.blob->text();
    const std::size_t piece = configuration().model_chunk_bytes;
    if (text.size() <= piece) return reply_bulk(ctx, text);
    abi::ReplyWithArray(ctx, static_cast<long>((text.size() + piece - 1) / piece));
    for (std::size_t first = 0; first < text.size(); first += piece) reply_bulk(ctx, text.substr(first, piece));
}

void model_get(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(2, "AI.MODELGET key [META] [BLOB]");
    const Options options(arguments, 2, {{"META", 0}, {"BLOB", 0}});
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
    const Model& model = require_model(key, arguments.command(), arguments[1]);
    if (options.has("BLOB") && !options.has("META")) return reply_blob(call.ctx, model);
    const bool blob = options.has("BLOB") || !options.has("META");
    abi::ReplyWithArray(call.ctx, blob ? 18 : 16);
    reply_field(call.ctx, "backend", std::string_view("TORCH"));
    reply_field(call.ctx, "device", std::string_view(model.device));
    reply_field(call.ctx, "tag", std::string_view(model.tag));
    reply_field(call.ctx, "batchsize", model.batch_size);
    reply_field(call.ctx, "minbatchsize", model.min_batch_size);
    for (const char* name : {"inputs", "outputs"}) {
        reply_bulk(call.ctx, name);
        abi::ReplyWithArray(call.ctx, 0);
    }
    reply_field(call.ctx, "minbatchtimeout", model.min_batch_timeout_ms);
    if (!blob) return;
    reply_bulk(call.ctx, "blob");
    reply_blob(call.ctx, model);
}

void model_del(const Call& call) {
    call.arguments.exactly(2, "AI.MODELDEL key");
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode | abi::write_mode);
    require_model(key, call.arguments.command(), call.arguments[1]);
    abi::DeleteKey(key.get());
    abi::Replicate(call.ctx, "DEL", "s", call.argv[1]);
    abi::ReplyWithSimpleString(call.ctx, "OK");
}

}  // namespace

std::vector<CommandFacts> model_commands() {
    constexpr const char* stores = "write deny-oom blocking";
    constexpr auto store = command<model_store>;
    return {
        {"ai.modelstore", store, stores, "Loads and stores a TorchScript archive.", "O(bytes)", {{1, writes}}},
        {"ai.modelset", store, stores, "Loads and stores a TorchScript archive.", "O(bytes)", {{1, writes}}},
        {"ai.modelget", command<model_get>, "readonly", "Returns a model.", "O(bytes)", {{1, reads}}},
        {"ai.modeldel", command<model_del>, "write", "Deletes a model.", "O(1)", {{1, removes}}},
    };
}
