#include "trainer/data/corpus_shard.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr char kMagic[8] = {'D', 'N', 'P', 'A', 'I', 'R', 'S', '\n'};
constexpr int64_t kAlignment = 16;  // of every part

template <typename T>
std::string_view AsBytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

uint32_t HeaderCrc(const ShardHeader& header) {
  return Crc32c({reinterpret_cast<const char*>(&header), offsetof(ShardHeader, header_crc)});
}

// Returns true if the parts that a header names lie one after the other, aligned and inside of the
// file, whose size has been compared with checksums_offset.
bool IsConsistent(const ShardHeader& header) {
  struct Part {
    int64_t offset, count, bytes;
  };
  const Part parts[] = {{header.tokens_offset, header.num_tokens, header.token_bytes},
                        {header.index_offset, header.num_pairs, sizeof(ShardEntry)},
                        {header.lengths_offset, header.num_length_rows, sizeof(LengthRow)}};
  if (header.token_bytes != 2 && header.token_bytes != 4) return false;
  int64_t end = kShardDataOffset;
  for (const Part& part : parts) {
    if (part.offset < end || part.offset > header.checksums_offset) return false;
    if (part.offset % alignof(ShardEntry) != 0 || part.count < 0) return false;
    if (part.count > (header.checksums_offset - part.offset) / part.bytes) return false;
    end = part.offset + part.count * part.bytes;
  }
  return true;
}

size_t NumBlocks(const ShardHeader& header) {
  return static_cast<size_t>((header.checksums_offset - kShardDataOffset + kShardBlockBytes - 1) /
                             kShardBlockBytes);
}

template <typename T>
void Narrow(std::span<const int32_t> ids, std::string* bytes) {
  for (const int32_t id : ids) {
    const T stored = static_cast<T>(id);
    bytes->append(reinterpret_cast<const char*>(&stored), sizeof(T));
  }
}

}  // namespace

absl::StatusOr<uint64_t> HashFile(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const uint64_t hash = HashContent(file.bytes());
  RETURN_IF_ERROR(file.Intact());
  return hash;
}

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(const std::string& path,
                                                                 int32_t vocabulary_size) {
  auto writer = std::unique_ptr<ShardWriter>(new ShardWriter(path));
  writer->wide_ = vocabulary_size > 65536;
  for (const std::string& earlier : {path, writer->IndexPath()}) unlink(earlier.c_str());
  writer->file_.reset(fopen(path.c_str(), "wbx"));  // a new file, and no link's target
  writer->index_file_.reset(fopen(writer->IndexPath().c_str(), "w+bx"));
  if (writer->file_ == nullptr || writer->index_file_ == nullptr) return writer->Failure();
  setvbuf(writer->file_.get(), nullptr, _IOFBF, 1 << 20);
  setvbuf(writer->index_file_.get(), nullptr, _IOFBF, 1 << 18);
  const std::string zeros(kShardDataOffset, '\0');
  if (fwrite(zeros.data(), 1, zeros.size(), writer->file_.get()) != zeros.size()) {
    return writer->Failure();
  }
  return writer;
}

ShardWriter::~ShardWriter() { unlink(IndexPath().c_str()); }

absl::Status ShardWriter::Failure() const {
  return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path_, ": ", strerror(errno)));
}

