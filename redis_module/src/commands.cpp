#include "commands.hpp"

#include <exception>
#include <string>

#include "refused.hpp"

namespace {

void report_keys(abi::Ctx* ctx, const Arguments& arguments, KeyPositions (*keys)(const Arguments&)) {
    for (const auto& [index, flags] : keys(arguments))
        if (index < arguments.size()) abi::KeyAtPosWithFlags(ctx, static_cast<int>(index), static_cast<int>(flags));
}

}  // namespace

int run_handler(abi::Ctx* ctx, abi::String** argv, int argc, void (*handler)(const Call&),
                KeyPositions (*keys)(const Arguments&)) {
    const bool asks_for_keys = keys && abi::IsKeysPositionRequest(ctx) != 0;
    try {
        const Arguments arguments(argv, argc);
        if (asks_for_keys) {
            report_keys(ctx, arguments, keys);
        } else {
            handler({ctx, argv, arguments});
        }
    } catch (const std::bad_alloc&) {
        if (!asks_for_keys) abi::ReplyWithError(ctx, "OOM the machine has no memory left");
    } catch (const std::exception& error) {
        // A malformed command has no keys to check: it is refused when it runs.
        if (!asks_for_keys) abi::ReplyWithError(ctx, error.what());
    }
    return abi::ok;
}
