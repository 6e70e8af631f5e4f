// Early return on a bad Status: the only control-flow macros of the project.
//
// Example:
//   ASSIGN_OR_RETURN(const RunSpec spec, LoadRunSpec(path));
//   RETURN_IF_ERROR(Validate(spec));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                                                              \
  do {                                                                                           \
    if (absl::Status deepnet_status = (expression); !deepnet_status.ok()) return deepnet_status; \
  } while (false)

#define DEEPNET_CONCAT_INNER(a, b) a##b
#define DEEPNET_CONCAT(a, b) DEEPNET_CONCAT_INNER(a, b)

#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL(DEEPNET_CONCAT(deepnet_statusor_, __LINE__), lhs, expression)

#define ASSIGN_OR_RETURN_IMPL(statusor, lhs, expression) \
  auto statusor = (expression);                          \
  if (!statusor.ok()) return statusor.status();          \
  lhs = std::move(statusor).value()
