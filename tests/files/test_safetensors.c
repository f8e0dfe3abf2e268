/*
 * test_safetensors.c: the .safetensors reader and writer: every legal form reads right, every
 * broken file gives one sentence at once (contract, case B122).
 */
#include "scratch.h"
#include "safetensors.h"

#include <cjson/cJSON.h>

static const float six[6] = {1, 2, 3, 4, 5, 6};

/* A file with this header, its true length before it, and these data. */
static void put(const char *json, const void *data, size_t bytes)
{
    static unsigned char head[1 << 20];
    uint64_t n = strlen(json);
    assert_true(n + 8 <= sizeof head);
    memcpy(head, &n, 8);
    memcpy(head + 8, json, n);
    scratch_put(head, 8 + n, data, bytes);
}

#define A(dtype, shape, offsets) \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define B(dtype, shape, offsets) \
    "\"b\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void refuse(const char *json, const char *words)
{
    array_file file;
    put(json, six, sizeof six);
    assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error), words);
    assert_null(file.map);
}

static void open_a(array_file *file)
{
    if (!safetensors_open(scratch_path, "a", file, error, sizeof error)) {
        fail_msg("%s", error);
    }
}

static void collect(void *user, const char *name)
{
    strcat(user, name);
    strcat(user, " ");
}

static void test_read(void **state)
{
    char names[64] = "";
    array_file file;
    (void)state;
    put("{\"__metadata__\":{\"format\":\"pt\"}," B("F32", "[2]", "[16,24]") "," A("F32", "[2, 2]",
                                                                                  "[0,16]") "}   ",
        six, sizeof six);
    open_a(&file);
    assert_int_equal(file.ndim, 2);
    assert_int_equal(file.shape[0], 2);
    assert_int_equal(file.stride[0], 2);
    assert_int_equal(file.stride[1], 1);
    assert_int_equal(file.bytes, 16);
    assert_int_equal(file.dtype, ATTN_F32);
    assert_memory_equal(file.data, six, 16);
    array_file_close(&file);
    assert_true(safetensors_open(scratch_path, "b", &file, error, sizeof error));
    assert_memory_equal(file.data, six + 4, 8);
    array_file_close(&file);
    assert_true(safetensors_names(scratch_path, collect, names, error, sizeof error));
    assert_string_equal(names, "a b ");
    assert_refused(safetensors_open(scratch_path, "c", &file, error, sizeof error),
                   "no tensor named 'c'");
}

static void test_types(void **state)
{
    static const struct {
        const char *name;
        int32_t dtype;
    } rows[] = {{"F64", ATTN_F64},   {"F32", ATTN_F32}, {"F16", ATTN_F16}, {"BF16", ATTN_BF16},
                {"BOOL", ATTN_BOOL}, {"I32", ATTN_I32}, {"I64", ATTN_I64}};
    char json[128];
    array_file file;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = attn_dtype_size(rows[i].dtype);
        snprintf(json, sizeof json, "{" A("%s", "[]", "[0,%zu]") "}", rows[i].name, n);
        put(json, six, n);
        open_a(&file);
        assert_int_equal(file.dtype, rows[i].dtype);
        assert_int_equal(file.ndim, 0);
        array_file_close(&file);
    }
    refuse("{" A("U16", "[12]", "[0,24]") "}", "dtype U16, which is not supported");
    refuse("{" A("F4", "[48]", "[0,24]") "}", "dtype F4, which is not supported");
    refuse("{" A("F4", "[49]", "[0,24]") "}", "do not fit");
    refuse("{" A("f32", "[6]", "[0,24]") "}", "unknown dtype");
    refuse("{" A("", "[6]", "[0,24]") "}", "unknown dtype");
    put("{" A("F32", "[4]", "[0,16]") "," B("U16", "[1,4]", "[16,24]") "}", six, sizeof six);
    open_a(&file); /* a foreign type beside it does not matter */
    array_file_close(&file);
}

static void test_empty(void **state)
{
    char names[64] = "";
    array_file file;
    (void)state;
    put("{" A("F32", "[0,4]", "[0,0]") "," B("F32", "[6]", "[0,24]") "}", six, sizeof six);
    open_a(&file);
    assert_int_equal(file.bytes, 0);
    assert_int_equal(file.shape[1], 4);
    array_file_close(&file);
    put("{}", "", 0);
    assert_true(safetensors_names(scratch_path, collect, names, error, sizeof error));
    assert_string_equal(names, "");
    refuse("{}", "the tensors fill 0 bytes, the file has 24");
}

