// Refusals: every command that cannot be done throws one, with a text for people; the command wrapper sends it.
#pragma once
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

// `code` is the first word of a Redis error: ERR, WRONGTYPE, NOKEY, OOM.
class Refused : public std::exception {
public:
    Refused(std::string_view code, std::string_view text) : message_(std::string(code) + ' ' + std::string(text)) {}
    const char* what() const noexcept override { return message_.c_str(); }

private:
    std::string message_;
};

namespace words {

inline std::string text(std::string_view value) {
    return std::string(value);
}
inline std::string text(const char* value) {
    return value;
}
inline std::string text(const std::string& value) {
    return value;
}
inline std::string text(char value) {
    return std::string(1, value);
}
template <typename Number>
    requires std::is_arithmetic_v<Number>
std::string text(Number value) {
    if constexpr (std::is_floating_point_v<Number>) {
        char buffer[40];
        std::snprintf(buffer, sizeof buffer, "%g", static_cast<double>(value));
        return buffer;
    } else {
        return std::to_string(value);
    }
}

// A value as a person may read it: quoted, at most 64 bytes, control bytes escaped (a line break would end the reply).
inline std::string shown(std::string_view value) {
    std::string out = "'";
    for (const char c : value.substr(0, 64)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f) {
            out += c;
        } else {
            char escaped[5];
            std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
            out += escaped;
        }
    }
    return out + (value.size() > 64 ? "...'" : "'");
}

}  // namespace words

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    throw Refused("ERR", (words::text(parts) + ...));
}

// The server's own first words, which clients match.
inline constexpr std::string_view wrong_type = "Operation against a key holding the wrong kind of value: ";

template <typename... Parts>
[[noreturn]] void refuse_as(std::string_view code, const Parts&... parts) {
    throw Refused(code, (words::text(parts) + ...));
}
