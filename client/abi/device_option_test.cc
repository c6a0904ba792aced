#include "client/abi/device_option.h"

#include "gtest/gtest.h"

namespace memtide::client {
namespace {

using absl::StatusCode;

TEST(DeviceOptionTest, ADeviceIsNamedByItsNumberOrItsUuid) {
  v1::OpenRequest request;
  EXPECT_TRUE(SetDevice("", &request).ok());
  EXPECT_EQ(request.device_case(), v1::OpenRequest::DEVICE_NOT_SET);
  EXPECT_TRUE(SetDevice("3", &request).ok());
  EXPECT_EQ(request.device_number(), 3u);
  EXPECT_TRUE(SetDevice("GPU-00010203-0405-0607-0809-0a0b0c0d0eFF", &request).ok());
  EXPECT_EQ(request.cuda_device_uuid(),
            std::string("\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\377", 16));
  EXPECT_TRUE(SetDevice("MIG-01010203-0405-0607-0809-0a0b0c0d0e0f", &request).ok());
  EXPECT_EQ(request.cuda_device_uuid().substr(0, 2), "\1\1");
}

TEST(DeviceOptionTest, OtherTextIsRefusedWithTheForms) {
  v1::OpenRequest request;
  for (const char* const text : {"-1", "4294967296", "cuda", "cuda:", "cuda:x", "GPU-", "GPU-0001",
                                 "emulated", "GPU-00010203-0405-0607-0809-0a0b0c0d0eFG", "0,1"}) {
    const absl::Status status = SetDevice(text, &request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
  }
  EXPECT_EQ(request.device_case(), v1::OpenRequest::DEVICE_NOT_SET);
}

}  // namespace
}  // namespace memtide::client