absl::Status ShardWriter::Append(std::string_view bytes) {
  hasher_.Update(bytes);
  if (bytes.empty()) return absl::OkStatus();
  if (fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) return Failure();
  offset_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const size_t count =
        std::min(bytes.size(), static_cast<size_t>(kShardBlockBytes - block_fill_));
    block_crc_ = Crc32c(bytes.substr(0, count), block_crc_);
    block_fill_ += static_cast<int64_t>(count);
    bytes.remove_prefix(count);
    if (block_fill_ < kShardBlockBytes) break;
    checksums_.push_back(block_crc_);
    block_crc_ = 0;
    block_fill_ = 0;
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::Add(std::span<const int32_t> first, std::span<const int32_t> second) {
  scratch_.clear();
  for (const auto side : {first, second}) {
    wide_ ? Narrow<uint32_t>(side, &scratch_) : Narrow<uint16_t>(side, &scratch_);
  }
  const ShardEntry entry = {num_tokens_, static_cast<uint32_t>(first.size()),
                            static_cast<uint32_t>(second.size())};
  if (fwrite(&entry, sizeof(entry), 1, index_file_.get()) != 1) return Failure();
  const size_t longer = std::max(first.size(), second.size());
  if (lengths_.size() <= longer) lengths_.resize(longer + 1);
  LengthRow& row = lengths_[longer];
  row.num_pairs += 1;
  row.first_tokens += first.size();
  row.second_tokens += second.size();
  row.first_squares += first.size() * first.size();
  row.second_squares += second.size() * second.size();
  num_pairs_ += 1;
  num_tokens_ += static_cast<int64_t>(first.size() + second.size());
  return Append(scratch_);
}

absl::Status ShardWriter::Finish() {
  ShardHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kShardVersion;
  header.token_bytes = wide_ ? 4 : 2;
  header.num_pairs = num_pairs_;
  header.num_tokens = num_tokens_;
  header.tokens_offset = kShardDataOffset;
  RETURN_IF_ERROR(Append(std::string(static_cast<size_t>(-offset_ & (kAlignment - 1)), '\0')));
  header.index_offset = offset_;
  FILE* const index = index_file_.get();
  if (fflush(index) != 0 || fseek(index, 0, SEEK_SET) != 0) return Failure();
  std::string buffer(1 << 20, '\0');
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), index)) {
    RETURN_IF_ERROR(Append(std::string_view(buffer).substr(0, count)));
  }
  header.lengths_offset = offset_;
  header.num_length_rows = static_cast<int64_t>(lengths_.size());
  RETURN_IF_ERROR(Append(AsBytes(std::span<const LengthRow>(lengths_))));
  header.checksums_offset = offset_;
  if (block_fill_ > 0) checksums_.push_back(block_crc_);
  header.content_hash = hasher_.Digest();
  header.header_crc = HeaderCrc(header);
  const std::string_view checksums = AsBytes(std::span<const uint32_t>(checksums_));
  const bool written =
      (checksums.empty() || fwrite(checksums.data(), checksums.size(), 1, file_.get()) == 1) &&
      fseek(file_.get(), 0, SEEK_SET) == 0 &&
      fwrite(&header, sizeof(header), 1, file_.get()) == 1 && fflush(file_.get()) == 0 &&
      fsync(fileno(file_.get())) == 0;
  return written ? absl::OkStatus() : Failure();
}

struct Shard::Checked {
  enum State : uint8_t { kUnknown, kGood, kBad };
  explicit Checked(size_t num_blocks) : blocks(num_blocks) {}

  std::vector<std::atomic<uint8_t>> blocks;
  std::atomic<bool> damaged{false};
  absl::Mutex mutex;
  absl::Status damage ABSL_GUARDED_BY(mutex);  // the first that was found
};

Shard::Shard(MappedFile file, const ShardHeader& header, int32_t vocabulary_size)
    : file_(std::move(file)),
      header_(header),
      index_(reinterpret_cast<const ShardEntry*>(file_.bytes().data() + header.index_offset)),
      vocabulary_size_(static_cast<uint32_t>(vocabulary_size)),
      checked_(std::make_shared<Checked>(NumBlocks(header))) {}

void Shard::NoteDamage(std::string_view what) const {
  const absl::MutexLock lock(&checked_->mutex);
  if (checked_->damaged) return;
  checked_->damage = DataLoss(file_.path(), ": damaged: ", std::string(what));
  checked_->damaged = true;
}

absl::Status Shard::Intact() const {
  RETURN_IF_ERROR(file_.Intact());
  if (!checked_->damaged) return absl::OkStatus();
  const absl::MutexLock lock(&checked_->mutex);
  return checked_->damage;
}

std::string_view Shard::Block(size_t block) const {
  const auto end = static_cast<size_t>(header_.checksums_offset);
  const size_t begin = static_cast<size_t>(kShardDataOffset) + block * kShardBlockBytes;
  return file_.bytes().substr(begin, std::min<size_t>(kShardBlockBytes, end - begin));
}

bool Shard::CheckBlock(size_t block) const {
  const std::string_view bytes = Block(block);
  uint32_t expected = 0;
  std::memcpy(&expected, file_.bytes().data() + header_.checksums_offset + block * sizeof(expected),
              sizeof(expected));
  const bool good = Crc32c(bytes) == expected;
  if (!good) {
    const int64_t begin = bytes.data() - file_.bytes().data();
    NoteDamage(absl::StrCat("bytes ", begin, " to ", begin + static_cast<int64_t>(bytes.size()),
                            " do not match their checksum"));
  }
  checked_->blocks[block] = good ? Checked::kGood : Checked::kBad;
  return good;
}

bool Shard::AreGood(int64_t begin, int64_t bytes) const {
  if (bytes == 0) return true;
  const int64_t last = (begin + bytes - 1 - kShardDataOffset) / kShardBlockBytes;
  for (int64_t block = (begin - kShardDataOffset) / kShardBlockBytes; block <= last; ++block) {
    const uint8_t state =
        checked_->blocks[static_cast<size_t>(block)].load(std::memory_order_relaxed);
    if (state == Checked::kGood) continue;
    if (state == Checked::kBad || !CheckBlock(static_cast<size_t>(block))) return false;
  }
  return true;
}

