// Measures what levels of recomputation cost in time and save in memory: forward and backward pass
// of both stacks, level by level in turns, so that a busy machine is busy for all of them.
//
//   recompute_bench [layers] [width] [rounds] [threads] [float32|bfloat16]
//   default:         18       256     7        2         float32
//
// Two shares are printed: of elapsed time, and of processor time, which with one thread says
// something even where other programs run. Embeddings, output layer and optimizer are left out: of
// a whole step the shares are smaller.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/clock.h"
#include "parallel/base/statistics.h"
#include "tests/support/layer_bytes.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/model/layer_stack.h"

namespace deepnet {
namespace {

constexpr int64_t kRows = 2000;

struct Shape {
  int layers = 18, width = 256, rounds = 7, threads = 2;
  DataType dtype = FLOAT32;
};

ModelSpec MakeModel(const Shape& shape) {
  ModelSpec spec;
  spec.set_encoder_layers(shape.layers);
  spec.set_decoder_layers(shape.layers);
  spec.set_d_model(shape.width);
  spec.set_ffn_dim(4 * shape.width);
  spec.set_num_heads(std::max(1, shape.width / 64));
  spec.set_residual(DEEPNORM);
  spec.set_vocabulary_size(8);
  spec.set_max_positions(64);
  spec.set_dropout(0.1);
  spec.set_layer_norm_epsilon(1e-5);
  return spec;
}

MicrobatchSpec MakeCapacity() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(kRows);
  capacity.set_max_target_tokens(kRows);
  capacity.set_max_sentences(kRows / 10);
  return capacity;
}

// Sentences of 10 to 45 positions that fill the capacity.
struct Sentences {
  Sentences() {
    for (int32_t length = 10; offsets.back() < kRows; length = length % 36 + 10) {
      const int32_t end = std::min<int32_t>(kRows, offsets.back() + length);
      for (int32_t i = offsets.back(); i < end; ++i) {
        positions.push_back(static_cast<uint32_t>(i - offsets.back()));
        pairs.push_back(static_cast<uint32_t>(offsets.size()));
      }
      offsets.push_back(end);
    }
    rows = {.count = kRows,
            .num_sentences = static_cast<int>(offsets.size()) - 1,
            .positions = positions.data(),
            .pairs = pairs.data(),
            .offsets = offsets.data()};
  }

  std::vector<int32_t> offsets = {0};
  std::vector<uint32_t> positions, pairs;
  PackedRows rows;
};

struct Took {
  double seconds, processor;
};

// Both stacks at one level.
class Candidate {
 public:
  Candidate(const ModelSpec& spec, const RecomputeChoice& options, Ops& ops,
            const Parameters& parameters)
      : options_(options),
        ops_(ops),
        source_work_(spec, ops, kRows, options.level),
        target_work_(spec, ops, kRows, options.level),
        encoder_({spec, MakeCapacity(), ops, parameters}, options,
                 {.stack = 0, .count = spec.encoder_layers()}),
        decoder_({spec, MakeCapacity(), ops, parameters}, options,
                 {.stack = 1, .count = spec.decoder_layers()}),
        encoder_kept_(encoder_.TakeKept(encoder_pool_, source_work_, source_work_)),
        decoder_kept_(decoder_.TakeKept(decoder_pool_, target_work_, source_work_)),
        source_(MakeResidualStream(ops, kRows, spec.d_model())),
        target_(MakeResidualStream(ops, kRows, spec.d_model())),
        dencoder_output_RD_(at::zeros_like(source_.value_RD)),
        dtarget_RD_(at::zeros_like(target_.value_RD)) {
    encoder_.Prepare(encoder_segment_);
    decoder_.Prepare(decoder_segment_);
    parameters.Refresh();
  }

