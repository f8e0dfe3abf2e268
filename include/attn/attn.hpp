/*
 * attn.hpp: attn.h for C++17 and later: owners of contexts, caches and workspaces, views of
 * containers, and errors as exceptions. Everything is inline; programs link with libattn alone.
 * attn.h is the manual: names here are its names without attn_, and types not named here are its
 * types.
 *
 *   std::vector<float> q(4 * 2), k(4 * 2), v(4 * 2), o(4 * 2);
 *   attn::forward_args args;                               // zero, with struct_size
 *   args.q = attn::tensor_bshd(q, 1, 4, 1, 2);             // batch, positions, heads, dim
 *   args.k = attn::tensor_bshd(k, 1, 4, 1, 2);
 *   args.v = attn::tensor_bshd(v, 1, 4, 1, 2);
 *   args.o = attn::tensor_bshd(o, 1, 4, 1, 2);
 *   args.flags = ATTN_CAUSAL;
 *   attn::context().forward(args);                         // throws attn::error
 *
 * A build without exceptions (-fno-exceptions) gets the attn_status from each of these functions,
 * and memory that was not to be had is a status there. With exceptions attn_forward and the others
 * return it still, for context.get().
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef ATTN_ATTN_HPP
#define ATTN_ATTN_HPP

#if __cplusplus < 201703L && (!defined(_MSVC_LANG) || _MSVC_LANG < 201703L)
#error "attn.hpp needs C++17 (-std=c++17); attn.h alone is for older C++"
#endif

#include <attn/attn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#ifdef __cpp_exceptions
#include <stdexcept>
#define ATTN_THROWS throws
#else
#define ATTN_THROWS silent
#endif

namespace attn
{
inline namespace ATTN_THROWS
{ /* files with and without exceptions have symbols of their own */

/* ---- errors ---------------------------------------------------------------------------------- */

#ifdef __cpp_exceptions
/* what() is attn_last_error()'s sentence. */
class error : public std::runtime_error
{
    attn_status code;

  public:
    error(attn_status status, const char *sentence) : std::runtime_error(sentence), code(status)
    {
    }
    attn_status status() const noexcept
    {
        return code;
    }
};

using outcome = void;

/* What all functions below return: nothing, or an exception. */
inline void settle(attn_status status, const char *sentence = attn_last_error())
{
    if (status != ATTN_OK) {
        throw error(status, sentence);
    }
}
#else
using outcome = attn_status;

inline attn_status settle(attn_status status, const char * = nullptr) noexcept
{
    return status;
}
#endif

/* ---- arguments ------------------------------------------------------------------------------- */

/* An argument struct of attn.h that begins as zero, with its size. */
template <class Struct> struct sized : Struct {
    sized() noexcept : Struct{}
    {
        this->struct_size = sizeof(Struct);
    }
};
using context_config = sized<attn_context_config>;
using forward_args = sized<attn_forward_args>;
using backward_args = sized<attn_backward_args>;
using plan = sized<attn_plan>;
using dropout_mask_args = sized<attn_dropout_mask_args>;
using cache_config = sized<attn_cache_config>;
using quantize_args = sized<attn_quantize_args>;
using merge_args = sized<attn_merge_args>;
using merge_backward_args = sized<attn_merge_backward_args>;
using info = sized<attn_info>;

/* ---- element types --------------------------------------------------------------------------- */

/* Types of 16 bits and fewer, as bits. */
enum class f16 : std::uint16_t {};
enum class bf16 : std::uint16_t {};
enum class e4m3 : std::uint8_t {};
enum class e5m2 : std::uint8_t {};
enum class i4x2 : std::uint8_t {};
enum class b1x8 : std::uint8_t {};

template <attn_dtype Type> using dtype_is = std::integral_constant<attn_dtype, Type>;

/* The dtype of a C++ type; a program may add its own:
 *   template <> struct attn::dtype_of<half> : attn::dtype_is<ATTN_F16> {}; */