absl::Status Shard::CheckContent() const {
  ContentHasher hasher;
  for (size_t block = 0; block < checked_->blocks.size(); ++block) {
    if (!CheckBlock(block)) return Intact();
    hasher.Update(Block(block));
  }
  RETURN_IF_ERROR(Intact());
  if (hasher.Digest() != header_.content_hash) NoteDamage("the content hash does not match");
  for (int64_t pair = 0; pair < header_.num_pairs && !checked_->damaged; ++pair) {
    First(pair);
    Second(pair);
  }
  return Intact();
}

uint64_t Shard::ChecksumsHash() const {
  return HashBytes(file_.bytes().substr(static_cast<size_t>(header_.checksums_offset)));
}

absl::StatusOr<Shard> Shard::Open(const std::string& path, int32_t vocabulary_size) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  const std::string_view bytes = file.bytes();
  const auto bad = [&path](const auto&... parts) { return DataLoss(path, ": ", parts...); };
  ShardHeader header = {};
  if (bytes.size() < kShardDataOffset) return bad("shorter than a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return bad("not a shard");
  if (header.version != kShardVersion) {
    return bad("version ", header.version, ", this program reads ", kShardVersion);
  }
  if (header.header_crc != HeaderCrc(header)) return bad("the header is damaged");
  if (header.checksums_offset < kShardDataOffset ||
      header.checksums_offset > static_cast<int64_t>(bytes.size())) {
    return bad("cut: ", bytes.size(), " bytes");
  }
  const int64_t size = header.checksums_offset + static_cast<int64_t>(NumBlocks(header)) * 4;
  if (static_cast<int64_t>(bytes.size()) != size) {
    return bad(bytes.size(), " bytes, should be ", size);
  }
  const std::string_view zeros = bytes.substr(sizeof(header), kShardDataOffset - sizeof(header));
  const size_t not_zero = zeros.find_first_not_of('\0');
  RETURN_IF_ERROR(file.Intact());
  if (not_zero != std::string_view::npos) {
    return bad("damaged: byte ", sizeof(header) + not_zero, " is not 0");
  }
  if (!IsConsistent(header)) return bad("its header names parts outside of the file");
  return Shard(std::move(file), header, vocabulary_size);
}

std::span<const LengthRow> Shard::lengths() const {
  const std::span rows(
      reinterpret_cast<const LengthRow*>(file_.bytes().data() + header_.lengths_offset),
      static_cast<size_t>(header_.num_length_rows));
  if (AreGood(header_.lengths_offset, static_cast<int64_t>(rows.size_bytes()))) return rows;
  return {};
}

std::vector<int32_t> Shard::Tokens(int64_t pair, int64_t begin, size_t count) const {
  const int64_t offset = header_.tokens_offset + begin * header_.token_bytes;
  if (!AreGood(offset, static_cast<int64_t>(count) * header_.token_bytes)) return {};
  const char* const first = file_.bytes().data() + offset;
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = header_.token_bytes == 2 ? reinterpret_cast<const uint16_t*>(first)[i]
                                                 : reinterpret_cast<const uint32_t*>(first)[i];
    if (id >= vocabulary_size_) {
      NoteDamage(absl::StrCat("pair ", pair, " has token ", id, ", the vocabulary is of ",
                              vocabulary_size_));
      return {};
    }
    tokens[i] = static_cast<int32_t>(id);
  }
  return tokens;
}

ShardEntry Shard::entry(int64_t pair) const {
  const auto bytes = static_cast<int64_t>(sizeof(ShardEntry));
  if (!AreGood(header_.index_offset + pair * bytes, bytes)) return {};
  const ShardEntry entry = index_[pair];
  const int64_t count = int64_t{entry.num_first} + entry.num_second;
  if (entry.first_token >= 0 && entry.first_token <= header_.num_tokens &&
      count <= header_.num_tokens - entry.first_token) {
    return entry;
  }
  NoteDamage(absl::StrCat("pair ", pair, " lies outside of the tokens"));
  return {};
}

std::vector<int32_t> Shard::First(int64_t pair) const {
  const ShardEntry place = entry(pair);
  return Tokens(pair, place.first_token, place.num_first);
}

std::vector<int32_t> Shard::Second(int64_t pair) const {
  const ShardEntry place = entry(pair);
  return Tokens(pair, place.first_token + place.num_first, place.num_second);
}

}  // namespace deepnet
