/*
 * test_paged.c: keys in pages (block_table) and behind left padding (leftpad_k): the bits of keys
 * that lie side by side, for any size and order of pages, and nothing read beyond the keys in use.
 * Against the oracle: paged.txt.
 */
#include "grad_trial.h"
#include "oracle.h"
#include "outputs.h"
#include "tables.h"

/* K and V of a trial as a pool of pages with their table. */
typedef struct pool {
    attn_tensor k, v, table;
} pool;

static attn_tensor fresh(int32_t dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const size_t bytes = (size_t)(n0 * n1 * n2 * n3) * attn_dtype_size(dtype);
    void *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, 0xFF, bytes); /* a NaN, or an entry that no table may have */
    return attn_tensor_bshd(data, (attn_dtype)dtype, n0, n1, n2, n3);
}

/* Bytes of one row of all heads. */
static void copy_row(const attn_tensor *to, int64_t page, int64_t row, const attn_tensor *from,
                     int64_t b, int64_t key)
{
    for (int64_t h = 0; h < from->shape[2]; h++) {
        for (int64_t c = 0; c < from->shape[3]; c++) {
            inputs_store(to, page, row, h, c, oracle_element(from, b, key, h, c));
        }
    }
}

/* The number of pages: at least twice as many as sequences have, a power of two: an odd step finds
 * each of them once. */
static int64_t pages_for(int64_t count)
{
    int64_t pages = 2;
    while (pages < 2 * count) {
        pages *= 2;
    }
    return pages;
}

/* Copies the keys in use; all else is a NaN, or an entry of -1 in the table. `more`: columns of the
 * table that nothing needs. */
static pool pool_open(const op_trial *trial, int64_t size, int64_t step, int64_t more,
                      const int64_t *used)
{
    const attn_tensor *k = &trial->args->k, *v = &trial->args->v;
    const int64_t columns = (k->shape[1] + size - 1) / size + more,
                  pages = pages_for(k->shape[0] * columns);
    pool p = {fresh(k->dtype, pages, size, k->shape[2], k->shape[3]),
              fresh(v->dtype, pages, size, v->shape[2], v->shape[3]),
              fresh(more ? ATTN_I64 : ATTN_I32, k->shape[0], columns, 1, 1)};
    for (int64_t b = 0; b < k->shape[0]; b++) {
        for (int64_t key = 0; key < used[b]; key++) {
            const int64_t page = (b * columns + key / size + 1) * step % pages;
            inputs_store(&p.table, b, key / size, 0, 0, (double)page);
            copy_row(&p.k, page, key % size, k, b, key);
            copy_row(&p.v, page, key % size, v, b, key);
        }
    }
    return p;
}

static void pool_close(pool *p)
{
    free(p->k.data);
    free(p->v.data);
    free(p->table.data);
}

/* table: NULL for the best, which may have bits of its own. */
static void assert_same_bits(op_trial *trial, const attn_forward_args *other, const char *table,
                             int threads)
{
    size_t bytes, again;
    char line[1024];
    problem_print(&trial->problem, line, sizeof line);
    outputs_poison(trial->args);
    assert_int_equal(attn_forward(tables_context(table, 1), trial->args), ATTN_OK);
    unsigned char *first = outputs_copy(trial->args, &bytes);
    outputs_poison(trial->args);
    if (attn_forward(tables_context(table, threads), other) != ATTN_OK) {
        fail_msg("%.300s: %s", line, attn_last_error());
    }
    unsigned char *second = outputs_copy(other, &again);
    if (bytes != again || memcmp(first, second, bytes) != 0) {
        fail_msg("%s, %d threads: pages of %lld rows give other bits: %.300s",
                 table ? table : "best", threads, (long long)other->k.shape[1], line);
    }
    free(first);
    free(second);
}

static const char *const kinds[] = {
    "nq=1 used_k=300,131 lse=1 row_max=1",
    "nq=5 causal=1 used_k=257,5 alibi=h lse=1",
    "nq=70 causal=1 window_left=40 used_k=300,200 softcap=4",
    "nq=3 mask=bqk bias=hqk sinks=h used_k=300,90 lse=1",
    "nq=2 window_left=20 window_right=3 used_q=2,1 used_k=64,300 dropout=0.3",
};
static const char *const heads[] = {"hq=8 hkv=1", "hq=8 hkv=2", "hq=3"};
static const char *const types[] = {"f32", "bf16", "f16", "f64"};
static const int64_t sizes[] = {1, 3, 16, 17, 256};

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* Every combination of page size, type, mask and group. */
static void test_pages_change_no_bit(void **state)
{
    (void)state;
    for (int n = 0; n < COUNT(kinds) * COUNT(heads) * COUNT(types); n++) {
        op_trial trial = trial_open("b=2 nk=300 d=24 dtype=%s %s %s", types[n % COUNT(types)],
                                    heads[n / COUNT(types) % COUNT(heads)],
                                    kinds[n / COUNT(types) / COUNT(heads)]);
        for (int i = 0; i < COUNT(sizes); i++) {
            pool p = pool_open(&trial, sizes[i], 3 + 2 * i, i & 1, trial.problem.used_k);
            attn_forward_args paged = *trial.args;
            paged.k = p.k, paged.v = p.v, paged.block_table = p.table;
            assert_same_bits(&trial, &paged, tables_usual(), 1 + i % 3);
            assert_same_bits(&trial, &paged, NULL, 3 - i % 3);
            pool_close(&p);
        }
        trial_close(&trial);
    }
}

