// The innermost loops, once per instruction set. The table is chosen at load.
#pragma once
#include <cstddef>

namespace kernels {

struct SgdRule;
struct AdamRule;

struct Loops {
    const char* name;
    void (*add)(float* sum, const float* x, std::size_t n);
    void (*add_four)(float* sum, const float* a, const float* b, const float* c, const float* d,
                     std::size_t n);                                         // ((((sum+a)+b)+c)+d)
    void (*scale)(float* out, const float* x, float w, std::size_t n);       // out = w * x
    void (*add_scaled)(float* sum, const float* x, float w, std::size_t n);  // sum += w * x, two roundings
    void (*add_four_scaled)(float* sum, const float* a, const float* b, const float* c, const float* d, const float* w,
                            std::size_t n);  // the same for four, one after the other; w: four weights
    void (*divide)(float* x, float divisor, std::size_t n);
    void (*halve)(float* x, std::size_t n);
    void (*compare_exchange)(float* low, float* high, std::size_t n);
    bool (*has_nan)(const float* x, std::size_t n);
    bool (*has_nonfinite)(const float* x, std::size_t n);
    void (*widen)(double* out, const float* x, std::size_t n);
    double (*squared_distance)(const double* a, const double* b, std::size_t n);
    double (*sum_of_squares)(const float* x, std::size_t n);
    void (*sgd)(const SgdRule& rule, const float* p, const float* g, const float* v, float* p_out, float* v_out,
                std::size_t n);
    void (*adam)(const AdamRule& rule, const float* p, const float* g, const float* m, const float* v, float* p_out,
                 float* m_out, float* v_out, std::size_t n);
    void (*axpy)(float alpha, const float* base, const float* x, float* out, std::size_t n);
};

const Loops& loops();

}  // namespace kernels
