#define DEEPNET_TABLE_OF_ISA Avx2Table
#include "trainer/kernels/native/kernels.inc"
