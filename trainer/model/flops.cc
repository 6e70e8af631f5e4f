#include "trainer/model/flops.h"

#include "parallel/plan/device_model.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

// The forward pass of one pair of sentences.
struct PairFlops {
  double encoder = 0;  // all layers
  double memory = 0;   // keys and values of the source, all decoder layers
  double decoder = 0;  // the rest of them, or all of a stack that stands alone
  double output = 0;
};

PairFlops Forward(const ModelSpec& model, double source, double target) {
  const double d = model.d_model(), f = model.ffn_dim();
  const double square = target * target / (LabelledStack(model) == 1 ? 2 : 1);
  const double output = 2 * target * d * static_cast<double>(model.vocabulary_size());
  if (!IsEncoderDecoder(model)) {
    const double layer = 2 * target * (4 * d * d + 2 * d * f) + 4 * d * square;
    return {.decoder = LayersOf(model, LabelledStack(model)) * layer, .output = output};
  }
  const double encoder_layer = 2 * source * (4 * d * d + 2 * d * f) + 4 * d * source * source;
  const double decoder_layer =
      2 * target * (6 * d * d + 2 * d * f) + 4 * d * (square + source * target);
  return {.encoder = model.encoder_layers() * encoder_layer,
          .memory = model.decoder_layers() * 4 * source * d * d,
          .decoder = model.decoder_layers() * decoder_layer,
          .output = output};
}

}  // namespace

double StepFlops(const ModelSpec& model, const StepBatch& batch) {
  double sum = 0;
  for (const Microbatch& mb : batch.microbatches) {
    for (int i = 0; i < mb.num_sentences; ++i) {
      const PairFlops pair = Forward(model, mb.source.offsets[i + 1] - mb.source.offsets[i],
                                     mb.target.offsets[i + 1] - mb.target.offsets[i]);
      sum += pair.encoder + pair.memory + pair.decoder + pair.output;
    }
  }
  return 3 * sum;
}

double SearchFlops(const ModelSpec& model, double source, double target, double beam) {
  const PairFlops pair = Forward(model, source, target);
  return pair.encoder + pair.memory + beam * (pair.decoder + pair.output);
}

double StatedPeakFlops(const std::string& gpu, const ClusterSpec& cluster, DataType operands) {
  const std::string model = DeviceModelOf(cluster.device_model(), gpu);
  if (model.empty()) return 0.0;
  const auto device = FindDeviceModel(model);
  return device.ok() ? PeakFlops(*device, operands) : 0.0;
}

}  // namespace deepnet
