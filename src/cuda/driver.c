/*
 * driver.c: opening the CUDA driver.
 */
#include "cuda/driver.h"
#include "core/error.h"
#include "system/system.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST = 12010 }; /* parameters of a kernel beyond 4 KB: those of attn_merge */

static attn_driver table;
static char failure[160]; /* the reason for a missing table; "" if there is one */
static attn_once once = ATTN_ONCE;

static bool find_entries(void *library)
{
    static const struct {
        size_t at;
        const char *symbol;
    } entries[] = {
#define ENTRY(name, symbol, args) {offsetof(attn_driver, name), symbol},
        ATTN_CU_ENTRIES(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *address = attn_library_symbol(library, entries[i].symbol);
        if (address == NULL) {
            (void)snprintf(failure, sizeof failure, "the CUDA driver lacks %s", entries[i].symbol);
            return false;
        }
        memcpy((char *)&table + entries[i].at, &address, sizeof address);
    }
    return true;
}

/* The library stays open for the life of the process: other users of the GPU keep it open
 * anyway. */
static void open_driver(void)
{
    const char *error;
    void *library = attn_library_open("libcuda.so.1", &error);
    int version = 0, count = 0;
    if (library == NULL) {
        (void)snprintf(failure, sizeof failure, "no CUDA driver: %.120s", error);
        return;
    }
    if (!find_entries(library)) {
        return;
    }
    cu_result result = table.init(0);
    if (result != 0 || table.device_count(&count) != 0 || count == 0) {
        const char *name = "no GPU";
        if (result != 0) {
            (void)table.error_name(result, &name);
        }
        (void)snprintf(failure, sizeof failure, "the CUDA driver finds no GPU it can use: %s",
                       name);
    } else if (table.driver_version(&version) != 0 || version < OLDEST) {
        (void)snprintf(failure, sizeof failure, "the CUDA driver is of version %d, %d is needed",
                       version, OLDEST);
    }
}

attn_status attn_driver_get(const attn_driver **driver)
{
    attn_once_call(&once, open_driver);
    *driver = &table;
    return failure[0] == '\0' ? ATTN_OK : attn_fail(ATTN_ERR_UNSUPPORTED, "%s", failure);
}

attn_status attn_driver_check(const attn_driver *driver, cu_result result, const char *what)
{
    if (result == 0) {
        return ATTN_OK;
    }
    const char *name = "unknown error", *sentence = "";
    (void)driver->error_name(result, &name);
    (void)driver->error_string(result, &sentence);
    return attn_fail(ATTN_ERR_DEVICE, "%s: %s (%s)", what, sentence, name);
}
