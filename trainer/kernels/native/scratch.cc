#include "trainer/kernels/native/scratch.h"

#include <new>

namespace deepnet::native {
namespace {

constexpr std::align_val_t kAlignment{64};

void Grow(AlignedBuffer& buffer, int64_t num_floats) {
  if (num_floats * int64_t{sizeof(float)} <= buffer.bytes()) return;
  buffer = AlignedBuffer(num_floats);
}

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t num_floats) : bytes_(num_floats * int64_t{sizeof(float)}) {
  data_.reset(static_cast<float*>(::operator new(bytes_, kAlignment)));
}

void AlignedBuffer::Free::operator()(float* p) const { ::operator delete(p, kAlignment); }

float* Scratch::Reserve(int64_t num_floats) {
  Grow(shared_, num_floats);
  return shared_.floats();
}

void Scratch::ReservePerThread(int num_threads, int64_t num_floats) {
  if (static_cast<int>(per_thread_.size()) < num_threads) per_thread_.resize(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) Grow(per_thread_[thread], num_floats);
}

int64_t Scratch::num_bytes() const {
  int64_t bytes = shared_.bytes();
  for (const AlignedBuffer& buffer : per_thread_) bytes += buffer.bytes();
  return bytes;
}

}  // namespace deepnet::native
