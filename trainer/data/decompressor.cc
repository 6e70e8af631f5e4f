#include "trainer/data/decompressor.h"

#include <zlib.h>
#include <zstd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr size_t kOutputBytes = 1 << 18;  // text produced by one call

class PlainText : public Decompressor {
 public:
  absl::StatusOr<bool> Decompress(std::string_view* input, std::string* output) override {
    output->append(*input);
    *input = {};
    return false;
  }
};

class Gzip : public Decompressor {
 public:
  Gzip() { DEEPNET_CHECK(inflateInit2(&stream_, 15 + 16) == Z_OK) << "zlib"; }
  ~Gzip() override { inflateEnd(&stream_); }

  absl::StatusOr<bool> Decompress(std::string_view* input, std::string* output) override {
    if (input->empty() && !output_full_) {
      if (member_open_) return absl::DataLossError("the gzip stream is cut short");
      return false;
    }
    if (!member_open_) inflateReset(&stream_);
    member_open_ = true;
    const size_t old_size = output->size();
    output->resize(old_size + kOutputBytes);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
    stream_.avail_in = static_cast<uInt>(input->size());
    stream_.next_out = reinterpret_cast<Bytef*>(output->data() + old_size);
    stream_.avail_out = kOutputBytes;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    output->resize(old_size + kOutputBytes - stream_.avail_out);
    input->remove_prefix(input->size() - stream_.avail_in);
    if (result == Z_STREAM_END) member_open_ = false;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return absl::DataLossError("the gzip stream is damaged");
    }
    output_full_ = member_open_ && stream_.avail_out == 0;
    return output_full_;
  }

 private:
  z_stream stream_ = {};
  bool member_open_ = true;
  bool output_full_ = false;  // zlib may hold text of bytes it has consumed
};

class Zstandard : public Decompressor {
 public:
  Zstandard() : stream_(ZSTD_createDStream()) { DEEPNET_CHECK(stream_ != nullptr) << "zstd"; }
  ~Zstandard() override { ZSTD_freeDStream(stream_); }

  absl::StatusOr<bool> Decompress(std::string_view* input, std::string* output) override {
    if (input->empty() && !output_full_) {
      if (frame_open_) return absl::DataLossError("the zstd stream is cut short");
      return false;
    }
    const size_t old_size = output->size();
    output->resize(old_size + kOutputBytes);
    ZSTD_inBuffer in = {input->data(), input->size(), 0};
    ZSTD_outBuffer out = {output->data() + old_size, kOutputBytes, 0};
    const size_t result = ZSTD_decompressStream(stream_, &out, &in);
    output->resize(old_size + out.pos);
    input->remove_prefix(in.pos);
    if (ZSTD_isError(result)) return absl::DataLossError("the zstd stream is damaged");
    frame_open_ = result != 0;
    output_full_ = frame_open_ && out.pos == out.size;
    return output_full_;
  }

 private:
  ZSTD_DStream* const stream_;
  bool frame_open_ = true;
  bool output_full_ = false;  // as above
};

}  // namespace

std::unique_ptr<Decompressor> MakeDecompressor(std::string_view first_bytes) {
  if (first_bytes.substr(0, 2) == "\x1f\x8b") return std::make_unique<Gzip>();
  if (first_bytes.substr(0, 4) == "\x28\xb5\x2f\xfd") return std::make_unique<Zstandard>();
  return std::make_unique<PlainText>();
}

}  // namespace deepnet
