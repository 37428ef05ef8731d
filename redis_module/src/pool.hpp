// The worker threads. Jobs run here so that the server's main thread goes on answering.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>

struct PoolState {
    std::size_t queued;
    std::size_t running;
    int threads;
    int intra_op_threads;
};

namespace pool {

// `threads` jobs run at once; a loop within a job is shared with intra_op_threads - 1 further threads, which take no
// jobs.
void start(int threads, int intra_op_threads);
// Lets running jobs end at their next block, drops the queued ones and joins the threads. Nothing runs afterwards.
void stop();
// Whether what this thread works on is to end: the server shuts down, or its job was told to.
bool stopping();
// Runs job, then `then`, which no longer counts as running: it tells the client, who may look at once. The job ends at
// its next block once `ended` is true, which must live as long as the job.
void submit(const std::atomic<bool>& ended, std::function<void()> job, std::function<void()> then);
// Takes a job out of the queue, without its `then`; false when it is not, or no longer, there.
bool withdraw(const std::atomic<bool>& ended);
PoolState state();

// Thrown out of a job that was to end.
struct Stopped {};

using Body = std::function<void(std::size_t first, std::size_t count)>;
// body(first, count) over [0, total) in blocks, on up to intra-op-threads threads, the caller among them.
// Blocks do not depend on the number of threads, so neither do results. Throws what a body threw first, once all have
// ended, and Stopped when the job is to end.
void for_blocks(std::size_t total, std::size_t block, const Body& body);

}  // namespace pool
