/*
 * replay.c: a fuzzer's corpus as a test, without libFuzzer: replay FOLDER calls the fuzzer with
 * each file of the folder.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = 0;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) {
        return 0;
    }
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1); /* of its exact size, for ASan */
    const int read = data && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (read) {
        LLVMFuzzerTestOneInput(data, (size_t)size);
    }
    free(data);
    return read;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    struct dirent *entry;
    int count = 0;
    while (folder && (entry = readdir(folder)) != NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        count += entry->d_name[0] != '.' && replay(path);
    }
    if (folder) {
        closedir(folder);
    }
    printf("%d inputs\n", count);
    return count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
