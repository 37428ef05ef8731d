// A server that resolves a module's symbols apart from its own (RTLD_DEEPBIND, as Valkey does) while it brings an
// allocator of its own cannot have torch: what one allocator gave, the other would free, at once and without a word.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace {

// Before torch's own beginning, which is where it would end: the module is linked with -z initfirst.
[[gnu::constructor]] void require_one_allocator() {
    void* server = dlopen(nullptr, RTLD_LAZY);
    if (dlsym(server, "free") == reinterpret_cast<void*>(&std::free)) return;
    constexpr std::string_view text =
        "tensors: this server (Valkey?) keeps a module's memory apart from its own, which PyTorch does not survive. "
        "Expected Redis for the variant with scripts and models; the one without, tensors.so, runs here too.\n";
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(2);
    _exit(1);
}

}  // namespace
