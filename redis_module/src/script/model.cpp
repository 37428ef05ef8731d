#include "script/model.hpp"

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>

#include "refused.hpp"
#include "script/bridge.hpp"
#include "script/redis_ops.hpp"

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;

struct LoadedModel {
    torch::jit::Module module;
    std::vector<bool> copied;  // for each argument: the model may write to it, so it gets a copy of what keys share
    bool keeps_state = false;  // writes to itself: one run at a time
    std::mutex running;
};

namespace models {

namespace {

// The archive where it lies, without a copy.
class Archive : public caffe2::serialize::ReadAdapterInterface {
public:
    explicit Archive(std::shared_ptr<Bytes> bytes) : bytes_(std::move(bytes)) {}
    std::size_t size() const override { return bytes_->size(); }
    std::size_t read(std::uint64_t at, void* into, std::size_t count, const char*) const override {
        if (at >= bytes_->size()) return 0;
        const std::size_t found = std::min<std::size_t>(count, bytes_->size() - at);
        std::memcpy(into, bytes_->data() + at, found);
        return found;
    }

private:
    std::shared_ptr<Bytes> bytes_;
};

template <typename Visit>
void each_node(Block* block, const Visit& visit) {
    for (Node* node : block->nodes()) {
        visit(*node);
        for (Block* inner : node->blocks()) each_node(inner, visit);
    }
}

void require_harmless(const std::string& command, Graph& graph) {
    engine::inspect(command, graph);
    each_node(graph.block(), [&](Node& node) {
        if (node.kind().is_prim() && node.kind() == torch::jit::prim::Constant) {
            const auto value = torch::jit::toIValue(node.output());
            if (value && value->isDevice() && !value->toDevice().is_cpu())
                refuse(command, ": the model's code wants the device ", value->toDevice().str(), "; expected cpu");
        }
        const std::string_view name = node.kind().toQualString();
        if (name.starts_with("redis::")) refuse(command, ": a model may not call ", std::string(name));
    });
}

// Of torch's schemas only those of normalization are silent about their writes, to running statistics while training.
bool trains(const Node& node) {
    const std::string_view name = node.kind().toUnqualString();
    if (name.find("batch_norm") == name.npos && name.find("instance_norm") == name.npos) return false;
    const auto* schema = node.maybeSchema();
    for (std::size_t i = 0; schema && i < schema->arguments().size(); ++i) {
        const std::string& argument = schema->arguments()[i].name();
        if (argument != "training" && argument != "use_input_stats") continue;
        const auto value = torch::jit::toIValue(node.inputs().at(i));
        return !value || !value->isBool() || value->toBool();
    }
    return schema != nullptr;
}

bool calls(const Node& node) {
    return node.kind() == torch::jit::prim::CallMethod || node.kind() == torch::jit::prim::CallFunction;
}

// Whether a run changes the model itself or what it is given; a graph that calls others is not looked through.
void look_for_writes(LoadedModel& model, const std::shared_ptr<Graph>& graph) {
    const torch::jit::AliasDb aliases(graph);
    bool unclear = false;
    each_node(graph->block(), [&](Node& node) {
        unclear |= trains(node) || calls(node);
        model.keeps_state |= node.kind() == torch::jit::prim::SetAttr;
        model.keeps_state |= node.kind() == torch::jit::prim::GetAttr && aliases.hasWriters(node.output());
    });
    model.keeps_state |= unclear;
    for (std::size_t i = 1; i < graph->inputs().size(); ++i) {
        const torch::jit::Value* input = graph->inputs()[i];
        const bool list = input->type()->kind() != c10::TypeKind::TensorType;
        model.copied.push_back(unclear || list || aliases.hasWriters(input));
    }
}

// A model without loops ends between its operations.
void insert_ticks(Graph& graph) {
    std::vector<Node*> operations;
    each_node(graph.block(), [&](Node& node) {
        if (node.kind().is_aten()) operations.push_back(&node);
    });
    for (Node* node : operations) graph.create(c10::Symbol::fromQualString("redis::tick"), 0)->insertBefore(node);
    redis_ops::insert_ticks(graph);
}

std::shared_ptr<Graph> graph_of(torch::jit::Function& function) {
    function.ensure_defined();
    return torch::jit::toGraphFunction(function).graph();
}

// With its parameters as constants and its submodules inlined: then it can be seen what it writes to.
void prepare(LoadedModel& model) {
    try {
        torch::jit::Module frozen = torch::jit::freeze_module(model.module);
        const std::shared_ptr<Graph> graph = graph_of(frozen.get_method("forward").function());
        look_for_writes(model, graph);
        insert_ticks(*graph);
        model.module = frozen;
    } catch (const c10::Error&) {  // some cannot be frozen
        model.keeps_state = true;
        model.copied.assign(model.module.get_method("forward").function().num_inputs(), true);
        for (torch::jit::Function* function : model.module._ivalue()->compilation_unit()->get_functions())
            insert_ticks(*graph_of(*function));
    }
}

std::shared_ptr<LoadedModel> load(const std::string& command, const std::shared_ptr<Bytes>& blob) {
    static std::mutex& one_at_a_time = *new std::mutex;
    const std::scoped_lock lock(one_at_a_time);
    auto model = std::make_shared<LoadedModel>();
    try {
        model->module = torch::jit::load(std::make_shared<Archive>(blob), c10::Device(c10::kCPU), false);
        model->module.eval();
        if (!model->module.find_method("forward")) refuse(command, ": the model has no method forward");
        for (torch::jit::Function* function : model->module._ivalue()->compilation_unit()->get_functions())
            require_harmless(command, *graph_of(*function));
        prepare(*model);
    } catch (const Refused&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        refuse(command, ": the model does not load: ", engine::message_of(error));
    }
    return model;
}

bool takes_list(const c10::Argument& argument) {
    return argument.type()->str() == "Tensor[]";
}

// Tensors one by one; a List[Tensor] takes all that are left.
std::vector<c10::IValue> stack_of(const std::string& command, const LoadedModel& model,
                                  const std::vector<c10::Argument>& arguments, const std::vector<Tensor>& inputs) {
    std::vector<c10::IValue> stack;
    std::size_t next = 0;
    bool complete = true;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        const bool copied = i > model.copied.size() || model.copied[i - 1];
        if (takes_list(arguments[i])) {
            c10::List<at::Tensor> rest;
            while (next < inputs.size()) rest.push_back(engine::to_torch(inputs[next++], copied));
            stack.emplace_back(rest);
        } else if (next < inputs.size()) {
            stack.emplace_back(engine::to_torch(inputs[next++], copied));
        } else {
            complete = complete && arguments[i].default_value().has_value();
            break;
        }
    }
    if (next != inputs.size() || !complete)
        refuse(command, ": the model takes ", arguments.size() - 1, " inputs; INPUTS names ", inputs.size(), " keys");
    return stack;
}

}  // namespace

std::shared_ptr<LoadedModel> loaded(const std::string& command, const Model& model) {
    const std::scoped_lock lock(model.state->mutex);
    if (!model.state->loaded) model.state->loaded = load(command, model.blob);
    return model.state->loaded;
}

std::vector<Tensor> execute(const std::string& command, LoadedModel& model, const std::vector<Tensor>& inputs,
                            const engine::Run& run) {
    std::unique_lock alone(model.running, std::defer_lock);
    if (model.keeps_state) alone.lock();
    torch::jit::Method forward = model.module.get_method("forward");
    std::vector<c10::IValue> stack = stack_of(command, model, forward.function().getSchema().arguments(), inputs);
    return engine::run_guarded(command, "the model", run, [&] { return forward(std::move(stack)); });
}

}  // namespace models
