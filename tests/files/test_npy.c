/*
 * test_npy.c: the .npy reader and writer: every legal form reads right, every broken file gives one
 * sentence at once (contract, cases B119 and B120).
 */
#include "scratch.h"
#include "npy.h"

/* A file of version 1.0 with this dictionary and these data. */
static void put_npy(const char *dictionary, const void *data, size_t bytes)
{
    unsigned char head[1024] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    size_t n = strlen(dictionary);
    head[8] = (unsigned char)n;
    head[9] = (unsigned char)(n >> 8);
    memcpy(head + 10, dictionary, n);
    scratch_put(head, 10 + n, data, bytes);
}

#define DICT(descr, fortran, shape) \
    "{'descr': '" descr "', 'fortran_order': " fortran ", 'shape': " shape ", }\n"

static const float six[6] = {1, 2, 3, 4, 5, 6};

static void open_six(array_file *file)
{
    if (!npy_open(scratch_path, file, error, sizeof error)) {
        fail_msg("%s", error);
    }
    assert_memory_equal(file->data, six, sizeof six);
}

static void test_versions(void **state)
{
    static const char dictionary[] = DICT("<f4", "False", "(2, 3)");
    unsigned char head[256] = {0};
    array_file file;
    (void)state;
    for (int version = 1; version <= 3; version++) {
        size_t fixed = version == 1 ? 10 : 12, n = sizeof dictionary - 1;
        memcpy(head, "\x93NUMPY", 6);
        head[6] = (unsigned char)version;
        head[7] = 0;
        memset(head + 8, 0, 4);
        head[8] = (unsigned char)n;
        memcpy(head + fixed, dictionary, n);
        scratch_put(head, fixed + n, six, sizeof six);
        open_six(&file);
        assert_int_equal(file.ndim, 2);
        assert_int_equal(file.shape[0], 2);
        assert_int_equal(file.shape[1], 3);
        assert_int_equal(file.stride[0], 3);
        assert_int_equal(file.stride[1], 1);
        assert_int_equal(file.dtype, ATTN_F32);
        assert_int_equal(file.bytes, sizeof six);
        array_file_close(&file);
    }
    memset(head + 6, 4, 1);
    scratch_put(head, sizeof head, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "version 4.0");
    memcpy(head + 6, "\x01\x01", 2);
    scratch_put(head, sizeof head, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "version 1.1");
}

static void test_orders_and_blanks(void **state)
{
    array_file file;
    (void)state;
    put_npy(DICT("<f4", "True", "(2, 3)"), six, sizeof six);
    open_six(&file);
    assert_int_equal(file.stride[0], 1);
    assert_int_equal(file.stride[1], 2);
    array_file_close(&file);
    put_npy("{\"shape\":(6,),'descr' : '=f4','fortran_order':False}", six, sizeof six);
    open_six(&file);
    assert_int_equal(file.ndim, 1);
    array_file_close(&file);
    put_npy(" { 'shape':(1,2,3 , 1,1,1,1,1,) , 'fortran_order' : False, 'descr': 'f4' }   \n", six,
            sizeof six);
    open_six(&file);
    assert_int_equal(file.ndim, 8);
    array_file_close(&file);
}

