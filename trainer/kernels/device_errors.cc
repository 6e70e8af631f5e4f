#include "trainer/kernels/device_errors.h"

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/units.h"

namespace deepnet {
namespace {

// "GPU 1 of host a: "; "" where no GPU is known.
std::string PlaceOf(const DeviceUse& use) {
  if (use.ops == nullptr || use.ops->session().stream() == nullptr) return "";
  const int index = use.ops->ResidualOptions().device().index();
  return absl::StrCat("GPU ", index, " of ", HostName(), ": ");
}

bool IsCudaError(absl::string_view text) {
  return absl::StrContains(text, "CUDA error") || absl::StrContains(text, "cuda error");
}

// The allocators of LibTorch say it by a type of their own on a device, by words on a CPU; CUDA by
// the name of an error.
bool IsOutOfMemory(absl::string_view text) {
  return absl::StrContains(text, "you tried to allocate") ||
         absl::StrContains(text, "cudaErrorMemoryAllocation") ||
         absl::StrContains(text, "CUDA error: out of memory");
}

absl::Status OutOfMemory(const std::string& text, const DeviceUse& use) {
  std::string message = absl::StrCat(PlaceOf(use), "out of memory: ", absl::StripSuffix(text, "."));
  if (use.planned_bytes > 0) {
    absl::StrAppend(&message, "; the plan of this rank has ", ByteText(use.planned_bytes));
  }
  if (use.ops != nullptr && use.ops->session().stream() != nullptr) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = at::accelerator::getDeviceStats(use.ops->ResidualOptions().device().index());
    const auto& bytes = stats.allocated_bytes[kAll];
    absl::StrAppend(&message, ", its tensors hold ", ByteText(bytes.current), ", at most ",
                    ByteText(bytes.peak));
  }
  return DoesNotFitError(message);
}

// Adds the place and the last launch to an error of CUDA whose text has neither.
std::string Completed(const std::string& text, const DeviceUse& use) {
  if (use.ops == nullptr || use.ops->session().stream() == nullptr || !IsCudaError(text))
    return text;
  if (absl::StrContains(text, "last launched")) return PlaceOf(use) + text;
  return absl::StrCat(PlaceOf(use), text, "; last launched: ", use.ops->session().LastLaunch());
}

absl::Status Failure(const std::string& text, const DeviceUse& use) {
  if (IsOutOfMemory(text)) return OutOfMemory(text, use);
  return absl::InternalError(Completed(text, use));
}

}  // namespace

absl::Status StatusOfException(const DeviceUse& use) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return OutOfMemory(error.what_without_backtrace(), use);
  } catch (const c10::Error& error) {
    return Failure(error.what_without_backtrace(), use);
  } catch (const std::bad_alloc& error) {
    return OutOfMemory(error.what(), use);
  } catch (const std::system_error& error) {  // of files, too
    return absl::UnknownError(error.what());
  } catch (const std::exception& error) {
    return Failure(error.what(), use);
  } catch (...) {
    return absl::InternalError("an exception of an unknown type");
  }
}

absl::Status CatchErrors(absl::FunctionRef<absl::Status()> work, const DeviceUse& use) {
  absl::Status status;
  try {
    status = work();
  } catch (...) {
    return StatusOfException(use);
  }
  if (status.ok() || !IsCudaError(status.message())) return status;
  if (absl::StrContains(status.message(), "last launched")) return status;
  absl::Status completed(status.code(), Completed(std::string(status.message()), use));
  status.ForEachPayload(
      [&](auto url, const absl::Cord& payload) { completed.SetPayload(url, payload); });
  return completed;
}

}  // namespace deepnet
