#define DEEPNET_TABLE_OF_ISA Avx512Bf16Table
#include "trainer/kernels/native/kernels.inc"