static void test_types(void **state)
{
    static const struct {
        const char *descr;
        int32_t dtype;
        size_t bytes;
    } rows[] = {{"<f4", ATTN_F32, 4},  {"<f8", ATTN_F64, 8},  {"<f2", ATTN_F16, 2},
                {"<V2", ATTN_BF16, 2}, {"|V2", ATTN_BF16, 2}, {"bfloat16", ATTN_BF16, 2},
                {"|b1", ATTN_BOOL, 1}, {"?b1", 0, 1},         {"<i4", ATTN_I32, 4},
                {"<i8", ATTN_I64, 8},  {"=i8", ATTN_I64, 8},  {">b1", ATTN_BOOL, 1},
                {"|u1", ATTN_U8, 1},   {"|i1", ATTN_I8, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dictionary[128];
        array_file file;
        snprintf(dictionary, sizeof dictionary, DICT("%s", "False", "(1,)"), rows[i].descr);
        put_npy(dictionary, six, rows[i].bytes);
        assert_int_equal(npy_open(scratch_path, &file, error, sizeof error), rows[i].dtype != 0);
        assert_int_equal(file.dtype, rows[i].dtype);
        array_file_close(&file);
    }
}

static void test_refused_types(void **state)
{
    static const char *const descrs[] = {"",  "<",    "<ixy", "|u2",     "<u4", "<c8",
                                         "f", "<f16", "<f4x", "<M8[ns]", "|O",  "|S4"};
    char dictionary[128];
    array_file file;
    (void)state;
    for (size_t i = 0; i < sizeof descrs / sizeof *descrs; i++) {
        snprintf(dictionary, sizeof dictionary, DICT("%s", "False", "(6,)"), descrs[i]);
        put_npy(dictionary, six, sizeof six);
        assert_refused(npy_open(scratch_path, &file, error, sizeof error), "is none of");
    }
    put_npy(DICT(">f4", "False", "(6,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "big-endian");
    put_npy("{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (3,), }", six,
            sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "structured");
}

static void test_scalars_and_empty(void **state)
{
    array_file file;
    (void)state;
    put_npy(DICT("<f4", "False", "()"), six, 4);
    assert_true(npy_open(scratch_path, &file, error, sizeof error));
    assert_int_equal(file.ndim, 0);
    assert_int_equal(file.bytes, 4);
    array_file_close(&file);
    put_npy(DICT("<f4", "False", "(0, 4)"), "", 0);
    assert_true(npy_open(scratch_path, &file, error, sizeof error));
    assert_int_equal(file.shape[0], 0);
    assert_int_equal(file.shape[1], 4);
    assert_int_equal(file.bytes, 0);
    array_file_close(&file);
    put_npy(DICT("<f4", "False", "(0, 4)"), six, 4);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error),
                   "needs 0 bytes of data, the file has 4");
}

static void test_sizes(void **state)
{
    array_file file;
    (void)state;
    put_npy(DICT("<f4", "False", "(7,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error),
                   "needs 28 bytes of data, the file has 24");
    put_npy(DICT("<f4", "False", "(5,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error),
                   "needs 20 bytes of data, the file has 24");
    put_npy(DICT("<f4", "False", "(4294967296, 4294967296)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "fit in 64 bits");
    put_npy(DICT("<f4", "False", "(4611686018427387904, 4)"), "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "fit in 64 bits");
    put_npy(DICT("<f4", "False", "(0, 4294967296, 4294967296)"), "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "fit in 64 bits");
    put_npy(DICT("<f4", "False", "(1152921504606846976,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "fit in 64 bits");
    put_npy(DICT("<f4", "False", "(1000000000000,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "needs 4000000000000 bytes");
    put_npy(DICT("<f4", "False", "(99999999999999999999,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "not a dictionary");
}

static void test_headers(void **state)
{
    static const char *const broken[] = {
        "",
        "{",
        "}",
        "{}",
        "{}}",
        "None",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [6]}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': 'a very long type with many letters', 'fortran_order': False, 'shape': (6,)}",
    };
    array_file file;
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        put_npy(broken[i], six, sizeof six);
        assert_refused(npy_open(scratch_path, &file, error, sizeof error), "not a dictionary");
    }
    put_npy(DICT("<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 6)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "more than 8 axes");
    put_npy(DICT("<\033f\n4", "False", "(6,)"), six, sizeof six);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "'<?f?4'");
}

/* The fixed part of the file: cut at every byte, and header lengths that lie. */
static void test_truncation(void **state)
{
    static const char dictionary[] = DICT("<f4", "False", "(6,)");
    unsigned char head[128] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, sizeof dictionary - 1};
    array_file file;
    (void)state;
    memcpy(head + 10, dictionary, sizeof dictionary - 1);
    scratch_put("", 0, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "is empty");
    for (size_t n = 1; n < 10 + sizeof dictionary - 1 + sizeof six; n++) {
        size_t tail = n > 9 + sizeof dictionary ? n - (9 + sizeof dictionary) : 0;
        const char *words = n < 10                                   ? "not a .npy"
                            : tail == 0 && n < 9 + sizeof dictionary ? "header claims"
                                                                     : "shape needs";
        scratch_put(head, n - tail, six, tail);
        assert_refused(npy_open(scratch_path, &file, error, sizeof error), words);
    }
    scratch_put("\x93NUMPY\x02\x00\xf0\xff\xff\xff", 12, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error),
                   "claims 4294967280 bytes, the file has 0 left");
    scratch_put("\x93NUMPY\x02\x00\xf0\xff", 10, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "ends inside");
    scratch_put("PK\x03\x04 this is a zip file", 20, "", 0);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "not a .npy file");
    char *long_header = calloc(1, 200000);
    memcpy(long_header, "\x93NUMPY\x02\x00\x00\x00\x02\x00", 12);
    scratch_put(long_header, 200000, "", 0);
    free(long_header);
    assert_refused(npy_open(scratch_path, &file, error, sizeof error),
                   "at most 65535 are accepted");
}

/* Not files: a folder, a FIFO (which must not block), nothing, no permission. */
static void test_not_files(void **state)
{
    char other[PATH_MAX];
    array_file file;
    (void)state;
    assert_refused(npy_open(scratch_folder, &file, error, sizeof error), "not a regular file");
    snprintf(other, sizeof other, "%s/fifo", scratch_folder);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_refused(npy_open(other, &file, error, sizeof error), "not a regular file");
    unlink(other);
    assert_refused(npy_open(other, &file, error, sizeof error), "No such file");
    put_npy(DICT("<f4", "False", "(6,)"), six, sizeof six);
    chmod(scratch_path, 0);
    chmod(scratch_folder, 0711);
    bool root = geteuid() == 0 && seteuid(65534) == 0; /* root would read it */
    assert_refused(npy_open(scratch_path, &file, error, sizeof error), "Permission denied");
    assert_true(!root || seteuid(0) == 0);
    chmod(scratch_path, 0600);
}

/* Data at an odd offset are legal; the elements handed out are aligned all the same. */
static void test_alignment(void **state)
{
    char dictionary[128];
    array_file file;
    (void)state;
    for (int pad = 0; pad < 8; pad++) {
        snprintf(dictionary, sizeof dictionary, "%*s%s", pad, "", DICT("<f4", "False", "(6,)"));
        put_npy(dictionary, six, sizeof six);
        open_six(&file);
        assert_int_equal((uintptr_t)file.data % 4, 0);
        array_file_close(&file);
    }
}

/* Output of NumPy 2 for np.arange(1, 7, dtype='<f4').reshape(2, 3), byte for byte. */
static void test_write(void **state)
{
    static const char numpy[] =
        "\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
        "                                                          \n";
    char bytes[256];
    array_file array;
    (void)state;
    assert_true(
        npy_write(scratch_path, ATTN_F32, 2, (const int64_t[]){2, 3}, six, error, sizeof error));
    FILE *file = fopen(scratch_path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), 128 + sizeof six);
    fclose(file);
    assert_int_equal(sizeof numpy - 1, 128);
    assert_memory_equal(bytes, numpy, 128);
    assert_memory_equal(bytes + 128, six, sizeof six);
    open_six(&array);
    array_file_close(&array);
}

static void test_write_forms(void **state)
{
    static const int32_t dtypes[] = {ATTN_F64,  ATTN_F32, ATTN_F16, ATTN_BF16,
                                     ATTN_BOOL, ATTN_I32, ATTN_I64};
    static const int64_t shape[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    char nowhere[PATH_MAX];
    array_file file;
    (void)state;
    for (int ndim = 0; ndim <= 8; ndim++) {
        for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
            assert_true(npy_write(scratch_path, dtypes[i], ndim, shape, six, error, sizeof error));
            assert_true(npy_open(scratch_path, &file, error, sizeof error));
            assert_int_equal(file.ndim, ndim);
            assert_int_equal(file.dtype, dtypes[i]);
            assert_memory_equal(file.data, six, attn_dtype_size(dtypes[i]));
            array_file_close(&file);
        }
    }
    assert_refused(npy_write(scratch_path, 99, 1, shape, six, error, sizeof error), "not an array");
    snprintf(nowhere, sizeof nowhere, "%s/no/such", scratch_folder);
    assert_refused(npy_write(nowhere, ATTN_F32, 1, shape, six, error, sizeof error),
                   "No such file");
    assert_refused(npy_write(scratch_folder, ATTN_F32, 1, shape, six, error, sizeof error),
                   "directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_orders_and_blanks),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_scalars_and_empty),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_not_files),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_forms),
    };
    return cmocka_run_group_tests_name("npy", tests, scratch_create, scratch_remove);
}
