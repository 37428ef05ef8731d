#include "pool.hpp"

#include <csignal>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace pool {

namespace {

struct Task {
    std::function<void()> job, then;
    const std::atomic<bool>* ended = nullptr;
};

// Of the job that this thread works on.
thread_local const std::atomic<bool>* job_ended = nullptr;

struct Pool {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Task> jobs;
    std::deque<Task> helpers;  // parts of running jobs: they go first
    std::vector<std::thread> threads;
    std::size_t running = 0;
    int job_threads = 0;
    int intra_op_threads = 1;
    std::atomic<bool> stopping{false};
};

// Never destroyed: exit() must not wait for a condition variable that a thread still sleeps on.
Pool& the_pool() {
    static Pool& instance = *new Pool;
    return instance;
}

void work(bool takes_jobs) {
    Pool& pool = the_pool();
    std::unique_lock lock(pool.mutex);
    for (;;) {
        pool.wake.wait(lock,
                       [&] { return pool.stopping || (takes_jobs && !pool.jobs.empty()) || !pool.helpers.empty(); });
        if (pool.stopping) return;
        const bool helps = !pool.helpers.empty();
        auto& queue = helps ? pool.helpers : pool.jobs;
        const Task task = std::move(queue.front());
        queue.pop_front();
        if (!helps) ++pool.running;
        lock.unlock();
        job_ended = task.ended;
        task.job();
        job_ended = nullptr;
        lock.lock();
        if (!helps) --pool.running;
        if (!task.then) continue;
        lock.unlock();
        task.then();
        lock.lock();
    }
}

// One parallel loop. A helper that starts late finds no block left and never touches `body`.
struct Loop {
    std::size_t total, block;
    const Body* body;
    const std::atomic<bool>* ended;  // the job's; looked at within blocks only, while the job lives
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure;  // the first
    std::size_t blocks_done = 0;
    std::mutex mutex;
    std::condition_variable done;

    std::size_t blocks() const { return (total + block - 1) / block; }

    void take_blocks() {
        for (;;) {
            const std::size_t i = next.fetch_add(1);
            if (i >= blocks()) return;
            job_ended = ended;
            std::exception_ptr thrown;
            try {
                if (!stopping() && !failed) (*body)(i* block, std::min(block, total - i * block));
            } catch (...) {
                thrown = std::current_exception();
            }
            const std::scoped_lock lock(mutex);
            if (thrown && !failed.exchange(true)) failure = thrown;
            if (++blocks_done == blocks()) done.notify_all();
        }
    }
};

}  // namespace

void start(int threads, int intra_op_threads) {
    Pool& pool = the_pool();
    pool.intra_op_threads = intra_op_threads;
    // Signals belong to the server's main thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pool.job_threads = threads;
    for (int i = 0; i < threads + intra_op_threads - 1; ++i) pool.threads.emplace_back(work, i < threads);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void stop() {
    Pool& pool = the_pool();
    {
        const std::scoped_lock lock(pool.mutex);
        pool.stopping = true;
    }
    pool.wake.notify_all();
    for (std::thread& thread : pool.threads) thread.join();
    pool.threads.clear();
}

bool stopping() {
    return the_pool().stopping.load(std::memory_order_relaxed) ||
           (job_ended && job_ended->load(std::memory_order_relaxed));
}

void submit(const std::atomic<bool>& ended, std::function<void()> job, std::function<void()> then) {
    Pool& pool = the_pool();
    {
        const std::scoped_lock lock(pool.mutex);
        pool.jobs.push_back({std::move(job), std::move(then), &ended});
    }
    pool.wake.notify_all();
}

bool withdraw(const std::atomic<bool>& ended) {
    Pool& pool = the_pool();
    const std::scoped_lock lock(pool.mutex);
    const auto found = std::ranges::find(pool.jobs, &ended, &Task::ended);
    if (found == pool.jobs.end()) return false;
    pool.jobs.erase(found);
    return true;
}

PoolState state() {
    Pool& pool = the_pool();
    const std::scoped_lock lock(pool.mutex);
    return {pool.jobs.size(), pool.running, pool.job_threads, pool.intra_op_threads};
}

void for_blocks(std::size_t total, std::size_t block, const Body& body) {
    Pool& pool = the_pool();
    const std::size_t blocks = (total + block - 1) / block;
    if (pool.intra_op_threads == 1 || blocks < 2) {
        for (std::size_t first = 0; first < total; first += block) {
            if (stopping()) throw Stopped{};
            body(first, std::min(block, total - first));
        }
        if (stopping()) throw Stopped{};  // the last body may have given up half way
        return;
    }
    const auto loop = std::make_shared<Loop>();
    loop->total = total;
    loop->block = block;
    loop->body = &body;
    loop->ended = job_ended;
    try {
        const std::scoped_lock lock(pool.mutex);
        for (int i = 1; i < pool.intra_op_threads; ++i)
            pool.helpers.push_back({[loop] { loop->take_blocks(); }, nullptr, nullptr});
    } catch (const std::bad_alloc&) {
        // Those that were called may already be at work: the loop goes on with fewer.
    }
    pool.wake.notify_all();
    loop->take_blocks();
    std::unique_lock lock(loop->mutex);
    loop->done.wait(lock, [&] { return loop->blocks_done == loop->blocks(); });
    if (stopping()) throw Stopped{};
    if (loop->failure) std::rethrow_exception(loop->failure);
}

}  // namespace pool
