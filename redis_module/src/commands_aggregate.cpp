// TENSOR.MEAN, TENSOR.MEDIAN, TENSOR.TRIMMEDMEAN, TENSOR.KRUM: one vector from many.
#include <algorithm>
#include <limits>

#include "kernel_job.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "values.hpp"

using words::shown;

namespace {

constexpr std::size_t first_input = 2;
// 76 MB of distances, however small the inputs; more than workers ever are in a round.
constexpr std::size_t most_krum_inputs = 1024;

struct Aggregation {
    std::vector<Tensor> inputs;
    std::vector<std::string> names;

    std::vector<const float*> pointers() const {
        std::vector<const float*> out;
        for (const Tensor& input : inputs) out.push_back(input.floats());
        return out;
    }
};

std::size_t input_count(const Arguments& arguments) {
    const auto n = static_cast<std::size_t>(arguments.integer(1, "number of keys", 1, most_inputs));
    if (arguments.size() < first_input + n)
        refuse(arguments.command(), ": ", arguments.size() - first_input, " keys given; expected ", n);
    return n;
}

Options read_options(const Arguments& arguments, std::size_t n, std::vector<OptionRule> own) {
    own.insert(own.end(), {{"OUT", 1}, {"FINITE", 0}, {"KIND", 1}, {"NX", 0}, {"PX", 1}});
    return {arguments, first_input + n, own};
}

Aggregation read_inputs(const Call& call, std::size_t n) {
    Aggregation work;
    for (std::size_t k = 0; k < n; ++k) {
        const std::size_t i = first_input + k;
        work.inputs.push_back(k ? require_floats_like(call, i, "input", work.inputs.front())
                                : require_floats(call, i, "input"));
        work.names.emplace_back(call.arguments[i]);
    }
    return work;
}

std::string common_kind(const Call& call, const Options& options, const Aggregation& work) {
    if (options.has("KIND")) return read_kind(call.arguments, options.place("KIND"));
    const std::string& kind = work.inputs.front().kind;
    for (std::size_t k = 1; k < work.inputs.size(); ++k)
        if (work.inputs[k].kind != kind)
            refuse(call.arguments.command(), ": input key ", shown(work.names[k]), " has kind ",
                   shown(work.inputs[k].kind), "; expected ", shown(kind), " like the first, or KIND");
    return kind;
}

// The weight of each input: WEIGHTS, else its samples, else 1.
std::vector<std::uint64_t> read_weights(const Call& call, const Options& options, const Aggregation& work) {
    std::vector<std::uint64_t> weights;
    for (std::size_t k = 0; k < work.inputs.size(); ++k)
        weights.push_back(options.has("WEIGHTS") ? call.arguments.natural(options.place("WEIGHTS") + k, "WEIGHTS")
                                                 : work.inputs[k].samples.value_or(1));
    return weights;
}

std::uint64_t total(const Call& call, const std::vector<std::uint64_t>& weights) {
    std::uint64_t sum = 0;
    for (const std::uint64_t weight : weights)
        if (__builtin_add_overflow(sum, weight, &sum) || sum > std::numeric_limits<std::int64_t>::max())
            refuse(call.arguments.command(), ": the weights' sum passes 9223372036854775807");
    return sum;
}

// Fills in what every aggregate's result has, and starts the job, which needs `scratch` bytes beside its result.
void start(const Call& call, std::unique_ptr<Job> job, const Aggregation& work, const std::string& kind,
           std::uint64_t samples, std::size_t scratch = 0) {
    Tensor& out = job->results.front().tensor;
    out = work.inputs.front().header();
    out.kind = kind;
    out.samples = samples;
    job->bytes = work.inputs.front().bytes() + scratch;
    run_job(call.ctx, std::move(job));
}

// With FINITE an input that holds a NaN or an infinity is refused by name.
void refuse_nonfinite(const Job& job, const Aggregation& work) {
    for (std::size_t k = 0; k < work.inputs.size(); ++k)
        if (!kernels::finite(work.inputs[k].floats(), work.inputs[k].count(), on_pool()))
            refuse(job.command, ": input key ", shown(work.names[k]), " contains NaN or infinite values; expected finite ones");
}

void mean(const Call& call) {
    call.arguments.at_least(5, "TENSOR.MEAN n key.. [WEIGHTS weight..] OUT out [FINITE] [KIND kind] [NX] [PX ms]");
    const std::size_t n = input_count(call.arguments);
    const Options options = read_options(call.arguments, n, {{"WEIGHTS", n}});
    auto job = new_job(call, options, {options.required("OUT")});
    if (!job) return;
    const Aggregation work = read_inputs(call, n);
    const std::vector<std::uint64_t> counts = read_weights(call, options, work);
    const std::uint64_t sum = total(call, counts);
    if (sum == 0) refuse(call.arguments.command(), ": the weights' sum is 0; expected at least one sample");
    const bool equal = std::ranges::all_of(counts, [&](std::uint64_t count) { return count == counts.front(); });
    std::vector<float> weights;
    if (!equal) weights.assign(counts.begin(), counts.end());
    const float divisor = equal ? static_cast<float>(n) : static_cast<float>(sum);
    job->compute = [work, weights, divisor, must_be_finite = options.has("FINITE")](Job& self) {
        Tensor& out = self.results.front().tensor;
        const std::size_t count = work.inputs.front().count();
        if (work.inputs.size() == 1)
            out.payload = work.inputs.front().payload;
        else
            kernels::mean(work.pointers(), weights, divisor, fresh_floats(out, count), count, on_pool());
        // No sum is finite that has a term which is not: the one result is looked at before the many inputs.
        if (must_be_finite && !kernels::finite(out.floats(), count, on_pool())) refuse_nonfinite(self, work);
    };
    start(call, std::move(job), work, common_kind(call, options, work), sum);
}

[[noreturn]] void refuse_poisoned(const Job& job, const Aggregation& work, std::size_t k) {
    refuse(job.command, ": input key ", shown(work.names[k]), " contains NaN; expected numbers");
}

// The robust rules ignore weights, but their result stands for all samples.
std::uint64_t all_samples(const Call& call, const Aggregation& work) {
    std::vector<std::uint64_t> counts;
    for (const Tensor& input : work.inputs) counts.push_back(input.samples.value_or(1));
    return total(call, counts);
}

void median(const Call& call) {
    call.arguments.at_least(5, "TENSOR.MEDIAN n key.. OUT out [FINITE] [KIND kind] [NX] [PX ms]");
    const std::size_t n = input_count(call.arguments);
    const Options options = read_options(call.arguments, n, {});
    auto job = new_job(call, options, {options.required("OUT")});
    if (!job) return;
    const Aggregation work = read_inputs(call, n);
    job->compute = [work, must_be_finite = options.has("FINITE")](Job& self) {
        if (must_be_finite) refuse_nonfinite(self, work);
        const std::size_t count = work.inputs.front().count();
        float* out = fresh_floats(self.results.front().tensor, count);
        if (const auto poisoned = kernels::median(work.pointers(), out, count, on_pool()))
            refuse_poisoned(self, work, *poisoned);
    };
    start(call, std::move(job), work, common_kind(call, options, work), all_samples(call, work));
}

void trimmed_mean(const Call& call) {
    call.arguments.at_least(7, "TENSOR.TRIMMEDMEAN n key.. TRIM b OUT out [FINITE] [KIND kind] [NX] [PX ms]");
    const std::size_t n = input_count(call.arguments);
    const Options options = read_options(call.arguments, n, {{"TRIM", 1}});
    const auto trim = static_cast<std::size_t>(call.arguments.integer(
        options.required("TRIM"), "TRIM, below half of the inputs", 0, (static_cast<std::int64_t>(n) - 1) / 2));
    auto job = new_job(call, options, {options.required("OUT")});
    if (!job) return;
    const Aggregation work = read_inputs(call, n);
    job->compute = [work, trim, must_be_finite = options.has("FINITE")](Job& self) {
        if (must_be_finite) refuse_nonfinite(self, work);
        const std::size_t count = work.inputs.front().count();
        float* out = fresh_floats(self.results.front().tensor, count);
        if (const auto poisoned = kernels::trimmed_mean(work.pointers(), trim, out, count, on_pool()))
            refuse_poisoned(self, work, *poisoned);
    };
    start(call, std::move(job), work, common_kind(call, options, work), all_samples(call, work));
}

void krum(const Call& call) {
    call.arguments.at_least(7, "TENSOR.KRUM n key.. FAULTY f [SELECT m] OUT out [FINITE] [KIND kind] [NX] [PX ms]");
    const std::size_t n = input_count(call.arguments);
    if (n > most_krum_inputs)
        refuse(call.arguments.command(), ": ", n, " inputs; expected at most ", most_krum_inputs,
               ", because the distances of all pairs are kept");
    const Options options = read_options(call.arguments, n, {{"FAULTY", 1}, {"SELECT", 1}});
    const auto faulty =
        static_cast<std::size_t>(call.arguments.integer(options.required("FAULTY"), "FAULTY", 0, most_inputs));
    if (n < 2 * faulty + 3)
        refuse(call.arguments.command(), ": FAULTY ", faulty, " needs at least ", 2 * faulty + 3, " inputs; ", n,
               " given");
    // More would take in one of the faulty, which may lie right behind the best n - f - 2.
    const auto most_selected = static_cast<std::int64_t>(n - faulty - 2);
    const std::size_t select = options.has("SELECT") ? static_cast<std::size_t>(call.arguments.integer(
                                                           options.place("SELECT"), "SELECT", 1, most_selected))
                                                     : 1;
    auto job = new_job(call, options, {options.required("OUT")});
    if (!job) return;
    const Aggregation work = read_inputs(call, n);
    job->compute = [work, faulty, select, must_be_finite = options.has("FINITE")](Job& self) {
        if (must_be_finite) refuse_nonfinite(self, work);
        const std::size_t count = work.inputs.front().count();
        const std::vector<const float*> inputs = work.pointers();
        const kernels::KrumChoice choice = kernels::krum(inputs, faulty, select, count, on_pool(), pool::stopping);
        if (choice.poisoned) refuse_poisoned(self, work, *choice.poisoned);
        Tensor& out = self.results.front().tensor;
        if (select == 1) {
            out.payload = work.inputs[choice.chosen.front()].payload;
            return;
        }
        std::vector<const float*> chosen;
        for (const std::size_t k : choice.chosen) chosen.push_back(inputs[k]);
        kernels::mean(chosen, {}, static_cast<float>(select), fresh_floats(out, count), count, on_pool());
    };
    start(call, std::move(job), work, common_kind(call, options, work), all_samples(call, work),
          kernels::krum_bytes(n));
}

KeyPositions keys(const Arguments& arguments) {
    const std::size_t n = input_count(arguments);
    KeyPositions positions;
    for (std::size_t k = 0; k < n; ++k) positions.push_back({first_input + k, reads});
    const Options options = read_options(arguments, n, {{"WEIGHTS", n}, {"TRIM", 1}, {"FAULTY", 1}, {"SELECT", 1}});
    positions.push_back({options.required("OUT"), writes});
    return positions;
}

}  // namespace

std::vector<CommandFacts> aggregate_commands() {
    constexpr const char* flags = "write deny-oom getkeys-api blocking";
    return {
        {"tensor.mean",
         command<mean, keys>,
         flags,
         "Stores the mean of tensors, weighted by their samples.",
         "O(n elements)",
         {}},
        {"tensor.median",
         command<median, keys>,
         flags,
         "Stores the coordinatewise median of tensors.",
         "O(n log(n)^2 elements)",
         {}},
        {"tensor.trimmedmean",
         command<trimmed_mean, keys>,
         flags,
         "Stores the coordinatewise trimmed mean of tensors.",
         "O(n log(n)^2 elements)",
         {}},
        {"tensor.krum",
         command<krum, keys>,
         flags,
         "Stores the Krum or multi-Krum choice among tensors.",
         "O(n^2 elements)",
         {}},
    };
}
