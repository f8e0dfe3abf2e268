/*
 * train_gpt.cpp: the kernels of examples/train_gpt for the emulated GPU.
 */
// clang-format off: words come first
#include "words.h"
#include "train_gpt/gpu/kernels.cu"
#include "entry.h"
// clang-format on

#define GPT_ENTRY(name, args) ENTRY(gpt_##name)
GPT_KERNELS(GPT_ENTRY)
