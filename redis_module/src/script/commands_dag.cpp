// AI.DAGEXECUTE, AI.DAGEXECUTE_RO and the older AI.DAGRUN, AI.DAGRUN_RO: several commands in one job, whose tensors are
// the job's own until it has ended.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "commands.hpp"
#include "jobs.hpp"
#include "keyspace.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "script/request.hpp"
#include "values.hpp"

using words::shown;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view arrow = "|>";

// One command of the DAG, and what came of it.
struct Operation {
    std::string command, name;            // the name of the tensor that is set or got
    std::optional<Tensor> set;            // AI.TENSORSET
    std::optional<RedisAIFormat> format;  // AI.TENSORGET
    std::optional<Request> request;       // one of those that run

    std::optional<Tensor> got;
    bool done = false;
    std::string refusal;
    std::uint64_t duration_us = 0, samples = 0;
};

struct Dag {
    std::vector<Operation> operations;
    std::map<std::string, Tensor> scope;
    engine::Run bounds;
};

struct Head {
    std::vector<std::string> loaded, persisted;
    abi::TimeMs timeout_ms = 0;
};

bool is_read_only(const Arguments& arguments) {
    return arguments.command().ends_with("_RO");
}

bool is_older(const Arguments& arguments) {
    return arguments.command().starts_with("AI.DAGRUN");
}

std::vector<std::size_t> arrows(const Arguments& arguments) {
    std::vector<std::size_t> places;
    for (std::size_t i = 1; i < arguments.size(); ++i)
        if (arguments[i] == arrow) places.push_back(i);
    if (places.empty())
        refuse("wrong number of arguments for '", arguments.command(), "' command: expected ", arguments.command(),
               " [LOAD n key..] [PERSIST n key..] [ROUTING tag] [TIMEOUT ms] |> command [|> command ..]");
    return places;
}

// The options in front of the first arrow; they refer to `head`, which must live as long.
Options options_of(const Arguments& head) {
    return {head, 1, {{"LOAD", counted}, {"PERSIST", counted}, {"KEYS", counted}, {"ROUTING", 1}, {"TIMEOUT", 1}}};
}

Head read_head(const Arguments& head) {
    const Options options = options_of(head);
    Head out;
    for (const std::size_t i : options.places("LOAD")) out.loaded.emplace_back(head[i]);
    for (const std::size_t i : options.places("PERSIST")) {
        if (std::ranges::find(out.persisted, head[i]) != out.persisted.end())
            head.refuse_argument(i, "PERSIST", "each key once");
        out.persisted.emplace_back(head[i]);
    }
    if (options.has("TIMEOUT"))
        out.timeout_ms = head.integer(options.place("TIMEOUT"), "TIMEOUT", 1, std::int64_t{1} << 40);
    if (!is_older(head) && !options.has("LOAD") && !options.has("PERSIST") && !options.has("KEYS") &&
        !options.has("ROUTING"))
        refuse(head.command(), ": LOAD, PERSIST or ROUTING must be given");
    if (is_read_only(head) && options.has("PERSIST"))
        refuse(head.command(), ": PERSIST writes; expected ", is_older(head) ? "AI.DAGRUN" : "AI.DAGEXECUTE");
    return out;
}

bool is_request(std::string_view command, bool older) {
    if (older && (command == "AI.MODELRUN" || command == "AI.SCRIPTRUN")) return true;
    return command == "AI.MODELEXECUTE" || command == "AI.SCRIPTEXECUTE";
}

Operation read_operation(const Call& call, const Arguments& own) {
    const Arguments& dag = call.arguments;
    Operation operation;
    operation.command = own.command();
    if (own.command() == "AI.TENSORSET") {
        operation.set = tensor_of(own);
        operation.name = own[1];
    } else if (own.command() == "AI.TENSORGET") {
        operation.format = redisai_format(own);
        operation.name = own[1];
    } else if (is_request(own.command(), is_older(dag))) {
        operation.request = read_request(call.ctx, own);
        if (operation.request->timeout_ms)
            refuse(dag.command(), ": ", own.command(),
                   " has a TIMEOUT; expected one for the whole, before the first |>");
        if (is_read_only(dag) && operation.request->script)
            refuse(dag.command(), ": ", own.command(), " may write by redis.execute; expected models alone");
    } else {
        refuse(dag.command(), ": ", shown(own.command()),
               " is no command of a DAG; expected AI.TENSORSET, AI.TENSORGET, AI.MODELEXECUTE or AI.SCRIPTEXECUTE");
    }
    return operation;
}

