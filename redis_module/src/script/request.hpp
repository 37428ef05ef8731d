// One run of a script or a model: AI.SCRIPTEXECUTE, AI.SCRIPTRUN, AI.MODELEXECUTE and AI.MODELRUN, alone or within a
// DAG.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "keyspace.hpp"
#include "script/engine.hpp"
#include "script/model_type.hpp"
#include "script_type.hpp"

// How a script's function is called: with (tensors, keys, args); with tensors one by one; as it is declared.
enum class Convention { lists, tensors, either };

struct Request {
    std::string command, key;
    std::shared_ptr<Script> script;  // one of the two, sharing what it compiled or loaded with the key's value
    std::shared_ptr<Model> model;
    Convention convention = Convention::lists;
    std::string function;
    std::vector<std::string> keys, args, inputs, outputs;
    std::optional<std::size_t> list_from;  // AI.SCRIPTRUN's $
    abi::TimeMs timeout_ms = 0;

    const char* whose() const { return model ? "the model" : "the script"; }
};

// The values of these keys, or nullptr when they are empty; throw WRONGTYPE for anything else.
Script* script_in(const OpenedKey& key, std::string_view command, std::string_view name);
Model* model_in(const OpenedKey& key, std::string_view command, std::string_view name);
// Likewise, but throw when they are empty.
Script& require_script(const OpenedKey& key, std::string_view command, std::string_view name);
Model& require_model(const OpenedKey& key, std::string_view command, std::string_view name);

// Reads the command and looks up what it runs, on the main thread.
Request read_request(abi::Ctx* ctx, const Arguments& arguments);
// The keys that it names. Those of its tensors are left out within a DAG, where they are names of the DAG's own.
KeyPositions request_keys(const Arguments& arguments);

std::string user_of(abi::Ctx* ctx);
void require_numbers(const Tensor& tensor, std::string_view command, std::string_view name);

std::shared_ptr<CompiledScript> compiled(const std::string& command, const Script& script);
// On a worker: compiles or loads where nobody has yet, and runs; as many tensors as OUTPUTS names. Throws Refused.
std::vector<Tensor> perform(const Request& request, const std::vector<Tensor>& inputs, const engine::Run& run);

// A request with what it is given, until when it may run, and what came of it where others computed it as well.
struct Work {
    Request request;
    std::vector<Tensor> inputs;
    engine::Run bounds;
    std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
    std::optional<std::vector<Tensor>> outputs;
};

// Throws Refused unless these are as many as OUTPUTS names.
void require_outputs(const Request& request, const std::vector<Tensor>& outputs);

// On the main thread: the run counts in the statistics of AI.INFO.
void account(const Request& request, bool failed, std::uint64_t duration_us, std::uint64_t samples);
// How many samples a model is given: the first size of the first input.
std::uint64_t samples_of(const std::vector<Tensor>& inputs);
