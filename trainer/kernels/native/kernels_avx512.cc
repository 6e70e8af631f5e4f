#define DEEPNET_TABLE_OF_ISA Avx512Table
#include "trainer/kernels/native/kernels.inc"
