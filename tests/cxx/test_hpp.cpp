/*
 * test_hpp.cpp: attn.hpp: views, owners, and errors as exceptions or, without them, as statuses.
 * tests/cxx/run builds it in both ways, as C++17 and C++20.
 */
#include <attn/attn.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

static int failed;

static void expect(bool holds, const char *text, int line)
{
    if (!holds) {
        std::printf("FAIL line %d: %s\n", line, text);
        failed++;
    }
}
#define EXPECT(...) expect((__VA_ARGS__), #__VA_ARGS__, __LINE__)

/* The status of a call, in either way. */
#ifdef __cpp_exceptions
static std::string said;
template <class Call> attn_status status_of(Call call)
{
    try {
        call();
    } catch (const attn::error &error) {
        said = error.what();
        return error.status();
    }
    return ATTN_OK;
}
#define STATUS(...) status_of([&] { __VA_ARGS__; })
#else
#define STATUS(...) (__VA_ARGS__)
#endif

static_assert(attn::dtype_of<std::int64_t>::value == ATTN_I64);
static_assert(attn::dtype_of<long long>::value == ATTN_I64);
static_assert(attn::dtype_of<int>::value == ATTN_I32);
static_assert(attn::dtype_of<attn::b1x8>::value == ATTN_B1X8);
static_assert(attn::dtype_of<attn::bf16>::value == ATTN_BF16);
static_assert(!std::is_copy_constructible_v<attn::context>);
static_assert(!std::is_copy_constructible_v<attn::cache>);
static_assert(std::is_nothrow_move_constructible_v<attn::context>);

/* ---- views ----------------------------------------------------------------------------------- */

static bool same(const attn_tensor &a, const attn_tensor &b)
{
    return a.data == b.data && a.dtype == b.dtype && a.reserved == b.reserved &&
           std::memcmp(a.shape, b.shape, sizeof a.shape) == 0 &&
           std::memcmp(a.stride, b.stride, sizeof a.stride) == 0;
}

static void check_views()
{
    std::vector<float> floats(2 * 3 * 5 * 7);
    const std::vector<double> doubles(4);
    std::array<std::int64_t, 3> lengths{1, 2, 3};
    attn::f16 halves[8] = {};
    EXPECT(same(attn::tensor_bshd(floats, 2, 3, 5, 7),
                attn_tensor_bshd(floats.data(), ATTN_F32, 2, 3, 5, 7)));
    EXPECT(same(attn::tensor_bhsd(floats, 2, 5, 3, 7),
                attn_tensor_bhsd(floats.data(), ATTN_F32, 2, 5, 3, 7)));
    EXPECT(same(attn::tensor_bshd(floats.data(), 2, 3, 5, 7),
                attn_tensor_bshd(floats.data(), ATTN_F32, 2, 3, 5, 7)));
    EXPECT(attn::tensor_bshd(doubles, 4).data == doubles.data());
    EXPECT(attn::tensor_bshd(doubles, 4).dtype == ATTN_F64);
    EXPECT(attn::tensor_bshd(lengths, 3).dtype == ATTN_I64);
    EXPECT(attn::tensor_bshd(halves, 8).dtype == ATTN_F16);
    const attn_tensor backwards = attn::tensor(floats.data() + 6, {1, 7, 1, 1}, {0, -1, 0, 0});
    EXPECT(backwards.stride[1] == -1 && backwards.data == &floats[6]);
    EXPECT(attn::tensor(floats, {1, 30, 1, 7}, {0, 7, 0, 1}).shape[1] == 30);
    EXPECT(attn::tensor(floats, {1, 1 << 30, 1, 210}, {0, 0, 0, 1}).stride[1] == 0);
    EXPECT(attn::tensor_bshd(floats, 0, 3, 5, 7).shape[0] == 0);
#if __cplusplus >= 202002L
    EXPECT(attn::tensor_bshd(std::span(floats).subspan(7), 1, 29, 1, 7).data == &floats[7]);
#endif
}

static bool refused(std::vector<float> &memory, const attn::extents &shape,
                    const attn::extents &stride)
{
#ifdef __cpp_exceptions
    return STATUS((void)attn::tensor(memory, shape, stride)) == ATTN_ERR_INVALID_ARGUMENT;
#else
    return attn::tensor(memory, shape, stride).dtype == 0;
#endif
}

