// TENSOR.SGD, TENSOR.ADAM, TENSOR.AXPY, TENSOR.NORM, TENSOR.FINITE: optimizer steps and elementwise work.
#include <cmath>
#include <limits>

#include "kernel_job.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "values.hpp"

using words::shown;

namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

double number_or(const Call& call, const Options& options, std::string_view name, double fallback, double low,
                 double high) {
    return options.has(name) ? call.arguments.number(options.place(name), name, low, high) : fallback;
}

// The vectors of a step: a model [P parameters | B buffers], a gradient [P gradient | B statistics], states of P each.
struct Step {
    Tensor model, gradient;
    std::vector<std::optional<Tensor>> states;  // empty: "-", the first step
    std::size_t parameters = 0, buffers = 0;
    double statistics = 1;  // weight of a new statistic in a running one

    const float* state(std::size_t k) const { return states[k] ? states[k]->floats() : nullptr; }
};

bool is_absent(std::string_view key) {
    return key == "-";
}

void read_buffers(const Call& call, const Options& options, Step& step) {
    if (options.has("BUFFERS") != options.has("STATS"))
        refuse(call.arguments.command(), ": BUFFERS and STATS belong together; expected both or none");
    const auto size = static_cast<std::int64_t>(step.model.count());
    if (options.has("BUFFERS")) {
        step.buffers = static_cast<std::size_t>(call.arguments.integer(options.place("BUFFERS"), "BUFFERS", 0, size));
        step.statistics = call.arguments.number(options.place("STATS"), "STATS", 0, 1);
    }
    step.parameters = step.model.count() - step.buffers;
}

Step read_step(const Call& call, const Options& options, std::size_t state_count) {
    Step step;
    step.model = require_floats(call, 1, "model");
    if (step.model.shape.size() != 1)
        refuse(call.arguments.command(), ": model key ", shown(call.arguments[1]), " has shape ",
               shape_text(step.model.shape), "; expected one flat vector");
    step.gradient = require_floats_like(call, 2, "gradient", step.model);
    read_buffers(call, options, step);
    for (std::size_t k = 0; k < state_count; ++k) {
        const std::size_t i = 3 + k;
        if (is_absent(call.arguments[i])) {
            step.states.emplace_back();
            continue;
        }
        Tensor state = require_floats(call, i, "state");
        const std::vector<std::int64_t> expected{static_cast<std::int64_t>(step.parameters)};
        if (state.shape != expected)
            refuse(call.arguments.command(), ": state key ", shown(call.arguments[i]), " has shape ",
                   shape_text(state.shape), "; expected ", shape_text(expected), ", one number per parameter");
        step.states.emplace_back(std::move(state));
    }
    return step;
}

// Shapes and labels of the outputs: those of the inputs; a first state is named after its role.
void describe_outputs(Job& job, const Step& step, const std::vector<const char*>& roles) {
    job.results[0].tensor = step.model.header();
    job.bytes = step.model.bytes();
    for (std::size_t k = 1; k < job.results.size(); ++k) {
        Tensor& out = job.results[k].tensor;
        const std::optional<Tensor>& before = step.states[k - 1];
        if (before) {
            out = before->header();
        } else {
            out.shape = {static_cast<std::int64_t>(step.parameters)};
            out.kind = roles[k - 1];
        }
        job.bytes += step.parameters * sizeof(float);
    }
}

void blend(const Step& step, float* model_out) {
    const std::size_t p = step.parameters;
    kernels::blend_buffers(step.statistics, step.model.floats() + p, step.gradient.floats() + p, model_out + p,
                           step.buffers);
}

kernels::SgdRule read_sgd_rule(const Call& call, const Options& options) {
    const Arguments& arguments = call.arguments;
    const double rate = arguments.number(options.required("LR"), "LR", 0, unbounded);
    const double momentum = number_or(call, options, "MOMENTUM", 0, 0, unbounded);
    const double dampening = number_or(call, options, "DAMPENING", 0, -unbounded, unbounded);
    const double decay = number_or(call, options, "WEIGHTDECAY", 0, 0, unbounded);
    const bool nesterov = options.has("NESTEROV");
    if (nesterov && (momentum == 0 || dampening != 0))
        refuse(arguments.command(), ": NESTEROV needs a MOMENTUM above 0 and no DAMPENING");
    // As torch does: arithmetic on the scalars in float64, each cast where it meets the vector.
    return {static_cast<float>(-rate), static_cast<float>(momentum), static_cast<float>(1 - dampening),
            static_cast<float>(decay), nesterov};
}

