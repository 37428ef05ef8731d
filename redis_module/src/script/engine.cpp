#include "script/engine.hpp"

#include <ATen/Parallel.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "pool.hpp"
#include "refused.hpp"
#include "script/bridge.hpp"
#include "script/redis_ops.hpp"

using words::shown;

struct CompiledScript {
    torch::jit::CompilationUnit unit;
    bool writes_tensors = false;  // some operation works in place: the inputs, shared with keys, are copied first
};

namespace engine {

namespace {

constexpr std::array<at::ScalarType, number_dtype_count> scalar_types = {
    at::kFloat, at::kDouble, at::kChar, at::kShort, at::kInt, at::kLong, at::kByte, at::kUInt16, at::kBool};
int threads_per_run = 1;

using Sugared = std::shared_ptr<torch::jit::SugaredValue>;

// Tensor(a!)[]: the elements of the list are written to, as _foreach_add_, _fused_sgd_ and unbind_copy(out=) do.
// torch's script compiler leaves such a call out, without a word, when the list was made for it.
bool writes_listed_tensors(const c10::FunctionSchema& schema) {
    return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
        const c10::AliasInfo* alias = argument.alias_info();
        return alias && std::ranges::any_of(alias->containedTypes(),
                                            [](const c10::AliasInfo& element) { return element.isWrite(); });
    });
}

void require_no_listed_writes(const std::string& name) {
    for (const auto& each : torch::jit::getAllOperatorsFor(c10::Symbol::aten(name)))
        if (writes_listed_tensors(each->schema()))
            throw std::runtime_error(name +
                                     " can change the tensors of a list, and torch's script compiler may leave "
                                     "such a call out; expected a loop over the tensors");
}

// `torch`: the built-in operations, and the names of dtypes.
struct TorchNames : torch::jit::BuiltinModule {
    TorchNames() : BuiltinModule("aten") {}
    Sugared attr(const torch::jit::SourceRange& where, torch::jit::GraphFunction& function,
                 const std::string& field) override {
        static const std::unordered_map<std::string_view, at::ScalarType> dtypes = {
            {"float", at::kFloat}, {"float32", at::kFloat}, {"double", at::kDouble},     {"float64", at::kDouble},
            {"half", at::kHalf},   {"float16", at::kHalf},  {"bfloat16", at::kBFloat16}, {"int8", at::kChar},
            {"int16", at::kShort}, {"short", at::kShort},   {"int32", at::kInt},         {"int", at::kInt},
            {"int64", at::kLong},  {"long", at::kLong},     {"uint8", at::kByte},        {"uint16", at::kUInt16},
            {"bool", at::kBool}};
        const auto dtype = dtypes.find(field);
        require_no_listed_writes(field);
        if (dtype == dtypes.end()) return BuiltinModule::attr(where, function, field);
        return std::make_shared<torch::jit::SimpleValue>(
            function.graph()->insertConstant(static_cast<std::int64_t>(dtype->second), where));
    }
};

// The names that a script finds around it; there is no Python to ask.
struct Names : torch::jit::Resolver {
    Sugared resolveValue(const std::string& name, torch::jit::GraphFunction&, const torch::jit::SourceRange&) override {
        static constexpr std::array<std::string_view, 7> exceptions = {
            "Exception",  "RuntimeError",   "ValueError",         "TypeError",
            "IndexError", "AssertionError", "NotImplementedError"};
        if (name == "torch") return std::make_shared<TorchNames>();
        if (name == "math") return std::make_shared<torch::jit::BuiltinModule>("aten");
        if (name == "redis") return std::make_shared<torch::jit::BuiltinModule>("redis");
        if (std::ranges::find(exceptions, name) != exceptions.end())
            return std::make_shared<torch::jit::ExceptionValue>(name);
        return nullptr;
    }
};

// torch's messages have many lines; an error reply has one.
std::string one_line(std::string_view message) {
    constexpr std::size_t longest = 1500;
    std::string out;
    bool space = false;
    for (const char c : message.substr(0, longest)) {
        if (static_cast<unsigned char>(c) <= ' ') {
            space = !out.empty();
            continue;
        }
        if (space) out += ' ';
        space = false;
        out += c;
    }
    return message.size() > longest ? out + " ..." : out;
}