static void check_sizes()
{
    const std::int64_t most = INT64_MAX;
    std::vector<float> memory(12), none;
    EXPECT(!refused(memory, {1, 4, 1, 3}, {12, 3, 3, 1}));
    EXPECT(!refused(none, {1, 0, 1, 3}, {0, 3, 3, 1}));
    EXPECT(refused(none, {1, 1, 1, 1}, {1, 1, 1, 1}));
    EXPECT(refused(memory, {1, 4, 1, 4}, {12, 3, 3, 1}));
    EXPECT(refused(memory, {1, 13, 1, 1}, {0, 1, 0, 0}));
    EXPECT(refused(memory, {1, 4, 1, 3}, {12, -3, 3, 1}));
    EXPECT(refused(memory, {1, -1, 1, 3}, {12, 3, 3, 1}));
    EXPECT(refused(memory, {2, 2, 2, 2}, {most, most, most, most}));
    EXPECT(refused(memory, {most, most, most, most}, {1, 1, 1, 1}));
#ifdef __cpp_exceptions
    std::string says;
    try {
        (void)attn::tensor_bshd(memory, 1, 13);
    } catch (const attn::error &error) {
        says = error.what();
    }
    EXPECT(says == "a view of shape (1, 13, 1, 1) and strides (13, 1, 1, 1) does not lie in its "
                   "memory of 12 elements");
#endif
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct problem {
    std::vector<float> q = std::vector<float>(8), k = q, o = q, lse = std::vector<float>(4);
    std::vector<float> v = {1, 10, 2, 20, 3, 30, 4, 40};
    attn::forward_args args;

    problem()
    {
        args.q = attn::tensor_bshd(q, 1, 4, 1, 2), args.k = attn::tensor_bshd(k, 1, 4, 1, 2);
        args.v = attn::tensor_bshd(v, 1, 4, 1, 2), args.o = attn::tensor_bshd(o, 1, 4, 1, 2);
        args.lse = attn::tensor_bshd(lse, 1, 4, 1, 1);
        args.flags = ATTN_CAUSAL;
    }
    bool right() const
    {
        return o == std::vector<float>{1, 10, 1.5f, 15, 2, 20, 2.5f, 25};
    }
};

static void check_forward()
{
    problem p;
    attn::context standard, own;
    attn::context_config config;
    attn::info info;
    attn::plan plan;
    std::uint64_t bytes = 0;
    EXPECT(p.args.struct_size == sizeof(attn_forward_args) && p.args.window_left == 0);
    EXPECT(STATUS(standard.forward(p.args)) == ATTN_OK && p.right());
    config.threads = 2, config.cpu = "scalar";
    EXPECT(STATUS(own.create(config)) == ATTN_OK && own.get() != nullptr);
    EXPECT(STATUS(own.get_info(info)) == ATTN_OK && info.threads == 2);
    EXPECT(STATUS(own.forward_plan(p.args, plan)) == ATTN_OK && plan.flops > 0);
    EXPECT(STATUS(own.forward_workspace(p.args, bytes)) == ATTN_OK && bytes > 0);
    attn::workspace scratch;
    EXPECT(STATUS(scratch.reserve(bytes)) == ATTN_OK);
    scratch.lend(p.args);
    EXPECT(p.args.workspace_bytes == bytes);
    p.o.assign(8, 0);
    attn::context moved = std::move(own);
    EXPECT(own.get() == nullptr && STATUS(moved.forward(p.args)) == ATTN_OK && p.right());
    own = std::move(moved);
    EXPECT(moved.get() == nullptr && own.get() != nullptr);
    moved = std::move(own);
    EXPECT(own.get() == nullptr && STATUS(moved.forward(p.args)) == ATTN_OK);
    attn::context other;
    EXPECT(STATUS(other.create(config)) == ATTN_OK);
    moved = std::move(other); /* in place of the one it had */
    EXPECT(other.get() == nullptr && moved.get() != nullptr);
    moved = attn::context();
    EXPECT(moved.get() == nullptr);
    attn::workspace taken = std::move(scratch);
    scratch.lend(p.args);
    EXPECT(p.args.workspace == nullptr && p.args.workspace_bytes == 0);
    taken.lend(p.args);
    EXPECT(p.args.workspace != nullptr && p.args.workspace_bytes == bytes);
    scratch = std::move(taken);
    taken.lend(p.args);
    EXPECT(p.args.workspace == nullptr && p.args.workspace_bytes == 0);
    EXPECT(STATUS(scratch.reserve(UINT64_MAX)) == ATTN_ERR_OUT_OF_MEMORY);
    scratch.lend(p.args);
    EXPECT(p.args.workspace == nullptr && p.args.workspace_bytes == 0);
}

static void check_errors()
{
    problem p;
    attn::context_config config;
    attn::context context;
    p.args.k.shape[3] = 1;
    EXPECT(STATUS(context.forward(p.args)) == ATTN_ERR_INVALID_ARGUMENT);
#ifdef __cpp_exceptions
    EXPECT(said.find("k.shape[3] = 1") != std::string::npos);
#else
    EXPECT(std::strstr(attn_last_error(), "k.shape[3] = 1") != nullptr);
#endif
    config.cpu = "abacus";
    EXPECT(STATUS(context.create(config)) == ATTN_ERR_UNSUPPORTED && context.get() == nullptr);
}

static void check_backward()
{
    problem p;
    std::vector<float> d_o(8, 1), dv(8), merged(8);
    attn::context context;
    attn::backward_args args;
    attn::plan plan;
    std::uint64_t bytes = 0;
    EXPECT(STATUS(context.forward(p.args)) == ATTN_OK);
    args.forward = &p.args;
    args.d_o = attn::tensor_bshd(d_o, 1, 4, 1, 2), args.dv = attn::tensor_bshd(dv, 1, 4, 1, 2);
    EXPECT(STATUS(context.backward(args)) == ATTN_OK);
    EXPECT(std::fabs(dv[0] - (1 + 1 / 2.f + 1 / 3.f + 1 / 4.f)) < 1e-6f);
    EXPECT(STATUS(context.backward_workspace(args, bytes)) == ATTN_OK && bytes > 0);
    EXPECT(STATUS(context.backward_plan(args, plan)) == ATTN_OK && plan.flops > 0);
    attn::merge_args merge;
    merge.parts = 1, merge.part_o = &p.args.o, merge.part_lse = &p.args.lse;
    merge.o = attn::tensor_bshd(merged, 1, 4, 1, 2);
    EXPECT(STATUS(context.merge(merge)) == ATTN_OK && merged == p.o);
    attn::merge_backward_args back;
    back.forward = &merge, back.d_o = args.d_o;
    EXPECT(STATUS(context.merge_backward(back)) == ATTN_OK);
}

static void check_others()
{
    attn::context context;
    std::array<bool, 4> keep{};
    attn::dropout_mask_args mask;
    mask.keep = attn::tensor_bshd(keep, 1, 1, 2, 2);
    EXPECT(STATUS(context.dropout_mask(mask)) == ATTN_OK && keep[0] && keep[3]);
    std::vector<float> x = {0, 1, 2, 127}, scale(1), back(4);
    std::vector<signed char> codes(4);
    attn::quantize_args args;
    args.x = attn::tensor_bshd(x, 1, 1, 1, 4), args.codes = attn::tensor_bshd(codes, 1, 1, 1, 4);
    args.scale = attn::tensor_bshd(scale, 1, 1, 1, 1);
    EXPECT(STATUS(context.quantize(args)) == ATTN_OK && codes[3] == 127);
    args.x = attn::tensor_bshd(back, 1, 1, 1, 4);
    EXPECT(STATUS(context.dequantize(args)) == ATTN_OK && back == x);
}

static void check_cache()
{
    std::vector<float> k(4 * 2 * 1 * 2), v = k;
    std::int64_t first = -1, second = -1, pages = 0, length = 0;
    std::int32_t table[2];
    attn::cache closed, cache;
    attn::cache_config config;
    attn::forward_args args;
    EXPECT(STATUS(closed.alloc(first)) == ATTN_ERR_INVALID_ARGUMENT);
    config.k = attn::tensor_bshd(k, 4, 2, 1, 2), config.v = attn::tensor_bshd(v, 4, 2, 1, 2);
    config.sequences = 2, config.length = 4;
    EXPECT(STATUS(cache.open(config)) == ATTN_OK);
    EXPECT(STATUS(cache.alloc(first)) == ATTN_OK && STATUS(cache.extend(first, 3)) == ATTN_OK);
    EXPECT(STATUS(cache.fork(first, 2, second)) == ATTN_OK);
    EXPECT(STATUS(cache.free_pages(pages)) == ATTN_OK && pages == 2);
    EXPECT(STATUS(cache.truncate(first, 1)) == ATTN_OK);
    EXPECT(STATUS(cache.view(&second, 1, table, &length, args)) == ATTN_OK && length == 2);
    EXPECT(args.k.data == k.data());
    attn::cache moved = std::move(cache);
    EXPECT(STATUS(moved.free(second)) == ATTN_OK && cache.get() == nullptr);
    EXPECT(STATUS(moved.extend(first, 9)) == ATTN_ERR_INVALID_ARGUMENT);
    attn::cache assigned;
    EXPECT(STATUS(assigned.open(config)) == ATTN_OK);
    assigned = std::move(moved); /* in place of the one it had */
    EXPECT(moved.get() == nullptr && STATUS(assigned.free(first)) == ATTN_OK);
    config.sequences = -1;
    EXPECT(STATUS(moved.open(config)) == ATTN_ERR_INVALID_ARGUMENT && moved.get() == nullptr);
}

int main()
{
    check_views();
    check_sizes();
    check_forward();
    check_errors();
    check_backward();
    check_others();
    check_cache();
    if (failed == 0) {
        std::puts("attn.hpp: all as expected");
    }
    return failed != 0;
}
