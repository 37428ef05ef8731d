// Models as a native type: a TorchScript archive, byte for byte as it came. The torch build alone has them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi.hpp"
#include "keyspace.hpp"

struct LoadedModel;
struct Batch;

// The server's memory, so that maxmemory counts it. Throws Refused OOM.
class Bytes {
public:
    explicit Bytes(std::size_t size);
    ~Bytes();
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    std::byte* data() { return data_; }
    std::size_t size() const { return size_; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

private:
    std::byte* data_;
    std::size_t size_;
};

struct ModelStatistics {  // the main thread's alone
    std::uint64_t calls = 0, errors = 0, duration_us = 0, samples = 0;
};

// Shared by a key's value and the jobs that run it: whoever comes first loads. A file is read without loading.
struct ModelState {
    std::mutex mutex;
    std::shared_ptr<LoadedModel> loaded;
    std::vector<std::weak_ptr<Batch>> open;  // one for each shape of inputs; the main thread's alone
    std::atomic<bool> splits{true};          // what it returns has the first size of what it is given
};

struct Model {
    std::string device = "CPU", tag;
    std::uint64_t batch_size = 0, min_batch_size = 0, min_batch_timeout_ms = 0;  // 0: none
    std::shared_ptr<Bytes> blob;
    std::shared_ptr<ModelStatistics> statistics = std::make_shared<ModelStatistics>();
    std::shared_ptr<ModelState> state = std::make_shared<ModelState>();
};

extern RedisModuleType* model_type;
bool register_model_type(abi::Ctx* ctx);
// What every model keeps to, whether a client or a file brings it; throws Refused naming `what`.
void check_model(const Model& model, std::string_view what);
// The words of the command that stores this model, behind the key.
std::vector<OwnedString> model_words(const Model& model);