  // One microbatch forward and backward; with `evict` as in a pipeline, where another microbatch
  // has used the segment's buffers in between.
  Took Run(const Sentences& sentences, bool evict) {
    for (const at::Tensor& x : {source_.value_RD, target_.value_RD, dtarget_RD_}) {
      x.copy_(at::sin(at::arange(x.numel(), x.options())).reshape(x.sizes()));
    }
    source_.operand_RD.copy_(source_.value_RD);
    target_.operand_RD.copy_(target_.value_RD);
    dencoder_output_RD_.zero_();
    const double start = SecondsNow();
    const std::clock_t ticks = std::clock();
    const MicrobatchPass microbatch{.seed = 1, .step = 1, .training = true};
    const PassContext source{
        .ops = &ops_, .rows = &sentences.rows, .microbatch = &microbatch, .work = &source_work_};
    encoder_.Forward(source, source_, encoder_kept_, encoder_segment_);
    const EncoderOutput encoder_output{.rows = &sentences.rows,
                                       .value_RD = source_.operand_RD,
                                       .gradient_RD = dencoder_output_RD_,
                                       .work = &source_work_};
    PassContext target = source;
    target.work = &target_work_;
    target.encoder_output = &encoder_output;
    decoder_.Forward(target, target_, decoder_kept_, decoder_segment_);
    if (evict) encoder_segment_.held = decoder_segment_.held = -1;
    decoder_.Backward(target, dtarget_RD_, decoder_kept_, decoder_segment_);
    encoder_.Backward(source, dencoder_output_RD_, encoder_kept_, encoder_segment_);
    return {SecondsNow() - start, static_cast<double>(std::clock() - ticks) / CLOCKS_PER_SEC};
  }

  const RecomputeChoice& options() const { return options_; }

 private:
  RecomputeChoice options_;
  Ops& ops_;
  Workspace source_work_, target_work_;
  LayerStack encoder_, decoder_;
  KeptPool encoder_pool_, decoder_pool_;
  LayerStack::Kept encoder_kept_, decoder_kept_;
  SegmentWorkspace encoder_segment_, decoder_segment_;
  ResidualStream source_, target_;
  at::Tensor dencoder_output_RD_, dtarget_RD_;
};

// Round by round, what candidate `i` takes beyond the first.
std::vector<double> Growth(const std::vector<std::vector<double>>& rounds, size_t i) {
  std::vector<double> growth;
  for (size_t r = 0; r < rounds[i].size(); ++r) growth.push_back(rounds[i][r] / rounds[0][r] - 1);
  return growth;
}

double KeptMebibytes(const ModelSpec& spec, const RecomputeChoice& options, DataType dtype) {
  int64_t bytes = 0;
  for (const LayerKind kind : {LayerKind::kEncoder, LayerKind::kDecoder}) {
    const int layers = kind == LayerKind::kEncoder ? spec.encoder_layers() : spec.decoder_layers();
    bytes += testing::KeptBytes(spec, MakeCapacity(), kind, options.level)
                 .Total(dtype == FLOAT32 ? 4 : 2) *
             layers / options.segment;
  }
  return static_cast<double>(bytes) / (1 << 20);
}

void Bench(const Shape& shape) {
  ComputeSpec compute;
  compute.set_dtype(shape.dtype);
  compute.set_threads_per_rank(shape.threads);
  const std::unique_ptr<Ops> ops = MakeNativeOps(compute);
  const ModelSpec spec = MakeModel(shape);
  Parameters parameters(Describe(spec, MakeCapacity()), *ops, /*trainable=*/true);
  parameters.Initialize(1);
  parameters.gradient().zero_();
  const Sentences sentences;
  std::vector<std::unique_ptr<Candidate>> candidates;
  for (const RecomputeChoice& options :
       {RecomputeChoice{NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 3}}) {
    candidates.push_back(std::make_unique<Candidate>(spec, options, *ops, parameters));
  }
  for (const bool evict : {false, true}) {
    std::vector<std::vector<double>> seconds(candidates.size()), processor(candidates.size());
    for (int round = -1; round < shape.rounds; ++round) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        const Took took = candidates[i]->Run(sentences, evict);
        if (round < 0) continue;
        seconds[i].push_back(took.seconds);
        processor[i].push_back(took.processor);
      }
    }
    std::printf("%s\n", evict ? "another microbatch in between" : "backward right after forward");
    for (size_t i = 0; i < candidates.size(); ++i) {
      const RecomputeChoice& options = candidates[i]->options();
      std::printf(
          "  %-5s %d  %8.1f ms  %+6.1f %%  processor %+6.1f %%  %8.1f MiB kept per microbatch\n",
          Recompute_Name(options.level).c_str(), options.segment, 1e3 * Median(seconds[i]),
          100 * Median(Growth(seconds, i)), 100 * Median(Growth(processor, i)),
          KeptMebibytes(spec, options, shape.dtype));
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  deepnet::Shape shape;
  if (argc > 1) shape.layers = std::atoi(argv[1]);
  if (argc > 2) shape.width = std::atoi(argv[2]);
  if (argc > 3) shape.rounds = std::max(1, std::atoi(argv[3]));
  if (argc > 4) shape.threads = std::max(1, std::atoi(argv[4]));
  if (argc > 5 && std::string(argv[5]) == "bfloat16") shape.dtype = deepnet::BFLOAT16;
  deepnet::Bench(shape);
  return 0;
}
