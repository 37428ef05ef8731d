#pragma once

inline constexpr const char* module_name = "tensors";
inline constexpr int module_version = 10000;  // 1.0.0
inline constexpr const char* module_version_text = "1.0.0";
