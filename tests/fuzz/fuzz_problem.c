/*
 * fuzz_problem.c: any text as a problem line. An accepted line, printed and parsed again, is the
 * same problem.
 */
#include "problem.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ROOM = 16384 };
    static problem_spec first, second;
    static char printed[ROOM], again[ROOM];
    char error[256] = "";
    char *line = malloc(size + 1);
    if (line == NULL) {
        return 0;
    }
    memcpy(line, data, size);
    line[size] = '\0';
    if (problem_parse(line, &first, error, sizeof error)) {
        if (problem_print(&first, printed, ROOM) >= ROOM ||
            !problem_parse(printed, &second, error, sizeof error) ||
            problem_print(&second, again, ROOM) >= ROOM || strcmp(printed, again) != 0) {
            __builtin_trap();
        }
    } else if (error[0] == '\0') {
        __builtin_trap();
    }
    free(line);
    return 0;
}
