/*
 * npy.c: the .npy format. The header is a Python dictionary literal with three keys. The parser
 * accepts exactly that, in any order and with any blanks, and nothing else of Python.
 */
#include "npy.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy.c reads and writes elements as they lie in memory: little-endian machines only"
#endif

/* A header of eight axes needs some 250 bytes; NumPy itself refuses more than 10000. */
enum { MAX_HEADER = 65535, MAGIC = 6 };

/* The part of descr after the byte order. The first code of a type is the one to write. */
static const struct {
    const char *code;
    int32_t dtype;
} npy_types[] = {
    {"f4", ATTN_F32},  {"f2", ATTN_F16},        {"f8", ATTN_F64}, {"V2", ATTN_BF16},
    {"b1", ATTN_BOOL}, {"i4", ATTN_I32},        {"i8", ATTN_I64}, {"u1", ATTN_U8},
    {"i1", ATTN_I8},   {"bfloat16", ATTN_BF16},
};
enum { NPY_TYPES = sizeof npy_types / sizeof *npy_types };

typedef struct cursor {
    const char *at, *end;
} cursor;

typedef struct header {
    char descr[16];
    bool fortran, has_descr, has_fortran, has_shape;
    int ndim;
    int64_t shape[ARRAY_FILE_MAX_DIMS];
    const char *problem; /* reason for the end of parsing */
} header;

static void skip_blanks(cursor *text)
{
    while (text->at < text->end &&
           (*text->at == ' ' || *text->at == '\n' || *text->at == '\t' || *text->at == '\r')) {
        text->at++;
    }
}

/* Takes the word if it comes next, with the blanks before it. */
static bool take(cursor *text, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(text);
    if ((size_t)(text->end - text->at) < n || memcmp(text->at, word, n) != 0) {
        return false;
    }
    text->at += n;
    return true;
}

static bool take_string(cursor *from, char *text, size_t size)
{
    char quote[2] = "'";
    if (!take(from, "'")) {
        quote[0] = '"';
        if (!take(from, "\"")) {
            return false;
        }
    }
    const char *close = memchr(from->at, quote[0], (size_t)(from->end - from->at));
    if (close == NULL || (size_t)(close - from->at) >= size ||
        memchr(from->at, '\\', (size_t)(close - from->at)) != NULL) {
        return false;
    }
    size_t n = (size_t)(close - from->at);
    memcpy(text, from->at, n);
    text[n] = '\0';
    from->at = close + 1;
    return true;
}

static bool take_extent(cursor *text, int64_t *extent)
{
    skip_blanks(text);
    const char *first = text->at;
    *extent = 0;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9') {
        if (__builtin_mul_overflow(*extent, 10, extent) ||
            __builtin_add_overflow(*extent, *text->at - '0', extent)) {
            return false;
        }
        text->at++;
    }
    return text->at > first;
}

/* "()", "(3,)", "(3, 4)", "(3, 4,)" */
static bool take_shape(cursor *text, header *h)
{
    bool comma = true;
    if (!take(text, "(")) {
        return false;
    }
    while (!take(text, ")")) {
        if (!comma) {
            return false;
        }
        if (h->ndim == ARRAY_FILE_MAX_DIMS) {
            h->problem = "more than 8 axes";
            return false;
        }
        if (!take_extent(text, &h->shape[h->ndim++])) {
            return false;
        }
        comma = take(text, ",");
    }
    return h->ndim != 1 || comma; /* "(3)" is a number, not a tuple */
}

static bool take_bool(cursor *text, bool *value)
{
    *value = take(text, "True");
    return *value || take(text, "False");
}

/* One "key: value"; each key once. */
static bool take_item(cursor *text, header *h)
{
    char key[16];
    if (!take_string(text, key, sizeof key) || !take(text, ":")) {
        return false;
    }
    if (strcmp(key, "descr") == 0 && !h->has_descr) {
        h->has_descr = true;
        if (take(text, "[")) {
            h->problem = "structured types are not supported";
            return false;
        }
        return take_string(text, h->descr, sizeof h->descr);
    }
    if (strcmp(key, "fortran_order") == 0 && !h->has_fortran) {
        h->has_fortran = true;
        return take_bool(text, &h->fortran);
    }
    if (strcmp(key, "shape") == 0 && !h->has_shape) {
        h->has_shape = true;
        return take_shape(text, h);
    }
    return false;
}

static bool parse_header(const char *text, size_t length, header *h)
{
    cursor from = {text, text + length};
    bool comma = true;
    memset(h, 0, sizeof *h);
    h->problem = "the header is not a dictionary of descr, fortran_order and shape";
    if (!take(&from, "{")) {
        return false;
    }
    while (!take(&from, "}")) {
        if (!comma || !take_item(&from, h)) {
            return false;
        }
        comma = take(&from, ",");
    }
    skip_blanks(&from);
    return from.at == from.end && h->has_descr && h->has_fortran && h->has_shape;
}

