/*
 * launch.c: see launch.h. The kernels are bytes of this program.
 */
#include "launch.h"

#define LITERAL(x) #x
#define STRING(x) LITERAL(x)

/* The fatbin; empty for the emulated GPU, which finds kernels by their names. */
#ifdef TRAIN_GPT_IMAGE
extern const unsigned char train_gpt_kernels[];
__asm__(".section .rodata\n.balign 64\n.globl train_gpt_kernels\ntrain_gpt_kernels:\n"
        ".incbin \"" STRING(TRAIN_GPT_IMAGE) "\"\n.previous\n");
#else
static const unsigned char train_gpt_kernels[1];
#endif

static void *kernels[KERNELS];

void launch_load(void)
{
    static const char *const names[KERNELS] = {
#define KERNEL_NAME(name, args) "gpt_" #name,
        GPT_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
    };
    void *image = gpu_image(train_gpt_kernels);
    for (int i = 0; i < KERNELS; i++) {
        kernels[i] = gpu_kernel(image, names[i]);
    }
}

void launch(int kernel, gpu_grid grid, const void *args)
{
    gpu_run(kernels[kernel], grid, args);
}

gpu_grid launch_threads(int64_t count)
{
    return (gpu_grid){(unsigned)((count + GPT_THREADS - 1) / GPT_THREADS), 1, 1, GPT_THREADS};
}

void *launch_scratch(uint64_t bytes)
{
    static void *scratch;
    static uint64_t room;
    if (bytes > room) {
        if (scratch != NULL) {
            gpu_free(scratch);
        }
        scratch = gpu_alloc(bytes);
        room = bytes;
    }
    return scratch;
}

/* ---- Products -------------------------------------------------------------------------------- */

enum { ENOUGH_BLOCKS = 128, LEAST_PART = 128 };

static int tiles(int count, int side)
{
    return (count + side - 1) / side;
}

/* The largest tiles that make blocks enough, k cut into parts where C is small. Depends on the
 * shape alone: parts change the sums. */
void launch_products(int sequences, matmul_args a)
{
    static const int side[] = {128, 64, 32},
                     kernel[] = {KERNEL_matmul_128, KERNEL_matmul_64, KERNEL_matmul_32};
    const int heads = sequences * a.heads;
    int i = 0, blocks;
    for (;; i++) {
        blocks = tiles(a.m, side[i]) * tiles(a.n, side[i]) * heads;
        const int most = heads > 1 ? 1 : tiles(a.k, LEAST_PART),
                  want = tiles(ENOUGH_BLOCKS, blocks);
        a.parts = want < most ? want : most;
        if (i == 2 || blocks * a.parts >= ENOUGH_BLOCKS) {
            break;
        }
    }
    const gpu_grid grid = {(unsigned)tiles(a.n, side[i]), (unsigned)tiles(a.m, side[i]),
                           (unsigned)(a.parts > 1 ? a.parts : heads), GPT_THREADS};
    const int64_t all = (int64_t)a.m * a.n;
    if (a.parts > 1) {
        a.partial = launch_scratch((uint64_t)(a.parts * all) * sizeof(real));
    }
    launch(kernel[i], grid, &a);
    if (a.parts > 1) {
        launch(KERNEL_matmul_parts, launch_threads(all),
               &(parts_args){a.m, a.n, a.parts, a.add, a.partial, a.c.data, a.c.row});
    }
}
