/*
 * body_end.h: undefines what body_rows.h and a vec_<isa>.h define, so that the next type can define
 * it anew.
 */
#include "cpu/ukernel/body/vec_end.h"

#undef real
#undef TYPE
#undef REAL_MAX
#undef REAL_MIN
#undef REAL_LEAST
#undef FUSED
#undef TABLE_BITS
#undef PRODUCT_LOSS
#undef UNFUSED
#undef EXP2_MIN
#undef EXP2_MAGIC
#undef EXP2_FIRST
#undef EXP2_REST
#undef FN
#undef STRIP
#undef SIDE
#undef EACH
#undef MR
#undef NV
#undef AHEAD
#undef v_quotient
#undef v_corrected
#undef v_can_quotient
#undef v_pair_bf16
#undef v_pair_f16
#undef v_load_i8
#undef v_load_e5m2
#undef QK_CODES
#undef v_load1_f16
#undef v_column
#undef v_column_i8
#undef v_column_i4
#undef v_low_halves
#undef v_high_halves
#undef v_even_quarters
#undef v_odd_quarters
#undef v_store_quads
#undef v_load_quads
#undef v_load4
#undef v_store4
#undef v_upper
#undef v_lower
#undef ivec
#undef IVL
#undef i_load
#undef i_store
#undef i_set1
#undef i_xor3
#undef i_mul
#undef i_high
