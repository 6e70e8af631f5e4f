#include "trainer/kernels/cuda_session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

using at::Tensor;

// Blocks up to 1 MiB come from segments of 2 MiB, two blocks each.
constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int kSmallBlocks = 32;

// Comparisons of a kind of passes, at most. Passes of a chunk use as many sets of buffers as
// microbatches are in flight; those that use ever new ones stay eager.
constexpr int kMaxTrials = 32;

// LibTorch's memory of `device`, so that there is one owner of all of it.
cuda::GpuStream::Allocator AllocatorOf(at::Device device) {
  return [device](int64_t bytes) {
    auto tensor =
        std::make_shared<Tensor>(at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)));
    void* const memory = tensor->data_ptr();
    return std::shared_ptr<void>(std::move(tensor), memory);
  };
}

// Checks what kernels rely on and cannot say. Kernels for CPUs check the same. `padded`: there may
// be rows behind the last sentence.
void CheckOffsets(const PackedRows& host, bool padded) {
  const int32_t* const offsets = host.offsets;
  const int32_t end = offsets[host.num_sentences];
  DEEPNET_CHECK(offsets[0] == 0 && (end == host.count || (padded && end < host.count)))
      << "offsets from " << offsets[0] << " to " << end << " of " << host.count << " rows";
  for (int s = 0; s < host.num_sentences; ++s) {
    DEEPNET_CHECK_LE(offsets[s], offsets[s + 1]) << "offsets of sentence " << s;
  }
}

// Returns the largest distance of neighbours.
int64_t LongestOf(std::span<const int32_t> starts) {
  int64_t longest = 0;
  for (size_t i = 1; i < starts.size(); ++i) {
    longest = std::max<int64_t>(longest, starts[i] - starts[i - 1]);
  }
  return longest;
}

void CheckKeys(const PackedRows& queries, const PackedRows& keys) {
  if (queries.count == 0 || keys.count == 0 || queries.offsets == nullptr) return;
  if (keys.offsets == nullptr) return;
  for (int s = 0; s < queries.num_sentences; ++s) {
    DEEPNET_CHECK(queries.offsets[s] == queries.offsets[s + 1] ||
                  keys.offsets[s] < keys.offsets[s + 1])
        << "sentence " << s << " has no keys";
  }
}

// Returns the largest of `numbers`, which are at least -1.
int32_t LargestOf(std::span<const int32_t> numbers, const char* what) {
  int32_t largest = -1;
  for (size_t row = 0; row < numbers.size(); ++row) {
    DEEPNET_CHECK(numbers[row] >= -1) << "row " << row << " has " << what << " " << numbers[row];
    largest = std::max(largest, numbers[row]);
  }
  return largest;
}

int64_t BytesOf(const PackedRows& rows) {
  if (rows.count == 0) return 0;
  const int64_t numbers = UploadBytes(rows.count);
  // Tokens, positions, pairs, offsets; and twice the rows in order, their indices and their starts.
  return 3 * numbers + UploadBytes(rows.num_sentences + 1) +
         2 * (2 * numbers + UploadBytes(rows.count + 1));
}

// Puts the rows of `index` in order and adds them to `block`.
cuda::SortedRows AddSorted(cuda::UploadBlock& block, std::span<const int32_t> index,
                           int64_t num_indices, native::RowsByIndex& sorted) {
  native::SortRows(index, num_indices, sorted);
  return {.order = block.Add(std::span<const int32_t>(sorted.order)),
          .starts = block.Add(std::span<const int32_t>(sorted.starts)),
          .indices = block.Add(std::span<const int32_t>(sorted.indices)),
          .num_unique = static_cast<int64_t>(sorted.indices.size()),
          .longest = LongestOf(sorted.starts)};
}

// Adds what kernels read of a side of a microbatch to `block`.
PackedRows AddRows(cuda::UploadBlock& block, const PackedRows& host) {
  const auto count = static_cast<size_t>(host.count);
  PackedRows sent = host;
  if (count == 0) return sent;
  sent.tokens = block.Add(std::span(host.tokens, count));
  const std::span positions(reinterpret_cast<const int32_t*>(host.positions), count);
  sent.positions = reinterpret_cast<const uint32_t*>(block.Add(positions));
  sent.pairs = block.Add(std::span(host.pairs, count));
  if (host.offsets == nullptr) return sent;
  sent.offsets = block.Add(std::span(host.offsets, static_cast<size_t>(host.num_sentences) + 1));
  return sent;
}

// An uploaded microbatch: it keeps the device's arrays and what is known of them here.
struct Uploaded {
  GpuRowIndex source, target;
  std::shared_ptr<const void> arrays;
  int64_t number = 0;                // of the upload
  const std::byte* begin = nullptr;  // of what passes read: `bytes`, the step last
  int64_t bytes = 0;
};

