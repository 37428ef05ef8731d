#include "script/request.hpp"

#include <algorithm>

#include "refused.hpp"
#include "script/model.hpp"

using words::shown;

namespace {

constexpr std::int64_t longest_timeout_ms = std::int64_t{1} << 40;

struct Places {
    std::vector<std::size_t> keys, inputs, args, outputs;
    std::optional<std::size_t> list_from;
    abi::TimeMs timeout_ms = 0;
};

bool runs_model(const Arguments& arguments) {
    return arguments.command().starts_with("AI.MODEL");
}

// The older pair gives no counts.
bool is_older(const Arguments& arguments) {
    return arguments.command() == "AI.MODELRUN" || arguments.command() == "AI.SCRIPTRUN";
}

const char* syntax(const Arguments& arguments) {
    if (arguments.command() == "AI.MODELRUN") return "AI.MODELRUN key [TIMEOUT ms] INPUTS key.. OUTPUTS key..";
    if (arguments.command() == "AI.MODELEXECUTE")
        return "AI.MODELEXECUTE key INPUTS n key.. OUTPUTS n key.. [TIMEOUT ms]";
    if (arguments.command() == "AI.SCRIPTRUN")
        return "AI.SCRIPTRUN key function [TIMEOUT ms] [INPUTS key.. [$ key..]] [OUTPUTS key..]";
    return "AI.SCRIPTEXECUTE key function [KEYS n key..] [INPUTS n key..] [ARGS n argument..] [OUTPUTS n key..] "
           "[TIMEOUT ms]";
}

Places counted_places(const Arguments& arguments, std::size_t start) {
    std::vector<OptionRule> rules{{"INPUTS", counted}, {"OUTPUTS", counted}, {"TIMEOUT", 1}};
    if (!runs_model(arguments)) rules.insert(rules.end(), {{"KEYS", counted}, {"ARGS", counted}});
    const Options options(arguments, start, rules);
    if (runs_model(arguments)) {
        options.required("INPUTS");
        options.required("OUTPUTS");
    } else if (!options.has("KEYS") && !options.has("INPUTS")) {
        refuse(arguments.command(), ": KEYS or INPUTS must be given (KEYS 0 for a script that needs neither)");
    }
    Places places;
    places.keys = options.places("KEYS");
    places.inputs = options.places("INPUTS");
    places.args = options.places("ARGS");
    places.outputs = options.places("OUTPUTS");
    if (options.has("TIMEOUT"))
        places.timeout_ms = arguments.integer(options.place("TIMEOUT"), "TIMEOUT", 1, longest_timeout_ms);
    return places;
}

Places bare_places(const Arguments& arguments, std::size_t start) {
    Places places;
    std::vector<std::size_t>* into = nullptr;
    for (std::size_t i = start; i < arguments.size(); ++i) {
        if (into != &places.outputs && same_word(arguments[i], "OUTPUTS")) {
            into = &places.outputs;
        } else if (!into && same_word(arguments[i], "INPUTS")) {
            into = &places.inputs;
        } else if (!into && same_word(arguments[i], "TIMEOUT")) {
            places.timeout_ms = arguments.integer(++i, "TIMEOUT", 1, longest_timeout_ms);
        } else if (into == &places.inputs && arguments[i] == "$" && !runs_model(arguments)) {
            if (places.list_from) refuse(arguments.command(), ": argument ", i, " is a second $; expected at most one");
            places.list_from = places.inputs.size();
        } else if (into) {
            into->push_back(i);
        } else {
            arguments.refuse_argument(i, "section", "TIMEOUT, INPUTS or OUTPUTS");
        }
    }
    return places;
}

Places places_of(const Arguments& arguments) {
    const std::size_t start = runs_model(arguments) ? 2 : 3;
    arguments.at_least(start, syntax(arguments));
    return is_older(arguments) ? bare_places(arguments, start) : counted_places(arguments, start);
}

std::vector<std::string> words_at(const Arguments& arguments, const std::vector<std::size_t>& places) {
    std::vector<std::string> words;
    for (const std::size_t i : places) words.emplace_back(arguments[i]);
    return words;
}

void choose_function(Request& request, const Arguments& arguments, const Script& script) {
    const auto& names = script.entry_points;
    request.function = arguments[2];
    request.convention = is_older(arguments) ? Convention::tensors
                         : names.empty()     ? Convention::either
                                             : Convention::lists;
    if (is_older(arguments) && !names.empty())
        refuse(arguments.command(), ": key ", shown(arguments[1]),
               " was stored with AI.SCRIPTSTORE; expected AI.SCRIPTEXECUTE");
    if (!names.empty() && std::ranges::find(names, request.function) == names.end())
        arguments.refuse_argument(2, "function", "one of the script's ENTRY_POINTS");
}

std::vector<Tensor> run_script(const Request& work, const std::vector<Tensor>& inputs, const engine::Run& run) {
    const std::string& command = work.command;
    CompiledScript& script = *compiled(command, *work.script);
    const bool lists = work.convention == Convention::lists || (work.convention == Convention::either &&
                                                                engine::is_entry_point(command, script, work.function));
    if (lists) return engine::execute(command, script, work.function, inputs, work.keys, work.args, run);
    if (!work.keys.empty() || !work.args.empty())
        refuse(command, ": the function ", shown(work.function), " takes tensors alone, without KEYS and ARGS");
    return engine::call(command, script, work.function, inputs, work.list_from, run);
}

// Behind a string or comment that begins at `i`; `i` where none begins. An open string ends with the text.
std::size_t behind_text(std::string_view source, std::size_t i) {
    if (source[i] == '#') return std::min(source.find('\n', i), source.size());
    if (source[i] != '"' && source[i] != '\'') return i;
    const std::string_view quote = source.substr(i, source.substr(i, 3) == std::string(3, source[i]) ? 3 : 1);
    for (std::size_t k = i + quote.size(); k < source.size(); ++k) {
        if (source[k] == '\\') {
            ++k;
        } else if (source.substr(k, quote.size()) == quote) {
            return k + quote.size();
        }
    }
    return source.size();
}

// torch's compiler calls itself for everything that stands within something else: brackets, operators one behind the
// other, elif. A source that goes too deep would take the server's stack, which no one can catch.
void require_shallow(const std::string& command, std::string_view source) {
    constexpr std::size_t deepest = 1000;
    std::vector<std::size_t> operators{0};  // since the last comma, of each open bracket
    std::size_t depth = 0, alternatives = 0;
    for (std::size_t i = 0; i < source.size();) {
        const std::size_t behind = behind_text(source, i);
        if (behind != i) {
            i = behind;
            continue;
        }
        const char c = source[i++];
        if (source.substr(i - 1, 4) == "elif") ++alternatives;
        if (source.substr(i - 1, 4) == "def ") alternatives = 0;
        const bool ends = c == ',' || (c == '\n' && operators.size() == 1);
        if (ends || ((c == ')' || c == ']' || c == '}') && operators.size() > 1)) {
            depth -= operators.back();
            operators.back() = 0;
            if (!ends) operators.pop_back();
        } else if (c == '(' || c == '[' || c == '{') {
            operators.push_back(1);
            ++depth;
        } else if (std::string_view("+-*/%@~.<>=|&^ ").find(c) != std::string_view::npos) {
            ++operators.back();
            ++depth;
        }
        if (depth > deepest || alternatives > deepest)
            refuse(command, ": SOURCE goes more than ", deepest, " levels deep; expected shorter expressions");
    }
}

template <typename Value>
Value* value_in(const OpenedKey& key, RedisModuleType* type, std::string_view command, std::string_view name,
                const char* expected) {
    if (key.empty()) return nullptr;
    if (abi::KeyType(key.get()) != abi::key_module || abi::ModuleTypeGetType(key.get()) != type)
        refuse_as("WRONGTYPE", wrong_type, command, ": key ", shown(name), " holds something else; expected ",
                  expected);
    return static_cast<Value*>(abi::ModuleTypeGetValue(key.get()));
}

}  // namespace

