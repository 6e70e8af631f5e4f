#include "tests/trainer/model/stack_rig.h"

#include <utility>

#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet::testing {
namespace {

constexpr uint64_t kSeed = 9;
constexpr int64_t kStep = 77;

PackedRows RowsOfSide(const PackedSide& side, const std::vector<uint32_t>& pairs, int sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

// Numbers of size 1 that repeat nowhere.
at::Tensor Waves(const at::Tensor& like, double phase) {
  const at::Tensor index = at::arange(like.numel(), at::kDouble).reshape(like.sizes());
  return at::sin(index * 1.3 + phase).to(like.options());
}

void FillStream(const ResidualStream& stream, double phase) {
  stream.value_RD.copy_(Waves(stream.value_RD, phase));
  stream.operand_RD.copy_(stream.value_RD);
}

at::Tensor Real(const at::Tensor& x_RD, const PackedRows& rows) {
  return x_RD.narrow(0, 0, rows.count).clone();
}

// Random weights with gains and biases away from 1 and 0, so that nothing cancels.
void Perturb(Parameters& parameters) {
  parameters.Initialize(5);
  const at::Tensor& w = parameters.weights();
  w.add_(at::sin(at::arange(w.numel(), at::kDouble) * 1.7).to(w.options()), 0.1);
}

}  // namespace

std::vector<ModelSpec> StackVariants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : AllResiduals()) {
    if (!CanBeCut(residual)) continue;  // more than layers in a row
    for (const Activation activation : {RELU, GELU}) {
      for (const bool dropout : {false, true}) {
        // Each of the many schemes takes one of the four forms.
        const int form = 2 * int{activation == GELU} + int{dropout};
        if (residual > PRE_LN && residual % 4 != form) continue;
        ModelSpec spec = WithResidual(TinySpec(), residual);
        spec.set_encoder_layers(5);
        spec.set_decoder_layers(4);
        spec.set_activation(activation);
        if (dropout) spec.set_dropout(0.2);
        if (dropout) spec.set_attention_dropout(0.15);
        if (dropout) spec.set_activation_dropout(0.1);
        specs.push_back(spec);
        if (residual != POST_LN && residual != PERI_LN && residual != SUB_LN) continue;
        spec.set_norm(BATCH_NORM);  // another size of state
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

std::vector<NamedOps> AllOps() {
  std::vector<NamedOps> all;
  ComputeSpec compute;
  compute.set_threads_per_rank(2);
  compute.set_dtype(FLOAT32);
  all.push_back({"native float32", MakeNativeOps(compute)});
  compute.set_dtype(BFLOAT16);
  all.push_back({"native bfloat16", MakeNativeOps(compute)});
  all.push_back({"reference bfloat16", MakeAtenOps(at::kBFloat16, at::kFloat)});
  all.push_back({"reference float64", MakeAtenOps(at::kDouble, at::kDouble)});
  return all;
}

Microbatch StackMicrobatch(const ModelSpec& spec, int m) {
  Microbatch mb = TinyMicrobatch(spec, 3);
  for (uint32_t& pair : mb.source_pairs) pair += 10 * static_cast<uint32_t>(m);
  for (uint32_t& pair : mb.target_pairs) pair += 10 * static_cast<uint32_t>(m);
  return mb;
}

bool SameBits(const StackResult& a, const StackResult& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

StackRig::StackRig(const ModelSpec& spec, Ops& ops, const RecomputeChoice& options, int num_chunks)
    : spec_(spec),
      ops_(ops),
      parameters_(Describe(spec, TinyCapacity()), ops, /*trainable=*/true),
      source_work_(spec, ops, TinyCapacity().max_source_tokens(), options.level),
      target_work_(spec, ops, TinyCapacity().max_target_tokens(), options.level) {
  pass_ = {.seed = kSeed, .step = kStep, .training = true};
  Perturb(parameters_);
  parameters_.gradient().zero_();
  for (int c = 0; c < num_chunks; ++c) {
    const auto border = [&](int layers, int chunk) { return layers * chunk / num_chunks; };
    const int first = border(spec.encoder_layers(), c), end = border(spec.encoder_layers(), c + 1);
    const MicrobatchSpec capacity = TinyCapacity();
    const BuildContext build{spec, capacity, ops, parameters_};
    encoder_.emplace_back(build, options, LayerRun{0, first, end - first});
    const int start = border(spec.decoder_layers(), c), stop = border(spec.decoder_layers(), c + 1);
    decoder_.emplace_back(build, options, LayerRun{1, start, stop - start});
  }
  parameters_.Refresh();
  for (const LayerStack& stack : encoder_) stack.Prepare(encoder_segment_);
  for (const LayerStack& stack : decoder_) stack.Prepare(decoder_segment_);
}

PassContext StackRig::Context(const PackedRows& rows, Workspace& work) const {
  return {.ops = &ops_, .rows = &rows, .microbatch = &pass_, .work = &work};
}

StackRig::InFlight& StackRig::Of(int m) {
  if (static_cast<size_t>(m) < in_flight_.size()) return *in_flight_[m];
  auto f = std::make_unique<InFlight>();
  f->microbatch = StackMicrobatch(spec_, m);
  const Microbatch& mb = f->microbatch;
  f->source_rows = RowsOfSide(mb.source, mb.source_pairs, mb.num_sentences);
  f->target_rows = RowsOfSide(mb.target, mb.target_pairs, mb.num_sentences);
  const int64_t s = TinyCapacity().max_source_tokens(), t = TinyCapacity().max_target_tokens();
  f->source = MakeResidualStream(ops_, s, spec_.d_model());
  f->target = MakeResidualStream(ops_, t, spec_.d_model());
  f->encoder_output_RD = at::zeros({s, spec_.d_model()}, ops_.OperandOptions());
  f->dencoder_output_RD = at::zeros({s, spec_.d_model()}, ops_.ResidualOptions());
  KeptPool empty;
  for (const LayerStack& stack : encoder_) {
    f->encoder.push_back(stack.TakeKept(empty, source_work_, source_work_));
  }
  for (const LayerStack& stack : decoder_) {
    f->decoder.push_back(stack.TakeKept(empty, target_work_, source_work_));
  }
  in_flight_.push_back(std::move(f));
  return *in_flight_.back();
}

void StackRig::Forward(int m) {
  InFlight& f = Of(m);
  FillStream(f.source, m);
  FillStream(f.target, m + 100);
  const PassContext source = Context(f.source_rows, source_work_);
  for (size_t c = 0; c < encoder_.size(); ++c) {
    encoder_[c].Forward(source, f.source, f.encoder[c], encoder_segment_);
    f.source.operand_RD.copy_(f.source.value_RD);
  }
  f.encoder_output_RD.copy_(f.source.value_RD);
  const EncoderOutput encoder_output{.rows = &f.source_rows, .value_RD = f.encoder_output_RD};
  PassContext target = Context(f.target_rows, target_work_);
  target.encoder_output = &encoder_output;
  for (size_t c = 0; c < decoder_.size(); ++c) {
    decoder_[c].Forward(target, f.target, f.decoder[c], decoder_segment_);
  }
}

void StackRig::Backward(int m, std::vector<DeferredWeights>* deferred) {
  InFlight& f = Of(m);
  f.dtarget_RD = Waves(f.target.value_RD, m + 200);
  f.dencoder_output_RD.zero_();
  const EncoderOutput encoder_output{.rows = &f.source_rows,
                                     .value_RD = f.encoder_output_RD,
                                     .gradient_RD = f.dencoder_output_RD,
                                     .work = &source_work_};
  PassContext target = Context(f.target_rows, target_work_);
  target.encoder_output = &encoder_output;
  for (size_t c = decoder_.size(); c-- > 0;) {
    if (deferred != nullptr) pass_.deferred = &(*deferred)[encoder_.size() + c];
    decoder_[c].Backward(target, f.dtarget_RD, f.decoder[c], decoder_segment_);
  }
  f.dsource_RD = f.dencoder_output_RD.clone();
  const PassContext source = Context(f.source_rows, source_work_);
  for (size_t c = encoder_.size(); c-- > 0;) {
    if (deferred != nullptr) pass_.deferred = &(*deferred)[c];
    encoder_[c].Backward(source, f.dsource_RD, f.encoder[c], encoder_segment_);
  }
  pass_.deferred = nullptr;
}

StackResult StackRig::Result() const {
  StackResult result;
  for (const auto& f : in_flight_) {
    result.push_back(Real(f->source.value_RD, f->source_rows));
    result.push_back(Real(f->target.value_RD, f->target_rows));
    result.push_back(Real(f->dsource_RD, f->source_rows));
    result.push_back(Real(f->dtarget_RD, f->target_rows));
  }
  result.push_back(parameters_.gradient().clone());
  return result;
}

StackResult RunPlainLayers(const ModelSpec& spec, Ops& ops, int num_microbatches) {
  Parameters parameters(Describe(spec, TinyCapacity()), ops, /*trainable=*/true);
  Perturb(parameters);
  parameters.gradient().zero_();
  const int64_t s = TinyCapacity().max_source_tokens(), t = TinyCapacity().max_target_tokens();
  Workspace source_work(spec, ops, s), target_work(spec, ops, t);
  std::vector<TransformerLayer> encoder, decoder;
  const MicrobatchSpec capacity = TinyCapacity();
  const BuildContext build{spec, capacity, ops, parameters};
  for (int i = 0; i < spec.encoder_layers(); ++i) encoder.emplace_back(build, 0, i);
  for (int i = 0; i < spec.decoder_layers(); ++i) decoder.emplace_back(build, 1, i);
  parameters.Refresh();

  StackResult result;
  for (int m = 0; m < num_microbatches; ++m) {
    const Microbatch mb = StackMicrobatch(spec, m);
    const PackedRows sources = RowsOfSide(mb.source, mb.source_pairs, mb.num_sentences);
    const PackedRows targets = RowsOfSide(mb.target, mb.target_pairs, mb.num_sentences);
    const MicrobatchPass microbatch{.seed = kSeed, .step = kStep, .training = true};
    PassContext pass{
        .ops = &ops, .rows = &sources, .microbatch = &microbatch, .work = &source_work};
    std::vector<TransformerLayer::Saved> encoder_saved, decoder_saved;

    const ResidualStream source = MakeResidualStream(ops, s, spec.d_model());
    FillStream(source, m);
    const at::Tensor source_input_RD = source.operand_RD.clone();
    for (const TransformerLayer& layer : encoder) {
      encoder_saved.push_back(layer.MakeSaved(ops, s, s));
      layer.Forward(pass, source, encoder_saved.back());
    }
    const EncoderOutput encoder_output{.rows = &sources,
                                       .value_RD = source.value_RD.to(ops.OperandOptions()).clone(),
                                       .gradient_RD = at::zeros_like(source.value_RD),
                                       .work = &source_work};
    pass.encoder_output = &encoder_output;
    pass.rows = &targets;
    pass.work = &target_work;
    const ResidualStream target = MakeResidualStream(ops, t, spec.d_model());
    FillStream(target, m + 100);
    const at::Tensor target_input_RD = target.operand_RD.clone();
    for (const TransformerLayer& layer : decoder) {
      decoder_saved.push_back(layer.MakeSaved(ops, t, s));
      layer.Forward(pass, target, decoder_saved.back());
    }

    const at::Tensor dtarget_RD = Waves(target.value_RD, m + 200);
    for (size_t i = decoder.size(); i-- > 0;) {
      const Upstream upstream = i == 0 ? Upstream{.embedded_RD = target_input_RD}
                                       : decoder[i - 1].Output(decoder_saved[i - 1]);
      decoder[i].Backward(pass, upstream, dtarget_RD, decoder_saved[i]);
    }
    pass.rows = &sources;
    pass.work = &source_work;
    for (size_t i = encoder.size(); i-- > 0;) {
      const Upstream upstream = i == 0 ? Upstream{.embedded_RD = source_input_RD}
                                       : encoder[i - 1].Output(encoder_saved[i - 1]);
      encoder[i].Backward(pass, upstream, encoder_output.gradient_RD, encoder_saved[i]);
    }
    for (const auto& [x, rows] : {std::pair{source.value_RD, &sources},
                                  {target.value_RD, &targets},
                                  {encoder_output.gradient_RD, &sources},
                                  {dtarget_RD, &targets}}) {
      result.push_back(Real(x, *rows));
    }
  }
  result.push_back(parameters.gradient().clone());
  return result;
}

}  // namespace deepnet::testing