static void test_offsets(void **state)
{
    (void)state;
    refuse("{" A("F32", "[6]", "[]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0,24,48]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[24,0]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[-24,0]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0,24.5]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0,\\\"24\\\"]") "}", "JSON");
    refuse("{" A("F32", "[6]", "[0,\"24\"]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0,1e300]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "[0,1e999]") "}", "not [begin, end]");
    refuse("{" A("F32", "[6]", "null") "}", "not an object");
    refuse("{" A("F32", "[6]", "[0,20]") "}", "do not fit");
    refuse("{" A("F32", "[5]", "[0,24]") "}", "do not fit");
    refuse("{" A("F32", "[4]", "[8,24]") "}", "begins at byte 8, expected 0");
    refuse("{" A("F32", "[4]", "[0,16]") "}", "fill 16 bytes, the file has 24");
    refuse("{" A("F32", "[7]", "[0,28]") "}", "fill 28 bytes, the file has 24");
    refuse("{" A("F32", "[2]", "[0,8]") "," B("F32", "[3]", "[12,24]") "}",
           "begins at byte 12, expected 8");
    refuse("{" A("F32", "[4]", "[0,16]") "," B("F32", "[4]", "[8,24]") "}",
           "begins at byte 8, expected 16");
}

static void test_shapes(void **state)
{
    (void)state;
    refuse("{" A("F32", "[4294967296,4294967296]", "[0,0]") "}", "do not fit");
    refuse("{" A("F32", "[4611686018427387904]", "[0,0]") "}", "not a whole number");
    refuse("{" A("F32", "[4503599627370496,4096]", "[0,0]") "}", "do not fit");
    refuse("{" A("F32", "[0,4503599627370496,4503599627370496]", "[0,0]") "}", "do not fit");
    refuse("{" A("F32", "[-6]", "[0,24]") "}", "not a whole number");
    refuse("{" A("F32", "[1.5,4]", "[0,24]") "}", "not a whole number");
    refuse("{" A("F32", "[true]", "[0,24]") "}", "not a whole number");
    refuse("{" A("F32", "6", "[0,24]") "}", "not an object");
    refuse("{" A("F32", "[1,1,1,1,1,1,1,1,6]", "[0,24]") "}", "more than 8 axes");
}

static void test_headers(void **state)
{
    (void)state;
    refuse("", "not a JSON object");
    refuse("null", "not a JSON object");
    refuse("[]", "not a JSON object");
    refuse("{", "not a JSON object");
    refuse("{\"a\"", "not a JSON object");
    refuse("{\"a\":", "not a JSON object");
    refuse("{\"a\":\"", "not a JSON object");
    refuse("{\"a\":1}", "not an object");
    refuse("{\"a\":{}}", "not an object");
    refuse("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
           "not an object");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24],\"more\":1}}",
           "not an object");
    refuse("{" A("F32", "[6]", "[0,24]") "," A("F32", "[6]", "[0,24]") "}",
           "two tensors are named 'a'");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}," A("F32", "[6]", "[0,24]") "}",
           "'__metadata__' is not an object");
    refuse("{\"__metadata__\":1," A("F32", "[6]", "[0,24]") "}", "'__metadata__' is not an object");
    refuse("{" A("F32", "[6]", "[0,24]") "}x", "goes on after");
    refuse("{" A("F32", "[6]", "[0,24]") "}{}", "goes on after");
    refuse("{\"\\u001b[2Jx\\ny\":1}", "tensor '?[2Jx?y'");
}

static void test_nesting(void **state)
{
    enum { DEEP = 1000000 };
    char *json = malloc(DEEP + 1);
    (void)state;
    assert_non_null(json);
    memset(json, '[', DEEP);
    json[DEEP] = '\0';
    refuse(json, "nests deeper");
    for (int i = 0; i + 5 <= DEEP; i += 5) {
        memcpy(json + i, "{\"a\":", 5);
    }
    refuse(json, "nests deeper");
    free(json);
    refuse("{" A("F32", "[[6]]", "[0,24]") "}", "nests deeper");
    array_file file;
    put("{\"__metadata__\":{\"[[[[\":\"\\\"{{{{\"}," A("F32", "[6]", "[0,24]") "}", six,
        sizeof six);
    open_a(&file); /* brackets in strings do not count */
    array_file_close(&file);
}

/* Header lengths that lie, and a legal file cut at every byte. */
static void test_truncation(void **state)
{
    static const uint64_t lies[] = {UINT64_MAX,
                                    UINT64_MAX - 7,
                                    (uint64_t)INT64_MAX,
                                    (uint64_t)INT64_MIN,
                                    0xfffffff0u,
                                    100000001,
                                    25};
    static const char json[] = "{" A("F32", "[6]", "[0,24]") "}";
    unsigned char whole[8 + sizeof json - 1 + sizeof six];
    uint64_t n = sizeof json - 1;
    array_file file;
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        scratch_put(&lies[i], 8, six, sizeof six);
        assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error),
                       "the file has 24 left");
    }
    memcpy(whole, &n, 8);
    memcpy(whole + 8, json, n);
    memcpy(whole + 8 + n, six, sizeof six);
    for (size_t cut = 0; cut < sizeof whole; cut++) {
        scratch_put(whole, cut, "", 0);
        assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error), ": ");
    }
    assert_refused(safetensors_open(scratch_folder, "a", &file, error, sizeof error),
                   "not a regular file");
}

