// What AI.CONFIG and RedisAI's module arguments set.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

struct Configuration {
    std::string backends_path;                               // kept for those who ask; torch is linked in
    std::size_t model_chunk_bytes = std::size_t{511} << 20;  // pieces of AI.MODELGET's blob
};
Configuration& configuration();  // the main thread's alone
