#include "jobs.hpp"

#include <algorithm>
#include <utility>

#include "pool.hpp"
#include "refused.hpp"

using words::shown;

namespace {

std::string output_of(const Job& job) {
    return job.command + ": output";
}

void refuse_job(Job& job, const char* refusal) {
    try {
        job.refusal = refusal;
    } catch (const std::bad_alloc&) {
        job.refusal.swap(job.out_of_memory);
    }
}

// A server that is paused, fails over or waits for its replicas before it ends must not change: it would abort if a
// change were sent on.
bool must_wait(const Job& job) {
    return job.stores && job.refusal.empty() && abi::AvoidReplicaTraffic();
}

// The world may have changed while the job ran: all is looked at again before anything is stored.
bool may_store(abi::Ctx* ctx, const Job& job) {
    if (abi::GetContextFlags(ctx) & abi::flag_read_only)
        throw Refused("READONLY", job.command + ": the server became a replica meanwhile; nothing was stored");
    bool exists = false;
    for (const Result& result : job.results) {
        require_writable(ctx, job.command, OwnedString(result.key).get());
        const bool there = tensor_exists(ctx, result.key, output_of(job));
        exists = exists || (there && &result == &job.results.front());
    }
    if (job.only_if_missing && exists) return false;
    require_memory(ctx, job.command, 0);
    return true;
}

void store(abi::Ctx* ctx, Job& job) {
    Expiry expiry;
    if (job.lifetime_ms) expiry.at = abi::Milliseconds() + *job.lifetime_ms;
    const bool heard = propagates(ctx);
    for (Result& result : job.results) {
        const OwnedString name(result.key);
        if (heard) {
            propagate_tensor(ctx, name.get(), result.tensor, expiry, result.blob.get());
        } else {
            count_change(ctx, name.get());
        }
        const OpenedKey key(ctx, name.get(), abi::read_mode | abi::write_mode);
        put_tensor(ctx, key, name.get(), std::move(result.tensor), expiry);
    }
}

int reply(abi::Ctx* ctx, abi::String**, int) {
    Job& job = *static_cast<Job*>(abi::GetBlockedClientPrivateData(ctx));
    try {
        if (must_wait(job))  // the pause began after hand_back had looked
            refuse_as("TRYAGAIN", job.command, ": the server was paused meanwhile; nothing was stored, send it again");
        if (!job.refusal.empty()) {
            abi::ReplyWithError(ctx, job.refusal.c_str());
        } else if (!job.results.empty() && !may_store(ctx, job)) {
            abi::ReplyWithLongLong(ctx, 0);
        } else {
            store(ctx, job);
            if (job.reply) {
                job.reply(ctx);
            } else if (job.only_if_missing) {
                abi::ReplyWithLongLong(ctx, 1);
            } else {
                abi::ReplyWithSimpleString(ctx, "OK");
            }
        }
    } catch (const Refused& refused) {
        job.refusal = refused.what();
        abi::ReplyWithError(ctx, refused.what());
    }
    return abi::ok;
}

// After the reply, or in its place when the client has left.
void release(abi::Ctx*, void* data) {
    delete static_cast<Job*>(data);
}

// Jobs whose clients are blocked, on the main thread.
std::list<Job*>& waiting() {
    static std::list<Job*>& instance = *new std::list<Job*>;
    return instance;
}

std::vector<Job*>& held() {
    static std::vector<Job*>& instance = *new std::vector<Job*>;
    return instance;
}

// On the main thread: only the other commands of this turn come between the look at a pause and the reply.
void hand_back(void* data) {
    auto* job = static_cast<Job*>(data);
    if (must_wait(*job)) {
        held().push_back(job);
    } else {
        waiting().erase(job->place);
        abi::FreeThreadSafeContext(job->context);
        abi::UnblockClient(job->client, job);
    }
}

// The client has left: a queued job goes at once, a running one ends at its next check.
void on_disconnect(abi::Ctx*, abi::Blocked* client) {
    const auto found = std::ranges::find(waiting(), client, &Job::client);
    if (found == waiting().end()) return;
    Job& job = **found;
    job.ended = true;
    if (!pool::withdraw(job.ended)) return;
    refuse_job(job, "ERR the client left while the command waited; nothing was stored");
    hand_back(&job);
}

// On a worker: what has failed is in the job's refusal.
void compute_job(Job& job) {
    try {
        if (pool::stopping() || job.ended) throw pool::Stopped{};
        job.compute(job);
        if (job.propagate)
            for (Result& result : job.results)
                if (!result.blob) result.blob = OwnedString(result.tensor.blob());
    } catch (const pool::Stopped&) {
        refuse_job(job, "ERR the server is shutting down, or nobody waits any more; nothing was stored");
    } catch (const std::bad_alloc&) {
        job.refusal.swap(job.out_of_memory);
    } catch (const std::exception& error) {
        refuse_job(job, error.what());
    }
}

// Nothing may fail between the blocking of the client and the queueing but the queueing itself.
void enqueue(abi::Ctx* ctx, std::unique_ptr<Job> job) {
    std::list<Job*> node{job.get()};
    Job* pointer = job.get();
    job->client = abi::BlockClient(ctx, reply, nullptr, release, 0);
    abi::SetDisconnectCallback(job->client, on_disconnect);
    job->context = abi::GetThreadSafeContext(job->client);
    job->place = node.begin();
    waiting().splice(waiting().end(), node);
    try {
        const auto hand_over = [pointer] { abi::EventLoopAddOneShot(hand_back, pointer); };
        pool::submit(job->ended, [pointer] { compute_job(*pointer); }, hand_over);
    } catch (...) {
        waiting().erase(job->place);
        abi::FreeThreadSafeContext(job->context);
        abi::AbortBlock(job->client);
        throw;
    }
    job.release();
}

}  // namespace

bool can_wait(abi::Ctx* ctx) {
    constexpr int at_once = abi::flag_lua | abi::flag_multi | abi::flag_deny_blocking | abi::flag_replicated |
                            abi::flag_loading;
    return !(abi::GetContextFlags(ctx) & at_once);
}

void require_blocking(abi::Ctx* ctx, std::string_view command) {
    const int flags = abi::GetContextFlags(ctx);
    if (flags & abi::flag_lua)
        refuse(command, ": runs on another thread and cannot be called from a Lua script or a function");
    if (flags & (abi::flag_multi | abi::flag_deny_blocking))
        refuse(command, ": runs on another thread and cannot be called inside MULTI or by a module");
}

void run_job(abi::Ctx* ctx, std::unique_ptr<Job> job) {
    for (const Result& result : job->results) {
        const bool exists = tensor_exists(ctx, result.key, output_of(*job));
        if (job->only_if_missing && exists && &result == &job->results.front()) {
            abi::ReplyWithLongLong(ctx, 0);
            return;
        }
    }
    if (job->stores) require_memory(ctx, job->command, job->bytes);
    job->propagate = propagates(ctx);
    job->out_of_memory = "OOM " + job->command + ": the machine has no memory left; nothing was stored";
    enqueue(ctx, std::move(job));
}

std::size_t held_jobs() {
    return held().size();
}

void release_held_jobs() {
    if (held().empty() || abi::AvoidReplicaTraffic()) return;
    for (Job* job : std::exchange(held(), {})) hand_back(job);
}
