/*
 * types.h: a call for the type of codes at hand, as a constant: functions that take it are inlined.
 */

/* call(.., dtype) */
#define OF_CODES(dtype, call, ...)                         \
    ((dtype) == ATTN_I8     ? call(__VA_ARGS__, ATTN_I8)   \
     : (dtype) == ATTN_I4X2 ? call(__VA_ARGS__, ATTN_I4X2) \
     : (dtype) == ATTN_E4M3 ? call(__VA_ARGS__, ATTN_E4M3) \
                            : call(__VA_ARGS__, ATTN_E5M2))
