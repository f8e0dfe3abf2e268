/*
 * test_write.c: where array_file_write writes: through links and FIFOs, not in their place; and
 * what a signal in the middle of it leaves behind. fsync, the last step before the rename, is
 * wrapped (CMakeLists.txt), so that the signal comes exactly there.
 */
#include "scratch.h"

#include "array_file.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static const char text[] = "one two";
static const array_file_part parts[2] = {{text, 3}, {text + 3, 4}};
static int signal_at_sync; /* 0: none */

int __real_fsync(int file);
int __wrap_fsync(int file);

int __wrap_fsync(int file)
{
    if (signal_at_sync != 0) {
        raise(signal_at_sync);
    }
    return __real_fsync(file);
}

static void in_scratch(char path[PATH_MAX], const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s", scratch_folder, name);
}

static void assert_holds_text(const char *path)
{
    char bytes[16];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), 7);
    assert_memory_equal(bytes, text, 7);
    fclose(file);
}

/* A link to a link; its target in another folder, first missing, then there. */
static void test_links(void **state)
{
    char folder[PATH_MAX], target[PATH_MAX], inner[PATH_MAX], outer[PATH_MAX], found[PATH_MAX];
    struct stat there;
    (void)state;
    in_scratch(folder, "folder"), in_scratch(target, "folder/target");
    in_scratch(inner, "folder/inner"), in_scratch(outer, "outer");
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(symlink("target", inner), 0);
    assert_int_equal(symlink("folder/inner", outer), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(array_file_can_write(outer));
        assert_true(array_file_target(outer, found));
        assert_string_equal(found, target);
        assert_true(array_file_write(outer, parts, 2, error, sizeof error));
        assert_int_equal(lstat(outer, &there), 0);
        assert_true(S_ISLNK(there.st_mode));
        assert_int_equal(lstat(inner, &there), 0);
        assert_true(S_ISLNK(there.st_mode));
        assert_holds_text(target);
    }
    unlink(target), unlink(inner), unlink(outer), rmdir(folder);
}

static void test_circle(void **state)
{
    char path[PATH_MAX];
    (void)state;
    in_scratch(path, "circle");
    assert_int_equal(symlink("circle", path), 0);
    assert_false(array_file_can_write(path));
    assert_refused(array_file_write(path, parts, 2, error, sizeof error), "link to itself");
    unlink(path);
}

static void *read_fifo(void *path)
{
    assert_holds_text(path);
    return NULL;
}

static void test_fifo(void **state)
{
    char path[PATH_MAX], link[PATH_MAX];
    const char *const written[] = {path, link};
    struct stat there;
    (void)state;
    in_scratch(path, "fifo"), in_scratch(link, "link");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(symlink("fifo", link), 0);
    for (int i = 0; i < 2; i++) {
        pthread_t reader;
        assert_int_equal(pthread_create(&reader, NULL, read_fifo, path), 0);
        assert_true(array_file_can_write(written[i]));
        assert_true(array_file_write(written[i], parts, 2, error, sizeof error));
        pthread_join(reader, NULL);
        assert_int_equal(lstat(path, &there), 0);
        assert_true(S_ISFIFO(there.st_mode));
    }
    unlink(path), unlink(link);
}

/* A file that is there is replaced; where none can be, this is known beforehand. */
static void test_places(void **state)
{
    char path[PATH_MAX];
    (void)state;
    in_scratch(path, "no/such");
    assert_false(array_file_can_write(path));
    assert_true(array_file_can_write(scratch_path));
    assert_true(array_file_can_write("/dev/null"));
    scratch_put("something", 9, " longer", 7);
    assert_true(array_file_write(scratch_path, parts, 2, error, sizeof error));
    assert_holds_text(scratch_path);
    unlink(scratch_path);
}

/* How the child ends that writes while the signal comes; whatever it leaves behind makes
 * scratch_remove fail. */
static int end_of_writer(int number, bool ignored)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(number, ignored ? SIG_IGN : SIG_DFL);
        signal_at_sync = number;
        _exit(array_file_write(scratch_path, parts, 2, error, sizeof error) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int count_files(void)
{
    char command[128], line[16] = "";
    snprintf(command, sizeof command, "ls %s | wc -l", scratch_folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

static void test_signals(void **state)
{
    static const int ending[] = {SIGHUP, SIGINT, SIGTERM};
    (void)state;
    for (int i = 0; i < 3; i++) {
        int status = end_of_writer(ending[i], false);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == ending[i]);
        assert_int_equal(count_files(), 0);
        status = end_of_writer(ending[i], true); /* nohup */
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_holds_text(scratch_path);
        unlink(scratch_path);
    }
}

/* Beyond the limit of a file's size: an error, not an end. */
static void test_limit(void **state)
{
    struct rlimit before, low;
    (void)state;
    getrlimit(RLIMIT_FSIZE, &before);
    low = before, low.rlim_cur = 5;
    setrlimit(RLIMIT_FSIZE, &low);
    bool written = array_file_write(scratch_path, parts, 2, error, sizeof error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_false(written);
    assert_non_null(strstr(error, "too large"));
    assert_int_equal(count_files(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),  cmocka_unit_test(test_circle),  cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_places), cmocka_unit_test(test_signals), cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests_name("write", tests, scratch_create, scratch_remove);
}