void sgd(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(
        9,
        "TENSOR.SGD model gradient velocity OUT model_out velocity_out LR x [MOMENTUM m] [DAMPENING d] [NESTEROV] "
        "[WEIGHTDECAY wd] [BUFFERS b STATS s] [NX] [PX ms]; velocity - at the first step");
    const Options options(arguments, 4,
                          {{"OUT", 2},
                           {"LR", 1},
                           {"MOMENTUM", 1},
                           {"DAMPENING", 1},
                           {"NESTEROV", 0},
                           {"WEIGHTDECAY", 1},
                           {"BUFFERS", 1},
                           {"STATS", 1},
                           {"NX", 0},
                           {"PX", 1}});
    const std::size_t out = options.required("OUT");
    const kernels::SgdRule rule = read_sgd_rule(call, options);
    const bool has_momentum = rule.momentum != 0;
    if (!has_momentum && !is_absent(arguments[3])) arguments.refuse_argument(3, "velocity", "-, because MOMENTUM is 0");
    if (has_momentum == is_absent(arguments[out + 1]))
        arguments.refuse_argument(out + 1, "velocity_out",
                                  has_momentum ? "a key, because MOMENTUM is not 0" : "-, because MOMENTUM is 0");
    if (is_absent(arguments[out])) arguments.refuse_argument(out, "model_out", "a key");
    auto job = has_momentum ? new_job(call, options, {out, out + 1}) : new_job(call, options, {out});
    if (!job) return;
    const Step step = read_step(call, options, 1);
    describe_outputs(*job, step, {"velocity"});
    job->compute = [step, rule](Job& self) {
        float* model_out = fresh_floats(self.results[0].tensor, step.model.count());
        float* velocity_out = self.results.size() > 1 ? fresh_floats(self.results[1].tensor, step.parameters) : nullptr;
        kernels::sgd(rule, step.model.floats(), step.gradient.floats(), step.state(0), model_out, velocity_out,
                     step.parameters, on_pool());
        blend(step, model_out);
    };
    run_job(call.ctx, std::move(job));
}

kernels::AdamRule read_adam_rule(const Call& call, const Options& options) {
    const double largest_beta = std::nextafter(1.0, 0.0);
    const double rate = call.arguments.number(options.required("LR"), "LR", 0, unbounded);
    const double beta1 = number_or(call, options, "BETA1", 0.9, 0, largest_beta);
    const double beta2 = number_or(call, options, "BETA2", 0.999, 0, largest_beta);
    const double epsilon = number_or(call, options, "EPS", 1e-8, 0, unbounded);
    const double decay = number_or(call, options, "WEIGHTDECAY", 0, 0, unbounded);
    const auto t =
        static_cast<double>(call.arguments.integer(options.required("STEP"), "STEP", 1, std::int64_t{1} << 53));
    const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
    const bool decoupled = options.has("DECOUPLED");
    return {.one_minus_beta1 = static_cast<float>(1 - beta1),
            .beta2 = static_cast<float>(beta2),
            .one_minus_beta2 = static_cast<float>(1 - beta2),
            .correction2_sqrt = static_cast<float>(std::sqrt(correction2)),
            .epsilon = static_cast<float>(epsilon),
            .minus_step = static_cast<float>(-(rate / correction1)),
            .weight_decay = decoupled ? 0.0F : static_cast<float>(decay),
            .decay_factor = decoupled ? static_cast<float>(1 - rate * decay) : 1.0F};
}

void adam(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(
        13,
        "TENSOR.ADAM model gradient m v OUT model_out m_out v_out LR x [BETA1 b] [BETA2 b] [EPS e] [WEIGHTDECAY wd] "
        "[DECOUPLED] STEP t [BUFFERS b STATS s] [NX] [PX ms]; m and v - at step 1");
    const Options options(arguments, 5,
                          {{"OUT", 3},
                           {"LR", 1},
                           {"BETA1", 1},
                           {"BETA2", 1},
                           {"EPS", 1},
                           {"WEIGHTDECAY", 1},
                           {"DECOUPLED", 0},
                           {"STEP", 1},
                           {"BUFFERS", 1},
                           {"STATS", 1},
                           {"NX", 0},
                           {"PX", 1}});
    const std::size_t out = options.required("OUT");
    const kernels::AdamRule rule = read_adam_rule(call, options);
    const bool first = is_absent(arguments[3]);
    if (first != is_absent(arguments[4])) arguments.refuse_argument(4, "v", first ? "-, like m" : "a key, like m");
    if (first && arguments[options.place("STEP")] != "1")
        arguments.refuse_argument(3, "m", "a key, because STEP is not 1");
    for (std::size_t i = out; i < out + 3; ++i)
        if (is_absent(arguments[i])) arguments.refuse_argument(i, "output", "a key");
    auto job = new_job(call, options, {out, out + 1, out + 2});
    if (!job) return;
    const Step step = read_step(call, options, 2);
    describe_outputs(*job, step, {"moment", "moment"});
    job->compute = [step, rule](Job& self) {
        float* model_out = fresh_floats(self.results[0].tensor, step.model.count());
        float* m_out = fresh_floats(self.results[1].tensor, step.parameters);
        float* v_out = fresh_floats(self.results[2].tensor, step.parameters);
        kernels::adam(rule, step.model.floats(), step.gradient.floats(), step.state(0), step.state(1), model_out, m_out,
                      v_out, step.parameters, on_pool());
        blend(step, model_out);
    };
    run_job(call.ctx, std::move(job));
}

