#include "script/batches.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "pool.hpp"
#include "script/model.hpp"

struct Batch {
    struct Member {
        Job* job;
        std::shared_ptr<Work> work;
        bool left = false;  // nobody waits for it any more
    };

    std::size_t rows = 0;    // the main thread's alone, as are the next two
    bool submitted = false;  // in the pool's queue, or beyond
    std::uint64_t timer = 0;

    std::mutex mutex;
    std::vector<Member> members;  // do not change any more once it has begun
    bool begun = false;
    std::atomic<bool> ended{false};  // nobody waits for any of them
};

namespace {

std::size_t rows_of(const Work& work) {
    return static_cast<std::size_t>(work.inputs.front().shape.front());
}

bool may_join(const Work& work) {
    const Request& request = work.request;
    if (!request.model || !request.model->batch_size || !request.model->state->splits || work.inputs.empty())
        return false;
    return std::ranges::all_of(work.inputs, [&](const Tensor& input) {
        return !input.shape.empty() && input.shape.front() > 0 && input.shape.front() == work.inputs[0].shape[0];
    });
}

bool same_but_rows(const Tensor& one, const Tensor& other) {
    return one.dtype == other.dtype &&
           std::equal(one.shape.begin() + 1, one.shape.end(), other.shape.begin() + 1, other.shape.end());
}

bool are_alike(const Work& one, const Work& other) {
    return std::ranges::equal(one.inputs, other.inputs, same_but_rows);
}

// The k-th inputs one behind the other.
Tensor joined(const Batch& batch, std::size_t k, std::size_t rows) {
    Tensor whole = batch.members.front().work->inputs[k].header();
    whole.shape.front() = static_cast<std::int64_t>(rows);
    std::size_t bytes = 0;
    for (const auto& member : batch.members) bytes += member.work->inputs[k].bytes();
    whole.payload = std::make_shared<Payload>(bytes);
    std::byte* at = whole.payload->data();
    for (const auto& member : batch.members) {
        const std::string_view blob = member.work->inputs[k].blob();
        if (!blob.empty()) std::memcpy(at, blob.data(), blob.size());
        at += blob.size();
    }
    return whole;
}

Tensor piece(const Tensor& whole, std::size_t first, std::size_t count) {
    const std::size_t row_bytes = whole.bytes() / static_cast<std::size_t>(whole.shape.front());
    Tensor tensor = whole.header();
    tensor.shape.front() = static_cast<std::int64_t>(count);
    tensor.payload = std::make_shared<Payload>(count * row_bytes);
    if (row_bytes) std::memcpy(tensor.payload->data(), whole.payload->data() + first * row_bytes, count * row_bytes);
    return tensor;
}

// As long as one of them may run.
engine::Deadline latest_deadline(const Batch& batch) {
    engine::Deadline latest = batch.members.front().work->bounds.deadline;
    for (const auto& member : batch.members) {
        const engine::Deadline& own = member.work->bounds.deadline;
        if (!own || !latest) return std::nullopt;
        latest = std::max(latest, own);
    }
    return latest;
}

void compute_together(Batch& batch) {
    const auto began = std::chrono::steady_clock::now();
    const Work& first = *batch.members.front().work;
    std::size_t rows = 0;
    for (const auto& member : batch.members) rows += rows_of(*member.work);
    std::vector<Tensor> inputs;
    for (std::size_t k = 0; k < first.inputs.size(); ++k) inputs.push_back(joined(batch, k, rows));
    engine::Run bounds = first.bounds;
    bounds.deadline = latest_deadline(batch);
    const Model& model = *first.request.model;
    const std::vector<Tensor> outputs =
        models::execute(first.request.command, *models::loaded(first.request.command, model), inputs, bounds);
    for (const Tensor& output : outputs)
        if (output.shape.empty() || output.shape.front() != static_cast<std::int64_t>(rows)) {
            model.state->splits = false;
            batches::no_more(model.state);  // who waits to be joined would wait for ever
            return;
        }
    std::size_t row = 0;
    for (const auto& member : batch.members) {
        std::vector<Tensor> own;
        for (const Tensor& output : outputs) own.push_back(piece(output, row, rows_of(*member.work)));
        row += rows_of(*member.work);
        member.work->began = began;
        member.work->outputs = std::move(own);
    }
}

// On a worker.
void run(Batch& batch) {
    {
        const std::scoped_lock lock(batch.mutex);
        batch.begun = true;
    }
    try {
        if (batch.members.size() > 1) compute_together(batch);
    } catch (const pool::Stopped&) {
    } catch (const std::exception&) {  // each alone then: one must not fail for another's numbers
    }
    for (const auto& member : batch.members) compute_job(*member.job);
}

void submit(const std::shared_ptr<Batch>& batch) {
    pool::submit(
        batch->ended, [batch] { run(*batch); },
        [batch] {
            for (const auto& member : batch->members) hand_over(*member.job);
        });
    batch->submitted = true;
}

using Owner = std::shared_ptr<Batch>;

void on_timer(abi::Ctx*, void* data) {
    const std::unique_ptr<Owner> batch(static_cast<Owner*>(data));
    (*batch)->timer = 0;
    if (!(*batch)->submitted) submit(*batch);
}

void stop_timer(abi::Ctx* ctx, Batch& batch) {
    void* data = nullptr;
    if (batch.timer && abi::StopTimer(ctx, batch.timer, &data) == abi::ok) delete static_cast<Owner*>(data);
    batch.timer = 0;
}

void begin(abi::Ctx* ctx, const std::shared_ptr<Batch>& batch) {
    if (!batch->submitted) submit(batch);
    stop_timer(ctx, *batch);
}

// Whether the job has found room in this batch.
bool enters(Batch& batch, Job& job, const std::shared_ptr<Work>& work) {
    const std::scoped_lock lock(batch.mutex);
    if (batch.begun) return false;
    batch.members.push_back({&job, work, false});
    batch.rows += rows_of(*work);
    return true;
}

// Whether the job was still waiting. One that has begun ends when nobody waits for any member.
bool leaves(Batch& batch, const Job& job) {
    const std::scoped_lock lock(batch.mutex);
    const auto found = std::ranges::find(batch.members, &job, &Batch::Member::job);
    if (batch.begun) {
        found->left = true;
        batch.ended = std::ranges::all_of(batch.members, &Batch::Member::left);
        return false;
    }
    batch.rows -= rows_of(*found->work);
    batch.members.erase(found);
    return true;
}

// The batch that this work goes into: the last one of its kind where it has room. One that lacks it is as full as it
// gets, and begins.
std::shared_ptr<Batch> batch_for(abi::Ctx* ctx, Job& job, const std::shared_ptr<Work>& work) {
    const Model& model = *work->request.model;
    auto& open = model.state->open;
    std::erase_if(open, [](const std::weak_ptr<Batch>& each) { return each.expired(); });
    for (auto each = open.begin(); each != open.end(); ++each) {
        const std::shared_ptr<Batch> batch = each->lock();
        if (!batch) continue;  // a worker has just let go of it
        const bool empty = batch->members.empty();  // all have left
        if (!empty && !are_alike(*batch->members.front().work, *work)) continue;
        if (empty) stop_timer(ctx, *batch);
        if ((empty || batch->rows + rows_of(*work) <= model.batch_size) && enters(*batch, job, work)) return batch;
        open.erase(each);
        begin(ctx, batch);
        break;
    }
    const auto batch = std::make_shared<Batch>();
    open.push_back(batch);
    enters(*batch, job, work);
    return batch;
}

void begin_or_wait(abi::Ctx* ctx, const std::shared_ptr<Batch>& batch, const Model& model) {
    if (batch->submitted) return;
    if (batch->rows >= model.min_batch_size) {
        begin(ctx, batch);
    } else if (!batch->timer && model.min_batch_timeout_ms) {
        const auto wait = static_cast<abi::TimeMs>(model.min_batch_timeout_ms);
        batch->timer = abi::CreateTimer(ctx, wait, on_timer, new Owner(batch));
    }
}

}  // namespace

namespace batches {

void offer(Job& job, const std::shared_ptr<Work>& work) {
    if (!may_join(*work)) return;
    const auto batch = std::make_shared<std::shared_ptr<Batch>>();  // known when the job is submitted
    job.submit = [work, batch](abi::Ctx* ctx, Job& self) {
        *batch = batch_for(ctx, self, work);
        try {
            begin_or_wait(ctx, *batch, *work->request.model);
        } catch (...) {
            leaves(**batch, self);
            throw;
        }
    };
    job.withdraw = [batch](Job& self) { return leaves(**batch, self); };
}

void no_more(const std::shared_ptr<ModelState>& state) {
    const auto begin_all = [](void* data) {
        const std::unique_ptr<std::shared_ptr<ModelState>> owner(static_cast<std::shared_ptr<ModelState>*>(data));
        for (const std::weak_ptr<Batch>& each : std::exchange((*owner)->open, {}))
            if (const auto batch = each.lock(); batch && !batch->submitted) submit(batch);
    };
    abi::EventLoopAddOneShot(begin_all, new std::shared_ptr<ModelState>(state));
}

}  // namespace batches