Script* script_in(const OpenedKey& key, std::string_view command, std::string_view name) {
    return value_in<Script>(key, script_type, command, name, "a script");
}

Model* model_in(const OpenedKey& key, std::string_view command, std::string_view name) {
    return value_in<Model>(key, model_type, command, name, "a model");
}

Script& require_script(const OpenedKey& key, std::string_view command, std::string_view name) {
    Script* script = script_in(key, command, name);
    if (!script) refuse("script key is empty: ", command, ": key ", shown(name), " does not exist; expected a script");
    return *script;
}

Model& require_model(const OpenedKey& key, std::string_view command, std::string_view name) {
    Model* model = model_in(key, command, name);
    if (!model) refuse("model key is empty: ", command, ": key ", shown(name), " does not exist; expected a model");
    return *model;
}

Request read_request(abi::Ctx* ctx, const Arguments& arguments) {
    const Places places = places_of(arguments);
    Request request;
    request.command = arguments.command();
    request.key = arguments[1];
    const OwnedString name(arguments[1]);
    const OpenedKey key(ctx, name.get(), abi::read_mode);
    if (runs_model(arguments)) {
        request.model = std::make_shared<Model>(require_model(key, arguments.command(), arguments[1]));
    } else {
        request.script = std::make_shared<Script>(require_script(key, arguments.command(), arguments[1]));
        choose_function(request, arguments, *request.script);
    }
    request.keys = words_at(arguments, places.keys);
    request.args = words_at(arguments, places.args);
    request.inputs = words_at(arguments, places.inputs);
    request.outputs = words_at(arguments, places.outputs);
    request.list_from = places.list_from;
    request.timeout_ms = places.timeout_ms;
    return request;
}