std::vector<Tensor> OnHost(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> here;
  for (const Tensor& x : tensors) here.push_back(x.to(at::kCPU));
  return here;
}

void CopyTo(const std::vector<Tensor>& to, const std::vector<Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

bool HaveBits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
  });
}

}  // namespace

// LibTorch knows a stream that it has not made by its handle.
CurrentStream::CurrentStream(at::Device device, cudaStream_t stream)
    : guard_(device.type()),
      stream_(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream)) {
  DEEPNET_CHECK(stream_.native_handle() == stream) << "LibTorch takes no streams of others";
  guard_.exchangeStream(stream_);
}

CurrentStream::~CurrentStream() {
  const c10::Stream standard = guard_.getDefaultStream(stream_.device());
  if (guard_.getStream(stream_.device()) == stream_) guard_.exchangeStream(standard);
}

CudaSession::CudaSession(at::Device device, bool check_launches, bool graphs)
    : device_(device),
      repeats_(graphs),
      check_launches_(check_launches),
      gpu_(check_launches, AllocatorOf(device)),
      current_(device, gpu_.get()),
      graphs_(gpu_),
      uploads_(gpu_),
      results_(gpu_) {}

// LibTorch's allocator keeps what is given back, and cuts small blocks from segments of their own.
void CudaSession::Reserve(int64_t bytes, int num_batches, int64_t batch_bytes) {
  constexpr int64_t kSmall = kSmallBlocks * kSmallBytes;
  std::vector<std::shared_ptr<void>> blocks = {gpu_.Allocate(std::max<int64_t>(0, bytes - kSmall))};
  for (int i = 0; i < kSmallBlocks; ++i) blocks.push_back(gpu_.Allocate(kSmallBytes));
  blocks.clear();
  uploads_.Reserve(num_batches, batch_bytes);
}

// Adds the orders of the side's rows that are in sentences to `block`, and writes `index`, which
// must outlive `sent`.
void CudaSession::AddIndex(cuda::UploadBlock& block, const PackedRows& host, GpuRowIndex& index,
                           PackedRows& sent) {
  if (host.count == 0) return;
  index.rows = host.count;
  if (host.offsets != nullptr) {
    CheckOffsets(host, /*padded=*/repeats_);
    index.rows = host.offsets[host.num_sentences];
    index.longest = LongestOf({host.offsets, static_cast<size_t>(host.num_sentences) + 1});
    index.num_sentences = host.num_sentences;
    while (index.num_sentences > 0 && host.offsets[index.num_sentences - 1] == index.rows) {
      --index.num_sentences;
    }
    index.offsets = at::for_blob(const_cast<int32_t*>(sent.offsets), {host.num_sentences + 1})
                        .options(at::TensorOptions(device_).dtype(at::kInt))
                        .target_device(device_)
                        .make_tensor();
  }
  const std::span tokens(host.tokens, static_cast<size_t>(index.rows));
  const std::span positions(reinterpret_cast<const int32_t*>(host.positions), tokens.size());
  index.last_token = LargestOf(tokens, "id");
  index.last_position = LargestOf(positions, "position");
  index.tokens = AddSorted(block, tokens, int64_t{index.last_token} + 1, sorted_);
  index.positions = AddSorted(block, positions, int64_t{index.last_position} + 1, sorted_);
  sent.index = &index;
}

MicrobatchRows CudaSession::Upload(const MicrobatchRows& host) {
  const auto uploaded = std::make_shared<Uploaded>();
  const auto high_step = static_cast<uint32_t>(static_cast<uint64_t>(host.step) >> 32);
  const std::array<uint32_t, 2> step = {static_cast<uint32_t>(host.step), high_step << 28};
  cuda::UploadBlock block =
      uploads_.Begin(BytesOf(host.source) + BytesOf(host.target) + UploadBytes(host.target.count) +
                     cuda::UploadBlock::Padded(sizeof(step)));
  MicrobatchRows sent;
  CheckKeys(host.target, host.source);
  sent.source = AddRows(block, host.source);
  sent.target = AddRows(block, host.target);
  const void* const end = block.Add(std::span<const uint32_t>(step));
  AddIndex(block, host.source, uploaded->source, sent.source);
  AddIndex(block, host.target, uploaded->target, sent.target);
  if (host.labels != nullptr) {
    const std::span labels(host.labels, static_cast<size_t>(host.target.count));
    uploaded->target.last_label = LargestOf(labels, "target");
    sent.labels = block.Add(labels);
  }
  uploaded->arrays = uploads_.Send(std::move(block));
  uploaded->begin = static_cast<const std::byte*>(uploaded->arrays.get());
  uploaded->bytes = static_cast<const std::byte*>(end) - uploaded->begin + int64_t{sizeof(step)};
  uploaded->number = ++num_uploads_;
  sent.memory = uploaded;
  return sent;
}

