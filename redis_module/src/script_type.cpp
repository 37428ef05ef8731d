#include "script_type.hpp"

#include <algorithm>

#include "arguments.hpp"
#include "keyspace.hpp"
#include "refused.hpp"

RedisModuleType* script_type = nullptr;

namespace {

constexpr int encoding = 2;  // 1 kept no device

const Script& as_script(const void* value) {
    return *static_cast<const Script*>(value);
}

const char* store_command(const Script& script) {
    return script.entry_points.empty() ? "AI.SCRIPTSET" : "AI.SCRIPTSTORE";
}

void save_text(RedisModuleIO* io, const std::string& text) {
    abi::SaveStringBuffer(io, text.data(), text.size());
}

std::string load_text(RedisModuleIO* io) {
    std::size_t length = 0;
    char* data = abi::LoadStringBuffer(io, &length);
    if (!data) return {};
    std::string text(data, length);
    abi::Free(data);
    return text;
}

void save(RedisModuleIO* io, void* value) {
    const Script& script = as_script(value);
    save_text(io, script.source);
    save_text(io, script.tag);
    abi::SaveUnsigned(io, script.entry_points.size());
    for (const std::string& name : script.entry_points) save_text(io, name);
    save_text(io, script.device);
}

std::unique_ptr<Script> load_script(RedisModuleIO* io, int version) {
    auto script = std::make_unique<Script>();
    script->source = load_text(io);
    script->tag = load_text(io);
    const std::uint64_t count = abi::LoadUnsigned(io);
    for (std::uint64_t i = 0; i < count && !abi::IsIOError(io); ++i) script->entry_points.push_back(load_text(io));
    if (version > 1) script->device = load_text(io);
    if (!abi::IsIOError(io) && !names_cpu(script->device)) refuse("its device is ", words::shown(script->device));
    return script;
}

void* load(RedisModuleIO* io, int version) {
    if (version > encoding) {
        abi::LogIOError(io, "warning", "a script of encoding %d cannot be read; this module writes %d", version,
                        encoding);
        return nullptr;
    }
    try {
        auto script = load_script(io, version);
        return abi::IsIOError(io) ? nullptr : script.release();
    } catch (const std::exception& error) {
        abi::LogIOError(io, "warning", "a script cannot be read: %s", error.what());
        return nullptr;
    }
}

void rewrite(RedisModuleIO* io, abi::String* key, void* value) {
    const Script& script = as_script(value);
    std::vector<OwnedString> owned;
    for (const std::string& word : script_words(script)) owned.emplace_back(word);
    std::vector<abi::String*> argv;
    for (const OwnedString& word : owned) argv.push_back(word.get());
    abi::EmitAOF(io, store_command(script), "sv", key, argv.data(), argv.size());
}

std::size_t memory_usage(const void* value) {
    return sizeof(Script) + as_script(value).source.size() + as_script(value).tag.size();
}

void digest(RedisModuleDigest* sum, void* value) {
    for (const std::string& word : script_words(as_script(value)))
        abi::DigestAddStringBuffer(sum, word.data(), word.size());
    abi::DigestEndSequence(sum);
}

void release(void* value) {
    delete static_cast<Script*>(value);
}

void* copy(abi::String*, abi::String*, const void* value) {
    auto* script = new Script(as_script(value));
    script->statistics = std::make_shared<ScriptStatistics>();
    return script;
}

}  // namespace

bool names_cpu(std::string_view device) {
    if (!same_word(device.substr(0, 3), "CPU")) return false;
    if (device.size() == 3) return true;
    const auto number = parse_integer(device.substr(std::min<std::size_t>(4, device.size())));
    return device[3] == ':' && device.size() <= 8 && number && *number >= 0;
}

std::vector<std::string> script_words(const Script& script) {
    std::vector<std::string> words{script.device};
    if (!script.tag.empty()) words.insert(words.end(), {"TAG", script.tag});
    if (!script.entry_points.empty()) {
        words.insert(words.end(), {"ENTRY_POINTS", std::to_string(script.entry_points.size())});
        words.insert(words.end(), script.entry_points.begin(), script.entry_points.end());
    }
    words.insert(words.end(), {"SOURCE", script.source});
    return words;
}

bool register_script_type(abi::Ctx* ctx) {
    abi::TypeMethods methods{};
    methods.version = 4;
    methods.rdb_load = load;
    methods.rdb_save = save;
    methods.aof_rewrite = rewrite;
    methods.memory_usage = memory_usage;
    methods.digest = digest;
    methods.free = release;
    methods.copy = copy;
    script_type = abi::CreateDataType(ctx, "xo-script", encoding, &methods);
    return script_type != nullptr;
}
