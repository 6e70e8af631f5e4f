#include "trainer/model/flops.h"

namespace deepnet {

double StepFlops(const ModelSpec& model, const StepBatch& batch) {
  const double d = model.width(), f = model.ffn_width();
  double s = 0, t = 0, ss = 0, st = 0, tt = 0;
  for (const Microbatch& mb : batch.microbatches) {
    for (int i = 0; i < mb.num_sentences; ++i) {
      const double source = mb.source.offsets[i + 1] - mb.source.offsets[i];
      const double target = mb.target.offsets[i + 1] - mb.target.offsets[i];
      s += source;
      t += target;
      ss += source * source;
      st += source * target;
      tt += target * target;
    }
  }
  const double encoder = 2 * s * (4 * d * d + 2 * d * f) + 4 * d * ss;
  const double decoder = 2 * t * (6 * d * d + 2 * d * f) + 4 * s * d * d + 4 * d * (tt + st);
  const double output = 2 * t * d * static_cast<double>(model.vocabulary_size());
  return 3 * (model.encoder_layers() * encoder + model.decoder_layers() * decoder + output);
}

}  // namespace deepnet