/* More keys than a segment, pages that end inside of blocks. */
static void test_pages_of_many_keys(void **state)
{
    const int64_t used[] = {5000};
    (void)state;
    for (int i = 0; i < COUNT(types); i++) {
        op_trial trial =
            trial_open("hq=8 hkv=2 nq=2 nk=5000 d=40 causal=1 lse=1 dtype=%s", types[i]);
        pool p = pool_open(&trial, 100, 11, 0, used);
        attn_forward_args paged = *trial.args;
        paged.k = p.k, paged.v = p.v, paged.block_table = p.table;
        assert_same_bits(&trial, &paged, tables_names(&(int){0})[0], 1);
        assert_same_bits(&trial, &paged, NULL, 2);
        pool_close(&p);
        trial_close(&trial);
    }
}

/* A page that two sequences share, and sequences in slots of a cache: a table of one column. */
static void test_shared_pages_and_slots(void **state)
{
    int32_t shared[] = {2, 0, 2, 1}, slot[] = {4, 1};
    (void)state;
    op_trial slots = trial_open("b=5 hq=4 hkv=2 nq=1 nk=40 d=16 lse=1"),
             trial = trial_open("b=2 hq=4 hkv=2 nq=1 nk=80 d=16 lse=1");
    attn_forward_args args = *trial.args;
    for (int64_t row = 0; row < 160; row++) {
        const int64_t page = shared[row / 40];
        copy_row(&trial.args->k, row / 80, row % 80, &slots.args->k, page, row % 40);
        copy_row(&trial.args->v, row / 80, row % 80, &slots.args->v, page, row % 40);
    }
    args.k = slots.args->k, args.v = slots.args->v;
    args.block_table = attn_tensor_bshd(shared, ATTN_I32, 2, 2, 1, 1);
    assert_same_bits(&trial, &args, tables_usual(), 2);
    for (int64_t b = 0; b < 2; b++) {
        attn_forward_args one = *trial.args, of = *trial.args;
        one.q = tensor_slice(one.q, 0, b, 1), one.o = tensor_slice(one.o, 0, b, 1);
        one.lse = tensor_slice(one.lse, 0, b, 1);
        of = one;
        one.k = tensor_slice(slots.args->k, 0, slot[b], 1);
        one.v = tensor_slice(slots.args->v, 0, slot[b], 1);
        of.k = slots.args->k, of.v = slots.args->v;
        of.block_table = attn_tensor_bshd(slot + b, ATTN_I32, 1, 1, 1, 1);
        op_trial part = {trial.problem, trial.tensors, &one};
        assert_same_bits(&part, &of, NULL, 2);
    }
    trial_close(&trial);
    trial_close(&slots);
}

/* Chunks of several lengths over pages: cu_seqlens_q without cu_seqlens_k. */
static void test_chunks_over_pages(void **state)
{
    const int64_t used[] = {130, 70, 9}, rows[] = {0, 1, 34, 43};
    int64_t all = 43;
    (void)state;
    op_trial trial =
        trial_open("b=3 hq=4 hkv=2 nq=%d nk=130 d=16 causal=1 lse=1 used_k=130,70,9", (int)all);
    pool p = pool_open(&trial, 16, 5, 1, used);
    attn_forward_args packed = *trial.args;
    packed.q = tensor_slice(packed.q, 0, 0, 1), packed.o = tensor_slice(packed.o, 0, 0, 1);
    packed.lse = tensor_slice(packed.lse, 0, 0, 1);
    packed.k = p.k, packed.v = p.v, packed.block_table = p.table;
    packed.cu_seqlens_q = attn_tensor_bshd(rows, ATTN_I64, 4, 1, 1, 1);
    assert_int_equal(attn_forward(NULL, &packed), ATTN_OK);
    for (int64_t b = 0; b < 3; b++) {
        attn_forward_args one = *trial.args;
        const int64_t n = rows[b + 1] - rows[b];
        const attn_tensor o = tensor_slice(packed.o, 1, rows[b], n),
                          lse = tensor_slice(packed.lse, 1, rows[b], n);
        one.q = tensor_slice(packed.q, 1, rows[b], n);
        one.k = tensor_slice(tensor_slice(one.k, 0, b, 1), 1, 0, used[b]);
        one.v = tensor_slice(tensor_slice(one.v, 0, b, 1), 1, 0, used[b]);
        one.seqused_k.data = NULL;
        one.o = fresh(o.dtype, 1, n, 4, 16), one.lse = fresh(lse.dtype, 1, n, 4, 1);
        assert_int_equal(attn_forward(NULL, &one), ATTN_OK);
        assert_same_tensor(&one.o, &o);
        assert_same_tensor(&one.lse, &lse);
        free(one.o.data);
        free(one.lse.data);
    }
    pool_close(&p);
    trial_close(&trial);
}