template <class Element, class = void> struct dtype_of;
template <> struct dtype_of<double> : dtype_is<ATTN_F64> {
};
template <> struct dtype_of<float> : dtype_is<ATTN_F32> {
};
template <> struct dtype_of<f16> : dtype_is<ATTN_F16> {
};
template <> struct dtype_of<bf16> : dtype_is<ATTN_BF16> {
};
template <> struct dtype_of<e4m3> : dtype_is<ATTN_E4M3> {
};
template <> struct dtype_of<e5m2> : dtype_is<ATTN_E5M2> {
};
template <> struct dtype_of<i4x2> : dtype_is<ATTN_I4X2> {
};
template <> struct dtype_of<b1x8> : dtype_is<ATTN_B1X8> {
};
template <> struct dtype_of<bool> : dtype_is<ATTN_BOOL> {
};
template <> struct dtype_of<unsigned char> : dtype_is<ATTN_U8> {
};
template <> struct dtype_of<signed char> : dtype_is<ATTN_I8> {
};
template <class Element>
struct dtype_of<Element, std::enable_if_t<std::is_integral_v<Element> &&
                                          std::is_signed_v<Element> && sizeof(Element) == 4>>
    : dtype_is<ATTN_I32> {
};
template <class Element>
struct dtype_of<Element, std::enable_if_t<std::is_integral_v<Element> &&
                                          std::is_signed_v<Element> && sizeof(Element) == 8>>
    : dtype_is<ATTN_I64> {
};

/* ---- views ----------------------------------------------------------------------------------- */

using extents = std::array<std::int64_t, 4>;

namespace detail
{
/* Strides of memory laid out [n0][n1][n2][n3]. */
inline extents packed(const extents &shape) noexcept
{
    extents stride{};
    std::uint64_t step = 1; /* of no meaning where it exceeds 64 bits: then no memory is enough */
    for (std::size_t axis = 4; axis-- > 0;) {
        stride[axis] = static_cast<std::int64_t>(step);
        step *= static_cast<std::uint64_t>(shape[axis]);
    }
    return stride;
}

/* Whether all elements of a view lie in the first `size` of memory. A stride below 0 is a huge one
 * here. */
inline bool fits(const extents &shape, const extents &stride, std::uint64_t size) noexcept
{
    std::uint64_t last = 0;
    for (std::int64_t extent : shape) {
        if (extent <= 0) {
            return extent == 0;
        }
    }
    for (std::size_t axis = 0; axis < 4 && size > 0; axis++) {
        const std::uint64_t steps = static_cast<std::uint64_t>(shape[axis] - 1),
                            step = static_cast<std::uint64_t>(stride[axis]);
        if (steps > 0 && step > 0 && steps > (size - 1 - last) / step) {
            return false;
        }
        last += steps * step;
    }
    return size > 0;
}

/* The sentence about a view that does not fit. */
inline std::array<char, 320> beyond(const extents &shape, const extents &stride,
                                    std::uint64_t size) noexcept
{
    using number = long long;
    std::array<char, 320> text{};
    std::snprintf(text.data(), text.size(),
                  "a view of shape (%lld, %lld, %lld, %lld) and strides (%lld, %lld, %lld, %lld) "
                  "does not lie in its memory of %llu elements",
                  number(shape[0]), number(shape[1]), number(shape[2]), number(shape[3]),
                  number(stride[0]), number(stride[1]), number(stride[2]), number(stride[3]),
                  static_cast<unsigned long long>(size));
    return text;
}

template <class Element> attn_dtype dtype() noexcept
{
    return dtype_of<std::remove_cv_t<Element>>::value;
}

/* NULL without memory. */
inline unsigned char *room(std::uint64_t bytes) noexcept
{
    return bytes > PTRDIFF_MAX ? nullptr
                               : new (std::nothrow) unsigned char[static_cast<std::size_t>(bytes)];
}
} /* namespace detail */

/* A view of memory from a pointer, strides in elements: nobody checks the memory's size. */
template <class Element>
attn_tensor tensor(Element *data, const extents &shape, const extents &stride) noexcept
{
    attn_tensor view = attn_tensor_bshd(data, detail::dtype<Element>(), 0, 0, 0, 0);
    for (std::size_t axis = 0; axis < 4; axis++) {
        view.shape[axis] = shape[axis];
        view.stride[axis] = stride[axis];
    }
    return view;
}

