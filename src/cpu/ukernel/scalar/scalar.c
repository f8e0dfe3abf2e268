/*
 * scalar.c: the reference tables, for any machine. Plain loops in scalar.h, which shares nothing
 * with body.h but the exp2 coefficients and the list of members; every other table must give the
 * same bits (tests/checkattn).
 */
#include "core/compiler.h"
#include "core/half.h"
#include "core/segment.h"
#include "core/exp2.h"
#include "cpu/ukernel/members.h"
#include "cpu/ukernel/table_grad.h"
#include <float.h>
#include <math.h>

#define real float
#define FN(name) name##_f32
#define FMA fmaf
#define LDEXP ldexpf
#define REAL_MIN FLT_MIN
#define EXP2_MIN ATTN_EXP2_MIN_F32
#define EXP2_MAGIC ATTN_EXP2_MAGIC_F32
#define EXP2_FIRST ATTN_EXP2_FIRST_F32
#define EXP2_REST ATTN_EXP2_REST_F32
#include "cpu/ukernel/scalar/scalar.h"

#define real double
#define FN(name) name##_f64
#define FMA fma
#define LDEXP ldexp
#define REAL_MIN DBL_MIN
#define EXP2_MIN ATTN_EXP2_MIN_F64
#define EXP2_MAGIC ATTN_EXP2_MAGIC_F64
#define EXP2_FIRST ATTN_EXP2_FIRST_F64
#define EXP2_REST ATTN_EXP2_REST_F64
#include "cpu/ukernel/scalar/scalar.h"
