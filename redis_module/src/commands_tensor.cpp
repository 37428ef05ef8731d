// AI.TENSORSET, AI.TENSORGET, TENSOR.GET, TENSOR.INFO, TENSOR.COPY, TENSOR.STATS: storing and reading, on the main
// thread but for long copies.
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "commands.hpp"
#include "jobs.hpp"
#include "kernels/kernels.hpp"
#include "keyspace.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "refused.hpp"
#include "replies.hpp"
#include "values.hpp"
#include "version.hpp"

using words::shown;

namespace {

constexpr std::int64_t longest_lifetime_ms = std::int64_t{1} << 50;
// A tensor without data is all zeros; as large as the largest blob that a client may send by default.
constexpr std::size_t largest_zero_tensor_bytes = std::size_t{512} << 20;
// From here on a copy, or the making of a reply, is a job for a worker: it takes some hundredths of a second.
constexpr std::size_t long_copy_bytes = std::size_t{64} << 20;
constexpr std::size_t long_reply_values = 100'000;
constexpr std::size_t copied_at_once = std::size_t{4} << 20;  // a client that leaves ends the copy behind it

struct TensorSet {
    Tensor tensor;  // without payload
    std::size_t bytes = 0;
    bool only_if_missing = false;
    std::optional<abi::TimeMs> lifetime_ms;
    std::size_t blob = 0;    // index of the blob, 0: none
    std::size_t values = 0;  // index of the first value, 0: none
};

void read_option(const Arguments& arguments, std::size_t& i, TensorSet& set) {
    if (same_word(arguments[i], "KIND")) {
        set.tensor.kind = read_kind(arguments, i + 1);
        i += 2;
    } else if (same_word(arguments[i], "SAMPLES")) {
        set.tensor.samples = arguments.natural(i + 1, "SAMPLES");
        i += 2;
    } else if (same_word(arguments[i], "NX")) {
        set.only_if_missing = true;
        i += 1;
    } else if (same_word(arguments[i], "PX")) {
        set.lifetime_ms = arguments.integer(i + 1, "PX", 1, longest_lifetime_ms);
        i += 2;
    } else {
        arguments.refuse_argument(i, "option", "a size (an integer) or KIND, SAMPLES, NX, PX, BLOB, VALUES");
    }
}

TensorSet read_tensor_set(const Arguments& arguments) {
    // A scalar is written with its data: without, a size was forgotten.
    arguments.at_least(
        4, "AI.TENSORSET key dtype size.. [KIND kind] [SAMPLES n] [NX] [PX ms] [BLOB blob | VALUES value..]");
    TensorSet set;
    const auto dtype = dtype_named(arguments[2]);
    if (!dtype)
        arguments.refuse_argument(2, "dtype",
                                  "FLOAT, DOUBLE, INT8, INT16, INT32, INT64, UINT8, UINT16, BOOL or STRING");
    set.tensor.dtype = *dtype;
    std::size_t i = 3;
    for (; i < arguments.size() && parse_integer(arguments[i]); ++i) {
        if (set.tensor.shape.size() == largest_rank)
            refuse(arguments.command(), ": more than ", largest_rank, " sizes");
        set.tensor.shape.push_back(arguments.integer(i, "size", 0, std::numeric_limits<std::int64_t>::max()));
    }
    while (i < arguments.size() && !set.blob && !set.values) {
        if (same_word(arguments[i], "BLOB")) {
            set.blob = i + 1;
        } else if (same_word(arguments[i], "VALUES")) {
            set.values = i + 1;
        } else {
            read_option(arguments, i, set);
        }
    }
    set.bytes = checked_bytes(set.tensor, arguments.command());
    return set;
}

void check_data(const Arguments& arguments, const TensorSet& set) {
    const std::string shape = shape_text(set.tensor.shape);
    const char* dtype = facts(set.tensor.dtype).name;
    if (set.blob) {
        const std::string_view blob = arguments.at(set.blob, "BLOB");
        if (arguments.size() != set.blob + 1)
            arguments.refuse_argument(set.blob + 1, "after the blob", "nothing: options stand before BLOB");
        if (blob.size() != set.bytes && set.tensor.dtype != DType::text)
            refuse(arguments.command(), ": BLOB has ", blob.size(), " bytes; expected ", set.bytes, " for ", dtype, ' ',
                   shape);
    } else if (set.values) {
        const std::size_t given = arguments.size() - set.values, expected = set.bytes / facts(set.tensor.dtype).size;
        if (given != expected)
            refuse(arguments.command(), ": VALUES has ", given, " values; expected ", expected, " for ", dtype, ' ',
                   shape);
    } else if (set.bytes > largest_zero_tensor_bytes) {
        refuse(arguments.command(), ": ", dtype, ' ', shape, " has ", set.bytes,
               " bytes and no data; expected at most ", largest_zero_tensor_bytes, " bytes of zeros");
    }
}

// Fresh memory costs page faults: a value of the same size that nobody else holds is overwritten in place, which no
// client can see because commands run one at a time.
std::shared_ptr<Payload> memory_for(const Tensor* old, std::size_t bytes) {
    if (old && old->bytes() == bytes && old->payload.use_count() == 1) return old->payload;
    return std::make_shared<Payload>(bytes);
}

// Into `old`'s memory where that may be overwritten.
void fill(const Arguments& arguments, TensorSet& set, const Tensor* old) {
    std::string strings;
    std::string_view blob = set.blob ? arguments[set.blob] : std::string_view();
    if (set.values && set.tensor.dtype == DType::text) blob = strings = joined_strings(arguments, set.values);
    const std::size_t bytes = blob.data() ? blob.size() : set.bytes;
    // Values may be refused half way: they never go into the old tensor's memory.
    set.tensor.payload = memory_for(set.values ? nullptr : old, bytes);
    if (blob.data()) {
        std::memcpy(set.tensor.payload->data(), blob.data(), bytes);
    } else if (set.values) {
        parse_values(arguments, set.values, set.tensor);
    } else {
        memory::clear(set.tensor.payload->data(), bytes);
    }
}

// Checked and copied by a worker, out of the argument itself, which goes on to replicas as it is.
void set_long(const Call& call, const TensorSet& set) {
    auto job = std::make_unique<Job>();
    job->command = call.arguments.command();
    job->only_if_missing = set.only_if_missing;
    job->lifetime_ms = set.lifetime_ms;
    job->bytes = call.arguments[set.blob].size();
    job->results.push_back({std::string(call.arguments[1]), {}, OwnedString::shared(call.argv[set.blob])});
    job->compute = [blob = call.arguments[set.blob], header = set.tensor, least = set.bytes](Job& self) {
        check_elements(header.dtype, blob, least, self.command);
        Tensor& tensor = self.results.front().tensor;
        tensor = header;
        tensor.payload = std::make_shared<Payload>(blob.size());
        pool::for_blocks(blob.size(), copied_at_once, [&](std::size_t first, std::size_t count) {
            std::memcpy(tensor.payload->data() + first, blob.data() + first, count);
        });
    };
    run_job(call.ctx, std::move(job));
}

// A long reply is written by a worker. The tensor is part of `reply`.
void answer(const Call& call, bool is_long, std::function<void(abi::Ctx*)> reply) {
    if (!is_long || !can_wait(call.ctx)) return reply(call.ctx);
    auto job = std::make_unique<Job>();
    job->command = call.arguments.command();
    job->stores = false;
    job->compute = [reply = std::move(reply)](Job& self) { reply(self.context); };
    job->reply = [](abi::Ctx*) {};
    run_job(call.ctx, std::move(job));
}

RedisAIFormat redisai_format(const Arguments& arguments) {
    arguments.at_least(2, "AI.TENSORGET key [META] [BLOB | VALUES]");
    RedisAIFormat format{};
    for (std::size_t i = 2; i < arguments.size(); ++i) {
        bool& flag = same_word(arguments[i], "META")   ? format.meta
                     : same_word(arguments[i], "BLOB") ? format.blob
                                                       : format.values;
        if (&flag == &format.values && !same_word(arguments[i], "VALUES"))
            arguments.refuse_argument(i, "format", "META, BLOB or VALUES");
        if (flag) arguments.refuse_argument(i, "format", "each format once");
        flag = true;
    }
    if (format.blob && format.values)
        refuse(arguments.command(), ": both BLOB and VALUES are given; expected one of them");
    if (!format.meta && !format.blob && !format.values) format.meta = format.blob = true;
    return format;
}

void tensor_set(const Call& call) {
    const Arguments& arguments = call.arguments;
    TensorSet set = read_tensor_set(arguments);
    check_data(arguments, set);
    if (set.blob && arguments[set.blob].size() >= long_copy_bytes && can_wait(call.ctx)) return set_long(call, set);
    if (set.blob) check_elements(set.tensor.dtype, arguments[set.blob], set.bytes, arguments.command());
    Expiry expiry;
    if (set.lifetime_ms) expiry.at = abi::Milliseconds() + *set.lifetime_ms;
    const bool zeros = !set.blob && !set.values;
    if (zeros && !(abi::GetContextFlags(call.ctx) & (abi::flag_replicated | abi::flag_loading)))
        require_memory(call.ctx, arguments.command(), set.bytes);
    {
        // Opened for writing only once nothing can be refused any more: closing it tells its watchers.
        const OpenedKey key(call.ctx, call.argv[1], abi::read_mode);
        const Tensor* old = key.tensor("AI.TENSORSET:", arguments[1]);
        if (set.only_if_missing && old) {
            abi::ReplyWithLongLong(call.ctx, 0);
            return;
        }
        fill(arguments, set, old);
    }
    if (zeros) {
        propagate_zeros(call.ctx, call.argv[1], set.tensor, expiry);
    } else if (set.blob || propagates(call.ctx)) {
        propagate_tensor(call.ctx, call.argv[1], set.tensor, expiry, set.blob ? call.argv[set.blob] : nullptr);
    } else {
        count_change(call.ctx, call.argv[1]);
    }
    const OpenedKey key(call.ctx, call.argv[1], abi::read_mode | abi::write_mode);
    put_tensor(call.ctx, key, call.argv[1], std::move(set.tensor), expiry);
    if (set.only_if_missing) {
        abi::ReplyWithLongLong(call.ctx, 1);
    } else {
        abi::ReplyWithSimpleString(call.ctx, "OK");
    }
}

void tensor_get_redisai(const Call& call) {
    const RedisAIFormat format = redisai_format(call.arguments);
    Tensor tensor = require_tensor(call.ctx, call.arguments[1], "AI.TENSORGET:");
    const bool is_long = (format.blob && tensor.bytes() >= long_copy_bytes) ||
                         (format.values && tensor.bytes() / facts(tensor.dtype).size >= long_reply_values);
    answer(call, is_long, [tensor = std::move(tensor), format](abi::Ctx* ctx) { reply_redisai(ctx, tensor, format); });
}

void tensor_get(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(2, "TENSOR.GET key [RANGE first count]");
    const Options options(arguments, 2, {{"RANGE", 2}});
    auto tensor = find_tensor(call.ctx, arguments[1], "TENSOR.GET:");
    if (!tensor) {
        abi::ReplyWithNull(call.ctx);
        return;
    }
    std::string_view blob = tensor->blob();
    if (options.has("RANGE")) {
        if (tensor->dtype == DType::text)
            refuse("TENSOR.GET: RANGE counts elements of one size; key ", shown(arguments[1]), " is STRING");
        const std::size_t i = options.place("RANGE"), size = facts(tensor->dtype).size;
        const auto elements = static_cast<std::int64_t>(tensor->count());
        const std::int64_t first = arguments.integer(i, "RANGE first", 0, elements);
        const std::int64_t count = arguments.integer(i + 1, "RANGE count", 0, elements - first);
        blob = blob.substr(static_cast<std::size_t>(first) * size, static_cast<std::size_t>(count) * size);
    }
    answer(call, blob.size() >= long_copy_bytes, [tensor = *std::move(tensor), blob](abi::Ctx* ctx) {
        abi::ReplyWithArray(ctx, 5);
        reply_description(ctx, tensor);
        reply_bulk(ctx, blob);
    });
}

void tensor_info(const Call& call) {
    call.arguments.exactly(2, "TENSOR.INFO key");
    const auto tensor = find_tensor(call.ctx, call.arguments[1], "TENSOR.INFO:");
    if (!tensor) {
        abi::ReplyWithNull(call.ctx);
        return;
    }
    abi::ReplyWithArray(call.ctx, 5);
    reply_description(call.ctx, *tensor);
    abi::ReplyWithLongLong(call.ctx, static_cast<long long>(tensor->bytes()));
}

void tensor_copy(const Call& call) {
    const Arguments& arguments = call.arguments;
    arguments.at_least(3, "TENSOR.COPY source destination [NX] [PX ms]");
    const Options options(arguments, 3, {{"NX", 0}, {"PX", 1}});
    Expiry expiry;
    if (options.has("PX"))
        expiry.at = abi::Milliseconds() + arguments.integer(options.place("PX"), "PX", 1, longest_lifetime_ms);
    if (tensor_exists(call.ctx, arguments[2], "TENSOR.COPY: destination") && options.has("NX")) {
        abi::ReplyWithLongLong(call.ctx, 0);
        return;
    }
    Tensor tensor = require_tensor(call.ctx, arguments[1], "TENSOR.COPY: source");
    const OpenedKey key(call.ctx, call.argv[2], abi::read_mode | abi::write_mode);
    // A copy is no computation: a replica that holds the source makes the same one.
    abi::Replicate(call.ctx, "TENSOR.COPY", "ss", call.argv[1], call.argv[2]);
    if (expiry.at) abi::Replicate(call.ctx, "PEXPIREAT", "sl", call.argv[2], *expiry.at);
    put_tensor(call.ctx, key, call.argv[2], std::move(tensor), expiry);
    if (options.has("NX")) {
        abi::ReplyWithLongLong(call.ctx, 1);
    } else {
        abi::ReplyWithSimpleString(call.ctx, "OK");
    }
}

void tensor_stats(const Call& call) {
    call.arguments.exactly(1, "TENSOR.STATS");
    const LiveTensors live = live_tensors();
    const PoolState state = pool::state();
    abi::ReplyWithArray(call.ctx, 20);
    reply_field(call.ctx, "tensors", live.payloads);
    reply_field(call.ctx, "bytes", live.bytes);
    reply_field(call.ctx, "spare_bytes", memory::spare_bytes());
    reply_field(call.ctx, "jobs_queued", state.queued);
    reply_field(call.ctx, "jobs_running", state.running);
    reply_field(call.ctx, "jobs_held", held_jobs());
    reply_field(call.ctx, "threads", static_cast<std::uint64_t>(state.threads));
    reply_field(call.ctx, "intra_op_threads", static_cast<std::uint64_t>(state.intra_op_threads));
    reply_field(call.ctx, "simd", kernels::instruction_set());
    reply_field(call.ctx, "version", module_version_text);
}

}  // namespace

std::vector<CommandFacts> tensor_commands() {
    return {
        {"ai.tensorset", command<tensor_set>, "write deny-oom", "Stores a tensor.", "O(bytes)", {{1, writes}}},
        {"ai.tensorget",
         command<tensor_get_redisai>,
         "readonly",
         "Returns a tensor as RedisAI does.",
         "O(bytes)",
         {{1, reads}}},
        {"tensor.get",
         command<tensor_get>,
         "readonly",
         "Returns a tensor with its kind and samples, or a range of it.",
         "O(bytes)",
         {{1, reads}}},
        {"tensor.info", command<tensor_info>, "readonly fast", "Returns a tensor's description.", "O(1)", {{1, reads}}},
        {"tensor.copy",
         command<tensor_copy>,
         "write deny-oom fast",
         "Stores a tensor under a second key.",
         "O(1)",
         {{1, reads}, {2, writes}}},
        {"tensor.stats", command<tensor_stats>, "fast", "Returns the module's counters.", "O(1)", {}, true},
    };
}