// Every name is made before it is used: that is also why a DAG has no circles.
void check_names(const std::string& command, const Dag& dag, const Head& head) {
    std::set<std::string> known(head.loaded.begin(), head.loaded.end());
    const auto require = [&](const Operation& operation, const std::string& name) {
        if (!known.contains(name))
            refuse("tensor key is empty or in a different shard: ", command, ": ", operation.command, " uses ",
                   shown(name), ", which is neither in LOAD nor the output of an earlier command");
    };
    for (const Operation& operation : dag.operations) {
        if (operation.format) require(operation, operation.name);
        if (operation.set) known.insert(operation.name);
        if (!operation.request) continue;
        for (const std::string& name : operation.request->inputs) require(operation, name);
        known.insert(operation.request->outputs.begin(), operation.request->outputs.end());
    }
    for (const std::string& name : head.persisted)
        if (!known.contains(name))
            refuse(command, ": PERSIST names ", shown(name), ", which no command of the DAG makes");
}

std::vector<Tensor> inputs_of(const Dag& dag, const Request& request) {
    std::vector<Tensor> inputs;
    for (const std::string& name : request.inputs) {
        inputs.push_back(dag.scope.at(name));
        require_numbers(inputs.back(), request.command, name);
    }
    return inputs;
}

void perform_one(Dag& dag, Operation& operation) {
    if (operation.set) {
        dag.scope.insert_or_assign(operation.name, *operation.set);
    } else if (operation.format) {
        operation.got = dag.scope.at(operation.name);
    } else {
        const std::vector<Tensor> inputs = inputs_of(dag, *operation.request);
        operation.samples = samples_of(inputs);
        std::vector<Tensor> outputs = perform(*operation.request, inputs, dag.bounds);
        for (std::size_t k = 0; k < outputs.size(); ++k)
            dag.scope.insert_or_assign(operation.request->outputs[k], std::move(outputs[k]));
    }
}

// On a worker. The first command that fails ends the DAG, which then stores nothing.
void perform_all(Dag& dag, Job& job) {
    for (Operation& operation : dag.operations) {
        if (pool::stopping()) throw pool::Stopped{};
        const Clock::time_point began = Clock::now();
        try {
            perform_one(dag, operation);
            operation.done = true;
        } catch (const Refused& refused) {
            operation.refusal = refused.what();
        }
        const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
        operation.duration_us = static_cast<std::uint64_t>(passed.count());
        if (operation.refusal.starts_with("TIMEOUT ")) throw Refused("TIMEOUT", operation.refusal.substr(8));
        if (!operation.done) {
            job.results.clear();
            return;
        }
    }
    for (Result& result : job.results) result.tensor = dag.scope.at(result.key);
}

void reply(abi::Ctx* ctx, const Dag& dag) {
    abi::ReplyWithArray(ctx, static_cast<long>(dag.operations.size()));
    for (const Operation& operation : dag.operations) {
        if (!operation.refusal.empty()) {
            abi::ReplyWithError(ctx, operation.refusal.c_str());
        } else if (operation.got) {
            reply_redisai(ctx, *operation.got, *operation.format);
        } else {
            abi::ReplyWithSimpleString(ctx, operation.done ? "OK" : "NA");
        }
    }
}

void count(const Dag& dag) {
    for (const Operation& operation : dag.operations)
        if (operation.request && (operation.done || !operation.refusal.empty()))
            account(*operation.request, !operation.done, operation.duration_us, operation.samples);
}