KeyPositions request_keys(const Arguments& arguments) {
    const Places places = places_of(arguments);
    KeyPositions positions{{1, reads}};
    for (const std::size_t i : places.keys) positions.push_back({i, reads_and_writes});
    for (const std::size_t i : places.inputs) positions.push_back({i, reads});
    for (const std::size_t i : places.outputs) positions.push_back({i, writes});
    return positions;
}

std::string user_of(abi::Ctx* ctx) {
    abi::String* name = abi::GetCurrentUserName(ctx);
    if (!name) return {};
    std::size_t length = 0;
    const char* text = abi::StringPtrLen(name, &length);
    std::string user(text, length);
    abi::FreeString(ctx, name);
    return user;
}

void require_numbers(const Tensor& tensor, std::string_view command, std::string_view name) {
    if (tensor.dtype == DType::text) refuse(command, ": input key ", shown(name), " is STRING; expected numbers");
}

std::shared_ptr<CompiledScript> compiled(const std::string& command, const Script& script) {
    const std::scoped_lock lock(script.code->mutex);
    if (!script.code->compiled) {
        require_shallow(command, script.source);
        script.code->compiled = engine::compile(command, script.source);
    }
    return script.code->compiled;
}

std::vector<Tensor> perform(const Request& request, const std::vector<Tensor>& inputs, const engine::Run& run) {
    std::vector<Tensor> outputs =
        request.model ? models::execute(request.command, *models::loaded(request.command, *request.model), inputs, run)
                      : run_script(request, inputs, run);
    require_outputs(request, outputs);
    return outputs;
}

void require_outputs(const Request& request, const std::vector<Tensor>& outputs) {
    if (outputs.size() != request.outputs.size())
        refuse(request.command, ": ", request.whose(), " returned ", outputs.size(), " tensors; OUTPUTS names ",
               request.outputs.size(), " keys");
}

void account(const Request& request, bool failed, std::uint64_t duration_us, std::uint64_t samples) {
    const auto count = [&](auto& statistics) {
        statistics.calls += 1;
        statistics.errors += failed;
        statistics.duration_us += duration_us;
    };
    if (request.script) count(*request.script->statistics);
    if (!request.model) return;
    count(*request.model->statistics);
    if (!failed) request.model->statistics->samples += samples;
}

std::uint64_t samples_of(const std::vector<Tensor>& inputs) {
    if (inputs.empty() || inputs.front().shape.empty()) return 1;
    return static_cast<std::uint64_t>(inputs.front().shape.front());
}
