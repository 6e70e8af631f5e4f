#include "parallel/base/messages.h"

#include <gtest/gtest.h>

#include "proto/checkpoint.pb.h"

namespace deepnet {
namespace {

TEST(ToBytes, MakesAMessageOfNamesThatAreNotUtf8) {
  Manifest manifest;
  manifest.set_step(7);
  manifest.mutable_run()->set_folder("l\xe4ufe");
  manifest.mutable_run()->mutable_data()->add_directions("\xff-en");
  manifest.add_files()->add_extents()->set_name("\xc3\xa4 \xc3");
  Manifest read;
  ASSERT_TRUE(ParseSent(ToBytes(manifest), read).ok());
  EXPECT_EQ(read.step(), 7);
  EXPECT_EQ(read.run().folder(), "l\\xe4ufe");
  EXPECT_EQ(read.run().data().directions(0), "\\xff-en");
  EXPECT_EQ(read.files(0).extents(0).name(), "\xc3\xa4 \\xc3");
  EXPECT_EQ(manifest.run().folder(), "l\xe4ufe");  // as it was

  (*manifest.mutable_run()->mutable_parallel()).set_schedule("line\nline");
  ASSERT_TRUE(ParseSent(ToBytes(manifest), read).ok());
  EXPECT_EQ(read.run().parallel().schedule(), "line\nline");
}

TEST(ToIndentedJson, HasEveryFieldByItsNameAndNoBytesThatAreNotUtf8) {
  TensorExtent extent;
  extent.set_name("l\xe4ufe");
  EXPECT_EQ(ToIndentedJson(extent),
            "{\n \"name\": \"l\\\\xe4ufe\",\n \"shape\": [],\n \"first_element\": \"0\",\n"
            " \"num_elements\": \"0\",\n \"offset\": \"0\",\n \"dtype\": \"F32\"\n}\n");
}

TEST(ParseSent, NamesTheTypeOfWhatIsNoMessage) {
  Manifest manifest;
  const absl::Status status = ParseSent("\xff", manifest);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "a Manifest did not survive being sent");
}

}  // namespace
}  // namespace deepnet
