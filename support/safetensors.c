/*
 * safetensors.c: the .safetensors format, one tensor of the header at a time (json.h).
 */
#include "safetensors.h"
#include "json.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors.c reads and writes elements as they lie in memory: little-endian machines only"
#endif

enum { LENGTH = 8, MAX_HEADER = 100000000, MAX_DEPTH = 3, MAX_ENTRY = 4096 };

static const struct {
    const char *name;
    int bits;
    int32_t dtype; /* 0: legal in a file, unknown to this library */
} types[] = {
    {"F32", 32, ATTN_F32}, {"F16", 16, ATTN_F16},  {"BF16", 16, ATTN_BF16},
    {"F64", 64, ATTN_F64}, {"BOOL", 8, ATTN_BOOL}, {"I32", 32, ATTN_I32},
    {"I64", 64, ATTN_I64}, {"U8", 8, ATTN_U8},     {"I8", 8, ATTN_I8},
    {"I16", 16, 0},        {"U16", 16, 0},         {"U32", 32, 0},
    {"U64", 64, 0},        {"F8_E4M3", 8, 0},      {"F8_E5M2", 8, 0},
    {"F8_E8M0", 8, 0},     {"F6_E2M3", 6, 0},      {"F6_E3M2", 6, 0},
    {"F4", 4, 0},          {"C64", 64, 0},
};
enum { TYPES = sizeof types / sizeof *types };

/* One tensor of the header. */
typedef struct entry {
    char *name; /* of cJSON's allocator */
    int type;   /* index into types */
    int ndim;
    int64_t shape[ARRAY_FILE_MAX_DIMS];
    uint64_t begin, end; /* bytes, from the end of the header */
} entry;

/* A file with its checked header. */
typedef struct tensor_container {
    array_file file; /* only the mapping */
    entry *entries;  /* by begin */
    int count;
    size_t data; /* offset of the first byte after the header */
} tensor_container;

