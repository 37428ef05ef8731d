// The commands, by subject. A handler replies itself or throws Refused; a key reporter names the positions of its keys.
#pragma once
#include <cstdint>
#include <vector>

#include "abi.hpp"
#include "arguments.hpp"

struct Call {
    abi::Ctx* ctx;
    abi::String** argv;
    const Arguments& arguments;
};

struct KeyPosition {
    std::size_t index;
    std::uint64_t flags;
};
using KeyPositions = std::vector<KeyPosition>;

inline constexpr std::uint64_t reads = abi::key_read_only | abi::key_access;
inline constexpr std::uint64_t writes = abi::key_overwrite | abi::key_update;
inline constexpr std::uint64_t reads_and_writes = abi::key_read_write | abi::key_access | abi::key_update;
inline constexpr std::uint64_t removes = abi::key_remove | abi::key_delete;

struct CommandFacts {
    const char* name;
    abi::CommandFunction function;
    const char* flags;
    const char* summary;
    const char* complexity;
    KeyPositions keys;  // fixed positions; empty when the function reports them itself (getkeys-api) or there are none
    bool tells_of_all = false;  // of every user's keys, without naming one: @dangerous, as the server's INFO is
};

std::vector<CommandFacts> tensor_commands();
std::vector<CommandFacts> aggregate_commands();
std::vector<CommandFacts> update_commands();

// Runs a handler, turning Refused into an error reply.
int run_handler(abi::Ctx* ctx, abi::String** argv, int argc, void (*handler)(const Call&),
                KeyPositions (*keys)(const Arguments&));

template <void (*handler)(const Call&), KeyPositions (*keys)(const Arguments&) = nullptr>
int command(abi::Ctx* ctx, abi::String** argv, int argc) {
    return run_handler(ctx, argv, argc, handler, keys);
}