/* A view of a container: std::vector, std::array, std::span, an array, or anything else with
 * std::data and std::size. Strides are at least 0. A view that goes beyond its memory is an error;
 * without exceptions it has no type, and every call refuses it. */
template <class Memory, class = decltype(std::size(std::declval<Memory &>()))>
attn_tensor tensor(Memory &&memory, const extents &shape, const extents &stride)
{
    static_assert(std::is_lvalue_reference_v<Memory> || std::is_trivially_copyable_v<Memory>,
                  "a view of memory that is gone at the end of the expression");
    attn_tensor view = tensor(std::data(memory), shape, stride);
    if (!detail::fits(shape, stride, std::size(memory))) {
        view.dtype = 0;
        (void)settle(ATTN_ERR_INVALID_ARGUMENT,
                     detail::beyond(shape, stride, std::size(memory)).data());
    }
    return view;
}

/* attn_tensor_bshd: memory laid out [n0][n1][n2][n3], a pointer or a container. */
template <class Memory>
attn_tensor tensor_bshd(Memory &&memory, std::int64_t n0, std::int64_t n1 = 1, std::int64_t n2 = 1,
                        std::int64_t n3 = 1)
{
    const extents shape{n0, n1, n2, n3};
    return tensor(std::forward<Memory>(memory), shape, detail::packed(shape));
}