std::shared_ptr<const std::byte> CudaSession::Upload(std::span<const std::byte> host) {
  cuda::UploadBlock block =
      uploads_.Begin(cuda::UploadBlock::Padded(static_cast<int64_t>(host.size_bytes())));
  const std::byte* copy = block.Add(host);
  return {uploads_.Send(std::move(block)), copy};
}

// The numbers of all microbatches are read from one place, so that launches on any of them are the
// same.
MicrobatchRows CudaSession::MoveIntoPass(const MicrobatchRows& rows) {
  const auto& uploaded = *static_cast<const Uploaded*>(rows.memory.get());
  if (pass_ == nullptr) {
    pass_bytes_ = uploaded.bytes;
    pass_ = gpu_.Allocate(pass_bytes_);
  }
  DEEPNET_CHECK_EQ(uploaded.bytes, pass_bytes_) << "microbatches of several capacities";
  auto* const here = static_cast<std::byte*>(pass_.get());
  if (std::exchange(in_pass_, uploaded.number) != uploaded.number) {
    gpu_.Launching();
    gpu_.Launched("Pass", cudaMemcpyAsync(here, uploaded.begin, static_cast<size_t>(pass_bytes_),
                                          cudaMemcpyDeviceToDevice, gpu_.get()));
  }
  const auto moved = [&]<typename T>(const T* array) {
    return reinterpret_cast<const T*>(here +
                                      (reinterpret_cast<const std::byte*>(array) - uploaded.begin));
  };
  MicrobatchRows pass = rows;
  for (PackedRows* side : {&pass.source, &pass.target}) {
    if (side->count == 0) continue;
    side->tokens = moved(side->tokens);
    side->positions = moved(side->positions);
    side->pairs = moved(side->pairs);
    side->offsets = moved(side->offsets);
  }
  gpu_.SetStep(reinterpret_cast<const uint32_t*>(here + pass_bytes_ - 2 * sizeof(uint32_t)));
  return pass;
}

void CudaSession::RunPass(const DevicePass& pass) {
  gpu_.StartClock();
  if (repeats_) {
    RunRepeatable(pass);
  } else {
    pass.run(pass.rows, /*provisional=*/false);
  }
  gpu_.StopClock();
}

// The graphs of a pass are used as soon as one such pass has had the bits of eager launches.
void CudaSession::RunRepeatable(const DevicePass& pass) {
  if (pass.watched) {
    RunOnce(pass, Use::kNone, /*provisional=*/false);
    return;
  }
  Trial& trial = trials_[pass.kind];
  if (trial.microbatch == pass.microbatch) {
    Compare(pass, trial.tries - 1);
    trial.microbatch = -1;
    return;
  }
  const bool records = trial.microbatch < 0 && trial.tries < kMaxTrials;
  const bool missed = RunOnce(pass, records ? Use::kRecord : Use::kProved, /*provisional=*/false);
  if (missed && records) trial = {pass.microbatch, trial.tries + 1};
}

// Runs a pass eagerly, and once more by graphs from the same state.
void CudaSession::Compare(const DevicePass& pass, int slot) {
  const auto changed = [&] {
    std::vector<Tensor> all = pass.state;
    const std::vector<Tensor> outputs = pass.outputs();
    all.insert(all.end(), outputs.begin(), outputs.end());
    return OnHost(all);
  };
  const std::vector<Tensor> before = OnHost(pass.state);
  RunOnce(pass, Use::kNone, /*provisional=*/true);
  const std::vector<Tensor> eager = changed();
  CopyTo(pass.state, before);
  RunOnce(pass, Use::kTry, /*provisional=*/true);
  const bool equal = HaveBits(changed(), eager);
  graphs_.Judge(equal);
  if (equal) return;
  warnings_.push_back(absl::StrFormat(
      "CUDA graphs of %s, slot %d do not give the bits of the same kernels launched one by one "
      "(microbatch %d): they are not used",
      pass.name, slot, pass.microbatch));
  CopyTo(pass.state, before);
  RunOnce(pass, Use::kNone, /*provisional=*/true);
}

// Returns whether launches had no graph yet. With check_launches all are made one by one, to be
// waited for.
bool CudaSession::RunOnce(const DevicePass& pass, Use use, bool provisional) {
  before_pass_();
  const MicrobatchRows rows = MoveIntoPass(pass.rows);
  graphs_.Begin(check_launches_ ? Use::kNone : use);
  pass.run(rows, provisional);
  const bool missed = graphs_.End();
  gpu_.SetStep(nullptr);
  return missed;
}

}  // namespace deepnet
