/*
 * vec_end.h: undefines a vector type and its functions, so that another can define them. Included
 * by body_end.h behind a body, and by a vector that consists of several others.
 */
#undef vec
#undef VL
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
