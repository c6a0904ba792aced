#include "client/memory/dlpack.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace memtide::client {
namespace {

// The struct of dlpack.h 0.8, written here independently of dlpack.cc.
struct DlManaged {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
  void* context;
  void (*deleter)(DlManaged*);
};

TEST(DlpackTest, ATensorHasTheSpansAddressDeviceAndBytes) {
  DlpackSpans spans;
  auto* const tensor = static_cast<DlManaged*>(spans.Wrap({0x7000'0000, 4096}, {2, 3}));
  EXPECT_EQ(tensor->data, reinterpret_cast<void*>(0x7000'0000));
  EXPECT_EQ(tensor->device_type, 2);
  EXPECT_EQ(tensor->device_id, 3);
  EXPECT_EQ(tensor->dimensions, 1);
  EXPECT_EQ(tensor->shape[0], 4096);
  EXPECT_EQ(tensor->strides, nullptr);
  EXPECT_EQ(tensor->code * 1000 + tensor->bits, 1008);
  EXPECT_EQ(tensor->lanes, 1);
  tensor->deleter(tensor);
}

TEST(DlpackTest, ASpanReturnsOnceItsTensorIsDeletedFromWhicheverThread) {
  DlpackSpans spans;
  auto* const first = static_cast<DlManaged*>(spans.Wrap({64, 10}, {}));
  auto* const second = static_cast<DlManaged*>(spans.Wrap({128, 20}, {}));
  std::vector<Span> returned(4);
  EXPECT_EQ(spans.TakeReturned(returned.data(), 4), 0u);
  std::thread([&] { second->deleter(second); }).join();
  first->deleter(first);
  EXPECT_EQ(spans.TakeReturned(returned.data(), 1), 1u);
  EXPECT_EQ(returned[0].address, 128u);
  EXPECT_EQ(returned[0].size_bytes, 20u);
  EXPECT_EQ(spans.TakeReturned(returned.data(), 4), 1u);
  EXPECT_EQ(returned[0].address, 64u);
  EXPECT_EQ(spans.TakeReturned(returned.data(), 4), 0u);
}

TEST(DlpackTest, ATensorMayOutliveItsDlpackSpans) {
  DlManaged* tensor;
  {
    DlpackSpans spans;
    tensor = static_cast<DlManaged*>(spans.Wrap({64, 10}, {}));
  }
  tensor->deleter(tensor);
}

}  // namespace
}  // namespace memtide::client
