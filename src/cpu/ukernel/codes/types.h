/*
 * types.h: a call of a function for one of four types of codes. The function is inlined, so that
 * each call has code for its type alone.
 */

/* call(.., dtype), with dtype as a constant. */
#define OF_CODES(dtype, call, ...)                         \
    ((dtype) == ATTN_I8     ? call(__VA_ARGS__, ATTN_I8)   \
     : (dtype) == ATTN_I4X2 ? call(__VA_ARGS__, ATTN_I4X2) \
     : (dtype) == ATTN_E4M3 ? call(__VA_ARGS__, ATTN_E4M3) \
                            : call(__VA_ARGS__, ATTN_E5M2))
