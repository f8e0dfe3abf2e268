/*
 * body_end.h: undefines what body_rows.h and a vec_<isa>.h define, so that the next type can define it anew.
 */
#undef real
#undef TYPE
#undef REAL_MAX
#undef REAL_MIN
#undef FUSED
#undef EXP2_MIN
#undef EXP2_MAGIC
#undef EXP2_FIRST
#undef EXP2_REST
#undef FN
#undef STRIP
#undef vec
#undef VL
#undef MR
#undef NV
#undef v_load
#undef v_store
#undef v_set1
#undef v_add
#undef v_sub
#undef v_mul
#undef v_div
#undef v_fma
#undef v_fms
#undef v_max
#undef v_abs
#undef v_select_lt
#undef v_zero_lt
#undef v_ldexp
#undef v_load_f16
#undef v_load_bf16
#undef v_store_f16
#undef v_zip_low
#undef v_zip_high