void axpy(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(7, "TENSOR.AXPY base x ALPHA a OUT out [KIND kind] [NX] [PX ms]");
    const Options options(arguments, 3, {{"ALPHA", 1}, {"OUT", 1}, {"KIND", 1}, {"NX", 0}, {"PX", 1}});
    const auto alpha = static_cast<float>(arguments.number(options.required("ALPHA"), "ALPHA"));
    auto job = new_job(call, options, {options.required("OUT")});
    if (!job) return;
    const Tensor base = require_floats(call, 1, "base");
    const Tensor x = require_floats_like(call, 2, "x", base);
    job->results.front().tensor = base.header();
    if (options.has("KIND")) job->results.front().tensor.kind = read_kind(arguments, options.place("KIND"));
    job->bytes = base.bytes();
    job->compute = [base, x, alpha](Job& self) {
        kernels::axpy(alpha, base.floats(), x.floats(), fresh_floats(self.results.front().tensor, base.count()),
                      base.count(), on_pool());
    };
    run_job(call.ctx, std::move(job));
}

// A job without results: `measure` runs on the pool, `answer` replies with what it found.
template <typename Found>
void measure(const Call& call, std::string_view syntax,
             Found (*measure)(const float*, std::size_t, const kernels::ForBlocks&), void (*answer)(abi::Ctx*, Found)) {
    call.arguments.exactly(2, syntax);
    require_blocking(call.ctx, call.arguments.command());
    const Tensor x = require_floats(call, 1, "input");
    auto job = std::make_unique<Job>();
    const auto found = std::make_shared<Found>();
    job->command = call.arguments.command();
    job->stores = false;
    job->compute = [x, measure, found](Job&) { *found = measure(x.floats(), x.count(), on_pool()); };
    job->reply = [answer, found](abi::Ctx* ctx) { answer(ctx, *found); };
    run_job(call.ctx, std::move(job));
}

void norm(const Call& call) {
    measure<double>(call, "TENSOR.NORM key", kernels::norm, reply_double);
}

void finite(const Call& call) {
    measure<bool>(call, "TENSOR.FINITE key", kernels::finite,
                  [](abi::Ctx* ctx, bool is) { abi::ReplyWithLongLong(ctx, is); });
}

// Inputs at 1..states+2, outputs behind OUT; "-" is no key.
KeyPositions step_keys(const Arguments& arguments, std::size_t states) {
    KeyPositions positions;
    for (std::size_t i = 1; i < 3 + states; ++i)
        if (!is_absent(arguments.at(i, "key"))) positions.push_back({i, reads});
    const Options options(arguments, 3 + states,
                          {{"OUT", 1 + states},
                           {"LR", 1},
                           {"MOMENTUM", 1},
                           {"DAMPENING", 1},
                           {"NESTEROV", 0},
                           {"BETA1", 1},
                           {"BETA2", 1},
                           {"EPS", 1},
                           {"WEIGHTDECAY", 1},
                           {"DECOUPLED", 0},
                           {"STEP", 1},
                           {"BUFFERS", 1},
                           {"STATS", 1},
                           {"NX", 0},
                           {"PX", 1}});
    const std::size_t out = options.required("OUT");
    for (std::size_t i = out; i < out + 1 + states; ++i)
        if (!is_absent(arguments[i])) positions.push_back({i, writes});
    return positions;
}

KeyPositions sgd_keys(const Arguments& arguments) {
    return step_keys(arguments, 1);
}
KeyPositions adam_keys(const Arguments& arguments) {
    return step_keys(arguments, 2);
}

KeyPositions axpy_keys(const Arguments& arguments) {
    const Options options(arguments, 3, {{"ALPHA", 1}, {"OUT", 1}, {"KIND", 1}, {"NX", 0}, {"PX", 1}});
    return {{1, reads}, {2, reads}, {options.required("OUT"), writes}};
}

}  // namespace

std::vector<CommandFacts> update_commands() {
    constexpr const char* flags = "write deny-oom getkeys-api blocking";
    return {
        {"tensor.sgd", command<sgd, sgd_keys>, flags, "One step of torch.optim.SGD.", "O(elements)", {}},
        {"tensor.adam", command<adam, adam_keys>, flags, "One step of torch.optim.Adam or AdamW.", "O(elements)", {}},
        {"tensor.axpy", command<axpy, axpy_keys>, flags, "Stores base + alpha x.", "O(elements)", {}},
        {"tensor.norm",
         command<norm>,
         "readonly blocking",
         "Returns the L2 norm, in float64.",
         "O(elements)",
         {{1, reads}}},
        {"tensor.finite",
         command<finite>,
         "readonly blocking",
         "Returns 1 when every element is finite.",
         "O(elements)",
         {{1, reads}}},
    };
}