static int find_type(const cJSON *item)
{
    for (int i = 0; cJSON_IsString(item) && i < TYPES; i++) {
        if (strcmp(item->valuestring, types[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Returns NULL if the entry is right, else its fault. */
static const char *read_entry(const cJSON *item, entry *e)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    const cJSON *extent;
    int64_t begin, end;
    uint64_t bytes;
    e->type = find_type(dtype);
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3 || !cJSON_IsArray(shape) ||
        !cJSON_IsArray(offsets)) {
        return "is not an object of dtype, shape and data_offsets";
    }
    if (e->type < 0) {
        return "has an unknown dtype";
    }
    if (cJSON_GetArraySize(offsets) != 2 || !json_get_whole(offsets->child, &begin) ||
        !json_get_whole(offsets->child->next, &end) || begin > end) {
        return "has data_offsets that are not [begin, end]";
    }
    e->ndim = 0;
    cJSON_ArrayForEach(extent, shape)
    {
        if (e->ndim == ARRAY_FILE_MAX_DIMS) {
            return "has more than 8 axes";
        }
        if (!json_get_whole(extent, &e->shape[e->ndim++])) {
            return "has an extent that is not a whole number";
        }
    }
    if (!array_file_size(e->ndim, e->shape, types[e->type].bits, &bytes) ||
        bytes != (uint64_t)(end - begin)) {
        return "has data_offsets that do not fit its shape and dtype";
    }
    e->begin = (uint64_t)begin;
    e->end = (uint64_t)end;
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that names are unique and byte ranges tile [0, bytes) exactly. Leaves the entries sorted
 * by place. */
static bool check_entries(tensor_container *container, uint64_t bytes, const char *path,
                          char *error, size_t size)
{
    size_t n = (size_t)container->count;
    if (n > 0) {
        qsort(container->entries, n, sizeof *container->entries, by_name);
    }
    for (size_t i = 1; i < n; i++) {
        if (strcmp(container->entries[i - 1].name, container->entries[i].name) == 0) {
            return array_file_fail(error, size, path, "two tensors are named '%.64s'",
                                   container->entries[i].name);
        }
    }
    if (n > 0) {
        qsort(container->entries, n, sizeof *container->entries, by_place);
    }
    uint64_t reached = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &container->entries[i];
        if (e->begin != reached) {
            return array_file_fail(error, size, path,
                                   "tensor '%.64s' begins at byte %" PRIu64 ", expected %" PRIu64,
                                   e->name, e->begin, reached);
        }
        reached = e->end;
    }
    if (reached != bytes) {
        return array_file_fail(error, size, path,
                               "the tensors fill %" PRIu64 " bytes, the file has %" PRIu64, reached,
                               bytes);
    }
    return true;
}

/* Makes room for one more entry: up to the next power of two. */
static bool grow(tensor_container *container)
{
    if ((container->count & (container->count - 1)) != 0 || container->count == 1) {
        return true;
    }
    const size_t n = container->count == 0 ? 2 : 2 * (size_t)container->count;
    entry *entries = realloc(container->entries, n * sizeof *entries);
    container->entries = entries ? entries : container->entries;
    return entries != NULL;
}

/* Reads a member of the header; *metadata says whether __metadata__ has been there. */
static bool read_member(tensor_container *container, json_text name, json_text value,
                        bool *metadata, const char *path, char *error, size_t size)
{
    cJSON *key = json_parse(name);
    char *text = cJSON_GetStringValue(key);
    const char *problem = NULL;
    if (text == NULL || !grow(container)) {
        array_file_fail(error, size, path,
                        text ? "no memory for the header" : "the header is not a JSON object");
        cJSON_Delete(key);
        return false;
    }
    entry *e = &container->entries[container->count];
    if (strcmp(text, "__metadata__") == 0 && !*metadata && json_is_strings(value)) {
        *metadata = true;
        cJSON_Delete(key);
        return true;
    }
    if (value.length > MAX_ENTRY) {
        problem = "goes on for more than 4096 bytes";
    } else {
        cJSON *item = json_parse(value);
        problem = item ? read_entry(item, e) : "is not JSON";
        cJSON_Delete(item);
    }
    if (problem != NULL) {
        array_file_fail(error, size, path, "tensor '%.64s' %s", text, problem);
        cJSON_Delete(key);
        return false;
    }
    key->valuestring = NULL; /* belongs to the entry from here on */
    cJSON_Delete(key);
    e->name = text;
    container->count++;
    return true;
}

/* True if the header is a shallow object with nothing but blanks behind it. */
static bool check_header(json_text header, const char *path, char *error, size_t size)
{
    json_members members = json_members_of(header);
    json_text name, value;
    if (!json_is_shallow(header, MAX_DEPTH)) {
        return array_file_fail(error, size, path, "the header nests deeper than %d levels",
                               MAX_DEPTH);
    }
    while (json_members_next(&members, &name, &value)) {
    }
    if (members.wrong) {
        return array_file_fail(error, size, path, "the header is not a JSON object");
    }
    for (; members.at < members.end; members.at++) {
        if (*members.at != ' ') {
            return array_file_fail(error, size, path, "the header goes on after its JSON object");
        }
    }
    return true;
}

static bool read_header(tensor_container *container, const char *path, char *error, size_t size)
{
    uint64_t length = 0;
    bool metadata = false, ok = true;
    if (container->file.map_bytes < LENGTH) {
        return array_file_fail(error, size, path, "not a .safetensors file: shorter than 8 bytes");
    }
    memcpy(&length, container->file.map, LENGTH);
    if (length > MAX_HEADER || length > container->file.map_bytes - LENGTH) {
        return array_file_fail(error, size, path,
                               "the header claims %" PRIu64 " bytes, the file has %zu left", length,
                               container->file.map_bytes - LENGTH);
    }
    const json_text header = {(const char *)container->file.map + LENGTH, (size_t)length};
    if (!check_header(header, path, error, size)) {
        return false;
    }
    container->data = LENGTH + (size_t)length;
    json_members rest = json_members_of(header);
    json_text name, value;
    while (ok && json_members_next(&rest, &name, &value)) {
        ok = read_member(container, name, value, &metadata, path, error, size);
    }
    return ok &&
           check_entries(container, container->file.map_bytes - container->data, path, error, size);
}

static void container_close(tensor_container *container)
{
    array_file_close(&container->file);
    for (int i = 0; i < container->count; i++) {
        cJSON_free(container->entries[i].name);
    }
    free(container->entries);
}

static bool container_open(const char *path, tensor_container *container, char *error, size_t size)
{
    memset(container, 0, sizeof *container);
    if (!array_file_map(path, &container->file, error, size)) {
        return false;
    }
    if (!read_header(container, path, error, size)) {
        container_close(container);
        return false;
    }
    return true;
}

static bool give_tensor(tensor_container *container, const entry *e, array_file *file,
                        const char *path, char *error, size_t size)
{
    if (types[e->type].dtype == 0) {
        return array_file_fail(error, size, path,
                               "tensor '%.64s' has dtype %s, which is not supported", e->name,
                               types[e->type].name);
    }
    *file = container->file;
    memset(&container->file, 0, sizeof container->file); /* the caller owns the mapping */
    file->dtype = types[e->type].dtype;
    file->ndim = e->ndim;
    memcpy(file->shape, e->shape, sizeof e->shape);
    file->bytes = (size_t)(e->end - e->begin);
    if (!array_file_place(file, container->data + (size_t)e->begin, false, path, error, size)) {
        array_file_close(file);
        return false;
    }
    return true;
}

bool safetensors_open(const char *path, const char *name, array_file *file, char *error,
                      size_t size)
{
    tensor_container container;
    bool ok = false, found = false;
    memset(file, 0, sizeof *file);
    if (!container_open(path, &container, error, size)) {
        return false;
    }
    for (int i = 0; i < container.count && !found; i++) {
        if (strcmp(container.entries[i].name, name) == 0) {
            found = true;
            ok = give_tensor(&container, &container.entries[i], file, path, error, size);
        }
    }
    if (!found) {
        array_file_fail(error, size, path, "has no tensor named '%.64s'", name);
    }
    container_close(&container);
    return ok;
}

bool safetensors_names(const char *path, void (*visit)(void *user, const char *name), void *user,
                       char *error, size_t size)
{
    tensor_container container;
    if (!container_open(path, &container, error, size)) {
        return false;
    }
    for (int i = 0; i < container.count; i++) {
        visit(user, container.entries[i].name);
    }
    container_close(&container);
    return true;
}

/* cJSON prints large numbers with an exponent, which readers of this format refuse. So integers go
 * in as text. */
static bool add_integer(cJSON *array, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return cJSON_AddItemToArray(array, cJSON_CreateRaw(text));
}

static bool add_entry(cJSON *json, const char *name, const array_file *t, uint64_t *reached,
                      uint64_t *bytes)
{
    int type = 0;
    while (type < TYPES && types[type].dtype != t->dtype) {
        type++;
    }
    if (t->dtype == 0 || type == TYPES || t->ndim < 0 || t->ndim > ARRAY_FILE_MAX_DIMS ||
        !array_file_size(t->ndim, t->shape, types[type].bits, bytes)) {
        return false;
    }
    cJSON *item = cJSON_AddObjectToObject(json, name);
    bool ok = cJSON_AddStringToObject(item, "dtype", types[type].name) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int a = 0; a < t->ndim; a++) {
        ok = add_integer(shape, (uint64_t)t->shape[a]) && ok;
    }
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    ok = add_integer(offsets, *reached) && ok;
    *reached += *bytes;
    return add_integer(offsets, *reached) && ok;
}

/* The JSON text, padded with blanks so that the data begin at a multiple of 8 bytes. */
static char *print_padded(const cJSON *json, uint64_t *length)
{
    char *text = cJSON_PrintUnformatted(json);
    size_t n = text == NULL ? 0 : strlen(text), padded = (n + 7) / 8 * 8;
    char *grown = text == NULL ? NULL : realloc(text, padded + 1);
    if (grown == NULL) {
        free(text);
        return NULL;
    }
    memset(grown + n, ' ', padded - n);
    *length = padded;
    return grown;
}

bool safetensors_write(const char *path, int count, const char *const *names,
                       const array_file *tensors, char *error, size_t size)
{
    cJSON *json = cJSON_CreateObject();
    array_file_part *parts = calloc((size_t)count + 2, sizeof *parts);
    uint64_t reached = 0, length = 0, bytes = 0;
    char *text = NULL;
    bool ok = json != NULL && parts != NULL;
    for (int i = 0; ok && i < count; i++) {
        ok = add_entry(json, names[i], &tensors[i], &reached, &bytes);
        parts[i + 2] = (array_file_part){tensors[i].data, (size_t)bytes};
    }
    text = ok ? print_padded(json, &length) : NULL;
    if (text == NULL) {
        array_file_fail(error, size, path,
                        "not tensors that a .safetensors file can hold, or no memory");
        ok = false;
    } else {
        parts[0] = (array_file_part){&length, LENGTH};
        parts[1] = (array_file_part){text, (size_t)length};
        ok = array_file_write(path, parts, count + 2, error, size);
    }
    free(text);
    free(parts);
    cJSON_Delete(json);
    return ok;
}
