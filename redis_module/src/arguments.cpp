#include "arguments.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

using words::shown;

bool same_word(std::string_view argument, std::string_view keyword) {
    return std::ranges::equal(argument, keyword, [](unsigned char a, unsigned char b) { return std::toupper(a) == b; });
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
    return value;
}

namespace {

// strtod reads hex floats as well as decimal ones; a module string ends in a zero byte, so it cannot run over.
template <auto convert>
auto parse_floating(std::string_view text) -> std::optional<decltype(convert("", nullptr))> {
    if (text.empty() || std::isspace(static_cast<unsigned char>(text.front()))) return std::nullopt;
    char* end = nullptr;
    const auto value = convert(text.data(), &end);
    if (end != text.data() + text.size()) return std::nullopt;
    if (std::isinf(value) && text.find_first_of("iI") == std::string_view::npos) return std::nullopt;  // overflow
    return value;
}

}  // namespace

std::optional<double> parse_double(std::string_view text) {
    return parse_floating<std::strtod>(text);
}
std::optional<float> parse_float(std::string_view text) {
    return parse_floating<std::strtof>(text);
}

Arguments::Arguments(abi::String** argv, int argc) {
    constexpr int most_words = 1 << 20;  // reading more takes a tenth of a second
    if (argc > most_words)
        refuse("a command of ", argc, " words; expected at most ", most_words, ": write a longer tensor with BLOB");
    values_.reserve(static_cast<std::size_t>(argc));
    for (int i = 0; i < argc; ++i) {
        std::size_t length = 0;
        const char* data = abi::StringPtrLen(argv[i], &length);
        values_.emplace_back(data, length);
    }
    command_ = values_[0];
    std::ranges::transform(command_, command_.begin(),
                           [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
}

std::string Arguments::wrong_number() const {
    return "wrong number of arguments for '" + command_ + "' command: ";
}

std::string_view Arguments::at(std::size_t i, std::string_view name) const {
    if (i >= values_.size()) refuse(wrong_number(), "argument ", i, " (", name, ") is missing");
    return values_[i];
}

void Arguments::at_least(std::size_t count, std::string_view syntax) const {
    if (values_.size() < count) {
        refuse(wrong_number(), values_.size() - 1, " given, expected at least ", count - 1, ": ", syntax);
    }
}

void Arguments::exactly(std::size_t count, std::string_view syntax) const {
    if (values_.size() != count) {
        refuse(wrong_number(), values_.size() - 1, " given, expected ", count - 1, ": ", syntax);
    }
}

std::int64_t Arguments::integer(std::size_t i, std::string_view name, std::int64_t low, std::int64_t high) const {
    const auto value = parse_integer(at(i, name));
    if (!value || *value < low || *value > high) refuse_argument(i, name, "an integer from ", low, " to ", high);
    return *value;
}

std::uint64_t Arguments::natural(std::size_t i, std::string_view name) const {
    return static_cast<std::uint64_t>(integer(i, name, 0, std::numeric_limits<std::int64_t>::max()));
}

double Arguments::number(std::size_t i, std::string_view name) const {
    const auto value = parse_double(at(i, name));
    if (!value || !std::isfinite(*value)) refuse_argument(i, name, "a finite number, decimal or hex (0x1.8p-4)");
    return *value;
}

double Arguments::number(std::size_t i, std::string_view name, double low, double high) const {
    const double value = number(i, name);
    if (value < low || value > high) {
        if (std::isinf(high)) refuse_argument(i, name, "a number of at least ", low);
        refuse_argument(i, name, "a number from ", low, " to ", high);
    }
    return value;
}

Options::Options(const Arguments& arguments, std::size_t start, const std::vector<OptionRule>& rules)
    : arguments_(arguments) {
    for (std::size_t i = start; i < arguments.size();) {
        const auto rule =
            std::ranges::find_if(rules, [&](const OptionRule& r) { return same_word(arguments[i], r.name); });
        if (rule == rules.end()) {
            std::string names;
            for (const OptionRule& r : rules) names += (names.empty() ? "" : ", ") + std::string(r.name);
            refuse(arguments.command(), ": argument ", i, " is ", shown(arguments[i]), "; expected one of ", names);
        }
        const std::size_t first = i + 1, rest = arguments.size() - first;
        if (rest < rule->operands)
            refuse(arguments.command(), ": ", rule->name, " at argument ", i, " has ", rest, " values; expected ",
                   rule->operands);
        if (!places_.emplace(rule->name, first).second)
            refuse(arguments.command(), ": ", rule->name, " is given twice, again at argument ", i);
        i = first + rule->operands;
    }
}

std::size_t Options::required(std::string_view name) const {
    if (!has(name)) refuse(arguments_.command(), ": ", name, " is missing");
    return place(name);
}