/* The header ends where the mapping ends: nothing may be read beyond. */
static void test_page_end(void **state)
{
    static char json[4096];
    (void)state;
    for (size_t n = 4096 - 8 - 40; n <= 4096 - 8; n++) {
        memset(json, ' ', n);
        json[0] = '{';
        json[n] = '\0';
        memcpy(json + n - 6, "\"ab\":1", 6);
        put(json, "", 0);
        array_file file;
        assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error),
                       "not a JSON object");
        memcpy(json + n - 6, "\"ab\":\"", 6);
        put(json, "", 0);
        assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error),
                       "not a JSON object");
        memcpy(json + n - 6, "{\"1\":1", 6);
        put(json, "", 0);
        assert_refused(safetensors_open(scratch_path, "a", &file, error, sizeof error),
                       "not a JSON object");
    }
}

static size_t blocks_live, blocks_most;

static void *counted(size_t bytes)
{
    blocks_most = ++blocks_live > blocks_most ? blocks_live : blocks_most;
    return malloc(bytes);
}

static void uncounted(void *p)
{
    blocks_live -= p != NULL;
    free(p);
}

/* Headers of many small values: the parser holds a few of them at a time (reliability 8). */
static void test_small_values(void **state)
{
    enum { MANY = 10000 };
    static const struct {
        const char *begin, *repeated, *end, *words;
    } rows[] = {
        {"{\"q\":[0", ",0", "]}", "tensor 'q' goes on for more than 4096 bytes"},
        {"{\"q\":{\"\":0", ",\"\":0", "}}", "tensor 'q' goes on for more than 4096 bytes"},
        {"{\"q\":0", ",\"\":0", "}", "tensor 'q' is not an object"},
        {"{\"__metadata__\":{\"\":\"\"", ",\"\":\"\"", "}}", "the file has 24"},
        {"{\"__metadata__\":{\"\":\"\"", ",\"\":1", "}}", "'__metadata__' goes on"},
    };
    cJSON_Hooks hooks = {counted, uncounted};
    char *json = malloc(8 * MANY + 64);
    (void)state;
    assert_non_null(json);
    cJSON_InitHooks(&hooks);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *to = stpcpy(json, rows[i].begin);
        for (int n = 0; n < MANY / 2; n++) {
            to = stpcpy(to, rows[i].repeated);
        }
        strcpy(to, rows[i].end);
        blocks_live = blocks_most = 0;
        array_file file; /* refused, in a time that valgrind stretches */
        put(json, six, sizeof six);
        assert_false(safetensors_open(scratch_path, "a", &file, error, sizeof error));
        assert_non_null(strstr(error, rows[i].words));
        assert_null(file.map);
        assert_in_range(blocks_most, 1, 100);
        assert_int_equal(blocks_live, 0);
    }
    cJSON_InitHooks(NULL);
    free(json);
}

static void test_write(void **state)
{
    static const uint8_t flags[3] = {1, 0, 1};
    const array_file tensors[3] = {
        {.ndim = 1, .shape = {3}, .dtype = ATTN_BOOL, .data = flags},
        /* at byte 3: not aligned in the file */
        {.ndim = 2, .shape = {2, 3}, .dtype = ATTN_F32, .data = six},
        {.ndim = 2, .shape = {0, 3}, .dtype = ATTN_BF16},
    };
    static const char *const names[3] = {"flags", "a", "model.\"empty\""};
    char listed[64] = "";
    array_file file;
    (void)state;
    assert_true(safetensors_write(scratch_path, 3, names, tensors, error, sizeof error));
    assert_true(safetensors_open(scratch_path, "flags", &file, error, sizeof error));
    assert_int_equal((uintptr_t)file.data % 8, 0); /* the header is padded */
    array_file_close(&file);
    open_a(&file);
    assert_int_equal((uintptr_t)file.data % 4, 0);
    assert_int_equal(file.shape[1], 3);
    assert_memory_equal(file.data, six, sizeof six);
    array_file_close(&file);
    assert_true(safetensors_open(scratch_path, names[2], &file, error, sizeof error));
    assert_int_equal(file.dtype, ATTN_BF16);
    array_file_close(&file);
    assert_true(safetensors_names(scratch_path, collect, listed, error, sizeof error));
    assert_string_equal(listed, "flags a model.\"empty\" ");
    assert_true(safetensors_write(scratch_path, 0, NULL, NULL, error, sizeof error));
    array_file bad = tensors[0];
    bad.shape[0] = -1;
    assert_refused(safetensors_write(scratch_path, 1, names, &bad, error, sizeof error),
                   "not tensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),     cmocka_unit_test(test_types),
        cmocka_unit_test(test_empty),    cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_shapes),   cmocka_unit_test(test_headers),
        cmocka_unit_test(test_nesting),  cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_page_end), cmocka_unit_test(test_small_values),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests_name("safetensors", tests, scratch_create, scratch_remove);
}
