// Between the module's tensors and torch's: what scripts and models share. Only files that use torch include it.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "script/engine.hpp"
#include "tensor.hpp"

namespace engine {

// torch's message in one line.
std::string message_of(const std::exception& error);

// Refuses operations that reach the server's files; says whether some operation may write to a tensor it was given.
bool inspect(const std::string& command, torch::jit::Graph& graph);

// Shares the elements unless they are to be copied; refuses STRING tensors beforehand.
at::Tensor to_torch(const Tensor& tensor, bool copied);

// Runs `body` as this run's; returns its tensors, copied into the server's memory. Throws Refused when it fails or
// passes the deadline, with `whose` in the text.
std::vector<Tensor> run_guarded(const std::string& command, const char* whose, const Run& run,
                                const std::function<c10::IValue()>& body);

}  // namespace engine
