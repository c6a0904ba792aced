#include "proto/kinds.h"

#include <gtest/gtest.h>

namespace memtide {
namespace {

TEST(KindsTest, EveryWordComesBackAndNoTwoShareANumber) {
  for (int i = 0; i < kChunkKinds; ++i) {
    const auto kind = static_cast<ChunkKind>(i);
    EXPECT_EQ(FromProto(ToProto(kind)), kind);
  }
  for (const Access access : {Access::kRead, Access::kWrite}) {
    EXPECT_EQ(FromProto(ToProto(access)), access);
  }
  for (const Phase phase : {Phase::kOther, Phase::kForward, Phase::kBackward, Phase::kStep}) {
    EXPECT_EQ(FromProto(ToProto(phase)), phase);
  }
  for (const MemoryKind kind :
       {MemoryKind::kSharedMemory, MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc}) {
    EXPECT_EQ(FromProto(ToProto(kind)), kind);
  }
}

TEST(KindsTest, WhatANewerPeerSendsIsTheFirstOfItsType) {
  EXPECT_EQ(FromProto(static_cast<v1::ChunkKind>(99)), ChunkKind::kOther);
  EXPECT_EQ(FromProto(static_cast<v1::Access>(99)), Access::kRead);
  EXPECT_EQ(FromProto(static_cast<v1::Phase>(99)), Phase::kOther);
  EXPECT_EQ(FromProto(v1::MEMORY_KIND_UNSPECIFIED), MemoryKind::kSharedMemory);
}

}  // namespace
}  // namespace memtide