/* Sets *dtype and returns NULL, or returns the fault of the type. */
static const char *parse_descr(const char *descr, int32_t *dtype)
{
    bool ordered = *descr != '\0' && strchr("<>=|", *descr) != NULL;
    for (int i = 0; i < NPY_TYPES; i++) {
        if (strcmp(descr + ordered, npy_types[i].code) == 0) {
            *dtype = npy_types[i].dtype;
            return *descr == '>' && attn_dtype_size(*dtype) > 1
                       ? "big-endian elements are not supported"
                       : NULL;
        }
    }
    return "is none of f2 f4 f8 i1 i4 i8 u1 b1 V2 (bfloat16)";
}

/* Finds start and length of the dictionary in the fixed part of the file. */
static bool header_place(const array_file *file, const char *path, size_t *start, size_t *length,
                         char *error, size_t size)
{
    const unsigned char *m = file->map;
    if (file->map_bytes < 10 || memcmp(m, "\x93NUMPY", MAGIC) != 0) {
        return array_file_fail(error, size, path, "not a .npy file");
    }
    if (m[6] < 1 || m[6] > 3 || m[7] != 0) {
        return array_file_fail(error, size, path,
                               "version %d.%d of the .npy format is not supported", m[6], m[7]);
    }
    *start = m[6] == 1 ? 10 : 12;
    *length = (size_t)m[8] | (size_t)m[9] << 8;
    if (m[6] > 1) {
        if (file->map_bytes < 12) {
            return array_file_fail(error, size, path, "the file ends inside its header");
        }
        *length |= (size_t)m[10] << 16 | (size_t)m[11] << 24;
    }
    if (*length > file->map_bytes - *start) {
        return array_file_fail(error, size, path,
                               "the header claims %zu bytes, the file has %zu left", *length,
                               file->map_bytes - *start);
    }
    if (*length > MAX_HEADER) {
        return array_file_fail(error, size, path,
                               "the header has %zu bytes, at most %d are accepted", *length,
                               MAX_HEADER);
    }
    return true;
}

static bool read_array(array_file *file, const char *path, char *error, size_t size)
{
    header h;
    size_t start = 0, length = 0;
    uint64_t bytes;
    if (!header_place(file, path, &start, &length, error, size)) {
        return false;
    }
    if (!parse_header((const char *)file->map + start, length, &h)) {
        return array_file_fail(error, size, path, "%s", h.problem);
    }
    const char *problem = parse_descr(h.descr, &file->dtype);
    if (problem != NULL) {
        return array_file_fail(error, size, path, "descr '%s': %s", h.descr, problem);
    }
    file->ndim = h.ndim;
    memcpy(file->shape, h.shape, sizeof h.shape);
    if (!array_file_size(h.ndim, h.shape, 8 * (int64_t)attn_dtype_size(file->dtype), &bytes)) {
        return array_file_fail(error, size, path, "the shape has more bytes than fit in 64 bits");
    }
    size_t have = file->map_bytes - start - length;
    if (bytes != have) {
        return array_file_fail(error, size, path,
                               "the shape needs %" PRIu64 " bytes of data, the file has %zu", bytes,
                               have);
    }
    file->bytes = have;
    return array_file_place(file, start + length, h.fortran, path, error, size);
}

bool npy_open(const char *path, array_file *file, char *error, size_t size)
{
    if (!array_file_map(path, file, error, size)) {
        return false;
    }
    if (!read_array(file, path, error, size)) {
        array_file_close(file);
        return false;
    }
    return true;
}

/* Writes the dictionary, padded so that the data begin at a multiple of 64 bytes. Returns the
 * length of the whole header. */
static int print_header(char *text, size_t size, const char *descr, int ndim, const int64_t *shape)
{
    int n = snprintf(text, size, "%c%s%c%c%c%c{'descr': '%s', 'fortran_order': False, 'shape': (",
                     0x93, "NUMPY", 1, 0, 0, 0, descr);
    for (int a = 0; a < ndim; a++) {
        n += snprintf(text + n, size - (size_t)n, "%s%" PRId64, a == 0 ? "" : ", ", shape[a]);
    }
    n += snprintf(text + n, size - (size_t)n, "%s), }", ndim == 1 ? "," : "");
    while (n % 64 != 63) {
        text[n++] = ' ';
    }
    text[n++] = '\n';
    text[8] = (char)((n - 10) & 0xff);
    text[9] = (char)((n - 10) >> 8);
    return n;
}

bool npy_write(const char *path, int32_t dtype, int ndim, const int64_t *shape, const void *data,
               char *error, size_t size)
{
    char text[512], descr[16];
    uint64_t bytes;
    int type = 0;
    while (type < NPY_TYPES && npy_types[type].dtype != dtype) {
        type++;
    }
    if (type == NPY_TYPES || ndim < 0 || ndim > ARRAY_FILE_MAX_DIMS ||
        !array_file_size(ndim, shape, 8 * (int64_t)attn_dtype_size(dtype), &bytes)) {
        return array_file_fail(error, size, path, "not an array that a .npy file can hold");
    }
    snprintf(descr, sizeof descr, "%c%s", attn_dtype_size(dtype) == 1 ? '|' : '<',
             npy_types[type].code);
    int n = print_header(text, sizeof text, descr, ndim, shape);
    const array_file_part parts[2] = {{text, (size_t)n}, {data, (size_t)bytes}};
    return array_file_write(path, parts, 2, error, size);
}
