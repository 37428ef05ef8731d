#include "values.hpp"

#include <cstring>
#include <limits>

#include "refused.hpp"

namespace {

template <typename Number>
void put(Tensor& tensor, std::size_t i, Number value) {
    std::memcpy(tensor.payload->data() + i * sizeof value, &value, sizeof value);
}

template <typename Number>
void parse_integers(const Arguments& arguments, std::size_t first, Tensor& tensor, std::int64_t low,
                    std::int64_t high) {
    for (std::size_t i = 0; i < tensor.count(); ++i)
        put(tensor, i, static_cast<Number>(arguments.integer(first + i, facts(tensor.dtype).name, low, high)));
}

template <typename Number>
void parse_integers(const Arguments& arguments, std::size_t first, Tensor& tensor) {
    parse_integers<Number>(arguments, first, tensor, std::numeric_limits<Number>::min(),
                           std::numeric_limits<Number>::max());
}

template <auto parse>
void parse_floats(const Arguments& arguments, std::size_t first, Tensor& tensor) {
    for (std::size_t i = 0; i < tensor.count(); ++i) {
        const auto value = parse(arguments[first + i]);
        if (!value) arguments.refuse_argument(first + i, facts(tensor.dtype).name, "a number in the dtype's range");
        put(tensor, i, *value);
    }
}

}  // namespace

std::string read_kind(const Arguments& arguments, std::size_t i) {
    const std::string_view kind = arguments.at(i, "KIND");
    if (kind.size() > longest_kind) arguments.refuse_argument(i, "KIND", "at most ", longest_kind, " bytes");
    return std::string(kind);
}

std::string joined_strings(const Arguments& arguments, std::size_t first) {
    std::string blob;
    for (std::size_t i = first; i < arguments.size(); ++i) {
        if (arguments[i].find('\0') != std::string_view::npos)
            arguments.refuse_argument(i, "STRING", "a string without a zero byte");
        blob.append(arguments[i]).push_back('\0');
    }
    return blob;
}

void parse_values(const Arguments& arguments, std::size_t first, Tensor& tensor) {
    switch (tensor.dtype) {
        case DType::float32: return parse_floats<parse_float>(arguments, first, tensor);
        case DType::float64: return parse_floats<parse_double>(arguments, first, tensor);
        case DType::int8: return parse_integers<std::int8_t>(arguments, first, tensor);
        case DType::int16: return parse_integers<std::int16_t>(arguments, first, tensor);
        case DType::int32: return parse_integers<std::int32_t>(arguments, first, tensor);
        case DType::int64: return parse_integers<std::int64_t>(arguments, first, tensor);
        case DType::uint8: return parse_integers<std::uint8_t>(arguments, first, tensor);
        case DType::uint16: return parse_integers<std::uint16_t>(arguments, first, tensor);
        case DType::boolean: return parse_integers<std::uint8_t>(arguments, first, tensor, 0, 1);
        case DType::text: break;  // see joined_strings
    }
}