// Tensor(a!) or Tensor(a!)?; not Tensor[](a!), which is a list that grows.
bool writes_tensor(const c10::Argument& argument) {
    const auto kind = argument.type()->kind();
    const bool container = kind == c10::TypeKind::ListType || kind == c10::TypeKind::DictType;
    return !container && argument.alias_info() && argument.alias_info()->isWrite();
}

// Whether the node may change a tensor that it was given. Of torch's schemas only those of normalization are silent
// about their writes: to the running statistics.
bool writes_tensor(const torch::jit::Node& node) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (!schema) return false;
    const std::string_view name = node.kind().toUnqualString();
    if (writes_listed_tensors(*schema)) require_no_listed_writes(node.kind().toUnqualString());  // called as a method
    if (name.find("batch_norm") != name.npos || name.find("instance_norm") != name.npos) return true;
    return std::ranges::any_of(schema->arguments(),
                               [](const c10::Argument& argument) { return writes_tensor(argument); });
}

// Operations that would reach the server's files.
void require_no_files(const std::string& command, const torch::jit::Node& node) {
    const std::string_view name = node.kind().toQualString();
    if (name == "aten::save" || name == "aten::from_file" || name == "aten::_save" || name == "aten::load")
        refuse(command, ": SOURCE uses ", std::string(node.kind().toUnqualString()),
               ", which reaches the server's files");
}

bool inspect(const std::string& command, at::ArrayRef<torch::jit::Block*> blocks) {
    bool writes = false;
    for (torch::jit::Block* block : blocks)
        for (torch::jit::Node* node : block->nodes()) {
            require_no_files(command, *node);
            writes |= writes_tensor(*node);
            writes |= inspect(command, node->blocks());
        }
    return writes;
}

Tensor from_torch(const std::string& command, const char* whose, const at::Tensor& given) {
    const auto type = std::ranges::find(scalar_types, given.scalar_type());
    if (type == scalar_types.end())
        refuse(command, ": ", whose, " returned a tensor of dtype ", c10::toString(given.scalar_type()),
               "; expected one that AI.TENSORSET knows");
    const at::Tensor value = given.resolve_conj().resolve_neg().contiguous();
    Tensor tensor;
    tensor.dtype = static_cast<DType>(type - scalar_types.begin());
    tensor.shape = value.sizes().vec();
    if (tensor.shape.size() > largest_rank)
        refuse(command, ": ", whose, " returned a tensor of rank ", tensor.shape.size(), "; expected at most ",
               largest_rank);
    tensor.payload = std::make_shared<Payload>(value.nbytes());
    if (value.nbytes()) std::memcpy(tensor.payload->data(), value.const_data_ptr(), value.nbytes());
    // view(torch.bool) takes any byte
    check_elements(tensor.dtype, tensor.blob(), 0, command + ": the output of " + whose);
    return tensor;
}

}  // namespace

std::string message_of(const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    return one_line(torch_error ? torch_error->what_without_backtrace() : error.what());
}

bool inspect(const std::string& command, torch::jit::Graph& graph) {
    torch::jit::Block* top = graph.block();
    return inspect(command, at::ArrayRef<torch::jit::Block*>(&top, 1));
}

at::Tensor to_torch(const Tensor& tensor, bool copied) {
    const auto type = scalar_types.at(static_cast<std::size_t>(tensor.dtype));
    const at::Tensor view = at::from_blob(tensor.payload->data(), tensor.shape, type);
    return copied ? view.clone() : view;
}

void collect(const std::string& command, const char* whose, const c10::IValue& value, std::vector<Tensor>& out) {
    if (value.isNone()) return;
    if (value.isTensor()) {
        out.push_back(from_torch(command, whose, value.toTensor()));
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(from_torch(command, whose, tensor));
    } else if (value.isTuple()) {
        for (const c10::IValue& element : value.toTupleRef().elements()) collect(command, whose, element, out);
    } else {
        refuse(command, ": ", whose, " returned a ", value.tagKind(), "; expected tensors");
    }
}