/* Rows before the first key hold NaN and change nothing: the bits of the keys behind them alone. */
static void test_left_padding(void **state)
{
    int32_t pad[] = {37, 0};
    (void)state;
    for (int i = 0; i < COUNT(types); i++) {
        op_trial trial = trial_open("b=2 hq=8 hkv=2 nq=3 nk=200 d=24 causal=1 alibi=h lse=1 "
                                    "used_k=90,200 dtype=%s",
                                    types[i]);
        const attn_tensor k = fresh(trial.problem.dtype, 2, 237, 2, 24),
                          v = fresh(trial.problem.dtype, 2, 237, 2, 24);
        int64_t used[] = {90 + pad[0], 200 + pad[1]};
        for (int64_t row = 0; row < 400; row++) {
            const int64_t b = row / 200;
            copy_row(&k, b, row % 200 + pad[b], &trial.args->k, b, row % 200);
            copy_row(&v, b, row % 200 + pad[b], &trial.args->v, b, row % 200);
        }
        attn_forward_args padded = *trial.args;
        padded.k = k, padded.v = v;
        padded.leftpad_k = attn_tensor_bshd(pad, ATTN_I32, 2, 1, 1, 1);
        padded.seqused_k = attn_tensor_bshd(used, ATTN_I64, 2, 1, 1, 1);
        assert_same_bits(&trial, &padded, tables_usual(), 2);
        assert_same_bits(&trial, &padded, NULL, 3);
        free(k.data);
        free(v.data);
        trial_close(&trial);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void assert_refused(op_trial *trial, attn_status status, const char *sentence)
{
    outputs_poison(trial->args);
    size_t bytes, again;
    unsigned char *before = outputs_copy(trial->args, &bytes);
    assert_int_equal(attn_forward(NULL, trial->args), status);
    if (strstr(attn_last_error(), sentence) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), sentence);
    }
    unsigned char *after = outputs_copy(trial->args, &again);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
}

/* A table too short, an entry out of range, arguments that contradict each other. */
static void test_refused(void **state)
{
    int32_t table[] = {0, 2, 1, 3, 4, 5, -1, 6, 9, 7}, used[] = {33, 40}, pad[] = {34, 0};
    (void)state;
    op_trial trial = trial_open("b=2 hq=4 hkv=2 nq=1 nk=8 d=16 page=8 lse=1 used_k=8,8");
    attn_forward_args *args = trial.args;
    const attn_tensor k = fresh(ATTN_F32, 9, 8, 2, 16);
    args->k = args->v = k;
    args->block_table = attn_tensor_bshd(table, ATTN_I32, 2, 5, 1, 1);
    args->seqused_k = attn_tensor_bshd(used, ATTN_I32, 2, 1, 1, 1);
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "block_table[1][1] = -1, must be in [0, 8]");
    used[1] = 8;
    assert_int_equal(attn_forward(NULL, args), ATTN_OK); /* not read: entries behind the keys */
    used[0] = 41;
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "seqused_k[0] = 41, must be in [0, 40]");
    used[0] = 33;
    args->block_table.shape[0] = 1;
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "block_table.shape[0] = 1, must be the 2");
    args->block_table.shape[0] = 2, args->block_table.shape[2] = 2;
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "block_table has shape (2, 5, 2, 1), wanted");
    args->block_table.shape[2] = 1, args->block_table.shape[1] = INT64_MAX / 2;
    args->block_table.stride[1] = 0;
    assert_refused(&trial, ATTN_ERR_OVERFLOW, "pages of k.shape[1] = 8 rows");
    args->block_table.shape[1] = 5, args->block_table.stride[1] = 1;
    args->leftpad_k = attn_tensor_bshd(pad, ATTN_I32, 2, 1, 1, 1);
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "leftpad_k[0] = 34, must be in [0, 33]");
    pad[0] = 0;
    args->cu_seqlens_k = args->block_table;
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "block_table and cu_seqlens_k are given");
    args->cu_seqlens_k.data = NULL;
    args->k.shape[1] = args->v.shape[1] = 0;
    assert_refused(&trial, ATTN_ERR_INVALID_ARGUMENT, "k.shape[1] = 0, must be a page");
    args->k.shape[1] = args->v.shape[1] = 8;
    const attn_backward_args backward = {
        .struct_size = sizeof backward, .forward = args, .d_o = args->o};
    assert_int_equal(attn_backward(NULL, &backward), ATTN_ERR_UNSUPPORTED);
    assert_string_equal(attn_last_error(), "block_table is for attn_forward only");
    free(k.data);
    trial_close(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_change_no_bit),    cmocka_unit_test(test_pages_of_many_keys),
        cmocka_unit_test(test_shared_pages_and_slots), cmocka_unit_test(test_chunks_over_pages),
        cmocka_unit_test(test_left_padding),           cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
