// TorchScript: compiling source text and running its functions on a worker thread.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi.hpp"
#include "tensor.hpp"

struct CompiledScript;

namespace engine {

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// Who runs a script and until when; redis.execute acts in this database for this user.
struct Run {
    Deadline deadline;
    int database = 0;
    std::string user;  // empty: no user is known, no rule is checked
};

void start(int intra_op_threads);

// Throws Refused with the compiler's message.
std::shared_ptr<CompiledScript> compile(const std::string& command, const std::string& source);

// Every entry point must exist as f(tensors: List[Tensor], keys: List[str], args: List[str]) and return tensors or
// None.
void check_entry_points(const std::string& command, CompiledScript& script, const std::vector<std::string>& names);

// Whether the function has an entry point's arguments.
bool is_entry_point(const std::string& command, CompiledScript& script, const std::string& name);

// Calls an entry point; returns its tensors. Throws Refused when it fails or passes the deadline.
std::vector<Tensor> execute(const std::string& command, CompiledScript& script, const std::string& function,
                            const std::vector<Tensor>& inputs, const std::vector<std::string>& keys,
                            const std::vector<std::string>& args, const Run& run);

// Calls a function of AI.SCRIPTSET: tensors one by one, those from `list_from` on as one List[Tensor].
std::vector<Tensor> call(const std::string& command, CompiledScript& script, const std::string& function,
                         const std::vector<Tensor>& inputs, std::optional<std::size_t> list_from, const Run& run);

}  // namespace engine
