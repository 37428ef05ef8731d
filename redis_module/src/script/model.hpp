// TorchScript archives: loading and running them on a worker thread.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "script/engine.hpp"
#include "script/model_type.hpp"
#include "tensor.hpp"

namespace models {

// Loaded by whoever asks first. Throws Refused: what torch says, or what the model wants that it may not have.
std::shared_ptr<LoadedModel> loaded(const std::string& command, const Model& model);

// The model's `forward`, in evaluation mode; returns its tensors. Throws Refused when it fails or passes the deadline.
std::vector<Tensor> execute(const std::string& command, LoadedModel& model, const std::vector<Tensor>& inputs,
                            const engine::Run& run);

}  // namespace models
