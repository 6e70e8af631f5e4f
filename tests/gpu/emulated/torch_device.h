// Tensors in the memory of the emulated GPUs: LibTorch's device type PrivateUse1, by the name
// "cuda_emulated". Programs link the objects of deepnet_emulated_torch_device, which register it.
//
// Tensors can be allocated, viewed, zeroed and copied; nothing else. Every other operation throws
// with its name: "emulated GPU: aten::add.Tensor is no operation of this device: arithmetic goes
// through Ops". Copies are of one type, between tensors whose rows are contiguous; they go through
// the runtime's copies on the thread's current stream, and one from or to the host is waited for
// unless it is non_blocking. Pinned tensors are cudaMallocHost's.
//
// Memory is kept as LibTorch's allocator for CUDA keeps it: a freed block may be handed out again
// at once to the stream that it was allocated on, whatever other streams still do with it. New
// tensors are NaN (bytes 0xff), in the stream's order. With PYTORCH_NO_CUDA_MEMORY_CACHING in the
// environment every tensor is a block of its own, so that what is written beyond it is seen when it
// is freed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include <c10/core/Device.h>

namespace emulated_gpu {

// Sets the stream on which the calling thread makes, zeroes and copies tensors of the stream's
// device. Null: the legacy default stream of the current device.
void SetCurrentStream(cudaStream_t stream);
cudaStream_t CurrentStream();  // of the current device

// "cuda_emulated:<index>".
c10::Device TorchDevice(int index);

// Bytes of a device in living tensors, and taken from it by the allocator.
struct TensorMemory {
  int64_t allocated = 0;
  int64_t reserved = 0;
};
TensorMemory ReadTensorMemory(int device);

// Gives memory that no tensor holds back to the device, for all devices.
void EmptyCache();

}  // namespace emulated_gpu
