#include "daemon/replay/links.h"

#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = StartTransfer::Kind;
using std::chrono::microseconds;

constexpr Instant kStart{std::chrono::seconds(1)};

// 1 GB/s into the device, 2 out of it; the disk reads at 0.5 and writes at 0.25.
LinkOptions Speeds() {
  LinkOptions options;
  options.to_device = {1e9, microseconds(10)};
  options.from_device = {2e9, microseconds(20)};
  options.disk_read = {0.5e9, microseconds(100)};
  options.disk_write = {0.25e9, microseconds(100)};
  return options;
}

StartTransfer Transfer(uint64_t number, Kind kind, uint64_t bytes = 1000000) {
  StartTransfer transfer;
  transfer.transfer = TransferId(number);
  transfer.kind = kind;
  transfer.size = Bytes(bytes);
  return transfer;
}

TEST(LinksTest, ATransferTakesLatencyAndBytesAtTheBandwidthOfItsKind) {
  for (const auto& [kind, time] : {std::pair(Kind::kHostToDevice, microseconds(1010)),
                                   std::pair(Kind::kDeviceToHost, microseconds(520)),
                                   std::pair(Kind::kSsdToHost, microseconds(2100)),
                                   std::pair(Kind::kHostToSsd, microseconds(4100)),
                                   std::pair(Kind::kZero, microseconds(10))}) {
    Links links(Speeds());
    EXPECT_FALSE(links.NextDone().has_value());
    links.Start(kStart, Transfer(1, kind));
    EXPECT_EQ(links.NextDone(), kStart + time);
    EXPECT_EQ(links.TakeDone(), TransferId(1));
    EXPECT_FALSE(links.NextDone().has_value());
  }
}

TEST(LinksTest, TransfersOfOneLinkQueueUp) {
  Links links(Speeds());
  links.Start(kStart, Transfer(1, Kind::kHostToDevice));
  links.Start(kStart + microseconds(10), Transfer(2, Kind::kHostToDevice));
  links.TakeDone();
  EXPECT_EQ(links.NextDone(), kStart + microseconds(2020));
  EXPECT_EQ(links.TakeDone(), TransferId(2));
  // An idle link does not save up time.
  links.Start(kStart + microseconds(5000), Transfer(3, Kind::kHostToDevice));
  EXPECT_EQ(links.NextDone(), kStart + microseconds(6010));
}

TEST(LinksTest, BothDirectionsOfTheDeviceWorkAtOnceAndTheDiskDoesOneThingAtATime) {
  Links links(Speeds());
  links.Start(kStart, Transfer(1, Kind::kHostToDevice));
  links.Start(kStart, Transfer(2, Kind::kDeviceToHost));
  links.Start(kStart, Transfer(3, Kind::kSsdToHost));
  links.Start(kStart, Transfer(4, Kind::kHostToSsd));
  EXPECT_EQ(links.TakeDone(), TransferId(2));
  EXPECT_EQ(links.TakeDone(), TransferId(1));
  EXPECT_EQ(links.TakeDone(), TransferId(3));
  EXPECT_EQ(links.NextDone(), kStart + microseconds(6200));
}

TEST(LinksTest, BytesAreCountedByLinkAndClearingIsNone) {
  Links links(Speeds());
  links.Start(kStart, Transfer(1, Kind::kHostToDevice, 1));
  links.Start(kStart, Transfer(2, Kind::kDeviceToHost, 20));
  links.Start(kStart, Transfer(3, Kind::kSsdToHost, 300));
  links.Start(kStart, Transfer(4, Kind::kHostToSsd, 4000));
  links.Start(kStart, Transfer(5, Kind::kZero, 50000));
  EXPECT_EQ(links.moved().to_device, Bytes(1));
  EXPECT_EQ(links.moved().from_device, Bytes(20));
  EXPECT_EQ(links.moved().disk_read, Bytes(300));
  EXPECT_EQ(links.moved().disk_written, Bytes(4000));
  EXPECT_EQ(links.moved().Total(), Bytes(4321));
}

TEST(LinksTest, WhatIsDoneAtTheSameTimeComesInTheOrderOfItsNumbers) {
  LinkOptions same = Speeds();
  same.from_device = same.to_device;
  Links links(same);
  links.Start(kStart, Transfer(1, Kind::kDeviceToHost));
  links.Start(kStart, Transfer(2, Kind::kHostToDevice));
  EXPECT_EQ(links.TakeDone(), TransferId(1));
}

}  // namespace
}  // namespace memtide
