// AI.SCRIPTEXECUTE, AI.SCRIPTRUN, AI.MODELEXECUTE, AI.MODELRUN: on a worker, from and to keys.
#include <chrono>

#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "refused.hpp"
#include "script/batches.hpp"
#include "script/request.hpp"

namespace {

using Clock = std::chrono::steady_clock;

void compute(Work& work, Job& job) {
    if (work.outputs) {
        require_outputs(work.request, *work.outputs);
    } else {
        work.began = Clock::now();
        work.outputs = perform(work.request, work.inputs, work.bounds);
    }
    for (std::size_t k = 0; k < job.results.size(); ++k) job.results[k].tensor = std::move((*work.outputs)[k]);
}

void run(const Call& call) {
    const auto work = std::make_shared<Work>();
    work->request = read_request(call.ctx, call.arguments);
    const Request& request = work->request;
    require_blocking(call.ctx, request.command);
    for (const std::string& name : request.inputs) {
        work->inputs.push_back(require_tensor(call.ctx, name, request.command + ": input"));
        require_numbers(work->inputs.back(), request.command, name);
    }
    work->bounds = {.deadline = std::nullopt, .database = abi::GetSelectedDb(call.ctx), .user = user_of(call.ctx)};
    if (request.timeout_ms) work->bounds.deadline = Clock::now() + std::chrono::milliseconds(request.timeout_ms);

    auto job = std::make_unique<Job>();
    job->command = request.command;
    job->timeout_ms = request.timeout_ms;
    for (const std::string& key : request.outputs) job->results.push_back({key, {}, {}});
    job->compute = [work](Job& self) { compute(*work, self); };
    job->finished = [work, samples = samples_of(work->inputs)](const std::string& refusal) {
        const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - work->began);
        account(work->request, !refusal.empty(), static_cast<std::uint64_t>(passed.count()), samples);
    };
    batches::offer(*job, work);
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
