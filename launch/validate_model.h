// The model of a RunSpec: its shape, its residual scheme, its vocabulary.
#pragma once

#include "launch/mistakes.h"
#include "proto/run.pb.h"

namespace deepnet {

enum class Vocabulary { kRequired, kFromCorpus };

// Adds the mistakes of `model` to the list; nothing stops at the first.
void CheckModel(const ModelSpec& model, Vocabulary vocabulary, Mistakes* mistakes);

}  // namespace deepnet
