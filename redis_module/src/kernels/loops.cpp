#include "loops.hpp"

#include "blocks.hpp"
#include "kernels.hpp"

namespace kernels {

namespace baseline {
#if defined(__aarch64__)
#define INSTRUCTION_SET "neon"
#else
#define INSTRUCTION_SET "baseline"
#endif
#include "loops.inc"
#undef INSTRUCTION_SET
}  // namespace baseline

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define INSTRUCTION_SET "avx2"
#include "loops.inc"
#undef INSTRUCTION_SET
}  // namespace avx2
#pragma GCC pop_options
#endif

namespace {

const Loops& choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::table;
#endif
    return baseline::table;
}

}  // namespace

const Loops& loops() {
    static const Loops& chosen = choose();
    return chosen;
}

const char* instruction_set() {
    return loops().name;
}

}  // namespace kernels
