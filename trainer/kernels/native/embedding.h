// Token and position embedding, and the deterministic sum of its gradient.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// x = Dropout(scale * table[token] + positions[position]) for each row; a token -1 is a padded row,
// which becomes 0.
template <typename T>
struct EmbedArgsOf {
  typename T::Rows rows = {};
  typename T::In table_VD = {};      // residual; kernels: of any element
  typename T::In positions_PD = {};  // residual, without gaps; kernels: undefined: 0
  typename T::Real scale = 1.0;
  DropoutSite dropout = {};
  typename T::Floats x_RD = {};       // out, residual; kernels: null: not wanted
  typename T::Out x_operand_RD = {};  // out, operand; undefined or x_RD
  typename T::Mask mask = {};         // out: as in ResidualNormArgs
};
using EmbedArgs = EmbedArgsOf<Pointers>;

void EmbedForward(Cpu& cpu, const EmbedArgs& args);

template <typename T>
struct EmbedGradArgsOf {
  typename T::Rows rows = {};
  typename T::In dx_RD = {};  // residual, without gaps; an Ops may overwrite it by its masked form
  typename T::Real scale = 1.0;
  double dropout_rate = 0.0;
  typename T::InMask mask = {};
  typename T::Out dtable_VD = {};      // +=, residual, without gaps
  typename T::Out dpositions_PD = {};  // likewise; undefined where positions are fixed
};
using EmbedGradArgs = EmbedGradArgsOf<Pointers>;

// dtable[token of r] += scale * keep(dx[r]) for each row r whose token is not -1, and nothing to
// dpositions. The rows of one token are added in the order of r, by one thread: the same bits for
// any number of threads.
void EmbedBackward(Cpu& cpu, const EmbedGradArgs& args);

// Returns the arguments that add the rows of each position to dpositions, as the table's.
EmbedGradArgs OfPositions(const EmbedGradArgs& args);

}  // namespace deepnet::native
