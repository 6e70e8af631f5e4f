// Admin's profiling pass (Liu et al., 2020, arXiv:2004.08249, section 4.3): how much every branch
// adds to its stream, which decides how heavily each sub-layer's stream has to weigh.
#pragma once

#include <vector>

#include "trainer/data/microbatch.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// omega of every sub-layer, 2N of the encoder and then 3M of the decoder: for each stack a running
// r, 1 at first; sub-layer i gets omega_i = r, then r <- sqrt(Var(omega_i x) + Var(f_i)), variances
// over all elements of one forward pass of `microbatch` in training mode (dropout on, keyed by
// `seed` and step 0).
//
// `model`: a whole one with residual ADMIN and its initial weights and working copies; its omegas
// are left as found here. Values are what model.scheme.admin_omega takes.
std::vector<double> ProfileAdmin(Transformer& model, const Microbatch& microbatch, uint64_t seed);

}  // namespace deepnet
