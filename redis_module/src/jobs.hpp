// A job: inputs are taken on the main thread, results computed on the pool, and stored by the main thread in one go.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "abi.hpp"
#include "keyspace.hpp"
#include "tensor.hpp"

struct Result {
    std::string key;
    Tensor tensor;
    OwnedString blob;  // the argument for replicas: the client's own, or made on the worker as a copy of the tensor
};

struct Job {
    std::string command;
    std::function<void(Job&)> compute;       // on a worker: fills the results; throws Refused
    std::vector<Result> results;             // stored together or not at all
    bool only_if_missing = false;            // NX: looks at the first result's key
    std::optional<abi::TimeMs> lifetime_ms;  // PX
    std::function<void(abi::Ctx*)> reply;    // in place of OK, or of 1 with NX
    abi::Ctx* context = nullptr;             // takes a long reply from the worker, before `reply` adds its own
    bool stores = true;                      // else it only answers, also while the server must not change
    std::size_t bytes = 0;                   // that the results will need, for the check against maxmemory
    abi::Blocked* client = nullptr;
    std::atomic<bool> ended{false};   // nobody waits for it any more
    std::list<Job*>::iterator place;  // among those with a blocked client
    bool propagate = false;
    std::string refusal;
    std::string out_of_memory;  // that refusal, made beforehand
};

// Whether this command's client can be blocked: not inside MULTI, Lua, a replica's stream or a log.
bool can_wait(abi::Ctx* ctx);
// Refuses inside MULTI, Lua and other places that cannot wait.
void require_blocking(abi::Ctx* ctx, std::string_view command);

// Checks the results' keys and the memory they will need, then blocks the client and queues the job. With NX and an
// existing first result it replies 0 at once.
void run_job(abi::Ctx* ctx, std::unique_ptr<Job> job);

// Finished jobs that wait until the server may change again.
std::size_t held_jobs();
// On the main thread, about ten times a second.
void release_held_jobs();
