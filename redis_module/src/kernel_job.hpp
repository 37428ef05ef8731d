// What the computing commands share: reading float32 inputs and starting a job for their outputs.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>

#include "commands.hpp"
#include "jobs.hpp"
#include "kernels/kernels.hpp"
#include "tensor.hpp"

inline constexpr std::int64_t most_inputs = 4096;

Tensor require_floats(const Call& call, std::size_t i, std::string_view what);
// As above, and of the shape of `like`.
Tensor require_floats_like(const Call& call, std::size_t i, std::string_view what, const Tensor& like);

// A job for the outputs named at these argument positions, or nullptr when NX found the first one and 0 was replied.
// Looks before any input is read, so that a repeated step needs no inputs that have gone meanwhile.
std::unique_ptr<Job> new_job(const Call& call, const Options& options, std::initializer_list<std::size_t> outputs);

float* fresh_floats(Tensor& tensor, std::size_t count);  // allocates the payload, on a worker
const kernels::ForBlocks& on_pool();
