// The handler of SIGBUS finds the mapping that the address lies in, marks it as lost and puts zeros
// in place of the rest of it; then the read that failed is repeated. It may run in any thread at
// any moment, so it looks at a list that takes no lock: entries are added and used again, and never
// removed.
#include "trainer/data/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "parallel/base/exit_code.h"

namespace deepnet {

struct MappedFile::Mapping {
  std::atomic<bool> used{false};  // belongs to a MappedFile
  std::atomic<bool> lost{false};
  std::atomic<uintptr_t> begin{0};  // 0: not to be looked at
  std::atomic<uintptr_t> end{0};
  Mapping* next = nullptr;
};

namespace {

using Mapping = MappedFile::Mapping;

std::atomic<Mapping*>& Mappings() {
  static constinit std::atomic<Mapping*> first{nullptr};
  return first;
}

// Returns an entry that nobody else uses.
Mapping* AcquireMapping() {
  for (Mapping* entry = Mappings(); entry != nullptr; entry = entry->next) {
    if (!entry->used.exchange(true)) return entry;
  }
  auto* const entry = new Mapping;  // stays: a handler may look at it at any time
  entry->used = true;
  entry->next = Mappings();
  while (!Mappings().compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

// Replaces the pages from that of `address` on, if they belong to a file. Only calls that a handler
// of a signal may make.
bool ReplacePages(uintptr_t address) {
  for (Mapping* entry = Mappings(); entry != nullptr; entry = entry->next) {
    const uintptr_t begin = entry->begin, end = entry->end;
    if (begin == 0 || address < begin || address >= end || entry->begin != begin) continue;
    entry->lost = true;
    const auto page_bytes = static_cast<uintptr_t>(getpagesize());
    const uintptr_t page = address / page_bytes * page_bytes;
    // Not mmap(): sanitizers put their own in its place, which a handler must not call.
    return syscall(SYS_mmap, page, end - page, PROT_READ,
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1L, 0L) != -1;
  }
  return false;
}

struct sigaction& HandlerBefore() {
  static struct sigaction before;
  return before;
}

void OnSigbus(int signal, siginfo_t* info, void*) {
  const int error = errno;
  const bool by_a_read = info->si_code > 0;  // else another process has sent it
  if (!by_a_read || !ReplacePages(reinterpret_cast<uintptr_t>(info->si_addr))) {
    sigaction(SIGBUS, &HandlerBefore(), nullptr);
    if (!by_a_read) raise(signal);  // comes when this has returned; a read fails again by itself
  }
  errno = error;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return NotFound(path, ": ", strerror(errno));
  struct stat status = {};
  const bool known = fstat(file, &status) == 0;
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (known && mapped.size_ > 0) {
    data = mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  if (!known || data == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat(path, ": ", strerror(error)));
  }
  if (data == nullptr) return mapped;
  Mapping* const mapping = AcquireMapping();
  mapping->lost = false;
  mapping->end = reinterpret_cast<uintptr_t>(data) + mapped.size_;
  mapping->begin = reinterpret_cast<uintptr_t>(data);
  mapped.mapping_ = mapping;
  mapped.data_.reset(static_cast<const char*>(data),
                     [size = mapped.size_, mapping](const char* bytes) {
                       mapping->begin = 0;
                       munmap(const_cast<char*>(bytes), size);
                       mapping->used = false;
                     });
  return mapped;
}

absl::Status MappedFile::Intact() const {
  if (mapping_ == nullptr || !mapping_->lost) return absl::OkStatus();
  return DataLoss(
      path_,
      ": it became shorter while it was read, or its disk failed; nothing behind can be read");
}

void SurviveLostPages() {
  struct sigaction action = {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  struct sigaction before = {};
  sigaction(SIGBUS, nullptr, &before);
  if (before.sa_sigaction == OnSigbus) return;
  HandlerBefore() = before;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace deepnet
