/*
 * attend.cpp: attend.c in C++17. Build: c++ -std=c++17 attend.cpp $(pkg-config --cflags --libs
 * libattn)
 */
#include <attn/attn.hpp>
#include <cstdio>
#include <vector>

int main()
{
    const int n = 4, heads = 1, dim = 2;
    /* equal scores: each row is the mean of the values it sees */
    const std::vector<float> q(n * dim), k(n * dim), v = {1, 10, 2, 20, 3, 30, 4, 40};
    std::vector<float> o(n * dim);
    try {
        attn::forward_args args;
        args.q = attn::tensor_bshd(q, 1, n, heads, dim); /* batch, positions, heads, dim */
        args.k = attn::tensor_bshd(k, 1, n, heads, dim);
        args.v = attn::tensor_bshd(v, 1, n, heads, dim);
        args.o = attn::tensor_bshd(o, 1, n, heads, dim);
        args.flags = ATTN_CAUSAL;
        attn::context().forward(args);
    } catch (const attn::error &error) {
        std::fprintf(stderr, "%s: %s\n", attn_status_string(error.status()), error.what());
        return 1;
    }
    for (int i = 0; i < n; i++) {
        std::printf("%g %g\n", double(o[i * dim]), double(o[i * dim + 1]));
    }
    return o[(n - 1) * dim] == 2.5f ? 0 : 1;
}