// The arguments from `first` on, up to the next arrow or the end.
Arguments part(abi::String** argv, std::size_t first, std::size_t end) {
    return {argv + first, static_cast<int>(end - first)};
}

std::shared_ptr<Dag> read_dag(const Call& call, const Head& head, const std::vector<std::size_t>& places) {
    auto dag = std::make_shared<Dag>();
    for (std::size_t k = 0; k < places.size(); ++k) {
        const std::size_t first = places[k] + 1, end = k + 1 < places.size() ? places[k + 1] : call.arguments.size();
        if (first == end) refuse(call.arguments.command(), ": nothing stands behind the |> at argument ", places[k]);
        dag->operations.push_back(read_operation(call, part(call.argv, first, end)));
    }
    check_names(call.arguments.command(), *dag, head);
    for (const std::string& name : head.loaded)
        dag->scope.insert_or_assign(name, require_tensor(call.ctx, name, call.arguments.command() + ": LOAD"));
    return dag;
}

void execute(const Call& call) {
    const Arguments& arguments = call.arguments;
    const std::vector<std::size_t> places = arrows(arguments);
    const Head head = read_head(part(call.argv, 0, places.front()));
    require_blocking(call.ctx, arguments.command());
    const std::shared_ptr<Dag> dag = read_dag(call, head, places);
    dag->bounds = {.deadline = std::nullopt, .database = abi::GetSelectedDb(call.ctx), .user = user_of(call.ctx)};
    if (head.timeout_ms) dag->bounds.deadline = Clock::now() + std::chrono::milliseconds(head.timeout_ms);

    auto job = std::make_unique<Job>();
    job->command = arguments.command();
    job->timeout_ms = head.timeout_ms;
    job->stores = !is_read_only(arguments);
    for (const std::string& key : head.persisted) job->results.push_back({key, {}, {}});
    job->compute = [dag](Job& self) { perform_all(*dag, self); };
    job->reply = [dag](abi::Ctx* ctx) { reply(ctx, *dag); };
    // A job that timed out may still be at work on the operations.
    job->finished = [dag](const std::string& refusal) {
        if (refusal.empty()) count(*dag);
    };
    run_job(call.ctx, std::move(job));
}

// What the options name, and the models and scripts; other names are the DAG's own.
KeyPositions keys(const Arguments& arguments) {
    KeyPositions positions;
    std::size_t i = 1;
    while (i + 1 < arguments.size() && arguments[i] != arrow) {
        const bool load = same_word(arguments[i], "LOAD"), persist = same_word(arguments[i], "PERSIST");
        if (load || persist || same_word(arguments[i], "KEYS")) {
            const auto n = static_cast<std::size_t>(arguments.integer(i + 1, "count", 0, 1 << 20));
            for (std::size_t k = 0; k < n; ++k)
                positions.push_back({i + 2 + k, load ? reads : persist ? writes : reads_and_writes});
            i += 2 + n;
        } else {
            if (same_word(arguments[i], "ROUTING")) positions.push_back({i + 1, abi::key_read_only});
            i += 2;
        }
    }
    for (; i + 2 < arguments.size(); ++i)
        if (arguments[i] == arrow && !same_word(arguments[i + 1], "AI.TENSORSET") &&
            !same_word(arguments[i + 1], "AI.TENSORGET"))
            positions.push_back({i + 2, reads});
    return positions;
}

}  // namespace

std::vector<CommandFacts> dag_commands() {
    constexpr const char* writing = "write deny-oom getkeys-api blocking";
    constexpr const char* reading = "readonly getkeys-api blocking";
    constexpr auto function = command<execute, keys>;
    const char* summary = "Runs several commands on tensors of their own.";
    return {
        {"ai.dagexecute", function, writing, summary, "as the commands", {}},
        {"ai.dagexecute_ro", function, reading, summary, "as the commands", {}},
        {"ai.dagrun", function, writing, summary, "as the commands", {}},
        {"ai.dagrun_ro", function, reading, summary, "as the commands", {}},
    };
}
