#include "script/redis_ops.hpp"

#include <torch/csrc/jit/runtime/custom_operator.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "keyspace.hpp"
#include "pool.hpp"
#include "refused.hpp"

namespace redis_ops {

namespace {

using torch::jit::Stack;

thread_local const engine::Run* current = nullptr;
thread_local Ending how = Ending::script;

void check_deadline() {
    if (pool::stopping()) {
        how = Ending::shutdown;
        throw std::runtime_error("the server is shutting down");
    }
    if (current && current->deadline && std::chrono::steady_clock::now() > *current->deadline) {
        how = Ending::deadline;
        throw std::runtime_error("the script ran longer than its TIMEOUT");
    }
}

// The server's lock and a context in the script's database. It is not bound to the client, which may have left.
class Server {
public:
    explicit Server(const engine::Run& run) : ctx_(abi::GetThreadSafeContext(nullptr), abi::FreeThreadSafeContext) {
        lock();
        // A server that is paused, fails over or waits for its replicas before it ends would abort at a change. A
        // script is a command that writes, so it waits, whatever it calls.
        while (abi::AvoidReplicaTraffic()) {
            abi::ThreadSafeContextUnlock(ctx());
            std::this_thread::sleep_for(between_looks);
            check_deadline();
            lock();
        }
        abi::SelectDb(ctx(), run.database);
    }
    ~Server() { abi::ThreadSafeContextUnlock(ctx()); }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    abi::Ctx* ctx() const { return ctx_.get(); }

private:
    static constexpr std::chrono::milliseconds between_looks{5};
    void lock() const {
        const pool::Parked parked;
        abi::ThreadSafeContextLock(ctx());
    }
    std::unique_ptr<abi::Ctx, decltype(abi::FreeThreadSafeContext)> ctx_;
};

// Looked up by name under the lock, because a user may have been deleted since the script began.
class User {
public:
    User(abi::Ctx* ctx, const std::string& name) {
        if (name.empty()) return;
        const OwnedString text(name);
        user_ = abi::GetModuleUserFromUserName(text.get());
        if (!user_) refuse("redis.execute: the user ", words::shown(name), " no longer exists");
        abi::SetContextUser(ctx, user_);
    }
    ~User() {
        if (user_) abi::FreeModuleUser(user_);
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    const char* format() const { return user_ ? "!CEMv" : "!EMv"; }

private:
    RedisModuleUser* user_ = nullptr;
};

std::string word_of(const c10::IValue& value) {
    if (value.isString()) return value.toStringRef();
    if (value.isInt()) return std::to_string(value.toInt());
    if (value.isDouble()) return std::to_string(value.toDouble());
    if (value.isBool()) return value.toBool() ? "1" : "0";
    refuse("redis.execute: an argument is a ", value.tagKind(), "; expected str, int, float, bool or a list of them");
}

void append_words(std::vector<OwnedString>& words, const c10::IValue& value) {
    if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) words.emplace_back(word_of(element));
    } else {
        words.emplace_back(word_of(value));
    }
}

c10::IValue to_value(RedisModuleCallReply* reply) {
    std::size_t length = 0;
    switch (abi::CallReplyType(reply)) {
        case abi::reply_string: {
            const char* text = abi::CallReplyStringPtr(reply, &length);
            return std::string(text, length);
        }
        case abi::reply_error: {
            const char* text = abi::CallReplyStringPtr(reply, &length);
            throw std::runtime_error("redis.execute: " + std::string(text, length));
        }
        case abi::reply_integer: return static_cast<std::int64_t>(abi::CallReplyInteger(reply));
        case abi::reply_array: {
            c10::impl::GenericList list(c10::AnyType::get());
            for (std::size_t i = 0; i < abi::CallReplyLength(reply); ++i)
                list.push_back(to_value(abi::CallReplyArrayElement(reply, i)));
            return list;
        }
        default: return {};  // null
    }
}

// redis.execute(command, argument..): the command's reply as str, int, List[Any] or None.
void execute(Stack& stack) {
    const auto count = static_cast<std::size_t>(torch::jit::pop(stack).toInt());
    const std::vector<c10::IValue> operands = torch::jit::pop(stack, count);
    check_deadline();
    if (!current) throw std::runtime_error("redis.execute works within AI.SCRIPTEXECUTE and AI.SCRIPTRUN only");
    if (operands.empty() || !operands[0].isString())
        throw std::runtime_error("redis.execute: the first argument is the command's name, a str");
    std::vector<OwnedString> words;
    for (std::size_t i = 1; i < operands.size(); ++i) append_words(words, operands[i]);
    std::vector<abi::String*> argv;
    for (const OwnedString& word : words) argv.push_back(word.get());

    c10::IValue result;
    {
        const Server server(*current);
        const User user(server.ctx(), current->user);
        RedisModuleCallReply* reply =
            abi::Call(server.ctx(), operands[0].toStringRef().c_str(), user.format(), argv.data(), argv.size());
        if (!reply)
            throw std::runtime_error("redis.execute: the server refused the command " +
                                     words::shown(operands[0].toStringRef()));
        try {
            result = to_value(reply);
        } catch (...) {
            abi::FreeCallReply(reply);
            throw;
        }
        abi::FreeCallReply(reply);
    }
    torch::jit::push(stack, std::move(result));
}

void as_list(Stack& stack) {
    const c10::IValue value = torch::jit::pop(stack);
    if (!value.isList()) throw std::runtime_error("redis.asList: the reply is no array");
    torch::jit::push(stack, value);
}

void tick_blocks(torch::jit::Graph& graph, at::ArrayRef<torch::jit::Block*> blocks) {
    for (torch::jit::Block* block : blocks)
        for (torch::jit::Node* node : block->nodes()) {
            tick_blocks(graph, node->blocks());
            if (node->kind() == torch::jit::prim::Loop)
                node->blocks().at(0)->prependNode(graph.create(c10::Symbol::fromQualString("redis::tick"), 0));
        }
}

}  // namespace

void insert_ticks(torch::jit::Graph& graph) {
    torch::jit::Block* top = graph.block();
    tick_blocks(graph, at::ArrayRef<torch::jit::Block*>(&top, 1));
}

void register_all() {
    // Conservative: these have effects, so nothing may drop, merge or reorder them.
    constexpr auto effects = c10::AliasAnalysisKind::CONSERVATIVE;
    static const torch::jit::RegisterOperators operators({
        torch::jit::Operator("redis::execute(...) -> Any", execute, effects),
        torch::jit::Operator("redis::asList(Any reply) -> Any[]", as_list, effects),
        torch::jit::Operator(
            "redis::tick() -> ()", [](Stack&) { check_deadline(); }, effects),
    });
}

Current::Current(const engine::Run& run) {
    current = &run;
    how = Ending::script;
}

Current::~Current() {
    current = nullptr;
}

Ending ending() {
    return how;
}

}  // namespace redis_ops
