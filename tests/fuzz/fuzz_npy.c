/*
 * fuzz_npy.c: any bytes as a .npy file.
 */
#include "npy.h"
#include "accepted.h"
#include "memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[256] = "";
    array_file f;
    if (npy_open(memory_file(data, size), &f, error, sizeof error)) {
        check_accepted(&f);
        array_file_close(&f);
    } else {
        check_refused(&f, error);
    }
    return 0;
}
