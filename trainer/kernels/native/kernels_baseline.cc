#define DEEPNET_TABLE_OF_ISA BaselineTable
#include "trainer/kernels/native/kernels.inc"