std::vector<Tensor> run_guarded(const std::string& command, const char* whose, const Run& run,
                                const std::function<c10::IValue()>& body) {
    at::set_num_threads(threads_per_run);  // a setting of the calling thread
    const c10::InferenceMode inference;
    const redis_ops::Current current(run);
    std::vector<Tensor> out;
    c10::IValue result;
    try {
        result = body();
    } catch (const Refused&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        if (redis_ops::ending() == redis_ops::Ending::shutdown) throw pool::Stopped{};
        if (redis_ops::ending() == redis_ops::Ending::deadline)
            refuse_as("TIMEOUT", command, ": ", whose, " ran longer than its TIMEOUT; nothing was stored");
        refuse(command, ": ", whose, " failed: ", message_of(error));
    }
    collect(command, whose, result, out);
    return out;
}

namespace {

torch::jit::Function& find(const std::string& command, CompiledScript& script, const std::string& name) {
    torch::jit::Function* function = script.unit.find_function(c10::QualifiedName(name));
    if (!function) refuse(command, ": the script has no function ", shown(name));
    return *function;
}

std::vector<Tensor> run_function(const std::string& command, torch::jit::Function& function,
                                 std::vector<c10::IValue> stack, const Run& run) {
    return run_guarded(command, "the script", run, [&] { return function(std::move(stack)); });
}

}  // namespace

void start(int intra_op_threads) {
    threads_per_run = intra_op_threads;
    at::set_num_interop_threads(1);
    at::set_num_threads(intra_op_threads);
    // Profiling would run the first calls differently from the later ones.
    torch::jit::getProfilingMode() = false;
    redis_ops::register_all();
}

std::shared_ptr<CompiledScript> compile(const std::string& command, const std::string& source) {
    static std::mutex& one_at_a_time = *new std::mutex;
    const std::scoped_lock lock(one_at_a_time);
    auto script = std::make_shared<CompiledScript>();
    try {
        script->unit.define(std::nullopt, source + "\n", std::make_shared<Names>(), nullptr);
        for (torch::jit::Function* function : script->unit.get_functions()) {
            function->ensure_defined();
            const std::shared_ptr<torch::jit::Graph> graph = torch::jit::toGraphFunction(*function).graph();
            script->writes_tensors |= inspect(command, *graph);
            redis_ops::insert_ticks(*graph);
        }
    } catch (const Refused&) {
        throw;
    } catch (const std::exception& error) {
        refuse(command, ": SOURCE does not compile: ", message_of(error));
    }
    return script;
}

bool is_entry_point(const std::string& command, CompiledScript& script, const std::string& name) {
    const c10::FunctionSchema& schema = find(command, script, name).getSchema();
    const auto is = [&](std::size_t i, const char* type) {
        return schema.arguments().size() == 3 && schema.arguments()[i].type()->str() == type;
    };
    return is(0, "Tensor[]") && is(1, "str[]") && is(2, "str[]");
}

void check_entry_points(const std::string& command, CompiledScript& script, const std::vector<std::string>& names) {
    for (const std::string& name : names)
        if (!is_entry_point(command, script, name))
            refuse(command, ": the entry point ", shown(name), " is ",
                   one_line(c10::toString(find(command, script, name).getSchema())),
                   "; expected (tensors: List[Tensor], keys: List[str], args: List[str])");
}

std::vector<Tensor> execute(const std::string& command, CompiledScript& script, const std::string& function,
                            const std::vector<Tensor>& inputs, const std::vector<std::string>& keys,
                            const std::vector<std::string>& args, const Run& run) {
    c10::List<at::Tensor> tensors;
    for (const Tensor& input : inputs) tensors.push_back(to_torch(input, script.writes_tensors));
    return run_function(command, find(command, script, function),
                        {tensors, c10::List<std::string>(keys), c10::List<std::string>(args)}, run);
}

std::vector<Tensor> call(const std::string& command, CompiledScript& script, const std::string& function,
                         const std::vector<Tensor>& inputs, std::optional<std::size_t> list_from, const Run& run) {
    std::vector<c10::IValue> stack;
    const std::size_t single = list_from.value_or(inputs.size());
    for (std::size_t i = 0; i < single; ++i) stack.emplace_back(to_torch(inputs[i], script.writes_tensors));
    if (list_from) {
        c10::List<at::Tensor> rest;
        for (std::size_t i = single; i < inputs.size(); ++i) rest.push_back(to_torch(inputs[i], script.writes_tensors));
        stack.emplace_back(rest);
    }
    return run_function(command, find(command, script, function), std::move(stack), run);
}

}  // namespace engine
