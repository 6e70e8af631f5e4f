// The systems that experiments compare: what the paper calls them, and how they always look in a
// plot, so that a line means the same method in every figure.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace deepnet {

// Where a method has its normalisation: the column "LN" of the paper's table 1. Decides the marker.
enum class MethodFamily { kDeep, kPost, kPre, kNone };

struct Method {
  const char* key;            // in names of cells and files: "deepnet"
  const char* label;          // as the paper writes it: "DeepNet"
  const char* residual = "";  // of proto/model.proto: "DEEPNORM"
  MethodFamily family = MethodFamily::kPost;
  const char* light = "#555555";  // colour on a light page
  const char* dark = "#aaaaaa";   // on a dark one
  const char* dash = "";          // of the line, as SVG writes it; empty: solid
};

// All of them, DeepNet first, then by family.
std::span<const Method> Methods();

// The one called `key`; for any other key a grey one that is labelled with it. `key` must outlive
// the result.
Method FindMethod(const std::string& key);

// Keys of the ten systems of table 1, in its order with DeepNet first.
std::vector<std::string> PaperMethods();

// "model.residual=POST_LN" and what else the paper trains this method with, whatever the
// experiment, for --set.
std::vector<std::string> MethodSets(const Method& method);

}  // namespace deepnet
