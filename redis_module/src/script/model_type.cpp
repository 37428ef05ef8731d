#include "script/model_type.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"
#include "refused.hpp"
#include "script/batches.hpp"
#include "script_type.hpp"

RedisModuleType* model_type = nullptr;

Bytes::Bytes(std::size_t size) : data_(memory::take(size)), size_(size) {}
Bytes::~Bytes() {
    memory::give(data_, size_);
}

namespace {

constexpr int encoding = 1;
// One string per piece: the server compresses strings with 32-bit lengths, and a client may send no longer ones.
constexpr std::size_t piece_bytes = std::size_t{1} << 28;
constexpr std::uint64_t largest_batch = std::uint64_t{1} << 32;

const Model& as_model(const void* value) {
    return *static_cast<const Model*>(value);
}

std::string load_text(RedisModuleIO* io) {
    std::size_t length = 0;
    char* data = abi::LoadStringBuffer(io, &length);
    if (!data) return {};
    const std::unique_ptr<char, decltype(abi::Free)> owner(data, abi::Free);
    return {data, length};
}

void save(RedisModuleIO* io, void* value) {
    const Model& model = as_model(value);
    for (const std::string& text : {model.device, model.tag}) abi::SaveStringBuffer(io, text.data(), text.size());
    for (const std::uint64_t number : {model.batch_size, model.min_batch_size, model.min_batch_timeout_ms})
        abi::SaveUnsigned(io, number);
    abi::SaveUnsigned(io, model.blob->size());
    for (std::size_t first = 0; first < model.blob->size(); first += piece_bytes) {
        const std::string_view piece = model.blob->text().substr(first, piece_bytes);
        abi::SaveStringBuffer(io, piece.data(), piece.size());
    }
}

void load_blob(RedisModuleIO* io, Bytes& blob) {
    for (std::size_t first = 0; first < blob.size(); first += piece_bytes) {
        std::size_t length = 0;
        char* piece = abi::LoadStringBuffer(io, &length);
        if (!piece) return;
        const std::unique_ptr<char, decltype(abi::Free)> owner(piece, abi::Free);
        if (length != std::min(piece_bytes, blob.size() - first)) refuse("its archive is cut short");
        std::memcpy(blob.data() + first, piece, length);
    }
}

void* load(RedisModuleIO* io, int version) {
    try {
        if (version != encoding) refuse("its encoding is ", version, "; this module writes ", encoding);
        auto model = std::make_unique<Model>();
        model->device = load_text(io);
        model->tag = load_text(io);
        for (std::uint64_t* number : {&model->batch_size, &model->min_batch_size, &model->min_batch_timeout_ms})
            *number = abi::LoadUnsigned(io);
        const std::uint64_t size = abi::LoadUnsigned(io);
        if (abi::IsIOError(io)) return nullptr;
        model->blob = std::make_shared<Bytes>(size);
        load_blob(io, *model->blob);
        if (abi::IsIOError(io)) return nullptr;
        check_model(*model, "the file");
        return model.release();
    } catch (const std::exception& error) {
        abi::LogIOError(io, "warning", "a model cannot be read: %s", error.what());
        return nullptr;
    }
}

void rewrite(RedisModuleIO* io, abi::String* key, void* value) {
    const std::vector<OwnedString> words = model_words(as_model(value));
    std::vector<abi::String*> argv;
    for (const OwnedString& word : words) argv.push_back(word.get());
    abi::EmitAOF(io, "AI.MODELSTORE", "sv", key, argv.data(), argv.size());
}

std::size_t memory_usage(const void* value) {
    return sizeof(Model) + as_model(value).blob->size();
}

void digest(RedisModuleDigest* sum, void* value) {
    const Model& model = as_model(value);
    for (const std::string& text : {model.device, model.tag}) abi::DigestAddStringBuffer(sum, text.data(), text.size());
    for (const std::uint64_t number : {model.batch_size, model.min_batch_size, model.min_batch_timeout_ms})
        abi::DigestAddLongLong(sum, static_cast<long long>(number));
    abi::DigestAddStringBuffer(sum, model.blob->text().data(), model.blob->size());
    abi::DigestEndSequence(sum);
}

void release(void* value) {
    const std::unique_ptr<Model> model(static_cast<Model*>(value));
    if (model->min_batch_size) batches::no_more(model->state);
}

void* copy(abi::String*, abi::String*, const void* value) {
    auto* model = new Model(as_model(value));
    model->statistics = std::make_shared<ModelStatistics>();
    return model;
}

}  // namespace

void check_model(const Model& model, std::string_view what) {
    if (!names_cpu(model.device)) refuse(what, ": the device is ", words::shown(model.device), "; expected CPU");
    if (model.min_batch_size && !model.batch_size) refuse(what, ": MINBATCHSIZE needs a BATCHSIZE");
    if (model.min_batch_timeout_ms && !model.min_batch_size) refuse(what, ": MINBATCHTIMEOUT needs a MINBATCHSIZE");
    if (model.batch_size > largest_batch || model.min_batch_timeout_ms > largest_batch)
        refuse(what, ": BATCHSIZE and MINBATCHTIMEOUT are at most ", largest_batch);
    if (model.min_batch_size > model.batch_size)
        refuse(what, ": MINBATCHSIZE is ", model.min_batch_size, "; expected at most BATCHSIZE, ", model.batch_size);
    if (!model.blob || !model.blob->size()) refuse(what, ": the model has no bytes; expected a TorchScript archive");
}

std::vector<OwnedString> model_words(const Model& model) {
    std::vector<OwnedString> words;
    for (const std::string_view word : {std::string_view("TORCH"), std::string_view(model.device)})
        words.emplace_back(word);
    const auto option = [&](std::string_view name, std::string_view value) {
        words.emplace_back(name);
        words.emplace_back(value);
    };
    if (!model.tag.empty()) option("TAG", model.tag);
    if (model.batch_size) option("BATCHSIZE", std::to_string(model.batch_size));
    if (model.min_batch_size) option("MINBATCHSIZE", std::to_string(model.min_batch_size));
    if (model.min_batch_timeout_ms) option("MINBATCHTIMEOUT", std::to_string(model.min_batch_timeout_ms));
    words.emplace_back("BLOB");
    for (std::size_t first = 0; first < model.blob->size(); first += piece_bytes)
        words.emplace_back(model.blob->text().substr(first, piece_bytes));
    return words;
}

bool register_model_type(abi::Ctx* ctx) {
    abi::TypeMethods methods{};
    methods.version = 4;
    methods.rdb_load = load;
    methods.rdb_save = save;
    methods.aof_rewrite = rewrite;
    methods.memory_usage = memory_usage;
    methods.digest = digest;
    methods.free = release;
    methods.copy = copy;
    model_type = abi::CreateDataType(ctx, "xo-models", encoding, &methods);
    return model_type != nullptr;
}
