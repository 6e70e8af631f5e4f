#include "trainer/kernels/native/scratch.h"

#include <cstdlib>

#include "parallel/base/check.h"

namespace deepnet::native {

void Scratch::Free::operator()(float* p) const { std::free(p); }

void Scratch::Grow(Buffer& buffer, int64_t num_floats) {
  if (num_floats <= buffer.num_floats) return;
  constexpr int64_t kAlignment = 64;
  const int64_t num_bytes =
      (num_floats * static_cast<int64_t>(sizeof(float)) + kAlignment - 1) / kAlignment * kAlignment;
  buffer.data.reset(static_cast<float*>(std::aligned_alloc(kAlignment, num_bytes)));
  DEEPNET_CHECK(buffer.data != nullptr) << "no memory for " << num_bytes << " bytes of scratch";
  buffer.num_floats = num_floats;
}

float* Scratch::Reserve(int64_t num_floats) {
  Grow(shared_, num_floats);
  return shared_.data.get();
}

void Scratch::ReservePerThread(int num_threads, int64_t num_floats) {
  if (static_cast<int>(per_thread_.size()) < num_threads) per_thread_.resize(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) Grow(per_thread_[thread], num_floats);
}

int64_t Scratch::num_bytes() const {
  int64_t num_floats = shared_.num_floats;
  for (const Buffer& buffer : per_thread_) num_floats += buffer.num_floats;
  return num_floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace deepnet::native
