/*
 * absent.c: the answer of a build without kernels: there was no nvcc, or numbers are double.
 */
#include "device.h"
#include "fail.h"

const device *device_cuda(void)
{
    fail(EXIT_INPUT, "--device=cuda: this program was built without nvcc");
}
