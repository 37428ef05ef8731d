// Reading a command's arguments: numbers, keywords, options; every refusal names the argument and what was expected.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "abi.hpp"
#include "refused.hpp"

bool same_word(std::string_view argument, std::string_view keyword);  // any case

class Arguments {
public:
    Arguments(abi::String** argv, int argc);

    std::size_t size() const { return values_.size(); }
    std::string_view operator[](std::size_t i) const { return values_[i]; }
    const std::string& command() const { return command_; }

    // Argument i or a refusal that says which one is missing.
    std::string_view at(std::size_t i, std::string_view name) const;
    void at_least(std::size_t count, std::string_view syntax) const;
    void exactly(std::size_t count, std::string_view syntax) const;

    std::int64_t integer(std::size_t i, std::string_view name, std::int64_t low, std::int64_t high) const;
    std::uint64_t natural(std::size_t i, std::string_view name) const;  // 0 .. 2^63-1
    double number(std::size_t i, std::string_view name) const;          // finite
    double number(std::size_t i, std::string_view name, double low, double high) const;

    // "COMMAND: argument i (name) is 'value'; expected ..."
    template <typename... Parts>
    [[noreturn]] void refuse_argument(std::size_t i, std::string_view name, const Parts&... expected) const {
        refuse(command_, ": argument ", i, " (", name, ") is ", words::shown(values_[i]), "; expected ", expected...);
    }

private:
    std::string wrong_number() const;  // as the server's own commands begin it

    std::vector<std::string_view> values_;
    std::string command_;
};

struct OptionRule {
    std::string_view name;
    std::size_t operands;
};

// The options behind a command's fixed arguments, in any order: name -> index of the first operand.
class Options {
public:
    Options(const Arguments& arguments, std::size_t start, const std::vector<OptionRule>& rules);

    bool has(std::string_view name) const { return places_.contains(name); }
    std::size_t place(std::string_view name) const { return places_.at(name); }
    std::size_t required(std::string_view name) const;

private:
    const Arguments& arguments_;
    std::map<std::string_view, std::size_t> places_;
};

std::optional<std::int64_t> parse_integer(std::string_view text);
std::optional<double> parse_double(std::string_view text);  // decimal, C99 hex, inf, nan
std::optional<float> parse_float(std::string_view text);
