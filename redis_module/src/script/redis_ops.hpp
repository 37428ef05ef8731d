// What scripts see beside torch: redis.execute, redis.asList, and the tick that ends loops at their deadline.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include "script/engine.hpp"

namespace redis_ops {

void register_all();
// Checks the deadline at every iteration of every loop below this function.
void insert_ticks(torch::jit::Graph& graph);

// The run that this thread is in; what ended it when a script failed.
class Current {
public:
    explicit Current(const engine::Run& run);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
};
enum class Ending { script, deadline, shutdown };
Ending ending();

}  // namespace redis_ops
