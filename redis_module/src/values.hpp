// Elements and labels as clients write them.
#pragma once
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "tensor.hpp"

std::string read_kind(const Arguments& arguments, std::size_t i);
// The strings arguments[first..], each with a zero byte behind it.
std::string joined_strings(const Arguments& arguments, std::size_t first);
// Parses arguments[first..] into the payload, which has room for exactly them; refuses a value that the dtype cannot
// hold.
void parse_values(const Arguments& arguments, std::size_t first, Tensor& tensor);
