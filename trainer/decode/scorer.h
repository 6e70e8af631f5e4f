// The interface between a search and a model: one step of an incremental decoder, for many rows at
// once; and log-probabilities of given translations.
//
// A search never sees tensors, caches or devices; a model never sees beams. The result of a row
// must not depend on the rows beside it (or the model documents by how much it does). Distributions
// stay where the model is: a search asks for the few tokens that it wants of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/encoded_pair.h"
#include "trainer/data/vocabulary.h"
#include "trainer/kernels/native/sampling.h"

namespace deepnet {

// Kinds of tokens, a bit each, as a search tells them apart.
struct TokenKind {
  static constexpr uint8_t kNever = 1;  // never emitted
  static constexpr uint8_t kEnd = 2;    // </s>
  static constexpr uint8_t kOther = 4;
};

// The model's side of the rows of a search: encoder output, keys and values so far. Made by
// Scorer::Start, changed only by the Scorer that made it, used by one thread at a time.
class DecoderState {
 public:
  virtual ~DecoderState() = default;

  // Returns the number of rows that Step feeds. 0 is possible after a Reorder with no parents.
  virtual int num_rows() const = 0;
};

// A model as a search sees it. Must outlive the states it makes. One thread at a time.
class Scorer {
 public:
  virtual ~Scorer() = default;

  // Ids are 0 <= id < vocabulary_size().
  virtual int64_t vocabulary_size() const = 0;

  // Encodes `sources`: ids as the model was trained on, language tag and </s> included, each of at
  // least one id. The new state has one row per source, in order, and nothing decoded yet.
  virtual std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) = 0;

  // Row i of the state becomes what row parents[i] was, 0 <= parents[i] < num_rows(). Rows may
  // repeat (a beam forks), vanish (a hypothesis died, a sentence finished) or change places; the
  // number of rows becomes parents.size().
  virtual void Reorder(DecoderState& state, std::span<const int32_t> parents) = 0;

  // Feeds tokens[i] to row i as its next token (the first is </s>) and makes `choices` from the
  // distributions of the token after it: log-probabilities are natural, in float32. Rows of the
  // choices ascend, arrays are in host memory, and all steps of a state have the same `kinds`.
  // tokens.size() == num_rows(). Where a scorer has none to give, nothing is chosen.
  virtual void Step(DecoderState& state, std::span<const int32_t> tokens,
                    const native::TokenChoices& choices) = 0;
};

// Log-probabilities of complete targets.
class PairScorer {
 public:
  virtual ~PairScorer() = default;

  // result[i] = sum over t of log p(labels[t] | source, </s>, labels[0..t-1]) of pairs[i]: natural
  // logarithm, unsmoothed, no dropout, every label >= 0 counted. Any number of pairs of any lengths
  // the model takes, with a label each: the scorer cuts them into batches that fit memory. A result
  // does not depend on the pairs beside it.
  virtual std::vector<double> LogProbabilities(std::span<const EncodedPair> pairs) = 0;
};

}  // namespace deepnet
