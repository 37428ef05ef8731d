#include "kernel_job.hpp"

#include "pool.hpp"
#include "refused.hpp"

using words::shown;

namespace {

constexpr std::int64_t longest_lifetime_ms = std::int64_t{1} << 50;

}  // namespace

Tensor require_floats(const Call& call, std::size_t i, std::string_view what) {
    const std::string place = call.arguments.command() + ": " + std::string(what);
    Tensor tensor = require_tensor(call.ctx, call.arguments.at(i, what), place);
    if (tensor.dtype != DType::float32)
        refuse(place, " key ", shown(call.arguments[i]), " is ", facts(tensor.dtype).name, "; expected FLOAT");
    return tensor;
}

Tensor require_floats_like(const Call& call, std::size_t i, std::string_view what, const Tensor& like) {
    Tensor tensor = require_floats(call, i, what);
    if (tensor.shape != like.shape)
        refuse(call.arguments.command(), ": ", what, " key ", shown(call.arguments[i]), " has shape ",
               shape_text(tensor.shape), "; expected ", shape_text(like.shape), " like the first");
    return tensor;
}

std::unique_ptr<Job> new_job(const Call& call, const Options& options, std::initializer_list<std::size_t> outputs) {
    require_blocking(call.ctx, call.arguments.command());
    auto job = std::make_unique<Job>();
    job->command = call.arguments.command();
    job->only_if_missing = options.has("NX");
    if (options.has("PX")) job->lifetime_ms = call.arguments.integer(options.place("PX"), "PX", 1, longest_lifetime_ms);
    for (const std::size_t i : outputs) {
        for (const Result& other : job->results)
            if (other.key == call.arguments[i])
                call.arguments.refuse_argument(i, "output", "a key of its own for each output");
        job->results.push_back({std::string(call.arguments[i]), {}, {}});
    }
    if (job->only_if_missing && tensor_exists(call.ctx, job->results.front().key, job->command + ": output")) {
        abi::ReplyWithLongLong(call.ctx, 0);
        return nullptr;
    }
    return job;
}

float* fresh_floats(Tensor& tensor, std::size_t count) {
    tensor.payload = std::make_shared<Payload>(count * sizeof(float));
    return reinterpret_cast<float*>(tensor.payload->data());
}

const kernels::ForBlocks& on_pool() {
    static const kernels::ForBlocks& run = *new kernels::ForBlocks(pool::for_blocks);
    return run;
}