/* attn_tensor_bhsd: memory laid out [batch][head][sequence][dim]. */
template <class Memory>
attn_tensor tensor_bhsd(Memory &&memory, std::int64_t batch, std::int64_t heads, std::int64_t seq,
                        std::int64_t dim)
{
    const extents in_memory = detail::packed({batch, heads, seq, dim});
    return tensor(std::forward<Memory>(memory), extents{batch, seq, heads, dim},
                  extents{in_memory[0], in_memory[2], in_memory[1], 1});
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* Memory that grows to what calls ask for. One for each thread that calls. */
class workspace
{
    std::unique_ptr<unsigned char[]> memory;
    std::uint64_t bytes = 0;

  public:
    workspace() noexcept = default;
    workspace(workspace &&other) noexcept
        : memory(std::move(other.memory)), bytes(std::exchange(other.bytes, 0))
    {
    }
    workspace &operator=(workspace &&other) noexcept
    {
        bytes = std::exchange(other.bytes, 0);
        memory = std::move(other.memory);
        return *this;
    }

    /* Room for `wanted` bytes; contents are lost. */
    outcome reserve(std::uint64_t wanted)
    {
        if (wanted > bytes) {
            memory.reset(); /* before the new one is there */
            memory.reset(detail::room(wanted));
            bytes = memory ? wanted : 0;
        }
        return settle(wanted > bytes ? ATTN_ERR_OUT_OF_MEMORY : ATTN_OK,
                      "no memory for a workspace");
    }

    /* Hands its memory to a call: attn_forward_args or attn_backward_args. */
    template <class Args> void lend(Args &args) const noexcept
    {
        args.workspace = memory.get(), args.workspace_bytes = bytes;
    }
};

/* ---- contexts -------------------------------------------------------------------------------- */

/* Owns an attn_context. One that nobody created, or moved from, stands for the default context. */
class context
{
    attn_context *made = nullptr;

  public:
    context() noexcept = default;
    context(context &&other) noexcept : made(std::exchange(other.made, nullptr))
    {
    }
    context &operator=(context &&other) noexcept
    {
        attn_context_destroy(std::exchange(made, std::exchange(other.made, nullptr)));
        return *this;
    }
    ~context()
    {
        attn_context_destroy(made);
    }

    attn_context *get() const noexcept
    {
        return made;
    }

    /* In place of the one it had. After an error it is the default context. */
    outcome create(const attn_context_config &config)
    {
        attn_context_destroy(std::exchange(made, nullptr));
        return settle(attn_context_create(&config, &made));
    }
    outcome get_info(attn_info &to) const
    {
        return settle(attn_get_info(made, &to));
    }

    outcome forward(const attn_forward_args &args) const
    {
        return settle(attn_forward(made, &args));
    }
    outcome forward_workspace(const attn_forward_args &args, std::uint64_t &bytes) const
    {
        return settle(attn_forward_workspace(made, &args, &bytes));
    }
    outcome forward_plan(const attn_forward_args &args, attn_plan &to) const
    {
        return settle(attn_forward_plan(made, &args, &to));
    }
    outcome backward(const attn_backward_args &args) const
    {
        return settle(attn_backward(made, &args));
    }
    outcome backward_workspace(const attn_backward_args &args, std::uint64_t &bytes) const
    {
        return settle(attn_backward_workspace(made, &args, &bytes));
    }
    outcome backward_plan(const attn_backward_args &args, attn_plan &to) const
    {
        return settle(attn_backward_plan(made, &args, &to));
    }
    outcome dropout_mask(const attn_dropout_mask_args &args) const
    {
        return settle(attn_dropout_mask(made, &args));
    }
    outcome quantize(const attn_quantize_args &args) const
    {
        return settle(attn_quantize(made, &args));
    }
    outcome dequantize(const attn_quantize_args &args) const
    {
        return settle(attn_dequantize(made, &args));
    }
    outcome merge(const attn_merge_args &args) const
    {
        return settle(attn_merge(made, &args));
    }
    outcome merge_backward(const attn_merge_backward_args &args) const
    {
        return settle(attn_merge_backward(made, &args));
    }
};

/* ---- cache ----------------------------------------------------------------------------------- */

/* Owns an attn_cache and the memory of its tables. The pools are the caller's, and outlive it.
 * Calls of one that is not open are refused. */
class cache
{
    std::unique_ptr<unsigned char[]> memory;
    attn_cache *made = nullptr;

  public:
    cache() noexcept = default;
    cache(cache &&other) noexcept
        : memory(std::move(other.memory)), made(std::exchange(other.made, nullptr))
    {
    }
    cache &operator=(cache &&other) noexcept
    {
        attn_cache_close(std::exchange(made, std::exchange(other.made, nullptr)));
        memory = std::move(other.memory);
        return *this;
    }
    ~cache()
    {
        attn_cache_close(made);
    }

    attn_cache *get() const noexcept
    {
        return made;
    }

    /* In place of the one it had. */
    outcome open(const attn_cache_config &config)
    {
        std::uint64_t bytes = 0;
        attn_cache_close(std::exchange(made, nullptr));
        const attn_status status = attn_cache_bytes(&config, &bytes);
        if (status != ATTN_OK) {
            return settle(status);
        }
        memory.reset(detail::room(bytes));
        if (!memory) {
            return settle(ATTN_ERR_OUT_OF_MEMORY, "no memory for a cache's tables");
        }
        return settle(attn_cache_open(&config, memory.get(), bytes, &made));
    }
    outcome alloc(std::int64_t &sequence)
    {
        return settle(attn_cache_alloc(made, &sequence));
    }
    outcome free(std::int64_t sequence)
    {
        return settle(attn_cache_free(made, sequence));
    }
    outcome fork(std::int64_t sequence, std::int64_t length, std::int64_t &forked)
    {
        return settle(attn_cache_fork(made, sequence, length, &forked));
    }
    outcome extend(std::int64_t sequence, std::int64_t rows)
    {
        return settle(attn_cache_extend(made, sequence, rows));
    }
    outcome truncate(std::int64_t sequence, std::int64_t length)
    {
        return settle(attn_cache_truncate(made, sequence, length));
    }
    outcome view(const std::int64_t *sequences, std::int64_t count, std::int32_t *table,
                 std::int64_t *lengths, attn_forward_args &args) const
    {
        return settle(attn_cache_view(made, sequences, count, table, lengths, &args));
    }
    outcome free_pages(std::int64_t &pages) const
    {
        return settle(attn_cache_free_pages(made, &pages));
    }
};

} /* namespace ATTN_THROWS */
} /* namespace attn */

#undef ATTN_THROWS
#endif
