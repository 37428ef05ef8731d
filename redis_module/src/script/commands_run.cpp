// AI.SCRIPTEXECUTE, AI.SCRIPTRUN, AI.MODELEXECUTE, AI.MODELRUN: on a worker, from and to keys.
#include <chrono>

#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "refused.hpp"
#include "script/request.hpp"

namespace {

using Clock = std::chrono::steady_clock;

void run(const Call& call) {
    const auto request = std::make_shared<Request>(read_request(call.ctx, call.arguments));
    require_blocking(call.ctx, request->command);
    std::vector<Tensor> inputs;
    for (const std::string& name : request->inputs) {
        inputs.push_back(require_tensor(call.ctx, name, request->command + ": input"));
        require_numbers(inputs.back(), request->command, name);
    }
    auto job = std::make_unique<Job>();
    job->command = request->command;
    job->timeout_ms = request->timeout_ms;
    for (const std::string& key : request->outputs) job->results.push_back({key, {}, {}});

    engine::Run bounds{.deadline = std::nullopt, .database = abi::GetSelectedDb(call.ctx), .user = user_of(call.ctx)};
    if (request->timeout_ms) bounds.deadline = Clock::now() + std::chrono::milliseconds(request->timeout_ms);
    const auto began = std::make_shared<Clock::time_point>(Clock::now());
    const std::uint64_t samples = samples_of(inputs);
    job->compute = [=, taken = std::move(inputs)](Job& self) {
        *began = Clock::now();
        std::vector<Tensor> outputs = perform(*request, taken, bounds);
        for (std::size_t k = 0; k < outputs.size(); ++k) self.results[k].tensor = std::move(outputs[k]);
    };
    job->finished = [=](const std::string& refusal) {
        const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - *began);
        account(*request, !refusal.empty(), static_cast<std::uint64_t>(passed.count()), samples);
    };
    run_job(call.ctx, std::move(job));
}

}  // namespace

std::vector<CommandFacts> run_commands() {
    constexpr const char* flags = "write deny-oom getkeys-api blocking";
    constexpr auto function = command<run, request_keys>;
    return {
        {"ai.scriptexecute", function, flags, "Runs an entry point of a script.", "as the script", {}},
        {"ai.scriptrun", function, flags, "Runs a function of a script of AI.SCRIPTSET.", "as the script", {}},
        {"ai.modelexecute", function, flags, "Runs a model.", "as the model", {}},
        {"ai.modelrun", function, flags, "Runs a model; its keys are not counted.", "as the model", {}},
    };
}
